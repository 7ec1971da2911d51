//! The processes that are being started, and whether each is still wanted.

use std::collections::HashMap;

use bgd_shared::id::TaskId;

/// Whether a process that is being started is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Yes,
    /// Its task has ended meanwhile, as the start took too long: the process must be ended at once.
    No,
}

/// The runs whose processes are being started.
#[derive(Debug, Default)]
pub struct Starting(HashMap<(TaskId, u32), Wanted>);

impl Starting {
    /// Notes that the process of a run is being started.
    pub fn begin(&mut self, task: TaskId, run: u32) {
        self.0.insert((task, run), Wanted::Yes);
    }

    /// Notes that its start is over. Returns whether the process is still wanted.
    pub fn has_begun(&mut self, task: TaskId, run: u32) -> Wanted {
        self.0.remove(&(task, run)).unwrap_or(Wanted::Yes)
    }

    /// Notes that the process of a run is not wanted any more. Returns false if it is not being started.
    pub fn give_up(&mut self, task: TaskId, run: u32) -> bool {
        let Some(wanted) = self.0.get_mut(&(task, run)) else { return false };
        tracing::error!(%task, "the start of its process hangs: no longer waiting for it");
        *wanted = Wanted::No;
        true
    }

    /// Reports whether no process is being started.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
