//! What a running turn shows of itself while agents are held back for an upgrade: enough to go on with it elsewhere.

use std::cell::RefCell;
use std::rc::Rc;

use super::live::Live;
use super::state::FollowState;
use super::turn_order::TurnOrder;

/// A turn that waits.
#[derive(Debug)]
pub enum Visible {
    /// Its session is being opened.
    Opening(Box<TurnOrder>),
    /// Its agent works.
    Following {
        /// The agent.
        live: Rc<Live>,
        /// The turn.
        state: Box<FollowState>,
    },
}

/// What a turn shows; nothing while it is at work.
#[derive(Clone, Debug, Default)]
pub struct Shown(Rc<RefCell<Option<Visible>>>);

impl Shown {
    /// Shows that the turn waits.
    pub fn show(&self, visible: Visible) {
        self.0.replace(Some(visible));
    }

    /// Shows that the turn is at work, or is about to be.
    pub fn hide(&self) {
        self.0.replace(None);
    }

    /// Returns what `read` makes of what is shown.
    pub fn read<T>(&self, read: impl FnOnce(Option<&Visible>) -> T) -> T {
        read(self.0.borrow().as_ref())
    }
}
