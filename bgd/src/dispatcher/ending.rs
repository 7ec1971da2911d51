//! Progress of the shutdown, which has a deadline whatever tasks, agents and channels do.

use std::time::{Duration, Instant};

/// Progress of the daemon's shutdown.
#[derive(Debug, Default)]
pub struct Ending {
    over_at: Option<Instant>,
    pub(super) is_hurried: bool,
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

    /// Limits the shutdown to this long from `now`. Never extends the deadline.
    pub(super) fn limit(&mut self, now: Instant, time: Duration) {
        let at = now.checked_add(time);
        self.over_at = self.over_at.into_iter().chain(at).min();
    }
}
