//! Effects: the actions that the core requests, in the order in which they must happen.

use std::collections::BTreeSet;
use std::sync::Arc;

use bgd_shared::agent::AgentSettings;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::ClearedTasks;
use bgd_shared::task::Status;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::caller::ReplyTo;
use super::control::Control;
use super::group::GroupState;
use super::input::Refusal;
use super::notice::{Item, Notice};
use super::task::{ExecutorName, Finished, Snapshot, Spec};

/// A message for an executor, a client or the subscribers.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Begin a run of a task. The executor reports [`super::Fact::Started`], [`super::Fact::StartFailed`] or
    /// [`super::Fact::Refused`]; none of them for a process that is already running ([`Begin::HandedOver`]).
    Start {
        /// The executor, which owns the run from now on.
        executor: ExecutorName,
        task: TaskId,
        run: u32,
        spec: Arc<Spec>,
        begin: Begin,
    },
    /// Act on a run.
    Control {
        /// The run's executor.
        executor: ExecutorName,
        task: TaskId,
        run: u32,
        control: Control,
    },
    /// End a run. For a process: send this signal to its whole tree; SIGKILL also goes to processes that the tree
    /// starts meanwhile. Stopped processes are continued so that they can react. For an agent: ask it to end its turn;
    /// SIGKILL forces it to.
    End {
        /// The run's executor.
        executor: ExecutorName,
        task: TaskId,
        run: u32,
        signal: i32,
        /// How long until SIGKILL follows unless the run ends before, in milliseconds; 0 with SIGKILL.
        grace_ms: u64,
    },
    /// The task was cleared: remove its output and everything else kept for it.
    Forget {
        /// The executor of its runs.
        executor: ExecutorName,
        task: TaskId,
        /// Its latest run.
        run: u32,
    },
    /// A run and all of its processes have ended. Only from a core that tracks changes: this is persisted by then.
    Over {
        /// The run's executor.
        executor: ExecutorName,
        task: TaskId,
        run: u32,
    },
    /// A fact of the executor about a run is persisted ([`super::PlaceFact::Lost`], [`super::PlaceFact::Submitting`]).
    /// Only from a core that tracks changes.
    Written {
        /// The run's executor.
        executor: ExecutorName,
        task: TaskId,
        run: u32,
    },
    /// All facts about runs so far are persisted. Sent only by a dispatcher, never by the core: with 0 when a durable
    /// daemon starts, and with an executor's number when that executor has asked for it.
    CaughtUp {
        /// The number of the request that this answers.
        mark: u64,
    },
    /// Reply to a call.
    Reply {
        /// The call.
        to: ReplyTo,
        reply: Reply,
    },
    /// Publish an event to the subscribers.
    Event {
        seq: u64,
        /// When it happened.
        at: Timestamp,
        kind: EventKind,
        /// The task at that time.
        task: Snapshot,
    },
    /// Notify the task's requester. Comes after the event.
    Notice {
        notice: Arc<Notice>,
        /// Clients that are informed anyway: they are waiting for the task's end, or have requested it.
        seen_by: BTreeSet<u64>,
    },
    /// Every task has ended and every call has its reply: end the daemon. No effect follows.
    Exit,
}

/// How a run begins.
#[derive(Clone, Debug)]
pub enum Begin {
    /// Start a process.
    Process {
        env: Arc<Env>,
        /// Information for the process about its slots, group, attempt and dependencies.
        place: Box<RunPlace>,
    },
    /// Give an agent a prompt.
    Prompt {
        env: Arc<Env>,
        prompt: Arc<str>,
        /// Settings to apply to the session first.
        settings: Arc<AgentSettings>,
        /// The session to continue; `None` for a new one.
        session: Option<Arc<str>>,
        /// The tasks that it comes after.
        after: Box<[AfterTask]>,
    },
    /// Supervise the process that came with [`super::Request::Adopt`].
    HandedOver,
}

