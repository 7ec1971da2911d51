//! Effects for the executor of a task.

use crate::core::effect::{Begin, Control, Effect};
use crate::core::task::Task;

/// Begins the task's run.
pub(super) fn start(task: &Task, begin: Begin) -> Effect {
    let (executor, spec) = (task.spec.work.executor(), task.spec.clone());
    Effect::Start { executor, task: task.id, run: task.run, spec, begin }
}

/// Does something about the task's run.
pub(super) fn control(task: &Task, control: Control) -> Effect {
    Effect::Control { executor: task.spec.work.executor(), task: task.id, run: task.run, control }
}

/// Denies what an agent has asked.
pub(super) fn deny(task: &Task, key: u64) -> Effect {
    control(task, Control::Answer { key, option: None })
}

/// Ends the task's run.
pub(super) fn end(task: &Task, signal: i32) -> Effect {
    Effect::End { executor: task.spec.work.executor(), task: task.id, run: task.run, signal }
}

/// Has everything of the task removed.
pub(super) fn forget(task: &Task) -> Effect {
    Effect::Forget { executor: task.spec.work.executor(), task: task.id, run: task.run }
}
