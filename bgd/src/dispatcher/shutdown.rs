//! The dispatcher's part in shutting down.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bgd_shared::holder;

use super::Dispatcher;
use crate::core::{Input, LeavePolicy, ReplyTo, Request};
use crate::exec::executor::Close;

/// How long the shutdown may take beyond the grace period of tasks. Long enough for executors to report processes that
/// survive SIGKILL, and for the grace periods of agents and channels.
const LAST: Duration = Duration::from_secs(15);

/// Like [`LAST`], after a second signal.
const URGENT_LAST: Duration = Duration::from_secs(2);

/// How long executors and channels may take to end by themselves before they are forced to, and subscribers to catch
/// up.
const GRACE: Duration = Duration::from_secs(2);

/// How long after [`GRACE`] executors elsewhere may take for their last commands, such as two on a slow login node.
const ELSEWHERE_GRACE: Duration = Duration::from_secs(10);

impl Dispatcher {
    /// Shuts down on a signal. A second signal forces an immediate end.
    pub(super) fn terminate(&mut self, signal: &str) {
        tracing::info!(signal, "shutting down");
        self.context.is_terminating.store(true, Ordering::Relaxed);
        let is_second = self.core.is_closing();
        let grace_ms = is_second.then_some(0);
        let request = self.prepare_shutdown(grace_ms, LeavePolicy::All);
        if is_second {
            self.ending.is_urgent = true;
            self.ending.limit(self.clock.now(), URGENT_LAST);
            self.announce_stop();
        }
        let to = ReplyTo { client: 0, call: 0 };
        self.handle(Input::Request { to, request });
        // A start that was left to the next daemon has held back others until now; none follows a shutdown.
        self.handle(Input::HoldStarts(self.has_trouble()));
        if is_second && self.ended {
            self.end_by_force();
        }
    }

    /// Sets the deadline of the shutdown and the tasks to leave. `grace_ms` is the grace period for tasks; `leaves` is
    /// limited to tasks that can outlive the daemon and that no earlier request ends. Returns the request for the core.
    pub(super) fn prepare_shutdown(&mut self, grace_ms: Option<u64>, leaves: LeavePolicy) -> Request {
        let grace = Duration::from_millis(grace_ms.unwrap_or_else(|| self.config.core_limits().grace_ms));
        self.ending.limit(self.clock.now(), grace.saturating_add(LAST));
        let leaves = match leaves {
            _ if self.durable.is_none() => LeavePolicy::Nothing,
            LeavePolicy::All if !self.ending.can_leave => LeavePolicy::Elsewhere,
            leaves => leaves,
        };
        let leaves = match self.ending.leaves {
            // The remaining tasks belong to the next daemon already.
            before if self.core.is_closed() => before,
            before if self.core.is_closing() => leaves.min(before),
            _ => leaves,
        };
        self.ending.leaves = leaves;
        // Clients that wait for the daemon do not restart it from now on, however it ends.
        self.record_phase(holder::Phase::Ending);
        self.announce_stop();
        Request::Shutdown { grace_ms, leaves }
    }

    /// Starts the last phase, when no task is left: executors close, and channels and subscribers get some time.
    pub(super) fn begin_closing(&mut self) {
        self.ended = true;
        self.forced_at = self.clock.now().checked_add(GRACE);
        if self.ending.leaves != LeavePolicy::Nothing {
            self.leave_all();
            if let Some(durable) = &self.durable {
                durable.journal.note_stop();
            }
        }
        self.close(Close::Asked);
        self.notifier.close();
    }

    /// Has executors identify the processes that the daemon leaves, if it leaves any.
    pub(super) fn leave_all(&mut self) {
        if self.ending.leaves != LeavePolicy::Nothing {
            self.executors.all().for_each(|executor| executor.leave(&mut self.ending.left));
            self.ending.leaves_elsewhere = self.core.leaves_runs_elsewhere();
        }
    }

    /// Returns when executors and channels are forced to end next. Connections are no longer needed once no executor
    /// elsewhere is busy.
    pub(super) fn force_due(&self) -> Option<Instant> {
        let is_needless =
            self.ending.closed == Some(Close::ForcedHere) && !self.executors.is_busy_elsewhere();
        self.forced_at.map(|at| if is_needless { self.clock.now() } else { at })
    }

    /// Forces executors and channels to end, as their grace period is over. Executors elsewhere get more time once,
    /// unless the daemon must hurry.
    pub(super) fn end_by_force(&mut self) {
        let may_wait = self.ending.closed == Some(Close::Asked)
            && !self.ending.is_urgent
            && self.executors.is_busy_elsewhere();
        // Everything must have ended by the end of the shutdown.
        let latest = self.ending.over_at().and_then(|at| at.checked_sub(GRACE));
        let at = self.clock.now().checked_add(ELSEWHERE_GRACE).into_iter().chain(latest).min();
        self.forced_at = at.filter(|_| may_wait);
        if let Some(durable) = &mut self.durable {
            // Notices cut off now belong to the next daemon.
            durable.notices.clear();
        }
        self.close(if may_wait { Close::ForcedHere } else { Close::Forced });
        // Does not wait for undelivered notices.
        self.notifier.give_up();
    }

    fn close(&mut self, close: Close) {
        self.ending.closed = Some(close);
        self.executors.all().for_each(|executor| executor.close(close));
    }

    /// Reports whether an executor is still busy, a notice is still undelivered, or a subscriber has events left to
    /// read. Once the shutdown is forced, it does not wait for subscribers: a stalled one would block everything.
    pub(super) fn is_busy(&self) -> bool {
        let is_forced = matches!(self.ending.closed, Some(Close::ForcedHere | Close::Forced));
        let waits = !is_forced && !self.ending.is_urgent;
        self.executors.is_busy() || self.notifier.is_busy() || (waits && self.subscribers.are_behind())
    }
}
