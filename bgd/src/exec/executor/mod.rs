//! The interface between the dispatcher and the implementations that run tasks: the trait, and the table of executors.
//! It is independent of the kind of work, except that agents and places can be checked before they are used
//! ([`Check`]).
//!
//! An executor implements the four calls of [`Executor`]. The other traits are capabilities whose calls mostly have
//! defaults: an executor implements those that its kind of work supports.

mod durable;
mod interactive;
mod lifecycle;
mod upgradable;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::id::TaskId;
use futures_util::future::select_all;
use tokio::sync::oneshot;

pub use self::durable::Durable;
pub use self::interactive::{Ask, Asked, Check, Interactive, Offer, TellOffer, not_shown};
pub use self::lifecycle::{Close, Lifecycle};
pub use self::upgradable::{SpecOf, Upgradable};
use super::messages::Inherited;
use crate::client::Client;
use crate::core::{Begin, Control, ExecutorName, Spec};

/// Runs tasks of one kind, on the dispatcher's thread. Reports its observations as facts, each with its task and run,
/// through the channel that it was created with. None of its calls blocks.
///
/// Each run is started once. Its facts come in this order: `Started`, or one of `StartFailed` and `Refused`, after
/// which nothing follows; then, once the run has ended by itself or on request, the final facts of that kind of work.
/// The dispatcher may also name runs that have already ended; such calls do nothing.
pub trait Executor: Interactive + Durable + Upgradable + Lifecycle {
    /// Starts a run of a task.
    fn start(&mut self, start: Start);

    /// Applies a control operation to a started run. If that takes a moment, returns a receiver that resolves when the
    /// operation is done or can no longer be done; the client's answer waits for it.
    fn control(&mut self, task: TaskId, run: u32, control: Control) -> Option<Done>;

    /// Ends a run, with this signal if it runs processes. Called repeatedly, finally with SIGKILL. That follows after
    /// `grace`, which only matters to executors whose runs are ended by another daemon. For a process that is still being
    /// started, it is called only once, with SIGKILL, when nothing waits for the start any longer: the process is then
    /// killed as soon as it runs, without another call.
    fn end(&mut self, task: TaskId, run: u32, signal: i32, grace: Duration);

    /// Forgets a task that has no run left.
    fn forget(&mut self, task: TaskId);
}

/// The order to start a run of a task.
#[derive(Debug)]
pub struct Start {
    pub task: TaskId,
    /// The run number, which facts about the run carry.
    pub run: u32,
    pub spec: Arc<Spec>,
    pub begin: Begin,
    /// Descriptors for its standard streams, from the submitter.
    pub inherited: Inherited,
    /// The client whose foreground job it is.
    pub owner: Option<Arc<Client>>,
}

/// Resolves when an operation is done or can no longer be done.
pub type Done = oneshot::Receiver<()>;

/// The executors, by their names in the core.
#[derive(Default)]
pub struct Executors(BTreeMap<ExecutorName, Box<dyn Executor>>);

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Executors {
    /// Adds an executor, replacing one of the same name.
    #[must_use]
    pub fn with(mut self, name: ExecutorName, executor: impl Executor + 'static) -> Self {
        self.0.insert(name, Box::new(executor));
        self
    }

    /// Returns the executor of this name; logs an error if there is none.
    pub fn of(&mut self, name: ExecutorName) -> Option<&mut (dyn Executor + 'static)> {
        let executor = self.0.get_mut(&name);
        if executor.is_none() {
            tracing::error!(?name, "there is no such executor");
        }
        executor.map(|executor| &mut **executor)
    }

    /// Iterates over all executors with their names.
    pub fn each(&mut self) -> impl Iterator<Item = (ExecutorName, &mut Box<dyn Executor>)> {
        self.0.iter_mut().map(|(name, executor)| (*name, executor))
    }

    /// Iterates over all executors.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Executor>> {
        self.0.values_mut()
    }

    /// Waits until one of the executors has handled an event from its workers.
    pub async fn attend(&mut self) {
        select_all(self.0.values_mut().map(|executor| executor.attend())).await;
    }

    /// Reports whether the daemon must wait for one of the executors before it ends.
    pub fn is_busy(&self) -> bool {
        self.0.values().any(|executor| executor.is_busy())
    }
}
