//! The dispatcher's part in shutting down.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bgd_shared::holder;

use super::Dispatcher;
use crate::core::{Input, Leaves, ReplyTo, Request};
use crate::exec::executor::Close;

/// How long the shutdown may take beyond the grace of tasks. Long enough for executors to report processes that
/// survive SIGKILL, and for the grace of agents and channels.
const LAST: Duration = Duration::from_secs(15);

/// The same after a second signal.
const LAST_IN_A_HURRY: Duration = Duration::from_secs(2);

/// How long executors and channels get to end by themselves before they are forced to, and subscribers to read on.
const GRACE: Duration = Duration::from_secs(2);

impl Dispatcher {
    /// Shuts down on a signal. A second signal means at once.
    pub(super) fn terminate(&mut self, signal: &str) {
        tracing::info!(signal, "shutting down");
        self.context.is_told_to_end.store(true, Ordering::Relaxed);
        let is_second = self.core.is_closing();
        let grace_ms = is_second.then_some(0);
        let request = self.prepare_shutdown(grace_ms, Leaves::All);
        if is_second {
            self.ending.is_hurried = true;
            self.ending.limit(self.clock.now(), LAST_IN_A_HURRY);
        }
        let to = ReplyTo { client: 0, call: 0 };
        self.handle(Input::Request { to, request });
        if is_second && self.ended {
            self.end_by_force();
        }
    }

    /// Sets the deadline of the shutdown, given the grace for tasks in milliseconds, and which tasks it leaves, as far as
    /// they can outlive it and no earlier order ends them. Returns the request for the core.
    pub(super) fn prepare_shutdown(&mut self, grace_ms: Option<u64>, leaves: Leaves) -> Request {
        let grace = Duration::from_millis(grace_ms.unwrap_or_else(|| self.config.core_limits().grace_ms));
        self.ending.limit(self.clock.now(), grace.saturating_add(LAST));
        let leaves = match leaves {
            _ if self.durable.is_none() => Leaves::Nothing,
            Leaves::All if !self.ending.can_leave => Leaves::Elsewhere,
            leaves => leaves,
        };
        let leaves = match self.ending.leaves {
            // What is left belongs to the next daemon already.
            before if self.core.is_closed() => before,
            before if self.core.is_closing() => leaves.min(before),
            _ => leaves,
        };
        self.ending.leaves = leaves;
        // Whoever waits does not start it again, however it ends from now on.
        self.say(holder::Phase::Ending);
        Request::Shutdown { grace_ms, leaves }
    }

    /// Starts the last phase, when no task is left: executors close, and channels and subscribers get a while.
    pub(super) fn begin_closing(&mut self) {
        self.ended = true;
        self.forced_at = self.clock.now().checked_add(GRACE);
        if self.ending.leaves != Leaves::Nothing {
            self.leave_all();
            if let Some(durable) = &self.durable {
                durable.journal.note_stop();
            }
        }
        self.executors.all().for_each(|executor| executor.close(Close::Asked));
        self.notifier.close();
    }

    /// Has executors say what tells the processes that the daemon leaves, if it does.
    pub(super) fn leave_all(&mut self) {
        if self.ending.leaves != Leaves::Nothing {
            self.executors.all().for_each(|executor| executor.leave(&mut self.ending.left));
        }
    }

    /// Forces executors and channels to end, as their grace is over.
    pub(super) fn end_by_force(&mut self) {
        self.forced_at = None;
        if let Some(durable) = &mut self.durable {
            // What is cut now belongs to the next daemon.
            durable.notices.clear();
        }
        self.executors.all().for_each(|executor| executor.close(Close::Forced));
        // Undelivered notices are not waited for.
        self.notifier.give_up();
    }

    /// Whether an executor is still busy, a notice is still to be delivered, or a subscriber has events left to read. Once the
    /// end is forced, nobody waits for subscribers: one that stands still would hold up everybody.
    pub(super) fn is_busy(&self) -> bool {
        let waits = self.forced_at.is_some() && !self.ending.is_hurried;
        self.executors.is_busy() || self.notifier.is_busy() || (waits && self.subscribers.are_behind())
    }
}
