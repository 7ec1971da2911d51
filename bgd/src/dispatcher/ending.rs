//! The dispatcher's part in the daemon's end: it has a deadline, whatever tasks, agents and channels do.

use std::time::{Duration, Instant};

use super::Dispatcher;
use crate::core::{Input, ReplyTo, Request};

/// How long the daemon has to end behind the grace of its tasks: executors have told by then which processes
/// SIGKILL does not end, and the grace of agents and channels is over.
const LAST: Duration = Duration::from_secs(15);

/// The same for one that was told twice.
const LAST_IN_A_HURRY: Duration = Duration::from_secs(2);

/// How far the daemon's end has come.
#[derive(Debug, Default)]
pub struct Ending {
    over_at: Option<Instant>,
    is_hurried: bool,
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
    fn limit(&mut self, time: Duration) {
        let at = Instant::now().checked_add(time);
        self.over_at = self.over_at.into_iter().chain(at).min();
    }
}

impl Dispatcher {
    /// A signal says that the daemon shall end. The second one means now.
    pub(super) fn terminate(&mut self, signal: &str) {
        tracing::info!(signal, "shutting down");
        let is_second = self.core.is_closing();
        let grace_ms = is_second.then_some(0);
        self.limit_the_end(grace_ms);
        if is_second {
            self.ending.is_hurried = true;
            self.ending.limit(LAST_IN_A_HURRY);
        }
        let to = ReplyTo { client: 0, call: 0 };
        self.handle(Input::Request { to, request: Request::Shutdown { grace_ms } });
        if is_second && self.ended {
            self.end_by_force();
        }
    }

    /// The daemon ends, and its tasks have this grace.
    pub(super) fn limit_the_end(&mut self, grace_ms: Option<u64>) {
        let grace_ms = grace_ms.unwrap_or_else(|| self.config.core_limits().grace_ms);
        self.ending.limit(Duration::from_millis(grace_ms).saturating_add(LAST));
    }
}
