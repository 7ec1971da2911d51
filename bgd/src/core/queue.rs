//! Who starts next: tasks that wait are taken first in, first out, while slots are free. It knows nothing else of them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::task::{Ordinal, State};

/// What a task means to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It waits for a slot.
    Waits,
    /// It has one.
    HasSlot,
    /// It has nothing to do with the queue.
    Out,
}

impl From<&State> for Standing {
    fn from(state: &State) -> Self {
        match state {
            State::Queued { .. } => Self::Waits,
            State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Resuming { .. } => Self::HasSlot,
            State::Finished(_) => Self::Out,
        }
    }
}

/// The tasks that wait, and how many have a slot. Those that must not wait take one above the limit.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Queue {
    waiting: BTreeSet<Ordinal>,
    slots_used: usize,
}

impl Queue {
    /// A task has come or gone, or is in another state.
    pub fn change(&mut self, task: Ordinal, from: Standing, to: Standing) {
        match from {
            Standing::Waits => _ = self.waiting.remove(&task),
            Standing::HasSlot => self.slots_used = self.slots_used.saturating_sub(1),
            Standing::Out => {}
        }
        match to {
            Standing::Waits => _ = self.waiting.insert(task),
            Standing::HasSlot => self.slots_used += 1,
            Standing::Out => {}
        }
    }

    /// The task that starts next, if so many may run at once (R02, R03).
    pub fn next(&self, slots: usize) -> Option<Ordinal> {
        self.waiting.first().copied().filter(|_| self.slots_used < slots)
    }
}
