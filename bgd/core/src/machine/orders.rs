//! Constructors of the effects for a task's executor.

use crate::control::Control;
use crate::effect::{Begin, Effect};
use crate::task::Task;

pub(super) fn start(task: &Task, begin: Begin) -> Effect {
    let (executor, spec) = (task.spec.executor(), task.spec.clone());
    Effect::Start { executor, task: task.id, run: task.run, spec, begin }
}

pub(super) fn control(task: &Task, control: Control) -> Effect {
    Effect::Control { executor: task.spec.executor(), task: task.id, run: task.run, control }
}

/// Denies an agent's question.
pub(super) fn deny(task: &Task, key: u64) -> Effect {
    control(task, Control::Answer { key, option: None })
}

pub(super) fn end(task: &Task, signal: i32) -> Effect {
    Effect::End { executor: task.spec.executor(), task: task.id, run: task.run, signal }
}

/// Removes all data kept for the task.
pub(super) fn forget(task: &Task) -> Effect {
    Effect::Forget { executor: task.spec.executor(), task: task.id, run: task.run }
}

pub(super) fn written(task: &Task) -> Effect {
    Effect::Written { executor: task.spec.executor(), task: task.id, run: task.run }
}
