//! What the core wants done, in the order in which it must happen.

use std::collections::BTreeSet;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use bytesize::ByteSize;

use super::input::{Refusal, ReplyTo};
use super::notice::{Item, Notice};
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
    /// Give a prompt to an agent, and report [`super::Fact::Started`] or [`super::Fact::Refused`].
    Prompt {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// Which agent, and where.
        spec: Arc<Spec>,
        /// With which environment.
        env: Arc<Env>,
        /// What it is told.
        prompt: Arc<str>,
        /// The session that goes on; a new one if there is none.
        session: Option<Arc<str>>,
    },
    /// Give an agent the answer that it waits for.
    Answer {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// The executor's number for the question.
        key: u64,
        /// The option; none denies.
        option: Option<Box<str>>,
    },
    /// Supervise the process that was brought along with [`super::Request::Adopt`].
    Adopt {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
    },
    /// The task is no foreground job of this client any more: show it nothing of the task's terminal.
    Detached {
        /// The task.
        task: TaskId,
        /// The client.
        client: u64,
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
    /// SIGKILL. Stopped processes are continued so that they can obey. An agent is told to end its turn;
    /// if it is SIGKILL, it is made to.
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
        /// Its latest run.
        run: u32,
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
    /// Tell whoever asked for a task. It comes behind the event.
    Notice {
        /// What.
        notice: Arc<Notice>,
        /// The clients that see it anyway: they wait for the end of the task, or have asked for it.
        seen_by: BTreeSet<u64>,
    },
    /// Every task has ended and every call is answered: end the daemon. Nothing comes after it.
    Exit,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub enum Reply {
    /// One task.
    Task(Snapshot),
    /// A job that is in the background now.
    Backgrounded(Snapshot),
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
    /// What is in an inbox.
    Inbox {
        /// The items.
        items: Vec<Item>,
        /// Whether there are more.
        more: bool,
        /// How many were dropped, and no later one is acknowledged.
        lost: u64,
    },
    /// Items of an inbox are done with.
    Acknowledged {
        /// How many these were.
        acknowledged: u64,
        /// How many are left.
        left: u64,
    },
    /// The client owns the parent session.
    Owned,
    /// Every task has ended.
    ShutDown {
        /// How many were cancelled.
        cancelled: u64,
    },
    /// It can't be done.
    Error(CoreError),
}

/// Why a job that has not ended can't be moved to the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmovable {
    /// It is there.
    InBackground,
    /// Another client shows it.
    OfAnother,
    /// The user started it directly (R64).
    Direct,
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
    /// A job that should go to the background has ended before.
    EndedFirst(TaskId, Status),
    /// The job can't go to the background, and why.
    NotBackgroundable(TaskId, Unmovable),
    /// The task does not run.
    NotRunning(TaskId, Status),
    /// Signals are for processes.
    NoSignals(TaskId),
    /// Only agent tasks have a conversation to go on with.
    NoAgent(TaskId),
    /// Only completed tasks can be resumed.
    NotResumable(TaskId, Status),
    /// A resume is under way, or the agent works on one.
    BeingResumed(TaskId),
    /// It is about to be removed, as soon as others that are cleared with it have ended.
    BeingCleared(TaskId),
    /// The resume was cancelled before the prompt was with the agent.
    Withdrawn(TaskId),
    /// The conversation of the task was never known, or the agent has forgotten it, or can't be reached.
    Refused(TaskId, Box<Refusal>),
    /// The agent does not ask this, or not any more.
    NotAsked(TaskId, u64, Option<u64>),
    /// The agent does not take this answer.
    NoSuchOption(TaskId, Box<str>, Vec<Box<str>>),
    /// The task is active, so it can't be cleared.
    StillActive(TaskId, Status),
    /// The connection has so many foreground jobs.
    TooManyJobs(usize),
    /// The connection owns so many parent sessions.
    TooManySessions(usize),
    /// No more tasks fit.
    Full(usize),
    /// So many bytes are held, and with so many more it would be more than the limit.
    FullMemory {
        /// By tasks and inboxes.
        held: usize,
        /// By what is refused.
        more: usize,
        /// At most.
        limit: usize,
    },
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
            CoreError::NotComplete(id, status, why) => not_complete(id, status, why.as_deref()),
            CoreError::EndedFirst(id, status) => {
                Self::new(ErrorKind::AlreadyFinished, format!("task {id} has ended already, it is {status}"))
                    .hint("`bgctl status` shows how it ended, `bgctl output` what it wrote")
            }
            CoreError::NotBackgroundable(id, why) => not_backgroundable(id, why),
            CoreError::NotRunning(id, status) => {
                Self::new(ErrorKind::NotRunning, format!("task {id} does not run, it is {status}"))
                    .hint("only a running task takes signals and input")
            }
            CoreError::NoSignals(id) => Self::new(
                ErrorKind::Unsupported,
                format!("task {id} is an agent's turn, which takes no signals"),
            )
            .hint("`bgctl cancel` ends it"),
            CoreError::NoAgent(id) => Self::new(
                ErrorKind::NotResumable,
                format!("task {id} is a command; only agent tasks can be resumed"),
            )
            .hint("submit a new task"),
            CoreError::NotResumable(id, status) => not_resumable(id, status),
            CoreError::BeingResumed(id) => {
                Self::new(ErrorKind::BeingResumed, format!("task {id} is currently being resumed"))
                    .hint("`bgctl block` waits for the answer; resume it again then")
            }
            CoreError::BeingCleared(id) => {
                Self::new(ErrorKind::NotResumable, format!("task {id} is about to be cleared"))
                    .hint("submit a new task")
            }
            CoreError::Withdrawn(id) => Self::new(
                ErrorKind::NotResumable,
                format!("the resume of task {id} was cancelled before its prompt was with the agent"),
            ),
            CoreError::Refused(id, refusal) => {
                let Refusal { kind, message, hint } = *refusal;
                let mut error = Self::new(kind, format!("task {id} can't be resumed: {message}"));
                error.data.hint = hint.map(Into::into);
                error
            }
            CoreError::NotAsked(id, request, current) => not_asked(id, request, current),
            CoreError::NoSuchOption(id, option, known) => Self::new(
                ErrorKind::InvalidParams,
                format!("{option:?} is no answer to the question of task {id}"),
            )
            .hint(format!("it takes {}", known.join(", "))),
            CoreError::StillActive(id, status) => still_active(id, status),
            CoreError::TooManyJobs(limit) => too_many_jobs(limit),
            CoreError::TooManySessions(limit) => too_many_sessions(limit),
            CoreError::Full(limit) => Self::new(
                ErrorKind::RegistryFull,
                format!("the daemon holds {limit} tasks, which is its limit (limits.tasks)"),
            )
            .hint("`bgctl clear --all-sessions` removes the finished ones"),
            CoreError::FullMemory { held, more, limit } => full_memory(held, more, limit),
            CoreError::ShuttingDown => Self::new(ErrorKind::ShuttingDown, "the daemon is shutting down")
                .hint("start it again when it has ended"),
        }
    }
}

