//! What every channel can do, and what it is given. The adapters themselves are beside this module.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::notice::Notice as Wire;
use bgd_shared::request::OriginTerminal;
use futures_util::future::LocalBoxFuture;
use serde_json::value::RawValue;

use super::outcomes::Done;
use super::progress::Progress;
use super::undelivered::Undelivered;
use crate::core::Place;

/// The adapter of one channel.
pub trait Adapter {
    /// Delivers a notice, with retries where they make sense. A channel's notices are delivered one after the
    /// other; a notice that can't be delivered yet may be held ([`Notification::hold`]), so that it delays none.
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>>;

    /// Called when someone uses `bgctl` in the terminal whose session leader is this process.
    fn visited(&self, leader: i32) {
        let _ = leader;
    }

    /// Called when this process submits a task in this terminal, which will be told of the task's end.
    fn awaits(&self, terminal: &OriginTerminal, submitter: Option<i32>) {
        let _ = (terminal, submitter);
    }

    /// Called when a task was removed, so that clients can no longer ask for it.
    fn forget(&self, task: TaskId) {
        let _ = task;
    }

    /// Called when no more notices will come. Delivers or gives up the held ones, then returns.
    fn finish(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Returns what the channel itself holds, for an upgrade in place; `None` if that is nothing.
    fn state(&self) -> Option<Box<RawValue>>;

    /// Goes on with such a state. Called before any notice comes.
    fn resume(&self, state: &RawValue);

    /// Returns a signal that shows a parent session that an agent is working. `None` if the channel can't show it.
    fn start_typing(&self, session: Option<&str>) -> Option<Signal> {
        let _ = session;
        None
    }
}

/// A typing indicator in a chat.
pub struct Signal {
    /// The chat, which needs only one signal at a time.
    pub chat: String,
    /// Shows the indicator until it is dropped.
    pub shown: LocalBoxFuture<'static, ()>,
}

/// A notice with everything needed to deliver it.
pub struct Notification {
    pub notice: Wire,
    /// The submitter's environment and terminal.
    pub place: Option<Arc<Place>>,
    /// Whether the task was removed already.
    pub is_removed: bool,
    /// How far its delivery has come.
    pub(super) progress: Rc<Progress>,
    pub(super) done: Rc<Cell<Option<Done>>>,
}

impl Notification {
    /// Takes over reporting the outcome later; the result of [`Adapter::notify`] is ignored then. `None` if it
    /// was taken over before.
    pub fn hold(&self) -> Option<Done> {
        let mut done = self.done.take()?;
        done.hold();
        Some(done)
    }

    /// Reports why it was not delivered, and that the channel will show it later. Returns its number; `None` if that was taken
    /// over before.
    pub(super) fn miss(&self, why: Undelivered) -> Option<u64> {
        Some(self.done.take()?.miss(why))
    }
}
