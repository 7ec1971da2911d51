//! What was changed in a step, for whoever writes the core down: numbers only, so that noting it costs next to nothing.

use std::collections::BTreeSet;

use bgd_shared::id::TaskId;

use super::ordinal::Ordinal;

/// The tasks that were changed.
#[derive(Debug, Default)]
pub struct Touched {
    /// Tasks that were added, changed or removed.
    pub tasks: BTreeSet<Ordinal>,
    /// The batches of these.
    pub batches: BTreeSet<TaskId>,
    /// The tasks that were added.
    pub added: Vec<TaskId>,
}

impl Touched {
    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}
