//! The state of a running turn as visible to an upgrade while agents are held back: enough to resume the turn
//! afterwards.

use std::cell::RefCell;
use std::rc::Rc;

use super::live::Live;
use super::state::FollowState;
use super::turn_order::TurnOrder;

/// A turn that is waiting.
#[derive(Debug)]
pub enum Visible {
    /// Its session is being opened.
    Opening(Box<TurnOrder>),
    /// Its agent has the session.
    Following {
        /// The agent's connection and process.
        live: Rc<Live>,
        state: Box<FollowState>,
    },
}

/// The visible state of a turn; `None` while it is at work.
#[derive(Clone, Debug, Default)]
pub struct Shown(Rc<RefCell<Option<Visible>>>);

impl Shown {
    /// Publishes the state of a waiting turn.
    pub fn show(&self, visible: Visible) {
        self.0.replace(Some(visible));
    }

    /// Hides the state: the turn is at work, or is about to be.
    pub fn hide(&self) {
        self.0.replace(None);
    }

    /// Calls `read` with the visible state, and returns its result.
    pub fn read<T>(&self, read: impl FnOnce(Option<&Visible>) -> T) -> T {
        read(self.0.borrow().as_ref())
    }
}
