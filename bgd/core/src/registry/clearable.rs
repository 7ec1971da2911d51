//! What clearing the history frees: a request that needs the room of finished tasks gets it (R129), unless it needs more
//! than all of them use.

use super::Registry;
use crate::held::Release;
use crate::ordinal::Ordinal;
use crate::room::Stays;

impl Registry {
    /// Reports whether a task is part of the history.
    fn is_history(&self, ordinal: Ordinal) -> bool {
        self.get(ordinal).is_some_and(|task| self.history.part(ordinal, task).is_some())
    }

    /// Returns how many tasks of the history may go.
    pub fn count_clearable(&self, stays: &Stays) -> usize {
        let stay = stays.tasks().filter(|ordinal| self.is_history(*ordinal)).count();
        self.history.len().saturating_sub(stay)
    }

    /// Finds the values that go with the tasks that hold them, except those that stay.
    pub fn release_shared<'a>(&'a self, stays: &'a Stays) -> Release<'a> {
        Release::new(self.held.shared(), stays.shared())
    }
}
