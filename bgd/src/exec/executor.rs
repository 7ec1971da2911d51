//! The interface between the dispatcher and whatever runs tasks: the trait, and the table of its implementations. It
//! knows no kind of work, except that agents and places can be checked before they are used ([`Check`]).

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

/// Runs tasks of one kind, on the dispatcher's thread. Reports what it observes as facts, each with its task and run,
/// through the channel that it was created with. None of its calls blocks.
///
/// Each run is started once. Its facts come in this order: `Started`, or one of `StartFailed` and `Refused`, after
/// which nothing follows; then, once the run has ended by itself or on request, the final facts of that kind of work.
/// The dispatcher may also name runs that have already ended; such calls do nothing.
pub trait Executor {
    /// Starts a run of a task.
    fn start(&mut self, start: Start);

    /// Applies a control operation to a started run. If that takes a moment, returns a receiver that resolves when it
    /// is done or can no longer be done; the client's answer waits for it.
    fn control(&mut self, task: TaskId, run: u32, control: Control) -> Option<Done>;

    /// Ends a run, with this signal if it runs processes. Called repeatedly, finally with SIGKILL. Of a process that is only
    /// being started just with that, once nobody waits for it any longer: it is ended as soon as it runs, without being told
    /// again.
    fn end(&mut self, task: TaskId, run: u32, signal: i32);

    /// Forgets a task that has no run left.
    fn forget(&mut self, task: TaskId);

    /// Serves and answers a client's request on a run, which only some executors support.
    fn ask(&mut self, asked: Asked) {
        asked.refuse();
    }

    /// Prepares to take over a process that another program offers. The process stays untouched until
    /// [`Begin::HandedOver`] is started; [`Self::forget`] lets go of it.
    fn offer(&mut self, task: TaskId, handoff: Box<Handoff>, client: &Client, tell: TellOffer) {
        let _ = (handoff, client);
        let error = RpcError::new(ErrorKind::Unsupported, "this executor takes over no processes");
        tell(task, Err(error));
    }

    /// Takes the exit of a handed-over process, as reported by the program that handed it over.
    fn exited(&mut self, task: TaskId, exit: Exit) {
        let _ = (task, exit);
    }

    /// Goes on with a run that a daemon has left when it was killed. Returns the pid that its task shows.
    ///
    /// # Errors
    /// Something of it is missing, or this executor has nothing that outlives a daemon.
    fn go_on_with(&mut self, left: Left, resumed: &Resumed) -> io::Result<i32> {
        let _ = (left, resumed);
        Err(io::Error::other("its executor leaves nothing behind"))
    }

    /// Goes on with a run on another machine or a cluster, which a daemon or another program has left. It reports facts as of
    /// one that it has started; what is known by now is not reported again.
    fn take_up(&mut self, known: KnownRun) {
        tracing::error!(task = %known.task, "its executor runs nothing elsewhere");
    }

    /// Finds out what a run elsewhere has used that has ended for another daemon or another program, and reports it as for
    /// one that it has started.
    fn count(&mut self, ended: Uncounted) {
        let _ = ended;
    }

    /// Called by a durable daemon when the end of a run is written down, with all of its processes: what was kept of it
    /// for the next daemon is not needed any more.
    fn over(&mut self, task: TaskId, run: u32) {
        let _ = (task, run);
    }

    /// Called by a durable daemon when what was reported of a run is written down, once for each [`PlaceFact::Lost`] and
    /// [`PlaceFact::Submitting`].
    ///
    /// [`PlaceFact::Lost`]: crate::core::PlaceFact::Lost
    /// [`PlaceFact::Submitting`]: crate::core::PlaceFact::Submitting
    fn written(&mut self, task: TaskId, run: u32) {
        let _ = (task, run);
    }

    /// Called when events up to this number are told that can't be written down: whatever outlives a kill notes that. With
    /// `None` once they are written down.
    fn told(&mut self, seq: Option<u64>) {
        let _ = seq;
    }

    /// Called when a durable daemon begins that does not know all that the one before has started: whatever holds runs for
    /// the next one must not seem to hold all of them, until [`Self::caught_up`].
    fn doubt(&mut self) {}

    /// Called when it is written down what became of all that the daemon before has started, with 0; and where this executor
    /// has asked by [`Facts::ask_caught_up`], once all that it had reported by then is written down, with its number.
    ///
    /// [`Facts::ask_caught_up`]: super::messages::Facts::ask_caught_up
    fn caught_up(&mut self, mark: u64) {
        let _ = mark;
    }

    /// Measures what a run uses now. The receiver resolves to nothing if no process of it runs on this machine.
    fn usage(&mut self, task: TaskId, run: u32) -> Option<oneshot::Receiver<LiveUsage>> {
        let _ = (task, run);
        None
    }

    /// Called when a client has disconnected.
    fn disconnected(&mut self, client: u64) {
        let _ = client;
    }

    /// Checks whether what is configured works. An executor that has nothing of the kind drops the request.
    fn check(&mut self, check: Check) {
        drop(check);
    }

    /// Called when the configured agents or the places that run tasks elsewhere have changed.
    fn configure(&mut self, agents: &Arc<Agents>, remotes: &Arc<Remotes>) {
        let _ = (agents, remotes);
    }

