//! The interface of every channel, and the input it receives. The adapters themselves are in sibling modules.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::notice::Notice as Wire;
use bgd_shared::request::OriginTerminal;
use futures_util::future::LocalBoxFuture;
use serde_json::value::RawValue;

use super::outcomes::PendingReport;
use super::progress::Progress;
use super::undelivered::Undelivered;
use crate::core::SubmitterLocation;

pub trait Adapter {
    /// Delivers a notice, with retries where they make sense. A channel's notices are delivered one after another; a
    /// notice that can't be delivered yet may be held ([`Notification::hold`]) so that it does not delay the others.
    ///
    /// Whatever takes time must be sent through the notification's `progress`: by [`Progress::send`], or a command by
    /// [`Progress::start`] and [`Progress::show`]. An upgrade in place carries everything else as unsent, even while it
    /// is being sent, so it would arrive twice.
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>>;

    /// Called when someone uses `bgctl` in the terminal whose session leader is this process.
    fn visited(&self, _leader: i32) {}

    /// Called when this process submits a task in this terminal, where the task's end will be reported.
    fn awaits(&self, _terminal: &OriginTerminal, _submitter: Option<i32>) {}

    /// Called when a task was removed, so that clients can no longer query it.
    fn forget(&self, _task: TaskId) {}

    /// Called when the run of an agent's task has ended, so that its questions can't be answered any more.
    fn ended(&self, _task: TaskId) {}

    /// Called when the end of a task was reported in the terminal whose session leader is this process.
    fn reported(&self, _leader: i32, _task: TaskId) {}

    /// Called when the channel was removed or has another type now: what it would show later goes to the successor
    /// instead.
    fn leave_to(&self, _successor: Successor) {}

    /// Takes what a channel of the same type has left ([`Self::leave_to`]).
    fn inherit(&self, _left: &RawValue) {}

    /// Called when no more notices will come. Delivers the held ones or gives them up, then returns.
    fn finish(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Returns the channel's own state for an upgrade in place; `None` if there is none. Held notices must be in it, as
    /// nothing else has them.
    fn state(&self) -> Option<Box<RawValue>>;

    /// Restores the state of [`Self::state`] after an upgrade. Called before the first notice.
    fn resume(&self, state: &RawValue);

    /// Returns a signal that shows a parent session that an agent is working. `None` if the channel can't show it.
    fn start_typing(&self, _session: Option<&str>) -> Option<Signal> {
        None
    }
}

/// Passes on what a channel has left, as data.
pub type Successor = Box<dyn Fn(Box<RawValue>)>;

/// A typing indicator in a chat.
pub struct Signal {
    /// The chat; it needs only one signal at a time.
    pub chat: String,
    /// Shows the indicator until it is dropped.
    pub shown: LocalBoxFuture<'static, ()>,
}

/// A notice with everything needed to deliver it.
pub struct Notification {
    pub notice: Wire,
    pub place: Option<Arc<SubmitterLocation>>,
    /// Whether the task has been removed already.
    pub is_removed: bool,
    pub(super) progress: Rc<Progress>,
    pub(super) pending: Rc<Cell<Option<PendingReport>>>,
}

impl Notification {
    /// Defers the report: the outcome is reported later through the returned [`PendingReport`], and the result of
    /// [`Adapter::notify`] is ignored. `None` if this was called before.
    pub fn hold(&self) -> Option<PendingReport> {
        let mut pending = self.pending.take()?;
        pending.hold();
        Some(pending)
    }

    /// Reports why the notice was not delivered, and that the channel will show it later. Returns the notice's number;
    /// `None` if the report was deferred ([`Self::hold`]).
    pub(super) fn miss(&self, why: Undelivered) -> Option<u64> {
        Some(self.pending.take()?.miss(why))
    }
}
