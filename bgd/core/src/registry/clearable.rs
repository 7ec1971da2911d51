//! What clearing the history frees: a request that needs the room of finished tasks gets it (R129), unless it needs more
//! than all of them use.

use std::collections::BTreeMap;

use bgd_shared::id::TaskId;

use super::Registry;
use crate::ordinal::Ordinal;
use crate::room::Stays;
use crate::task::Task;

impl Registry {
    /// Returns a task of the history that may go.
    pub fn get_clearable(&self, ordinal: Ordinal, stays: &Stays) -> Option<&Task> {
        self.get(ordinal).filter(|_| !stays.has(ordinal) && self.is_history(ordinal))
    }

    /// Reports whether a task is part of the history.
    fn is_history(&self, ordinal: Ordinal) -> bool {
        self.get(ordinal).is_some_and(|task| self.history.part(ordinal, task).is_some())
    }

    /// Returns how many tasks of the history may go.
    pub fn count_clearable(&self, stays: &Stays) -> usize {
        let stay = stays.tasks().filter(|ordinal| self.is_history(*ordinal)).count();
        self.history.len().saturating_sub(stay)
    }

    /// Returns by how many bytes [`Self::held`] would fall if all tasks of the history that may go were cleared.
    pub fn clearable_bytes(&self, stays: &Stays) -> usize {
        let (mut own, mut shared) = (0, stays.shared().clone());
        let stay = stays.tasks().filter(|ordinal| self.is_history(*ordinal));
        for task in stay.filter_map(|ordinal| self.get(ordinal)) {
            own += task.own_bytes();
            shared.extend(task.shared());
        }
        self.history.freed(self.held.shared(), own, &shared)
    }

    /// Counts the tasks of the history that may go, by batch.
    pub fn clearable_by_batch(&self, stays: &Stays) -> BTreeMap<TaskId, u64> {
        let mut counts = BTreeMap::new();
        let tasks = self.history.tasks().filter_map(|ordinal| self.get_clearable(ordinal, stays));
        for batch in tasks.filter_map(|task| task.plan().batch) {
            *counts.entry(batch).or_default() += 1;
        }
        counts
    }
}
