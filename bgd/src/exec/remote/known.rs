//! The runs that this daemon knows on other machines, across all executors: several of them may lead to one machine,
//! where their tasks share a session, so that each must spare those of the others.

use std::collections::HashSet;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::mutex::Mutex;
use bgd_shared::task::Task;

use super::run::key_of;

/// The keys of the known runs. A run is known from the order to start it, or its adoption, until its end is recorded.
#[derive(Clone, Debug, Default)]
pub struct KnownRuns(Arc<Mutex<HashSet<String>>>);

impl KnownRuns {
    pub fn add(&self, task: TaskId, run: u32) {
        self.0.lock().insert(key_of(task, run));
    }

    pub fn remove(&self, task: TaskId, run: u32) {
        self.0.lock().remove(&key_of(task, run));
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns the ids of those of these tasks on a machine that belong to no known run.
    pub fn unknown_of(&self, tasks: &[Task]) -> Vec<TaskId> {
        let known = self.0.lock();
        let is_unknown = |task: &&Task| task.key.as_ref().is_none_or(|key| !known.contains(key));
        tasks.iter().filter(is_unknown).map(|task| task.id).collect()
    }
}
