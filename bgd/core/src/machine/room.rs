//! Room for new tasks: the limits on their number and their memory. On a daemon with a history, a request that needs
//! the room of finished tasks is accepted, and these are cleared, those that ended first first (R129). That may take
//! several steps: clearing the 100,000 tasks whose room a batch needs would delay other requests, and the events of all
//! of them would need much memory at once.

use super::{Core, Phase};
use crate::effect::CoreError;
use crate::history::History;
use crate::room::{GivesWay, Stays};
use crate::task::Ordinal;
use crate::time::Now;

impl Core {
    /// Returns how many more tasks fit once the history has given way.
    pub(super) fn room(&self, stays: &Stays) -> usize {
        let there = self.registry.len() + self.batches.reserved_tasks();
        let most = if self.has_history() {
            self.limits.tasks.saturating_add(self.registry.count_clearable(stays))
        } else {
            self.limits.tasks
        };
        most.saturating_sub(there)
    }

    /// Refuses this many more bytes if they exceed the limit on memory even once the history has given way.
    pub(super) fn check_memory(&self, more: usize, stays: &Stays) -> Result<(), CoreError> {
        let (held, limit) = (self.held(), self.limits.memory);
        let excess = held.saturating_add(more).saturating_sub(limit);
        if excess > 0 && !self.can_free(excess, stays) {
            let inboxes = self.inboxes.held();
            return Err(CoreError::FullMemory { held, inboxes, more, limit });
        }
        Ok(())
    }

    /// Reports whether clearing the history frees this many bytes. The cost depends on the length of the history only
    /// if that is large enough.
    fn can_free(&self, bytes: usize, stays: &Stays) -> bool {
        let keys = self.batches.key_bytes;
        if !self.has_history() || self.registry.history().held().saturating_add(keys) < bytes {
            return false;
        }
        // A wait for several tasks keeps those that are cleared meanwhile.
        let kept = self.waiters.held_more_without(|ordinal| self.registry.get_clearable(ordinal, stays));
        let (bytes, freed) = (bytes.saturating_add(kept), self.registry.clearable_bytes(stays));
        freed >= bytes
            || freed.saturating_add(keys) >= bytes
                && freed + self.batches.keys_without(&self.registry.clearable_by_batch(stays)) >= bytes
    }

    /// Reports whether finished tasks are cleared without a request.
    fn has_history(&self) -> bool {
        self.phase == Phase::Open && self.registry.history().limits().is_some()
    }

    /// Lets the history give way to a request, which [`Self::room`] and [`Self::check_memory`] have accepted.
    pub(super) fn give_way(&mut self, to: GivesWay) {
        if self.has_history() {
            self.gives_way.for_tasks |= to.for_tasks;
            self.gives_way.for_memory |= to.for_memory;
        }
    }

    /// Returns for which limits the history still has to give way. Not to an incomplete batch, which may yet be
    /// refused.
    fn must_give_way(&self) -> GivesWay {
        let GivesWay { for_tasks, for_memory } = self.gives_way;
        if !(for_tasks || for_memory) || !self.has_history() || self.registry.history().len() == 0 {
            return GivesWay::default();
        }
        let (tasks, bytes) = self.batches.incomplete();
        let there = self.registry.len() + self.batches.reserved_tasks();
        GivesWay {
            for_tasks: for_tasks && there.saturating_sub(tasks) > self.limits.tasks,
            for_memory: for_memory && self.held().saturating_sub(bytes) > self.limits.memory,
        }
    }

    /// Reports whether finished tasks are still to be cleared, whatever the time.
    pub(super) fn has_too_much_history(&self) -> bool {
        let GivesWay { for_tasks, for_memory } = self.must_give_way();
        for_tasks || for_memory || self.has_history() && self.registry.history().is_too_large()
    }

    /// Returns the finished task to clear next, if any.
    fn next_to_forget(&self, now: Now) -> Option<Ordinal> {
        let history = self.registry.history();
        let GivesWay { for_tasks, for_memory } = self.must_give_way();
        history.next(now.wall).or_else(|| history.tasks().next().filter(|_| for_tasks || for_memory))
    }

    /// Removes finished tasks beyond the limits of the history, and those that give way to a request (R129), some in
    /// each step.
    pub(super) fn forget_old(&mut self, now: Now) {
        let mut left = History::at_once();
        while left > 0
            && self.phase == Phase::Open
            && let Some(ordinal) = self.next_to_forget(now)
        {
            self.remove(now, ordinal);
            left -= 1;
        }
        self.gives_way = self.must_give_way();
    }
}
