//! The interface between the dispatcher and the implementations that run tasks: the trait, and the table of executors.
//! It knows no kind of work, except that agents and places can be checked before they are used ([`Check`]).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;

use bgd_shared::agent::AgentInfo;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::request::{ExecutorCheck, TerminalSize};
use bgd_shared::task::{Exit, Kind, Task as WireTask};
use bgd_shared::text::{Env, OsText};
use bgd_shared::time::Timestamp;
use bgd_shared::usage::LiveUsage;
use futures_util::future::{LocalBoxFuture, select_all};
use tokio::sync::oneshot;

use super::carried::Carried;
use super::handed::Handoff;
use super::left::{Left, Resumed, Spared};
use super::messages::Inherited;
use super::unread::UnreadBytes;
use crate::agents::{Agent, Agents};
use crate::carry::{Came, Named, Obstacle};
use crate::client::Client;
use crate::client::answer::Answer;
use crate::core::{Begin, Control, ExecutorName, KnownRun, Spec, Uncounted};
use crate::remotes::{Remote, Remotes};

/// Runs tasks of one kind, on the dispatcher's thread. Reports its observations as facts, each with its task and run,
/// through the channel that it was created with. None of its calls blocks.
///
/// Each run is started once. Its facts come in this order: `Started`, or one of `StartFailed` and `Refused`, after
/// which nothing follows; then, once the run has ended by itself or on request, the final facts of that kind of work.
/// The dispatcher may also name runs that have already ended; such calls do nothing.
pub trait Executor {
    /// Starts a run of a task.
    fn start(&mut self, start: Start);

    /// Applies a control operation to a started run. If that takes a moment, returns a receiver that resolves when the
    /// operation is done or can no longer be done; the client's answer waits for it.
    fn control(&mut self, task: TaskId, run: u32, control: Control) -> Option<Done>;

    /// Ends a run, with this signal if it runs processes. Called repeatedly, finally with SIGKILL. For a process that
    /// is still being started, it is called only once, with SIGKILL, when nothing waits for the start any longer: the
    /// process is then killed as soon as it runs, without another call.
    fn end(&mut self, task: TaskId, run: u32, signal: i32);

    /// Forgets a task that has no run left.
    fn forget(&mut self, task: TaskId);

    /// Serves and answers a client's request on a run, which only some executors support.
    fn ask(&mut self, asked: Asked) {
        asked.refuse();
    }

    /// Prepares to take over a process that another program offers. The process stays untouched until
    /// [`Begin::HandedOver`] is started; [`Self::forget`] releases it.
    fn offer(&mut self, task: TaskId, handoff: Box<Handoff>, client: &Client, tell: TellOffer) {
        let _ = (handoff, client);
        let error = RpcError::new(ErrorKind::Unsupported, "this executor can't take over processes");
        tell(task, Err(error));
    }

    /// Accepts the exit of a handed-over process, as reported by the program that handed it over.
    fn exited(&mut self, task: TaskId, exit: Exit) {
        let _ = (task, exit);
    }

    /// Continues a run that a killed daemon has left. Returns the pid that its task shows.
    ///
    /// # Errors
    /// Part of the state is missing, or nothing of this executor outlives a daemon.
    fn adopt(&mut self, left: Left, resumed: &Resumed) -> io::Result<i32> {
        let _ = (left, resumed);
        Err(io::Error::other("its executor leaves nothing behind"))
    }

    /// Continues a run on another machine or a cluster that a daemon or another program has left. Reports facts as for
    /// a run of its own, except those already known.
    fn adopt_elsewhere(&mut self, known: KnownRun) {
        tracing::error!(task = %known.task, "its executor runs nothing elsewhere");
    }

    /// Finds out the usage of an ended run elsewhere that another daemon or program has left, and reports it as for a
    /// run of its own.
    fn collect_usage(&mut self, ended: Uncounted) {
        let _ = ended;
    }

    /// Called by a durable daemon when the end of a run, with all of its processes, has been written to the journal:
    /// what was kept of the run for the next daemon is not needed any more.
    fn end_recorded(&mut self, task: TaskId, run: u32) {
        let _ = (task, run);
    }

