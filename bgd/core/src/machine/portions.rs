//! Ending and removing many tasks: some in each step.

use std::collections::VecDeque;

use super::Core;
use crate::effect::Reply;
use crate::portions::{PORTION, Removals, Stops};
use crate::task::{Ordinal, StopOrder, StopReason};
use crate::time::Now;
use crate::waiters::{Until, WaitAction, Waiter};

impl Core {
    /// Asks tasks to end, in this order: at once if they are few, and otherwise some in each step. Until all of them have
    /// been asked, no pending task starts: it may be one of them.
    pub(super) fn stop_all(
        &mut self,
        now: Now,
        tasks: &[Ordinal],
        reason: StopReason,
        signal: i32,
        grace_ms: u64,
    ) {
        let order = StopOrder { reason, signal, grace_ms };
        let open = tasks.iter().copied().filter(|ordinal| !self.holds(*ordinal, Until::Settled));
        let open: VecDeque<Ordinal> = open.collect();
        if open.len() > PORTION && !self.portions.is_full() {
            return self.portions.stops.push_back(Stops { tasks: open, order, asker: self.asker });
        }
        for ordinal in open {
            self.stop(now, ordinal, order);
        }
    }

    /// Removes the tasks of a wait that is over, and replies: at once if they are few, and otherwise some in each step.
    /// None of them can be resumed meanwhile.
    pub(super) fn remove_all(&mut self, now: Now, waiter: Waiter) {
        if waiter.tasks.len() <= PORTION || self.portions.is_full() {
            return self.remove_some(now, Removals::new(waiter), usize::MAX);
        }
        let all = waiter.tasks.iter().map(|(ordinal, _)| *ordinal);
        let there = all.filter(|ordinal| self.registry.get(*ordinal).is_some());
        self.waiters.note_removals(there, waiter.then);
        self.portions.removals.push_back(Removals::new(waiter));
    }

    /// Does the next part of the work on many tasks.
    pub(super) fn do_portion(&mut self, now: Now) {
        if let Some(mut stops) = self.portions.stops.pop_front() {
            let count = stops.tasks.len().min(PORTION);
            self.asker = stops.asker;
            for ordinal in stops.tasks.drain(..count) {
                self.stop(now, ordinal, stops.order);
            }
            self.asker = None;
            if !stops.tasks.is_empty() {
                self.portions.stops.push_front(stops);
            }
        } else if let Some(removals) = self.portions.removals.pop_front() {
            self.remove_some(now, removals, PORTION);
        }
        if self.portions.is_empty() {
            for waiter in std::mem::take(&mut self.portions.shutdowns) {
                self.over(now, waiter);
            }
        }
    }

    /// Removes up to `most` further tasks of a wait, and replies after the last one.
    fn remove_some(&mut self, now: Now, removals: Removals, most: usize) {
        let Removals { waiter, next, mut removed } = removals;
        for (ordinal, _) in waiter.tasks.iter().skip(next).take(most) {
            removed += u64::from(self.remove(now, *ordinal));
        }
        let next = next.saturating_add(most);
        if next < waiter.tasks.len() {
            return self.portions.removals.push_front(Removals { waiter, next, removed });
        }
        let tasks = waiter.tasks.iter().map(|(_, id)| *id).collect();
        let reply = match waiter.then {
            WaitAction::EndSession { cancelled } => {
                Reply::SessionEnded { cancelled, cleared: removed, tasks }
            }
            WaitAction::Clear | WaitAction::Block | WaitAction::Cancel | WaitAction::Shutdown { .. } => {
                Reply::Cleared { cleared: removed, tasks }
            }
        };
        self.reply(waiter.to, reply);
    }
}
