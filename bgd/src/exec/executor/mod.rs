//! The interface between the dispatcher and the implementations that run tasks: the trait, and the table of executors.
//! It is independent of the kind of work, except that agents and places can be checked before they are used
//! ([`Check`]).
//!
//! Most calls of [`Executor`] have defaults: an executor implements those that its kind of work supports.

mod done;
mod requests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::resources::ExecutorKind;
use bgd_shared::task::Exit;
use bgd_shared::usage::LiveUsage;
use futures_util::future::{LocalBoxFuture, select_all};
use tokio::sync::oneshot;

pub use self::done::{DONE, Done, DoneSender, done_within, unknown_signal};
pub use self::requests::{Ask, Asked, Check, Offer, OfferCallback, not_shown};
use super::carried::Carried;
use super::handed::Handoff;
use super::left::{HeldRun, Resumed, SparedProcesses};
use super::messages::Inherited;
use crate::agents::Agents;
use crate::carry::{CarriedFds, Obstacle, ReceivedFds};
use crate::client::Client;
use crate::core::{Begin, Control, ExecutorName, KnownRun, Spec, UsagePending};
use crate::remotes::Remotes;

/// Runs tasks of one kind, on the dispatcher's thread. Reports its observations as facts, each with its task and run,
/// through the channel that it was created with. Its calls block only for moments: at most a second, in which
/// [`Self::leave`] and [`Self::carry`] wait for other threads, or [`Self::adopt`] reads a terminal's output.
///
/// Each run is started once. Its facts come in this order: `Started`, or one of `StartFailed` and `Refused`, after
/// which nothing follows; then, once the run has ended by itself or on request, the final facts of that kind of work:
/// `Exited`, followed by `TreeEmpty` if other processes were left; `TurnEnded` of a prompt; `Elsewhere` with `Concluded`
/// of a run at another place. The dispatcher may also name runs that have already ended; such calls do nothing.
pub trait Executor {
    /// Starts a run of a task.
    fn start(&mut self, start: Start);

    /// Applies a control operation to a started run. If that takes a moment, returns a future that the client's answer
    /// waits for.
    fn control(&mut self, task: TaskId, run: u32, control: Control) -> Option<Done>;

    /// Ends a run, with this signal if it runs processes. Called repeatedly, finally with SIGKILL. That follows after
    /// `grace`, which only matters to executors whose runs are ended by another daemon. For a process that is still being
    /// started, it is called only once, with SIGKILL, when nothing waits for the start any longer: the process is then
    /// killed as soon as it runs, without another call.
    fn end(&mut self, task: TaskId, run: u32, signal: i32, grace: Duration);

    /// Forgets a task that has no run left.
    fn forget(&mut self, task: TaskId);

    // Requests of clients. The defaults refuse them.

    /// Serves and answers a client's request on a run, which only some executors support.
    fn ask(&mut self, asked: Asked) {
        asked.refuse();
    }

    /// Measures the current usage of a run. The sender is dropped if no process of the run is on this machine.
    fn usage(&mut self, _task: TaskId, _run: u32) -> Option<oneshot::Receiver<LiveUsage>> {
        None
    }

    /// Checks whether configured agents or places work. An executor that has none of the kind drops the request.
    fn check(&mut self, _check: Check) {}

    /// Prepares to take over a process that another program offers. The process stays untouched until
    /// [`Begin::HandedOver`] is started; [`Self::forget`] releases it.
    fn offer(&mut self, task: TaskId, _handoff: Box<Handoff>, _client: &Client, callback: OfferCallback) {
        let error = RpcError::new(ErrorKind::Unsupported, "this executor can't take over processes");
        callback(task, Err(error));
    }

    /// Accepts the exit of a handed-over process, as reported by the program that handed it over.
    fn exited(&mut self, _task: TaskId, _exit: Exit) {}

    /// Called when a client has disconnected.
    fn disconnected(&mut self, _client: u64) {}

    // Runs that outlive their daemon: on this machine if the daemon is durable, on other machines and clusters always.
    // An executor leaves them to the next daemon and continues those of an earlier one.

    /// Continues a run that a killed daemon has left. Returns the pid that its task shows.
    ///
    /// # Errors
    /// Part of the state is missing, or nothing of this executor outlives a daemon.
    fn adopt(&mut self, _left: HeldRun, _resumed: &Resumed) -> io::Result<i32> {
        Err(io::Error::other("its executor leaves nothing behind"))
    }

    /// Continues a run on another machine or a cluster that a daemon or another program has left. Reports facts as for
    /// a run of its own, except those already known.
    fn adopt_elsewhere(&mut self, known: KnownRun) {
        tracing::error!(task = %known.task, "its executor runs nothing elsewhere");
    }

    /// Determines the usage of an ended run elsewhere that another daemon or program has left, and reports it like that
    /// of its own runs.
    fn collect_usage(&mut self, _ended: UsagePending) {}

    /// Has a durable daemon's record for the next one include the descriptors that a pending task is to start with,
    /// until [`Self::release_inherited`] or as long as they are open here.
    fn keep_inherited(&mut self, _task: TaskId, _inherited: &Arc<Inherited>) {}

    /// Notes that the record that an earlier daemon has left includes the descriptors that a pending task is to start
    /// with: they are kept as if by [`Self::keep_inherited`].
    fn continue_inherited(&mut self, _task: TaskId, _inherited: &Arc<Inherited>) {}

