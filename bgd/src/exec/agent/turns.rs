//! Starts turns, and reports turns that break down.

use std::rc::Rc;

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::connection::Update;
use super::manager::{Lease, Manager, Running};
use super::order::TurnOrder;
use super::shown::Shown;
use super::state::FollowState;
use super::turn::{self, TurnLinks};
use crate::core::{Fact, Refusal};

impl Manager {
    pub(super) fn begin(self: &Rc<Self>, order: TurnOrder) {
        let (task, run) = (order.task, order.run);
        let (control, orders) = mpsc::unbounded_channel();
        let shown = Shown::default();
        self.turns.borrow_mut().insert(task, Running { run, control, shown: shown.clone() });
        let links = TurnLinks { control: orders, shown, context: self.context.clone() };
        let turn = tokio::task::spawn_local(turn::run(Rc::clone(self), order, links));
        self.watch_turn(task, run, turn);
    }

    /// Resumes a turn carried over an upgrade.
    pub(super) fn begin_again(
        self: &Rc<Self>,
        state: FollowState,
        lease: Lease,
        updates: mpsc::Receiver<Update>,
    ) {
        let (task, run) = (state.order.task, state.order.run);
        let (control, orders) = mpsc::unbounded_channel();
        let shown = Shown::default();
        self.turns.borrow_mut().insert(task, Running { run, control, shown: shown.clone() });
        let links = TurnLinks { control: orders, shown, context: self.context.clone() };
        let turn = turn::resume(Rc::clone(self), state, lease, updates, links);
        self.watch_turn(task, run, tokio::task::spawn_local(turn));
    }

    fn watch_turn(self: &Rc<Self>, task: TaskId, run: u32, turn: JoinHandle<()>) {
        let manager = Rc::clone(self);
        tokio::task::spawn_local(async move {
            // A turn always reports its end. If it panics first, the task must not be left running. The core accepts
            // whichever of these two facts fits the task's state, and ignores the other.
            if let Err(error) = turn.await {
                tracing::error!(%task, %error, "a turn broke");
                let facts = &manager.context.facts;
                manager.turn_ended(task, run);
                manager.context.outputs.settle(task, run, false).await;
                let why = "internal error in the daemon; see its log";
                let refusal = Refusal::new(ErrorKind::Internal, why);
                facts.send(task, run, Fact::Refused(Box::new(refusal)));
                let fact = Fact::TurnEnded { result: Err(why.into()) };
                facts.send(task, run, fact);
            }
        });
    }
}
