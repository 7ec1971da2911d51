//! A durable daemon's core: compares the persisted orders that processes may not have received with the processes
//! themselves. The next daemon repeats these orders, and nothing else records their fate.

use std::collections::VecDeque;

use bgd_core::{Control, Fact, Order, Snapshot, State, Undelivered};
use bgd_shared::id::TaskId;
use proptest::{prop_assert, prop_assert_eq};

use super::super::support::KILL;
use super::procs::{Proc, ProcState};
use super::{Checked, Sim};

/// An order that a run's executor is still to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordered {
    Pause,
    Continue,
    End(i32),
}

/// There is no order to carry out.
#[derive(Debug)]
pub struct NoOrder;

/// The orders of a process tree.
#[derive(Debug, Default)]
pub struct Orders {
    waiting: VecDeque<Ordered>,
    /// Whether the processes are stopped by a pause.
    is_stopped: bool,
}

impl Orders {
    pub fn add(&mut self, control: &Control) {
        match control {
            Control::Pause => self.waiting.push_back(Ordered::Pause),
            Control::Continue => self.waiting.push_back(Ordered::Continue),
            _ => {}
        }
    }

    pub fn add_end(&mut self, signal: i32) {
        self.waiting.push_back(Ordered::End(signal));
    }

    /// Notes that the leader has ended: nobody could continue the rest.
    pub fn leader_has_ended(&mut self) {
        self.is_stopped = false;
    }

    /// Carries out the oldest order. Returns the executor's report, if any; an error if there is no order.
    pub fn carry_out(&mut self, lives: bool) -> Result<Option<Fact>, NoOrder> {
        let first = self.waiting.pop_front().ok_or(NoOrder)?;
        match first {
            Ordered::Pause => self.is_stopped = lives,
            Ordered::Continue => self.is_stopped = false,
            Ordered::End(_) => {}
        }
        Ok((first != Ordered::Pause).then_some(Fact::Delivered))
    }
}

impl Sim {
    /// Persists the changes, as the journal does.
    pub(super) fn write_down(&mut self) {
        if !self.is_durable {
            return;
        }
        let changes = self.core.take_changes(self.now);
        for (ordinal, row) in changes.into_iter().flat_map(|changes| changes.tasks) {
            match row {
                Some(row) => _ = self.rows.insert(ordinal, row.task),
                None => _ = self.rows.remove(&ordinal),
            }
        }
    }

    /// Checks that if the daemon were killed now, the next one would repeat all orders that a process has not received,
    /// and none that would otherwise change the process.
    pub(super) fn r126_no_order_is_lost(&mut self) -> Checked {
        let mut repeated = Vec::new();
        for proc in self.procs.iter().filter(|proc| !proc.is_agent && proc.state != ProcState::Spawning) {
            let row = self.rows.values().find(|row| (row.id, row.run) == (proc.task, proc.run));
            if let Some(row) = row.filter(|_| !proc.is_killed() && !proc.gave_up) {
                no_order_is_lost(proc, row)?;
                repeated.extend(row.undelivered.as_deref().and_then(|undelivered| undelivered.last));
            }
        }
        for order in repeated {
            self.reach(match order {
                Order::Continue => "a continue is under way",
                Order::End { .. } => "a signal is under way",
            });
        }
        Ok(())
    }

    /// Checks that only a durable daemon notes orders, and none for a run that is over.
    pub(super) fn notes_no_order(&self, task: TaskId) -> Checked {
        let shown = self.core.get(&task.into());
        let has_proc = self.procs.iter().any(|proc| proc.task == task);
        if !self.is_durable || !has_proc {
            prop_assert!(shown.is_ok_and(|task| task.undelivered.is_none()), "{task}");
        }
        Ok(())
    }
}

fn no_order_is_lost(proc: &Proc, row: &Snapshot) -> Checked {
    let Orders { waiting, is_stopped } = &proc.orders;
    let Undelivered { last, count } = row.undelivered.as_deref().copied().unwrap_or_default();
    let reported = waiting.iter().filter(|order| **order != Ordered::Pause).count();
    prop_assert_eq!(count as usize, reported, "{:?} {:?}", waiting, row);
    if let (ProcState::Alive, State::Running { .. }) = (proc.state, &row.state) {
        let stops = row.paused || *is_stopped && last != Some(Order::Continue);
        prop_assert_eq!(stops, row.paused, "{:?} {:?}", waiting, row);
    }
    let ends = waiting.iter().rev().find_map(|order| match order {
        Ordered::End(signal) if *signal != KILL => Some(*signal),
        _ => None,
    });
    let noted =
        last.and_then(|order| if let Order::End { signal, .. } = order { Some(signal) } else { None });
    prop_assert!(ends.is_none() || noted == ends, "{:?} {:?}", waiting, row);
    Ok(())
}
