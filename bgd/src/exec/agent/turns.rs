//! Starts turns, and reports those that break down.

use std::rc::Rc;

use bgd_shared::error::ErrorKind;
use tokio::sync::mpsc;

use super::manager::{Manager, Running};
use super::order::TurnOrder;
use super::turn;
use crate::core::{Fact, Refusal};

impl Manager {
    pub(super) fn begin(self: &Rc<Self>, order: TurnOrder) {
        let (task, run) = (order.task, order.run);
        let (control, orders) = mpsc::unbounded_channel();
        self.turns.borrow_mut().insert(task, Running { run, control });
        let turn = tokio::task::spawn_local(turn::run(Rc::clone(self), order, orders, self.context.clone()));
        let manager = Rc::clone(self);
        tokio::task::spawn_local(async move {
            // A turn always reports its end. If it panics first, the task must not be left running. The core
            // takes whichever of these two facts fits the task's state, and ignores the other.
            if let Err(error) = turn.await {
                tracing::error!(%task, %error, "a turn broke");
                let facts = &manager.context.facts;
                manager.turn_ended(task, run);
                manager.context.outputs.settle(task, false).await;
                let why = "internal error in the daemon; see its log";
                let refusal = Refusal::new(ErrorKind::Internal, why);
                facts.send(task, run, Fact::Refused(Box::new(refusal)));
                let fact = Fact::TurnEnded { result: Err(why.into()) };
                facts.send(task, run, fact);
            }
        });
    }
}
