//! Progress of the shutdown, which has a deadline whatever tasks, agents and channels do.

use std::time::{Duration, Instant};

use crate::core::Leaves;
use crate::exec::left::Spared;

/// Progress of the daemon's shutdown.
#[derive(Debug, Default)]
pub struct Ending {
    over_at: Option<Instant>,
    pub(super) is_hurried: bool,
    /// Whether the tasks here can outlive the daemon. Those elsewhere always can.
    pub(super) can_leave: bool,
    /// Which tasks a durable daemon leaves to the next one.
    pub(super) leaves: Leaves,
    /// Tells the processes that it leaves.
    pub(super) left: Spared,
}

impl Ending {
    /// Returns when the daemon ends at the latest; `None` while it is not shutting down.
    pub fn over_at(&self) -> Option<Instant> {
        self.over_at
    }

    /// Whether the daemon was told to end a second time, so that it must hurry.
    pub fn is_hurried(&self) -> bool {
        self.is_hurried
    }

    /// Tells the processes that go on without the daemon.
    pub fn left(&self) -> &Spared {
        &self.left
    }

    /// Limits the shutdown to this long from `now`. Never extends the deadline.
    pub(super) fn limit(&mut self, now: Instant, time: Duration) {
        let at = now.checked_add(time);
        self.over_at = self.over_at.into_iter().chain(at).min();
    }
}