/// Information for a process about its slots, group, attempt and dependencies (R102, R104), and for another place about
/// its priority.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunPlace {
    /// The numbers of its slots in ascending order; empty if it occupies none.
    pub slots: Box<[u32]>,
    /// Its group; `None` means the default group.
    pub group: Option<Arc<str>>,
    /// The number of this attempt; `None` if there can be only one.
    pub attempt: Option<u32>,
    /// Its priority, -100 to 100, for the queue of another place.
    pub priority: i32,
    /// The tasks that it comes after.
    pub after: Box<[AfterTask]>,
}

/// A task that another task comes after.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AfterTask {
    pub id: TaskId,
    /// The task as it is when the other task starts; `None` if it was cleared.
    pub task: Option<Snapshot>,
    /// Whether the place that gets the other task must not start it before this task has succeeded there.
    pub is_awaited: bool,
}

/// The reply to a call.
#[derive(Clone, Debug)]
pub enum Reply {
    Task(Snapshot),
    /// A part of a batch is staged, or with the last part, all of the batch's tasks are added.
    Many {
        batch: TaskId,
        /// The tasks of this part.
        ids: Vec<TaskId>,
    },
    /// Tasks were submitted again: pairs of new and old id.
    Rerun(Vec<(TaskId, TaskId)>),
    /// A job that was moved to the background, or a process that was adopted.
    Backgrounded(Snapshot),
    /// Several tasks, after a cancel, hold, release, pause or continue.
    Tasks(Vec<Snapshot>),
    /// A block has ended.
    Blocked {
        /// Every named task.
        tasks: Vec<Snapshot>,
        /// Whether it ended by timeout.
        timed_out: bool,
        /// The tasks of the selected batch that were gone when the wait began; `None` if there were none.
        cleared: Option<ClearedTasks>,
    },
    /// Tasks were removed.
    Cleared {
        cleared: u64,
        /// The tasks that the request has named or selected, whoever removed them.
        tasks: Vec<TaskId>,
    },
    /// A parent session has ended.
    SessionEnded {
        /// How many of its tasks were active.
        cancelled: u64,
        /// How many of its tasks were removed.
        cleared: u64,
        /// Its tasks, whoever removed them.
        tasks: Vec<TaskId>,
    },
    /// The content of an inbox.
    Inbox {
        items: Vec<Item>,
        /// Whether there are more items.
        more: bool,
        /// How many dropped items no acknowledgement has covered yet.
        lost: u64,
    },
    /// Items of an inbox were removed.
    Acknowledged {
        acknowledged: u64,
        /// How many items are left.
        left: u64,
    },
    /// The client owns the parent session.
    Owned,
    /// The current state of a group.
    Group(GroupState),
    /// Every task has ended, and the daemon is about to.
    ShutDown {
        cancelled: u64,
        /// How many keep running without the daemon.
        left: u64,
    },
    /// The request failed.
    Error(CoreError),
}

/// Why a job that has not ended can't be moved to the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmovable {
    /// It is already in the background.
    InBackground,
    /// It is another client's foreground job.
    OfAnother,
    /// The user started it directly (R64).
    Direct,
}

/// Why a task that has not ended can't be paused or continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpausable {
    /// It has no processes yet.
    Pending,
    /// It is an agent's turn.
    Agent,
    /// It is already being ended.
    Ending,
}

