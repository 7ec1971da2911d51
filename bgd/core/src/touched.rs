//! The changes of a step, for persistence. Only their numbers, so that recording costs next to nothing.

use std::collections::BTreeSet;

use bgd_shared::id::TaskId;

use super::ordinal::Ordinal;

#[derive(Debug, Default)]
pub struct Touched {
    /// Tasks that were added, changed or removed.
    pub tasks: BTreeSet<Ordinal>,
    /// The batches of these tasks.
    pub batches: BTreeSet<TaskId>,
    pub added: Vec<TaskId>,
}

impl Touched {
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}
