//! What the orders for a run want it to be, as far as its task on the machine may still differ: after a submission,
//! after another daemon or program has left the run, and after a time without a connection.

use bgd_shared::order::WaitingFor;
use bgd_shared::task::{Status, Task};

use crate::core::Control;

/// The wanted state of a run; `None` where nothing is to be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub held: Option<bool>,
    pub priority: Option<i32>,
    /// Whether its processes should be stopped.
    pub paused: Option<bool>,
}

impl Wanted {
    /// Adds an order. Returns `false` for one that asks for no state, and so can't be carried out later.
    pub const fn take(&mut self, control: &Control) -> bool {
        match control {
            Control::Hold { held, .. } => self.held = Some(*held),
            Control::Priority { priority, .. } => self.priority = Some(*priority),
            Control::Pause => self.paused = Some(true),
            Control::Continue => self.paused = Some(false),
            Control::Signal { .. } | Control::Answer { .. } | Control::Detach { .. } => return false,
        }
        true
    }

    /// Adds what was wanted later.
    pub fn then(self, later: Self) -> Self {
        Self {
            held: later.held.or(self.held),
            priority: later.priority.or(self.priority),
            paused: later.paused.or(self.paused),
        }
    }

    /// Returns the orders that make an active task what is wanted.
    pub fn orders(self, task: &Task) -> Vec<Control> {
        let Self { held, priority, paused } = self;
        let is_held = task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingFor::Held);
        let is_pending = task.status == Status::Pending;
        let paused = paused.filter(|wants| {
            matches!(task.status, Status::Running | Status::Resumed) && *wants != task.paused
        });
        // The machine refuses the hold of a task that is no longer pending, which the user should know.
        let held = held.filter(|wants| if is_pending { *wants != is_held } else { *wants });
        let priority = priority.filter(|wants| *wants != task.priority);
        let paused = paused.map(|wants| if wants { Control::Pause } else { Control::Continue });
        let held = held.map(|held| Control::Hold { held, is_again: false });
        let priority = priority.map(|priority| Control::Priority { priority, before: task.priority });
        paused.into_iter().chain(held).chain(priority).collect()
    }
}

/// Reports whether two orders want the same, so that the answer to one is also that to the other.
pub fn want_same(one: &Control, other: &Control) -> bool {
    let wanted = |control| {
        let mut wanted = Wanted::default();
        wanted.take(control).then_some(wanted)
    };
    wanted(one).is_some_and(|one| wanted(other) == Some(one))
}

/// The orders that were sent to the machine and not answered yet. If the connection breaks, they may be lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnderWay {
    wanted: Wanted,
    count: usize,
}

impl UnderWay {
    pub const fn sent(&mut self, control: &Control) {
        self.wanted.take(control);
        self.count += 1;
    }

    /// Notes an answer. Which order it belongs to is not known, so the orders are kept until the last answer.
    pub fn answered(&mut self) {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.wanted = Wanted::default();
        }
    }

    /// Returns what the unanswered orders want, as no answer to them will come.
    pub fn lost(&mut self) -> Wanted {
        std::mem::take(self).wanted
    }
}
