//! The seam between the dispatcher and whatever runs tasks: the trait, and the table of those who have it. It knows no
//! kind of work.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::request::TerminalSize;
use bgd_shared::task::{Exit, Kind, Task as WireTask};
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;
use futures_util::future::{LocalBoxFuture, select_all};
use tokio::sync::oneshot;

use super::handed::Handoff;
use super::messages::Inherited;
use crate::client::Client;
use crate::client::answer::Answer;
use crate::core::{Begin, Control, ExecutorName, Spec};

/// Runs tasks of one kind, on the dispatcher's thread. What it sees it reports as facts, by the channel that it was made
/// with; each has the task and the run. None of its calls waits for anything.
///
/// A run is started once. Its facts are, in this order: `Started`, or one of `StartFailed` and `Refused`, after which
/// nothing comes; then, when it has ended by itself or was told to, what that kind of work ends with. The dispatcher
/// may also name runs that have ended; that means nothing.
pub trait Executor {
    /// Begins a run of a task.
    fn start(&mut self, start: Start);

    /// Does something about a run that was started. What takes a moment resolves when it is done, or can't be done any
    /// more: its answer waits for that.
    fn control(&mut self, task: TaskId, run: u32, control: Control) -> Option<Done>;

    /// Ends a run, with this signal where it is one of processes. It comes again, with SIGKILL at last.
    fn end(&mut self, task: TaskId, run: u32, signal: i32);

    /// Forgets a task, none of whose runs goes on.
    fn forget(&mut self, task: TaskId);

    /// Does what a client asks for, which only some executors can, and answers.
    fn ask(&mut self, asked: Asked) {
        asked.refuse();
    }

    /// Makes ready to take over a process that another program offers. It stays untouched until
    /// [`Begin::HandedOver`] is started; [`Self::forget`] lets go of it.
    fn offer(&mut self, task: TaskId, handoff: Box<Handoff>, client: &Client, tell: TellOffer) {
        let _ = (handoff, client);
        let error = RpcError::new(ErrorKind::Unsupported, "this executor takes over no processes");
        tell(task, Err(error));
    }

    /// The program that handed over the process of a task says how that ended.
    fn exited(&mut self, task: TaskId, exit: Exit) {
        let _ = (task, exit);
    }

    /// A client is gone.
    fn disconnected(&mut self, client: u64) {
        let _ = client;
    }

    /// The answers of a turn are on their way: what would compete with whoever waits for one may begin.
    fn answered(&mut self) {}

    /// Waits for the next thing from this executor's own workers, and does what follows from it. It may be dropped while
    /// it waits, and loses nothing.
    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// The daemon ends, and no task is left: what this executor keeps for itself ends.
    fn close(&mut self, close: Close) {
        let _ = close;
    }

    /// Whether something of it is left that the daemon's end must wait for.
    fn is_busy(&self) -> bool {
        false
    }
}

/// Resolves when something was done, also if it can't be done any more.
pub type Done = oneshot::Receiver<()>;

/// How an executor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// In its own time.
    Asked,
    /// Now.
    Forced,
}

/// Takes what became of an offer: a worker's result.
pub type TellOffer = Box<dyn FnOnce(TaskId, Result<Offer, RpcError>) + Send>;

/// A process that is ready to be taken over.
#[derive(Debug)]
pub struct Offer {
    /// Its number.
    pub pid: i32,
    /// Since when it runs.
    pub started_at: Timestamp,
    /// Its program with the arguments.
    pub argv: Vec<OsText>,
    /// Its folder.
    pub cwd: OsText,
    /// Whether its output is in two files.
    pub split: bool,
    /// Its terminal's size, if it has one.
    pub pty: Option<TerminalSize>,
    /// The file that it writes to by itself.
    pub output_file: Option<OsText>,
}

/// The order to begin a run of a task.
#[derive(Debug)]
pub struct Start {
    /// The task.
    pub task: TaskId,
    /// Its run: what facts about it carry.
    pub run: u32,
    /// What it is.
    pub spec: Arc<Spec>,
    /// What begins.
    pub begin: Begin,
    /// Descriptors for its standard streams.
    pub inherited: Inherited,
    /// The client whose foreground job it is.
    pub owner: Option<Arc<Client>>,
}

/// What a client asks of a run that goes on.
#[derive(Debug)]
pub struct Asked {
    /// Who gets the answer.
    pub answer: Answer,
    /// The task, as clients see it.
    pub task: Box<WireTask>,
    /// What is asked for.
    pub what: Ask,
}

/// What a client asks for.
#[derive(Debug)]
pub enum Ask {
    /// To write to its standard input, or to its terminal.
    Write {
        /// The bytes.
        data: Vec<u8>,
        /// Whether no more come.
        eof: bool,
    },
    /// To be shown its terminal.
    Attach {
        /// How large the client's own is.
        size: Option<TerminalSize>,
    },
    /// To be shown it no more.
    Leave,
    /// To have it as large as this.
    Resize {
        /// How large.
        size: TerminalSize,
    },
}

impl Asked {
    /// Answers for an executor that can't do this for that task.
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

/// A client wants to leave a terminal that it is not shown, or to change its size.
pub fn not_shown(id: TaskId) -> RpcError {
    let message = format!("this connection does not show the terminal of task {id}");
    RpcError::new(ErrorKind::InvalidParams, message).hint("call `task.attach` first")
}

/// The executors by the names that the core has for them.
#[derive(Default)]
pub struct Executors(BTreeMap<ExecutorName, Box<dyn Executor>>);

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Executors {
    /// The same with one more, in place of one of the same name.
    #[must_use]
    pub fn with(mut self, name: ExecutorName, executor: impl Executor + 'static) -> Self {
        self.0.insert(name, Box::new(executor));
        self
    }

    /// That of this name.
    pub fn of(&mut self, name: ExecutorName) -> Option<&mut (dyn Executor + 'static)> {
        let executor = self.0.get_mut(&name);
        if executor.is_none() {
            tracing::error!(?name, "there is no such executor");
        }
        executor.map(|executor| &mut **executor)
    }

    /// All of them.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Executor>> {
        self.0.values_mut()
    }

    /// Waits until one of them has done what follows from something that its workers have found.
    pub async fn attend(&mut self) {
        select_all(self.0.values_mut().map(|executor| executor.attend())).await;
    }

    /// Whether the daemon's end must wait for one of them.
    pub fn is_busy(&self) -> bool {
        self.0.values().any(|executor| executor.is_busy())
    }
}