    /// Called when the answers of a dispatcher turn are on their way: work that would compete with the clients
    /// waiting for them may begin.
    fn answered(&mut self) {}

    /// Waits for the next event from this executor's own workers and handles it. Cancel-safe: the future may be
    /// dropped while it waits, and nothing is lost.
    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Holds back the processes that it would start from now on, or starts them. They are carried over an upgrade.
    fn hold_starts(&mut self, holds: bool) {
        let _ = holds;
    }

    /// Returns its state, with every run, for the program that takes over. Takes nothing apart and changes nothing, as
    /// that program may refuse.
    ///
    /// # Errors
    /// Something of it can't be carried now.
    fn carry(&mut self, named: &mut Named) -> Result<Carried, Obstacle>;

    /// Lets what stands still since [`Self::carry`] go on: its state is not used.
    fn release(&mut self) {}

    /// Goes on with what another program has carried over; `spec` returns what a task is. Starts nothing.
    ///
    /// # Errors
    /// Something of it is missing.
    fn resume(&mut self, carried: Carried, came: &mut Came, spec: &SpecOf<'_>) -> io::Result<()> {
        let _ = (came, spec);
        match carried {
            Carried::Nothing => Ok(()),
            Carried::Local(_) | Carried::Other(_) => Err(io::Error::other("the state of another executor")),
        }
    }

    /// Called after [`Self::resume`] when nothing can fail any more: what came over is at work from now on, for those
    /// clients that came over, too.
    fn go_on(&mut self, clients: &HashMap<u64, Arc<Client>>) {
        let _ = clients;
    }

    /// Adds how many answers it owes to each client, and carries over an upgrade.
    fn count_owed(&self, clients: &mut HashMap<u64, usize>) {
        let _ = clients;
    }

    /// Called when a durable daemon ends and leaves its tasks running, here and elsewhere, and again once the executor is not
    /// busy any more: adds what tells their processes.
    fn leave(&mut self, left: &mut Spared) {
        let _ = left;
    }

    /// Called when the daemon ends and no task is left, or only such: ends what the executor keeps for itself.
    fn close(&mut self, close: Close) {
        let _ = close;
    }

    /// Whether the executor still has something that the daemon must wait for before it ends.
    fn is_busy(&self) -> bool {
        false
    }
}

/// Returns what a task is.
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
    /// When it was started.
    pub started_at: Timestamp,
    /// Its program with the arguments.
    pub argv: Vec<OsText>,
    /// Its working directory.
    pub cwd: OsText,
    /// Whether standard output and error go to separate files.
    pub split: bool,
    /// The size of its terminal, if it has one.
    pub pty: Option<TerminalSize>,
    /// The file that the process itself writes its output to, if it does.
    pub output_file: Option<OsText>,
}

/// The order to start a run of a task.
#[derive(Debug)]
pub struct Start {
    pub task: TaskId,
    /// The run, which facts about it carry.
    pub run: u32,
    /// The task's specification.
    pub spec: Arc<Spec>,
    /// How the run begins.
    pub begin: Begin,
    /// Descriptors for its standard streams, from the submitter.
    pub inherited: Inherited,
    /// The client whose foreground job it is.
    pub owner: Option<Arc<Client>>,
}

/// The order to check what is configured.
pub enum Check {
    /// Whether a place elsewhere works. The answer comes within its `connect_timeout` and some seconds.
    Place {
        /// The place.
        remote: Arc<Remote>,
        /// Receives what was found; dropped if the place is not served.
        tell: oneshot::Sender<ExecutorCheck>,
    },
    /// Whether agents start, and what they report about themselves.
    Agents {
        /// The agents, with what is known about each.
        agents: Vec<(Arc<Agent>, AgentInfo)>,
        /// The environment that they start in.
        env: Arc<Env>,
        /// Receives the results, or why there are none; dropped if whoever serves agents has ended.
        tell: oneshot::Sender<io::Result<Vec<AgentInfo>>>,
    },
}

/// A client's request on a running task.
#[derive(Debug)]
pub struct Asked {
    /// Where the answer goes.
    pub answer: Answer,
    /// The task, as clients see it.
    pub task: Box<WireTask>,
    /// The request.
    pub what: Ask,
}

/// What a client requests.
#[derive(Debug)]
pub enum Ask {
    /// Write to its standard input or its terminal.
    Write {
        /// The bytes.
        data: Vec<u8>,
        /// Whether this ends the input.
        eof: bool,
        /// Counts the bytes until they are read.
        unread: UnreadBytes,
    },
    /// Show its terminal to the client.
    Attach {
        /// Whether it is the caller's foreground job, of which it gets every byte.
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
    /// Refuses the request, for an executor that can't serve it for that task.
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

/// The error for a client that wants to leave or resize a terminal that it is not shown.
pub fn not_shown(id: TaskId) -> RpcError {
    let message = format!("this connection does not show the terminal of task {id}");
    RpcError::new(ErrorKind::InvalidParams, message).hint("call `task.attach` first")
}

/// The executors, by the names that the core has for them.
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

    /// Whether the daemon must wait for one of the executors before it ends.
    pub fn is_busy(&self) -> bool {
        self.0.values().any(|executor| executor.is_busy())
    }
}
