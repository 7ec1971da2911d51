//! What the core wants done, in the order in which it must happen.

use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;

use super::input::ReplyTo;
use super::registry::CANDIDATES;
use super::task::{Snapshot, Spec};

/// Something for an executor, a client or the subscribers.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Start a process and report [`super::Fact::Started`] or [`super::Fact::StartFailed`].
    Start {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// What to start.
        spec: Arc<Spec>,
        /// With which environment.
        env: Arc<Env>,
    },
    /// Send a signal.
    Signal {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// The number of the signal.
        signal: i32,
        /// To every process of the tree.
        tree: bool,
    },
    /// End the whole tree: this signal to all of it, and to those that it starts meanwhile if it is
    /// SIGKILL. Stopped processes are continued so that they can obey.
    End {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// The number of the signal.
        signal: i32,
    },
    /// The task was cleared: remove its output and everything that is kept for it.
    Forget {
        /// The task.
        task: TaskId,
    },
    /// Answer a call.
    Reply {
        /// Whom.
        to: ReplyTo,
        /// What.
        reply: Reply,
    },
    /// Tell the subscribers.
    Event {
        /// Its number.
        seq: u64,
        /// When it happened.
        at: Timestamp,
        /// What happened.
        kind: EventKind,
        /// The task as it was then.
        task: Snapshot,
    },
    /// Every task has ended and every call is answered: end the daemon. Nothing comes after it.
    Exit,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub enum Reply {
    /// One task.
    Task(Snapshot),
    /// Tasks after a cancel.
    Tasks(Vec<Snapshot>),
    /// The end of a block.
    Blocked {
        /// Every task that was named.
        tasks: Vec<Snapshot>,
        /// Whether the timeout came first.
        timed_out: bool,
    },
    /// Tasks were removed.
    Cleared {
        /// How many.
        cleared: u64,
    },
    /// A parent session has ended.
    SessionEnded {
        /// How many of its tasks were active.
        cancelled: u64,
        /// How many were removed.
        cleared: u64,
    },
    /// Every task has ended.
    ShutDown {
        /// How many were cancelled.
        cancelled: u64,
    },
    /// It can't be done.
    Error(CoreError),
}

/// Why a request can't be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreError {
    /// No task has this id.
    NotFound(String),
    /// Several tasks have ids that begin like this.
    Ambiguous(String, Vec<TaskId>),
    /// The task has no result.
    NotComplete(TaskId, Status, Option<Box<str>>),
    /// The task does not run.
    NotRunning(TaskId, Status),
    /// The task is active, so it can't be cleared.
    StillActive(TaskId, Status),
    /// No more tasks fit.
    Full(usize),
    /// The daemon is about to end.
    ShuttingDown,
}

impl From<CoreError> for RpcError {
    fn from(error: CoreError) -> Self {
        match error {
            CoreError::NotFound(id) => Self::new(ErrorKind::TaskNotFound, format!("there is no task {id}"))
                .hint("`bgctl list` shows the tasks; those of an earlier daemon are gone"),
            CoreError::Ambiguous(id, candidates) => {
                let many = if candidates.len() < CANDIDATES { "" } else { " or more" };
                let message = format!("{id} is the beginning of {}{many} task ids", candidates.len());
                let mut error =
                    Self::new(ErrorKind::AmbiguousId, message).hint("give more characters of the id");
                error.data.candidates = candidates;
                error
            }
            CoreError::NotComplete(id, status, why) => {
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                let (word, hint) = if status.is_active() {
                    ("is not complete yet", "`bgctl block` waits for it, `bgctl output` shows what is there")
                } else {
                    ("has no result", "`bgctl output` shows what it wrote")
                };
                Self::new(ErrorKind::NotComplete, format!("task {id} {word}, it is {status}{why}")).hint(hint)
            }
            CoreError::NotRunning(id, status) => {
                Self::new(ErrorKind::NotRunning, format!("task {id} does not run, it is {status}"))
                    .hint("only a running task takes signals and input")
            }
            CoreError::StillActive(id, status) => {
                Self::new(ErrorKind::NotComplete, format!("task {id} is {status}, so it can't be cleared"))
                    .hint("cancel it first, or clear it with `all` (`bgctl clear --all ID`)")
            }
            CoreError::Full(limit) => Self::new(
                ErrorKind::RegistryFull,
                format!("the daemon holds {limit} tasks, which is its limit (limits.tasks)"),
            )
            .hint("`bgctl clear` removes the finished ones"),
            CoreError::ShuttingDown => Self::new(ErrorKind::ShuttingDown, "the daemon is shutting down")
                .hint("start it again when it has ended"),
        }
    }
}
