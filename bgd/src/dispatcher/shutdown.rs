//! The dispatcher's part in the daemon's end.

use std::time::Duration;

use super::Dispatcher;
use crate::core::{Input, ReplyTo, Request};

/// How long the daemon has to end behind the grace of its tasks: executors have told by then which processes
/// SIGKILL does not end, and the grace of agents and channels is over.
const LAST: Duration = Duration::from_secs(15);

/// The same for one that was told twice.
const LAST_IN_A_HURRY: Duration = Duration::from_secs(2);

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
