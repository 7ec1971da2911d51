//! Room for new tasks: the limits on their number and their memory. On a daemon with a history, a request that needs
//! the room of finished tasks is accepted, and these are cleared, those that ended first first (R129). That may take
//! several steps: clearing the 100,000 tasks whose room a batch needs would delay other requests, and the events of all
//! of them would need much memory at once.

use std::collections::BTreeMap;

use bgd_shared::id::TaskId;

use super::{Core, Phase};
use crate::effect::CoreError;
use crate::history::History;
use crate::room::{GivesWay, Stays};
use crate::task::Ordinal;
use crate::time::Now;

impl Core {
    /// Returns how many more tasks fit once the history has given way.
    pub(super) fn room(&self, stays: &Stays) -> usize {
        let most = if self.has_history() {
            self.limits.tasks.saturating_add(self.registry.count_clearable(stays))
        } else {
            self.limits.tasks
        };
        most.saturating_sub(self.taken())
    }

    /// Returns how many tasks there are, including those that are still to be added.
    fn taken(&self) -> usize {
        self.registry.len() + self.batches.reserved_tasks()
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

    /// Reports whether clearing the history frees this many bytes. If so, the cost depends on the number of tasks that
    /// have to go, not on the length of the history: at the limit, every request needs the answer.
    fn can_free(&self, bytes: usize, stays: &Stays) -> bool {
        let history = self.registry.history();
        self.has_history()
            && history.held().saturating_add(self.batches.key_bytes) >= bytes
            && self.is_freed_by(history.tasks(), bytes, stays)
    }

    /// Reports whether clearing the first ones of these tasks frees this many bytes. Does not look at the rest.
    fn is_freed_by(&self, tasks: impl Iterator<Item = Ordinal>, bytes: usize, stays: &Stays) -> bool {
        let (mut needed, mut freed) = (bytes, 0_usize);
        let mut shared = self.registry.release_shared(stays);
        let mut of_batch: BTreeMap<TaskId, u64> = BTreeMap::new();
        for ordinal in tasks.filter(|ordinal| !stays.has(*ordinal)) {
            let Some(task) = self.registry.get(ordinal) else { continue };
            let of_values: usize = task.shared().map(|value| shared.release(value)).sum();
            freed = freed.saturating_add(task.own_bytes()).saturating_add(of_values);
            if let Some(batch) = task.plan().batch {
                let cleared = of_batch.entry(batch).or_default();
                *cleared += 1;
                freed = freed.saturating_add(self.batches.key_freed(batch, *cleared));
            }
            // A wait for several tasks keeps those that are cleared meanwhile.
            needed = needed.saturating_add(self.waiters.held_more_without(ordinal, task));
            if freed >= needed {
                return true;
            }
        }
        false
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
        GivesWay {
            for_tasks: for_tasks && self.taken().saturating_sub(tasks) > self.limits.tasks,
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bgd_shared::text::{Env, OsText};

    use super::*;
    use crate::caller::ReplyTo;
    use crate::history::HistoryLimits;
    use crate::input::{Command, Fact, Input, PlanRequest, Request};
    use crate::limits::CoreLimits;
    use crate::task::{Spec, Task, Work};

    /// Returns a core with this many finished tasks.
    fn core_with(tasks: u128) -> Core {
        let history =
            HistoryLimits { age_ms: 1 << 40, bytes: u64::MAX, tasks: usize::MAX, memory: usize::MAX };
        let limits = CoreLimits {
            max_concurrent_tasks: 1,
            tasks: 1000,
            memory: 1 << 30,
            environments: 0,
            grace_ms: 0,
            inbox_items: 1,
            history: Some(history),
        };
        let mut core = Core::new(limits, BTreeMap::new());
        for number in 1..=tasks {
            let task = TaskId::from_u128(number);
            let work = Work::Argv([OsText::from("true")].into());
            let command = Command {
                id: task,
                spec: Spec { work, ..Spec::of_daemon() },
                env: Env::default(),
                prompt: None,
                key: None,
                foreground: false,
                plan: PlanRequest::default(),
            };
            let (to, request) = (ReplyTo { client: 1, call: 1 }, Request::Submit(Box::new(command)));
            let _ = core.handle(Now::default(), Input::Request { to, request });
            let fact = Fact::StartFailed { failure: "no such file".into() };
            let _ = core.handle(Now::default(), Input::Fact { task, run: 1, fact });
        }
        assert_eq!(core.registry.history().len() as u128, tasks);
        core
    }

    #[test]
    fn r129_request_at_the_limit_looks_only_at_the_tasks_that_give_way() {
        let core = core_with(100);
        let history = || core.registry.history().tasks();
        let oldest = history().next().and_then(|ordinal| core.registry.get(ordinal));
        let each = oldest.map_or(0, Task::own_bytes);
        assert!(each > 1);
        for (bytes, expected) in [(1, 1), (each, 1), (each + 1, 2), (each * 9 + 1, 10)] {
            let looked = Cell::new(0);
            let tasks = history().inspect(|_| looked.set(looked.get() + 1));
            assert!(core.is_freed_by(tasks, bytes, &Stays::default()), "{bytes}");
            assert_eq!(looked.get(), expected, "{bytes}");
        }
        let all = core.held_by_tasks();
        assert!(core.is_freed_by(history(), all, &Stays::default()), "the shared folder goes with the last");
        assert!(!core.is_freed_by(history(), all + 1, &Stays::default()));
        assert!(!core.is_freed_by(history(), all, &Stays::of(history().take(1))));
    }
}
