//! The dispatcher's part in returning memory to the system.

use super::Dispatcher;
use crate::core::Effect;
use crate::os::memory;

impl Dispatcher {
    /// Records the memory freed by these effects.
    pub(super) fn note_freed(&mut self, effects: &[Effect]) {
        let events = effects.iter().filter(|effect| matches!(effect, Effect::Event { .. })).count();
        self.freed.note(self.core.held(), events, self.clock.now());
    }

    /// Has a worker return freed memory to the system.
    pub(super) fn give_memory_back(&mut self) {
        self.freed.given_back();
        self.context.workers.later(memory::give_back);
    }
}
