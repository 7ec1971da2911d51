//! What executors elsewhere have in common: places, such as machines and clusters, each looked after by one runtime task
//! that takes orders. This module passes orders on; it decides nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::request::ExecutorCheck;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::context::Context;
use super::executor::{Asked, Close, Done};
use crate::core::{Cause, Conclusion, Control, Fact, PlaceFact, Verdict};
use crate::remotes::Remotes;

/// What every executor elsewhere is made with.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    pub context: Context,
    /// The state folder.
    pub state: PathBuf,
    /// Names this run of the daemon, or a durable daemon as a whole.
    pub instance: String,
    /// The configured places, of every kind.
    pub remotes: Arc<Remotes>,
    pub is_durable: bool,
}

/// An order for a place, which has runs of this kind and these settings.
#[derive(Debug)]
pub enum Order<R, S> {
    /// Start a run.
    Start { task: TaskId, run: Box<R> },
    /// End a run, with this signal.
    End {
        task: TaskId,
        run: u32,
        /// The signal's number.
        signal: i32,
    },
    /// Apply a control operation.
    Control {
        task: TaskId,
        /// The operation.
        control: Control,
        /// Is told when it is done.
        done: oneshot::Sender<()>,
    },
    /// Find out what a run has used that has ended for the daemon before.
    Count {
        task: TaskId,
        run: u32,
        /// Its id there.
        id: Box<str>,
    },
    /// The end of a run is written down.
    Over { task: TaskId, run: u32 },
    /// What was reported of a run is written down: a loss of its output, or that it is about to be submitted.
    Written { task: TaskId, run: u32 },
    /// Write to a standard input.
    Write {
        /// The client's request.
        asked: Box<Asked>,
    },
    /// Forget a task.
    Forget { task: TaskId },
    /// Try whether the place works.
    Check {
        /// Gets the result.
        tell: oneshot::Sender<ExecutorCheck>,
    },
    /// Use these settings from now on.
    Configure(Box<S>),
    /// Begin nothing from now on, or again.
    Hold {
        /// Whether to begin nothing.
        holds: bool,
    },
    /// The daemon is about to end, and leaves the runs to the next one.
    Leave,
    /// The daemon ends.
    Close,
}

/// The places of an executor that are served, and which task is at which.
#[derive(Debug)]
pub struct Places<R, S> {
    /// Where the orders of each place go. A place lives as long as its executor.
    orders: HashMap<Arc<str>, mpsc::UnboundedSender<Order<R, S>>>,
    served: JoinSet<()>,
    tasks: HashMap<TaskId, Arc<str>>,
}

impl<R, S> Default for Places<R, S> {
    fn default() -> Self {
        Self { orders: HashMap::new(), served: JoinSet::new(), tasks: HashMap::new() }
    }
}

impl<R, S> Places<R, S> {
    /// Whether this place is served.
    pub fn is_served(&self, name: &str) -> bool {
        self.orders.contains_key(name)
    }

    /// Serves a place from now on, by what `serve` makes of its orders.
    pub fn serve<F>(&mut self, name: &Arc<str>, serve: impl FnOnce(mpsc::UnboundedReceiver<Order<R, S>>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, orders) = mpsc::unbounded_channel();
        self.served.spawn(serve(orders));
        self.orders.insert(Arc::clone(name), sender);
    }

    /// Has a served place start a run, and sends it the orders for that task from then on.
    pub fn start(&mut self, name: &Arc<str>, task: TaskId, run: R) {
        self.send(name, Order::Start { task, run: Box::new(run) });
        self.tasks.insert(task, Arc::clone(name));
    }

    /// Applies a control operation. Resolves when it is done.
    pub fn control(&self, task: TaskId, control: Control) -> Done {
        let (done, is_done) = oneshot::channel();
        self.order(task, Order::Control { task, control, done });
        is_done
    }

    /// Ends a run, with this signal.
    pub fn end(&self, task: TaskId, run: u32, signal: i32) {
        self.order(task, Order::End { task, run, signal });
    }

    /// Has a served place find out what a run has used that has ended for the daemon before.
    pub fn count(&self, name: &str, task: TaskId, run: u32, id: Box<str>) {
        self.send(name, Order::Count { task, run, id });
    }

    /// Tells that the end of a run is written down.
    pub fn over(&self, task: TaskId, run: u32) {
        self.order(task, Order::Over { task, run });
    }

    /// Tells that what was reported of a run is written down.
    pub fn written(&self, task: TaskId, run: u32) {
        self.order(task, Order::Written { task, run });
    }

    /// Writes to the standard input of a task.
    pub fn write(&self, asked: Asked) {
        self.order(asked.task.id, Order::Write { asked: Box::new(asked) });
    }

    pub fn forget(&mut self, task: TaskId) {
        self.order(task, Order::Forget { task });
        self.tasks.remove(&task);
    }

    /// Tries whether a place works. `tell` is dropped if it is not served.
    pub fn check(&self, name: &str, tell: oneshot::Sender<ExecutorCheck>) {
        self.send(name, Order::Check { tell });
    }

    /// Gives a place other settings, if it is served.
    pub fn configure(&self, name: &str, settings: S) {
        self.send(name, Order::Configure(Box::new(settings)));
    }

    /// Waits until the task of a place has ended.
    pub async fn attend(&mut self) {
        if self.served.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Has all places begin nothing from now on, or again.
    pub fn hold(&self, holds: bool) {
        for place in self.orders.values() {
            let _ = place.send(Order::Hold { holds });
        }
    }

    /// Leaves the runs of all places to the next daemon.
    pub fn leave(&self) {
        for place in self.orders.values() {
            let _ = place.send(Order::Leave);
        }
    }

    /// Ends all places.
    pub fn close(&mut self, close: Close) {
        for place in self.orders.values() {
            let _ = place.send(Order::Close);
        }
        if close == Close::Forced {
            self.served.abort_all();
        }
    }

    /// Whether a place has not ended yet.
    pub fn is_busy(&self) -> bool {
        !self.served.is_empty()
    }

    fn order(&self, task: TaskId, order: Order<R, S>) {
        if let Some(name) = self.tasks.get(&task) {
            self.send(name, order);
        }
    }

    fn send(&self, name: &str, order: Order<R, S>) {
        if let Some(place) = self.orders.get(name) {
            // It only fails for one that has ended, with the daemon.
            let _ = place.send(order);
        }
    }
}

/// The fact about a run that can't be found again.
pub fn lost(why: &str) -> Fact {
    let verdict = Verdict::Failed(Cause::Lost, why.into());
    Fact::Elsewhere(PlaceFact::Concluded(Conclusion { exit: None, verdict, at: None }))
}

/// The fact about a run that may never have been submitted, and can't be now.
pub fn no_environment() -> Fact {
    Fact::StartFailed { failure: "the environment that it was submitted with is not kept any more".into() }
}