    /// Called by a durable daemon when a report about a run has been written to the journal, once for each
    /// [`PlaceFact::Lost`] and [`PlaceFact::Submitting`].
    ///
    /// [`PlaceFact::Lost`]: crate::core::PlaceFact::Lost
    /// [`PlaceFact::Submitting`]: crate::core::PlaceFact::Submitting
    fn report_recorded(&mut self, task: TaskId, run: u32) {
        let _ = (task, run);
    }

    /// Called when events up to this number have been sent although they can't be written to the journal, so that the
    /// number is kept where it survives a kill; with `None` once they are written.
    fn sent_unrecorded(&mut self, seq: Option<u64>) {
        let _ = seq;
    }

    /// Called when a durable daemon starts without knowing everything that the previous one started: whatever holds
    /// runs for the next daemon must not claim to hold all of them until [`Self::caught_up`].
    fn mark_incomplete(&mut self) {}

    /// Called with 0 when the outcome of everything that the previous daemon started is in the journal; and where this
    /// executor called [`Facts::ask_caught_up`], with the number from that call, once everything reported before it is
    /// in the journal.
    ///
    /// [`Facts::ask_caught_up`]: super::messages::Facts::ask_caught_up
    fn caught_up(&mut self, mark: u64) {
        let _ = mark;
    }

    /// Measures the current usage of a run. The sender is dropped if no process of the run is on this machine.
    fn usage(&mut self, task: TaskId, run: u32) -> Option<oneshot::Receiver<LiveUsage>> {
        let _ = (task, run);
        None
    }

    /// Called when a client has disconnected.
    fn disconnected(&mut self, client: u64) {
        let _ = client;
    }

    /// Checks whether configured agents or places work. An executor that has none of the kind drops the request.
    fn check(&mut self, check: Check) {
        drop(check);
    }

    /// Called when the configured agents or the places that run tasks elsewhere have changed.
    fn configure(&mut self, agents: &Arc<Agents>, remotes: &Arc<Remotes>) {
        let _ = (agents, remotes);
    }

    /// Called when the replies of a dispatcher turn are on their way: work that would compete with the clients waiting
    /// for them may begin.
    fn answered(&mut self) {}

    /// Waits for the next event from this executor's own workers and handles it. Cancel-safe: the future may be
    /// dropped while it waits, and nothing is lost.
    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Holds back new starts, or releases those held back. Held starts are carried over an upgrade.
    fn hold_starts(&mut self, holds: bool) {
        let _ = holds;
    }

    /// Returns the executor's state, with every run, for the program that takes over. Changes nothing, as that program
    /// may refuse.
    ///
    /// # Errors
    /// Part of the state can't be carried now.
    fn carry(&mut self, named: &mut Named) -> Result<Carried, Obstacle>;

    /// Releases what [`Self::carry`] keeps still: the carried state is not used.
    fn release(&mut self) {}

    /// Restores the state that another program has carried over; `spec` returns the spec of a task. Starts nothing.
    ///
    /// # Errors
    /// Part of the state is missing.
    fn resume(&mut self, carried: Carried, came: &mut Came, spec: &SpecOf<'_>) -> io::Result<()> {
        let _ = (came, spec);
        match carried {
            Carried::Nothing => Ok(()),
            Carried::Local(_) | Carried::Other(_) => Err(io::Error::other("the state of another executor")),
        }
    }

    /// Called after [`Self::resume`] when nothing can fail any more: restored runs are active from now on, also for the
    /// clients that came over.
    fn go_on(&mut self, clients: &HashMap<u64, Arc<Client>>) {
        let _ = clients;
    }

    /// Adds the number of replies that the executor owes to each client and carries over an upgrade.
    fn count_owed(&self, clients: &mut HashMap<u64, usize>) {
        let _ = clients;
    }

    /// Called when a durable daemon ends and leaves its tasks running, here and elsewhere, and again once the executor
    /// is no longer busy: adds what identifies their processes.
    fn leave(&mut self, left: &mut Spared) {
        let _ = left;
    }