fn full_memory(held: usize, more: usize, limit: usize) -> RpcError {
    let size = |bytes: usize| ByteSize(bytes as u64);
    let message = format!(
        "this needs {} of memory, and tasks and inboxes hold {} of the {} that they may (limits.memory)",
        size(more),
        size(held),
        size(limit)
    );
    RpcError::new(ErrorKind::RegistryFull, message).hint(
        "`bgctl clear --all-sessions` removes the finished tasks; a higher limits.memory in the configuration allows more",
    )
}

fn not_backgroundable(id: TaskId, why: Unmovable) -> RpcError {
    let (why, hint) = match why {
        Unmovable::InBackground => ("it is there already", "`bgctl output` shows what it wrote"),
        Unmovable::OfAnother => {
            ("it is the foreground job of another client", "do it where the job is shown")
        }
        Unmovable::Direct => ("the user started it directly", "wait for it, or end it by `bgctl cancel`"),
    };
    let message = format!("task {id} can't be moved to the background: {why}");
    RpcError::new(ErrorKind::NotBackgroundable, message).hint(hint)
}

fn not_complete(id: TaskId, status: Status, why: Option<&str>) -> RpcError {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let (word, hint) = if status.is_active() {
        ("is not complete yet", "`bgctl block` waits for it, `bgctl output` shows what is there")
    } else {
        ("has no result", "`bgctl output` shows what it wrote")
    };
    RpcError::new(ErrorKind::NotComplete, format!("task {id} {word}, it is {status}{why}")).hint(hint)
}

fn too_many_jobs(limit: usize) -> RpcError {
    let message = format!("this connection has {limit} foreground jobs, which is the limit");
    RpcError::new(ErrorKind::TooManyRequests, message)
        .hint("move some to the background (`task.detach`), or submit without `foreground`")
}

fn too_many_sessions(limit: usize) -> RpcError {
    let message = format!("this connection owns {limit} parent sessions, which is the limit");
    RpcError::new(ErrorKind::TooManyRequests, message).hint("use another connection")
}

fn not_resumable(id: TaskId, status: Status) -> RpcError {
    let message = format!("only completed tasks can be resumed; task {id} is {status}");
    let hint = if status.is_active() { "`bgctl block` waits for it" } else { "submit a new task" };
    RpcError::new(ErrorKind::NotResumable, message).hint(hint)
}

fn still_active(id: TaskId, status: Status) -> RpcError {
    let (kind, what) = if status.is_active() {
        (ErrorKind::NotComplete, status.as_str())
    } else {
        (ErrorKind::BeingResumed, "being resumed")
    };
    RpcError::new(kind, format!("task {id} is {what}, so it can't be cleared"))
        .hint("cancel it first, or clear it with `all` (`bgctl clear --all ID`)")
}

fn not_asked(id: TaskId, request: u64, current: Option<u64>) -> RpcError {
    let message = format!("task {id} does not wait for an answer to question {request}");
    RpcError::new(ErrorKind::AlreadyFinished, message).hint(match current {
        Some(current) => format!("it waits for an answer to question {current}"),
        None => "it asks nothing at this moment".to_owned(),
    })
}