    /// Called when a task has started or ended: the next daemon needs no descriptors to start it.
    fn release_inherited(&mut self, _task: TaskId) {}

    /// Called by a durable daemon when the end of a run, with all of its processes, has been written to the journal:
    /// the data kept about the run for the next daemon is no longer needed.
    fn end_recorded(&mut self, _task: TaskId, _run: u32) {}

    /// Called by a durable daemon when a report about a run has been written to the journal, once for each
    /// [`PlaceFact::Lost`] and [`PlaceFact::Submitting`].
    ///
    /// [`PlaceFact::Lost`]: crate::core::PlaceFact::Lost
    /// [`PlaceFact::Submitting`]: crate::core::PlaceFact::Submitting
    fn report_recorded(&mut self, _task: TaskId, _run: u32) {}

    /// Called when events up to this number have been sent although they can't be written to the journal, so that the
    /// number is stored where it survives a kill; called with `None` once they are written.
    fn sent_unrecorded(&mut self, _seq: Option<u64>) {}

    /// Called when a durable daemon starts with an incomplete record of the previous one's runs: the holder of runs for
    /// the next daemon must not claim to hold all of them until [`Self::caught_up`].
    fn mark_incomplete(&mut self) {}

    /// Called with 0 when the outcome of everything that the previous daemon started is in the journal; and where this
    /// executor called [`Facts::ask_caught_up`], with the number from that call, once everything reported before it is
    /// in the journal.
    ///
    /// [`Facts::ask_caught_up`]: crate::exec::messages::Facts::ask_caught_up
    fn caught_up(&mut self, _mark: u64) {}

    /// Called when a durable daemon ends and leaves its tasks running, here and elsewhere, and again once the executor
    /// is no longer busy: adds what identifies their processes.
    fn leave(&mut self, _left: &mut SparedProcesses) {}

    // An upgrade in place: `hold_starts`, `carry`, then `release` if the upgrade fails; in the next program `resume`,
    // then `activate`. Only `carry` has no default, so that no executor loses its runs by oversight.

    /// Holds back new starts, or releases those held back. Held starts are carried over an upgrade.
    fn hold_starts(&mut self, _holds: bool) {}

    /// Returns the executor's state, with every run, for the program that takes over. Changes nothing, as that program
    /// may refuse.
    ///
    /// # Errors
    /// Part of the state can't be carried now.
    fn carry(&mut self, named: &mut CarriedFds) -> Result<Carried, Obstacle>;

    /// Releases what [`Self::carry`] keeps still: the carried state is not used.
    fn release(&mut self) {}

    /// Restores the state that another program has carried over; `spec` returns the spec of a task. Starts nothing.
    ///
    /// # Errors
    /// Part of the state is missing.
    fn resume(&mut self, carried: Carried, _came: &mut ReceivedFds, _spec: &SpecOf<'_>) -> io::Result<()> {
        match carried {
            Carried::Nothing => Ok(()),
            Carried::Local(_) | Carried::Other(_) => Err(io::Error::other("the state of another executor")),
        }
    }

    /// Called after [`Self::resume`] once nothing can fail: restored runs are active from now on, including for the
    /// clients carried over.
    fn activate(&mut self, _clients: &HashMap<u64, Arc<Client>>) {}

    /// Adds the number of replies that the executor owes to each client and carries over an upgrade.
    fn count_owed(&self, _clients: &mut HashMap<u64, usize>) {}

    // The executor's own workers and configuration, from the daemon's start to its end.

    /// Called when the configured agents or the places that run tasks elsewhere have changed.
    fn configure(&mut self, _agents: &Arc<Agents>, _remotes: &Arc<Remotes>) {}

    /// Returns the keys of the configuration whose values here take effect only after a restart of the daemon.
    fn needs_restart(&self, _remotes: &Remotes) -> Vec<String> {
        Vec::new()
    }

    /// Waits for the next event from this executor's own workers and handles it. Cancel-safe: the future may be
    /// dropped while it waits, and nothing is lost.
    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Reports whether the main process of a task's run has ended, even if that was not reported yet.
    fn has_ended(&self, _task: TaskId) -> bool {
        false
    }

    /// Called when the replies of a dispatcher turn are on their way: work that would compete with the clients waiting
    /// for them may begin.
    fn answered(&mut self) {}

    /// Called when the daemon ends and no tasks are left, or only tasks that keep running: ends what the executor keeps
    /// for itself.
    fn close(&mut self, _close: Close) {}

    /// Reports whether the daemon must wait for this executor before it ends.
    fn is_busy(&self) -> bool {
        false
    }
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

/// Returns the spec of a task.
pub type SpecOf<'a> = dyn Fn(TaskId) -> Option<Arc<Spec>> + 'a;

/// How an executor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Gracefully, in its own time.
    Asked,
    /// Immediately, except for the last commands elsewhere, which continue in their own time.
    ForcedHere,
    /// Immediately.
    Forced,
}

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

    /// The same for the executors of tasks elsewhere.
    pub fn is_busy_elsewhere(&self) -> bool {
        let mut elsewhere =
            ExecutorKind::ALL.iter().filter_map(|kind| self.0.get(&ExecutorName::from(*kind)));
        elsewhere.any(|executor| executor.is_busy())
    }
}
