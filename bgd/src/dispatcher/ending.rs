//! Progress of the shutdown, which has a deadline regardless of tasks, agents and channels.

use std::time::{Duration, Instant};

use crate::core::LeavePolicy;
use crate::exec::executor::Close;
use crate::exec::left::SparedProcesses;

/// Progress of the daemon's shutdown.
#[derive(Debug, Default)]
pub struct Ending {
    over_at: Option<Instant>,
    pub(super) is_urgent: bool,
    /// How the executors were last asked to end.
    pub(super) closed: Option<Close>,
    /// Whether the tasks here can outlive the daemon. Those elsewhere always can.
    pub(super) can_leave: bool,
    /// The tasks that a durable daemon leaves to the next one.
    pub(super) leaves: LeavePolicy,
    /// Identifies the processes that it leaves.
    pub(super) left: SparedProcesses,
    /// Whether it leaves runs on other machines or clusters.
    pub(super) leaves_elsewhere: bool,
}

impl Ending {
    /// Returns the deadline of the shutdown; `None` while the daemon is not shutting down.
    pub fn over_at(&self) -> Option<Instant> {
        self.over_at
    }

    /// Reports whether the daemon received a second signal and must hurry.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Returns the criteria that identify the processes left running.
    pub fn left(&self) -> &SparedProcesses {
        &self.left
    }

    /// Reports whether anything is left running, here or elsewhere.
    pub fn leaves_any(&self) -> bool {
        self.leaves_elsewhere || !self.left.is_empty()
    }

    /// Limits the shutdown to `time` from `now`. Never extends the deadline.
    pub(super) fn limit(&mut self, now: Instant, time: Duration) {
        let at = now.checked_add(time);
        self.over_at = self.over_at.into_iter().chain(at).min();
    }
}
