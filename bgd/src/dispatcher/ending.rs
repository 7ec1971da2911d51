//! How far the daemon's end has come: it has a deadline, whatever tasks, agents and channels do.

use std::time::{Duration, Instant};

/// How far the daemon's end has come.
#[derive(Debug, Default)]
pub struct Ending {
    over_at: Option<Instant>,
    pub(super) is_hurried: bool,
}

impl Ending {
    /// When the daemon ends at the latest; nothing while it was not told to.
    pub fn over_at(&self) -> Option<Instant> {
        self.over_at
    }

    /// Whether it was told twice.
    pub fn is_hurried(&self) -> bool {
        self.is_hurried
    }

    /// It has so long from now on, and no longer than it had.
    pub(super) fn limit(&mut self, time: Duration) {
        let at = Instant::now().checked_add(time);
        self.over_at = self.over_at.into_iter().chain(at).min();
    }
}
