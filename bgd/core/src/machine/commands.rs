//! Constructors of the commands to a task's executor.

use crate::control::Control;
use crate::effect::{Begin, Effect};
use crate::task::{SIGKILL, Task};

pub(super) fn start(task: &Task, begin: Begin) -> Effect {
    let (executor, spec) = (task.spec.executor(), task.spec.clone());
    Effect::Start { executor, task: task.id, run: task.run, spec, begin }
}

pub(super) fn control(task: &Task, control: Control) -> Effect {
    Effect::Control { executor: task.spec.executor(), task: task.id, run: task.run, control }
}

/// Denies an agent's question.
pub(super) fn deny(task: &Task, key: u64) -> Effect {
    control(task, Control::Answer { key, option: None, by_user: false })
}

/// Ends a run by this signal, and by SIGKILL after the grace.
pub(super) fn end(task: &Task, signal: i32, grace_ms: u64) -> Effect {
    let grace_ms = if signal == SIGKILL { 0 } else { grace_ms };
    Effect::End { executor: task.spec.executor(), task: task.id, run: task.run, signal, grace_ms }
}

pub(super) fn kill(task: &Task) -> Effect {
    end(task, SIGKILL, 0)
}

/// Removes all data kept for the task.
pub(super) fn forget(task: &Task) -> Effect {
    Effect::Forget { executor: task.spec.executor(), task: task.id, run: task.run }
}

pub(super) fn written(task: &Task) -> Effect {
    Effect::Written { executor: task.spec.executor(), task: task.id, run: task.run }
}
