//! The common part of executors elsewhere: places, such as machines and clusters, each served by one runtime task that
//! receives orders. This module passes orders on; it decides nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::request::ExecutorCheck;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::core::{Cause, Conclusion, Control, Fact, PlaceFact, Verdict};
use crate::exec::context::Context;
use crate::exec::executor::{Asked, Close, DoneSender};
use crate::remotes::Remotes;

/// The data that every executor elsewhere is created with.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    pub context: Context,
    pub state: PathBuf,
    /// The name of this run of the daemon, or of a durable daemon as a whole.
    pub instance: String,
    /// The configured places, of every kind.
    pub remotes: Arc<Remotes>,
    pub is_durable: bool,
}

/// An order for a place; `R` is its kind of run, `S` its settings.
#[derive(Debug)]
pub enum Order<R, S> {
    /// Start a run.
    Start { task: TaskId, run: Box<R> },
    /// End a run with this signal.
    End {
        task: TaskId,
        run: u32,
        /// The signal's number.
        signal: i32,
        /// How long until SIGKILL follows.
        grace: Duration,
    },
    /// Apply a control operation.
    Control {
        task: TaskId,
        control: Control,
        /// Notified when the operation is done, or refused.
        done: DoneSender,
    },
    /// Find out the usage of a run that ended for the previous daemon.
    Count {
        task: TaskId,
        run: u32,
        /// The run's id at the place.
        id: Box<str>,
    },
    /// The end of a run has been written to the journal.
    EndRecorded { task: TaskId, run: u32 },
    /// A report about a run has been written to the journal: a loss of its output, or that it is about to be submitted.
    Written { task: TaskId, run: u32 },
    /// Write to a standard input.
    Write {
        /// The client's request.
        asked: Box<Asked>,
    },
    /// Forget a task.
    Forget { task: TaskId },
    /// Check whether the place works.
    Check {
        /// Receives the result.
        done: oneshot::Sender<ExecutorCheck>,
    },
    /// Use these settings from now on.
    Configure(Box<S>),
    /// Begin no further work, or resume.
    Hold {
        /// Whether to begin no further work.
        holds: bool,
    },
    /// The daemon is about to end, and leaves the runs to the next one.
    Leave,
    /// The daemon ends.
    Close,
}

/// The served places of an executor, and the place of each task.
#[derive(Debug)]
pub struct Places<R, S> {
    /// The order channel of each place. A place lives as long as its executor.
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
    pub fn is_served(&self, name: &str) -> bool {
        self.orders.contains_key(name)
    }

    /// Starts serving a place, with the future that `serve` creates from its order channel.
    pub fn serve<F>(&mut self, name: &Arc<str>, serve: impl FnOnce(mpsc::UnboundedReceiver<Order<R, S>>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, orders) = mpsc::unbounded_channel();
        self.served.spawn(serve(orders));
        self.orders.insert(Arc::clone(name), sender);
    }

    /// Has a served place start a run, and sends it all later orders for that task.
    pub fn start(&mut self, name: &Arc<str>, task: TaskId, run: R) {
        self.send(name, Order::Start { task, run: Box::new(run) });
        self.tasks.insert(task, Arc::clone(name));
    }

    /// Sends an order to the place of a task, if it has one.
    pub fn order(&self, task: TaskId, order: Order<R, S>) {
        if let Some(name) = self.tasks.get(&task) {
            self.send(name, order);
        }
    }

    /// Sends an order to a place; drops it if the place is not served.
    pub fn send(&self, name: &str, order: Order<R, S>) {
        if let Some(place) = self.orders.get(name) {
            // Sending fails only if the place has ended, with the daemon.
            let _ = place.send(order);
        }
    }

    /// Sends an order to all places.
    pub fn send_all(&self, order: impl Fn() -> Order<R, S>) {
        for place in self.orders.values() {
            let _ = place.send(order());
        }
    }

    pub fn forget(&mut self, task: TaskId) {
        self.order(task, Order::Forget { task });
        self.tasks.remove(&task);
    }

    /// Waits until the runtime task of a place has ended.
    pub async fn attend(&mut self) {
        if self.served.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends all places.
    pub fn close(&mut self, close: Close) {
        self.send_all(|| Order::Close);
        if close == Close::Forced {
            self.served.abort_all();
        }
    }

    /// Reports whether a place has not ended yet.
    pub fn is_busy(&self) -> bool {
        !self.served.is_empty()
    }
}

/// Returns the fact about a run that can't be found again.
pub fn lost(why: &str) -> Fact {
    let verdict = Verdict::Failed(Cause::Lost, why.into());
    Fact::Elsewhere(PlaceFact::Concluded(Conclusion { exit: None, verdict, at: None }))
}

/// Returns the fact about a run that may never have been submitted, and can't be now.
pub fn no_environment() -> Fact {
    Fact::StartFailed { failure: "the environment that it was submitted with is no longer kept".into() }
}

/// Why an order for a run is refused that a place no longer has.
pub const GONE: &str = "it is no longer there";

/// Refuses an order that is not carried out later: its client gets the reason.
pub fn refuse(task: TaskId, control: &Control, done: DoneSender, why: &str) {
    let what = match control {
        Control::Signal { .. } => "signalled",
        Control::Pause => "paused",
        Control::Continue => "continued",
        Control::Hold { held: true, .. } => "held",
        Control::Hold { held: false, .. } => "released",
        Control::Priority { .. } => "given another priority",
        Control::Answer { .. } | Control::Detach { .. } => return,
    };
    let error = RpcError::new(ErrorKind::Internal, format!("task {task} can't be {what} now: {why}"));
    // Fails if the client is no longer waited for.
    let _ =
        done.send(error.hint(format!("`bgctl status {task}` shows its state; repeat it later if need be")));
}