/// Why a task can't be submitted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrepeatable {
    /// It was a foreground job, or was started by another program.
    Job,
    /// Its standard streams were descriptors of its submitter.
    Streams,
    /// It was resumed: its prompts build on each other.
    Resumed,
    /// Its environment is no longer kept.
    NoEnvironment,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreError {
    /// No task has this id.
    NotFound(String),
    /// No task has this id, but a batch does.
    IsBatch(TaskId),
    /// Several tasks have ids with this prefix; lists the first ones.
    Ambiguous(String, Vec<TaskId>),
    /// The task has not completed, so it has no result.
    NotComplete(TaskId, Status, Option<Box<Finished>>),
    /// A job that was to be moved to the background has already ended.
    EndedFirst(TaskId, Status),
    NotBackgroundable(TaskId, Unmovable),
    /// The task is not running.
    NotRunning(TaskId, Status),
    /// The task is an agent's; only processes accept signals.
    NoSignals(TaskId),
    NotPausable(TaskId, Unpausable),
    /// The task has no conversation to continue; only agent tasks do.
    NoAgent(TaskId),
    /// Only completed tasks, and those whose turn was cut short, can be resumed.
    NotResumable(TaskId, Status),
    /// A resume is in progress, or the agent is working on one.
    BeingResumed(TaskId),
    /// The task will be removed once the tasks cleared together with it have ended.
    BeingCleared(TaskId),
    /// The resume was cancelled before the agent received the prompt.
    Withdrawn(TaskId),
    /// The conversation has no id, so it can't be continued.
    NoSession {
        id: TaskId,
        /// Whether its turn completed, and was not cut short.
        is_complete: bool,
    },
    /// The agent refused the prompt: for example, the conversation is forgotten, or the agent can't be reached.
    Refused(TaskId, Box<Refusal>),
    /// The agent is not, or no longer, asking this question. Contains the requested question and the next pending one,
    /// if any.
    NotAsked(TaskId, u64, Option<u64>),
    /// The question has no such option; lists its options.
    NoSuchOption(TaskId, Box<str>, Vec<Box<str>>),
    /// The task is still active, so it can't be cleared.
    StillActive(TaskId, Status),
    /// The connection has reached this limit on foreground jobs.
    TooManyJobs(usize),
    /// The connection has reached this limit on parent sessions.
    TooManySessions(usize),
    /// The waits of the connection would exceed this limit on their tasks.
    TooManyWaits(usize),
    /// The connection has reached this limit on waiting reads of inboxes.
    TooManyReads(usize),
    /// This limit on tasks is reached.
    Full(usize),
    /// The request would exceed the limit on memory. All values are in bytes.
    FullMemory {
        /// Memory of tasks, inboxes and batches that are still being added.
        held: usize,
        /// The part of it that inboxes use.
        inboxes: usize,
        /// Additional memory for the request.
        more: usize,
        limit: usize,
    },
    /// The daemon is shutting down.
    ShuttingDown,
    /// The request about groups, batches, dependencies or reruns is invalid.
    Order(OrderError),
}

/// Why a request about groups, batches, dependencies or reruns is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderError {
    /// No group has this name; lists the existing ones.
    UnknownGroup(Box<str>, Vec<Arc<str>>),
    /// This limit on groups is reached.
    TooManyGroups(usize),
    /// This many tasks of the group have not ended.
    GroupInUse(Arc<str>, u64),
    /// The default group can't be removed.
    DefaultGroup,
    /// The task wants more slots than its group has.
    TooManySlots {
        /// The task to be run again, as one of several.
        task: Option<TaskId>,
        wanted: u32,
        group: Arc<str>,
        /// How many slots the group has.
        slots: u32,
    },
    /// The batch does not fit beside the tasks that exist or have reserved places.
    LargeBatch {
        /// How many tasks of the batch have arrived so far.
        wanted: usize,
        /// How many tasks there is room for.
        room: usize,
    },
    /// The task has not ended, so it can't be submitted again.
    NotEnded(TaskId, Status),
    NotRepeatable(TaskId, Unrepeatable),
    /// This many tasks can't be submitted again in one request.
    TooManyReruns(usize),
    /// No batch has an id with this prefix.
    NoBatch(Box<str>),
    /// The part names a batch that this connection is not submitting.
    NotStaged(TaskId),
    /// The connection is already submitting another batch whose last part has not arrived.
    AlreadyStaged(TaskId),
    /// The batch was submitted before, and only some of its tasks were accepted.
    Torn(TaskId),
    /// The task is not pending, so it can't be held, released or edited.
    NotPending(TaskId, Status),
    /// The task waits elsewhere, where only its priority and its description can be changed.
    GivenAway(TaskId),
    /// The task defines no readiness, so it never becomes ready.
    NeverReady(TaskId),
    /// A dependency cycle: the first task already comes after the second, so the second can't come after the first.
    Cycle(TaskId, TaskId),
}
