//! A task that is cleared while its output is followed: its output ends, as it does with the task.

use bgd_shared::task::Task;

use crate::remark::say;

/// Reports that a task was cleared, given its last known state.
pub fn report_cleared(task: &Task) {
    let id = task.id.short();
    if task.started_at.is_none() && task.output.bytes == 0 {
        say(format_args!("bgctl: {id} was cleared before it had run"));
    } else {
        say(format_args!("bgctl: {id} was cleared, and the rest of its output with it"));
    }
}
