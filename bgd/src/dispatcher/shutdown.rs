//! The dispatcher's part in the daemon's end.

use std::time::{Duration, Instant};

use super::Dispatcher;
use crate::core::{Input, ReplyTo, Request};
use crate::exec::executor::Close;

/// How long the daemon has to end behind the grace of its tasks: executors have told by then which processes
/// SIGKILL does not end, and the grace of agents and channels is over.
const LAST: Duration = Duration::from_secs(15);

/// The same for one that was told twice.
const LAST_IN_A_HURRY: Duration = Duration::from_secs(2);

/// How long executors and channels have to end with the daemon, before they are made to.
const GRACE: Duration = Duration::from_secs(2);

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

    /// No task is left: what executors keep for themselves ends, and channels have a while to deliver.
    pub(super) fn begin_to_end(&mut self) {
        self.ended = true;
        self.forced_at = Instant::now().checked_add(GRACE);
        self.executors.all().for_each(|executor| executor.close(Close::Asked));
        self.notifier.close();
    }

    /// The grace is over.
    pub(super) fn end_by_force(&mut self) {
        self.forced_at = None;
        self.executors.all().for_each(|executor| executor.close(Close::Forced));
        // Who could not be told by now is not waited for.
        self.notifier.give_up();
    }

    /// Whether something of an executor is left, or something is still to be told.
    pub(super) fn is_busy(&self) -> bool {
        self.executors.is_busy() || self.notifier.is_busy()
    }
}