    /// Called when the daemon ends and no tasks are left, or only tasks that keep running: ends what the executor keeps
    /// for itself.
    fn close(&mut self, close: Close) {
        let _ = close;
    }

    /// Reports whether the daemon must wait for this executor before it ends.
    fn is_busy(&self) -> bool {
        false
    }
}

/// Returns the spec of a task.
pub type SpecOf<'a> = dyn Fn(TaskId) -> Option<Arc<Spec>> + 'a;

/// Resolves when an operation is done or can no longer be done.
pub type Done = oneshot::Receiver<()>;

/// How an executor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Gracefully, in its own time.
    Asked,
    /// Immediately.
    Forced,
}

/// Receives a worker's result for an offer.
pub type TellOffer = Box<dyn FnOnce(TaskId, Result<Offer, RpcError>) + Send>;

/// A process that is ready to be taken over.
#[derive(Debug)]
pub struct Offer {
    pub pid: i32,
    pub started_at: Timestamp,
    /// The program with its arguments.
    pub argv: Vec<OsText>,
    pub cwd: OsText,
    /// Whether standard output and error go to separate files.
    pub split: bool,
    /// The size of its terminal, if it has one.
    pub pty: Option<TerminalSize>,
    /// The file that the process itself writes its output to, if any.
    pub output_file: Option<OsText>,
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

/// The order to check agents or a place.
pub enum Check {
    /// Checks whether a place elsewhere works. The answer comes within its `connect_timeout` plus some seconds.
    Place {
        remote: Arc<Remote>,
        /// Receives the result; dropped if the place is not served.
        tell: oneshot::Sender<ExecutorCheck>,
    },
    /// Checks whether agents start, and what they report about themselves.
    Agents {
        /// The agents, each with the information known so far.
        agents: Vec<(Arc<Agent>, AgentInfo)>,
        /// The environment to start them in.
        env: Arc<Env>,
        /// Receives the results, or the reason why there are none; dropped if the agent executor has ended.
        tell: oneshot::Sender<io::Result<Vec<AgentInfo>>>,
    },
}

/// A client's request on a running task.
#[derive(Debug)]
pub struct Asked {
    pub answer: Answer,
    /// The task, as clients see it.
    pub task: Box<WireTask>,
    pub what: Ask,
}

/// What a client requests.
#[derive(Debug)]
pub enum Ask {
    /// Write to the task's standard input or its terminal.
    Write {
        data: Vec<u8>,
        /// Whether this ends the input.
        eof: bool,
        /// Counts the bytes until they are read.
        unread: UnreadBytes,
    },
    /// Show its terminal to the client.
    Attach {
        /// Whether the task is the caller's foreground job, of which the caller gets every byte.
        owns: bool,
        /// The size of the client's own terminal.
        size: Option<TerminalSize>,
    },
    /// Stop showing it to the client.
    Leave,
    /// Note a new size of the client's own terminal.
    Resize { size: TerminalSize },
}

impl Asked {
    /// Refuses a request that the executor can't serve for that task.
    pub fn refuse(&self) {
        let id = self.task.id;
        let unsupported =
            |message: String, hint: &str| RpcError::new(ErrorKind::Unsupported, message).hint(hint);
        let error = match (&self.what, self.task.kind) {
            (Ask::Write { .. }, kind) => {
                let hint = match kind {
                    Kind::Process => "resubmit it with --stdin-pipe (`stdin: \"pipe\"` in task.submit)",
                    Kind::Agent => "`bgctl resume` sends an agent a follow-up after its answer",
                };
                unsupported(format!("task {id} has no standard input to write to"), hint)
            }
            (Ask::Attach { .. } | Ask::Resize { .. }, _) => unsupported(
                format!("task {id} has no terminal"),
                &format!("follow its output with: bgctl output --follow {id}"),
            ),
            (Ask::Leave, _) => not_shown(id),
        };
        self.answer.refuse(&error);
    }
}

/// Returns the error for a client that wants to leave or resize a terminal that it is not shown.
pub fn not_shown(id: TaskId) -> RpcError {
    let message = format!("this connection does not show the terminal of task {id}");
    RpcError::new(ErrorKind::InvalidParams, message).hint("call `task.attach` first")
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
}
