//! What the core wants done, in the order in which it must happen.

use std::collections::BTreeSet;
use std::sync::Arc;

use bgd_shared::agent::AgentSettings;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;

use super::caller::ReplyTo;
use super::group::GroupState;
use super::input::Refusal;
use super::notice::{Item, Notice};
use super::task::{ExecutorName, Finished, Snapshot, Spec};

/// Something for an executor, a client or the subscribers.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Begin a run of a task, and report [`super::Fact::Started`], [`super::Fact::StartFailed`] or
    /// [`super::Fact::Refused`]; nothing of these for what runs already ([`Begin::HandedOver`]).
    Start {
        /// Who does that, and hears of the run from now on.
        executor: ExecutorName,
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// What it is.
        spec: Arc<Spec>,
        /// What begins.
        begin: Begin,
    },
    /// Do something about a run.
    Control {
        /// Whose run it is.
        executor: ExecutorName,
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// What.
        control: Control,
    },
    /// End a run. Of a process, its whole tree: this signal to all of it, and to those that it starts meanwhile if it
    /// is SIGKILL. Stopped processes are continued so that they can obey. An agent is told to end its turn; if it is
    /// SIGKILL, it is made to.
    End {
        /// Whose run it is.
        executor: ExecutorName,
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// The number of the signal.
        signal: i32,
    },
    /// The task was cleared: remove its output and everything that is kept for it.
    Forget {
        /// Whose run it was.
        executor: ExecutorName,
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

/// What a run begins with.
#[derive(Clone, Debug)]
pub enum Begin {
    /// A process is started.
    Process {
        /// With this environment.
        env: Arc<Env>,
        /// What it is told of its place among others.
        place: Box<RunPlace>,
    },
    /// An agent is given a prompt.
    Prompt {
        /// In this environment.
        env: Arc<Env>,
        /// What it is told.
        prompt: Arc<str>,
        /// What is set in the session first.
        settings: Arc<AgentSettings>,
        /// The session that goes on; a new one if there is none.
        session: Option<Arc<str>>,
        /// The tasks that it came after.
        after: Box<[AfterTask]>,
    },
    /// The process that came along with [`super::Request::Adopt`] is supervised.
    HandedOver,
}

/// What a process is told of its place among others (R102, R104).
#[derive(Clone, Debug)]
pub struct RunPlace {
    /// The numbers of its slots, the lowest first; none if it takes none.
    pub slots: Box<[u32]>,
    /// Its group; `None` stands for the default one.
    pub group: Option<Arc<str>>,
    /// The number of this attempt, if it may have several.
    pub attempt: Option<u32>,
    /// The tasks that it came after.
    pub after: Box<[AfterTask]>,
}

/// A task that another one came after.
#[derive(Clone, Debug)]
pub struct AfterTask {
    /// The task.
    pub id: TaskId,
    /// The task as it is when the other one starts; `None` if it was cleared.
    pub task: Option<Snapshot>,
}

/// What is done about a run besides ending it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// A process gets a signal.
    Signal {
        /// Its number.
        signal: i32,
        /// Whether every process of the tree gets it.
        tree: bool,
    },
    /// An agent gets the answer that it waits for.
    Answer {
        /// The executor's number for the question.
        key: u64,
        /// The option; none denies.
        option: Option<Box<str>>,
    },
    /// Every process of the tree stops, those too that it starts meanwhile.
    Pause,
    /// They go on.
    Continue,
    /// The task is no foreground job of this client any more: it is shown nothing of the task's terminal.
    Detach {
        /// The client.
        client: u64,
    },
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub enum Reply {
    /// One task.
    Task(Snapshot),
    /// A part of a batch is staged, or the last one is in: these tasks.
    Many {
        /// The batch.
        batch: TaskId,
        /// The tasks of the part.
        ids: Vec<TaskId>,
    },
    /// Tasks were submitted again: the new ids, each with the old one.
    Rerun(Vec<(TaskId, TaskId)>),
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
    /// A group as it is now.
    Group(GroupState),
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

/// Why a task that has not ended can't be paused or continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpausable {
    /// It has no processes yet.
    Pending,
    /// It is an agent's turn.
    Agent,
    /// It is being ended.
    Ending,
}

/// Why a task can't be submitted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrepeatable {
    /// It was a foreground job, or another program started it.
    Job,
    /// Its streams were descriptors of its submitter.
    Streams,
    /// It was resumed: its prompts build upon each other.
    Resumed,
    /// Its environment is not kept any more.
    NoEnvironment,
}

/// Why a request can't be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreError {
    /// No task has this id.
    NotFound(String),
    /// Several tasks have ids that begin like this.
    Ambiguous(String, Vec<TaskId>),
    /// The task has no result.
    NotComplete(TaskId, Status, Option<Box<Finished>>),
    /// A job that should go to the background has ended before.
    EndedFirst(TaskId, Status),
    /// The job can't go to the background, and why.
    NotBackgroundable(TaskId, Unmovable),
    /// The task does not run.
    NotRunning(TaskId, Status),
    /// Signals are for processes.
    NoSignals(TaskId),
    /// The task can't be paused or continued, and why.
    NotPausable(TaskId, Unpausable),
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
    /// What tasks shall wait for, or a group, is not possible.
    Order(OrderError),
}

/// Why tasks can't be ordered so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderError {
    /// No group has this name; these have one.
    UnknownGroup(Box<str>, Vec<Arc<str>>),
    /// No more groups fit.
    TooManyGroups(usize),
    /// So many tasks of the group have not ended.
    GroupInUse(Arc<str>, u64),
    /// The default group can't be removed.
    DefaultGroup,
    /// The task wants so many slots, and its group has fewer.
    TooManySlots {
        /// Wanted.
        wanted: u32,
        /// Its group.
        group: Arc<str>,
        /// How many that has.
        slots: u32,
    },
    /// A batch of so many tasks does not fit, beside those that are there or have their places reserved.
    LargeBatch {
        /// The tasks of the batch, as far as they are known.
        wanted: usize,
        /// Those that there is room for.
        room: usize,
    },
    /// Only what has ended is submitted again.
    NotEnded(TaskId, Status),
    /// The task can't be submitted again, and why.
    NotRepeatable(TaskId, Unrepeatable),
    /// So many tasks at once are too many to be submitted again.
    TooManyReruns(usize),
    /// No batch has this id.
    NoBatch(Box<str>),
    /// A further part names a batch that this connection does not submit.
    NotStaged(TaskId),
    /// The connection submits another batch already, which has further parts.
    AlreadyStaged(TaskId),
    /// Only pending tasks can be held, released or edited.
    NotPending(TaskId, Status),
    /// The task has nothing that would tell that it is ready.
    NeverReady(TaskId),
    /// The first task comes after the second already, so the second can't come after the first.
    Cycle(TaskId, TaskId),
}
