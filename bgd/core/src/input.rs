//! The core's inputs: client requests, executor facts, and everything else that happens.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::agent::{AgentSettings, InputOption};
use bgd_shared::consumption::PlanStep;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::order::After;
use bgd_shared::request::{BlockMode, BlockUntil, Stream};
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use bgd_shared::time::Timestamp;
use bgd_shared::usage::Usage;
use serde::{Deserialize, Serialize};

use super::agent::Note;
use super::caller::ReplyTo;
use super::consumed::Report;
use super::control::Control;
use super::elsewhere::Conclusion;
use super::filter::Filter;
use super::group::GroupSettings;
use super::limits::CoreLimits;
use super::plan::Rule;
use super::task::{SpawnFailure, Spec};

/// Everything that can happen to the core, except the passing of time.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client makes a request.
    Request {
        /// Who gets the reply.
        to: ReplyTo,
        request: Request,
    },
    /// An executor observed something.
    Fact {
        task: TaskId,
        /// The number of the run within the task.
        run: u32,
        fact: Fact,
    },
    /// A client has disconnected. Its waits end.
    Disconnected {
        /// The number of its connection.
        client: u64,
    },
    /// A part of a batch was refused before it reached the core; the earlier parts are dropped, too.
    PartRefused {
        /// The number of the client's connection.
        client: u64,
    },
    /// Nothing happened; [`super::Core::has_more`] asked for another step.
    Continue,
    /// The configuration has changed.
    Configure {
        limits: CoreLimits,
        /// The groups besides the default one.
        groups: BTreeMap<Arc<str>, GroupSettings>,
    },
    /// Whether pending tasks may not start for now, because the daemon could not persist their start.
    HoldStarts(bool),
}

/// A request that changes something or waits for something. Plain queries are methods of the core.
#[derive(Clone, Debug)]
pub enum Request {
    /// R01: submits a task. The id is new and random.
    Submit(Box<Command>),
    /// R112: submits a part of a batch.
    SubmitMany(Box<Part>),
    /// R116: submits tasks again.
    Rerun(Box<Rerun>),
    /// Moves a foreground job of the calling client to the background.
    Detach { id: TaskRef },
    /// R70: takes over a process that another program started.
    Adopt {
        /// The task. Its environment and its idempotency key are ignored.
        command: Box<Command>,
        pid: i32,
        started_at: Timestamp,
    },
    /// R30: gives a follow-up prompt to the session of a completed agent task.
    Resume {
        id: TaskRef,
        /// The follow-up prompt.
        prompt: Arc<str>,
        /// Settings to change in the session; the others stay as they are.
        settings: Box<AgentSettings>,
    },
    /// Answers a pending question of an agent.
    Answer {
        id: TaskRef,
        /// The number of the question within the task.
        request: u64,
        /// The id of the chosen option; `None` denies, even if no option does that.
        option: Option<Box<str>>,
    },
    /// R21: records that the result was requested.
    Retrieve {
        id: TaskRef,
        /// Whether the task must be completed (R07).
        complete: bool,
    },
    /// R22 to R25: waits for tasks.
    Block {
        /// The tasks to wait for.
        which: Selection,
        /// The timeout, in milliseconds; `None` waits without limit.
        timeout_ms: Option<u64>,
        /// Whether all tasks must reach the state, or one is enough.
        mode: BlockMode,
        /// The state to wait for.
        until: BlockUntil,
    },
    /// R05: cancels tasks.
    Cancel(Cancel),
    /// R10: clears tasks.
    Clear {
        /// The tasks to clear.
        which: Selection,
        /// Whether active tasks are cancelled and cleared too.
        active_too: bool,
    },
    /// R106: holds pending tasks, or releases them.
    Hold {
        /// Which tasks. Tasks named by id must all be pending.
        which: Selection,
        /// True to hold, false to release.
        held: bool,
    },
    /// R107: changes what a pending task waits for.
    Edit(Box<Edit>),
    /// R100: creates a group, or changes its number of slots.
    SetGroup {
        name: Arc<str>,
        /// How many slots it has, at least 1.
        slots: u32,
    },
    /// R100: pauses or unpauses a group.
    PauseGroup {
        name: Arc<str>,
        /// True to pause, so that none of its tasks start; false to unpause.
        paused: bool,
    },
    /// R100: removes a group whose tasks have all ended.
    RemoveGroup {
        /// The group's name.
        name: Arc<str>,
    },
    /// Sends a signal to a running task.
    Signal {
        id: TaskRef,
        /// The signal's number.
        signal: i32,
        /// Whether every process of the tree gets the signal, or only the leader.
        tree: bool,
    },
    /// R106: pauses the processes of tasks, or continues them.
    SetPaused {
        /// The tasks to pause or continue.
        which: Selection,
        /// True to pause, false to continue.
        paused: bool,
    },
    /// R54: ends a parent session.
    EndSession {
        /// The parent session's key.
        session: Arc<str>,
    },
    /// R54: makes the client an owner of a parent session, which ends when its last owner disconnects.
    OwnSession {
        /// The parent session's key.
        session: Arc<str>,
    },
    /// Reads the unacknowledged items of a parent session's inbox.
    ReadInbox {
        session: Arc<str>,
        /// Only items with a higher number than this.
        after: u64,
        /// How long to wait for the first item, in milliseconds.
        wait_ms: u64,
        /// The most items to return.
        limit: usize,
    },
    /// Removes items from an inbox.
    AckInbox {
        session: Arc<str>,
        /// The number of the last item to remove.
        upto: u64,
    },
    /// Reserves an item of an inbox for the client, unless another one has; or removes it.
    TakeItem { session: Arc<str>, number: u64, removes: bool },
    /// R11: ends the daemon.
    Shutdown {
        /// How long tasks have to end, in milliseconds; `None` for the configured grace.
        grace_ms: Option<u64>,
        /// The tasks that a durable daemon leaves to its successor.
        leaves: LeavePolicy,
    },
}

/// Which running tasks a durable daemon leaves to its successor. Pending tasks are always left. The less it leaves, the
/// stronger the order: [`Ord::min`] of two orders is the stronger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeavePolicy {
    /// No running task.
    #[default]
    Nothing,
    /// Those on other machines and clusters.
    Elsewhere,
    /// All tasks that can outlive it.
    All,
}

/// The order for a new task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    pub id: TaskId,
    /// What it runs, and how.
    pub spec: Spec,
    /// The complete environment of its process.
    pub env: Env,
    /// The prompt, for an agent.
    pub prompt: Option<Arc<str>>,
    /// Idempotency key, unique within its parent session.
    pub key: Option<Arc<str>>,
    /// Whether it is a foreground job of the calling client.
    pub foreground: bool,
    /// How it is ordered among other tasks.
    pub plan: PlanRequest,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLimits {
    /// How many of its tasks may run at once.
    pub jobs: Option<u32>,
    /// When this many tasks have failed, the rest are cancelled.
    pub max_fails: Option<u32>,
}

/// A part of a batch.
#[derive(Clone, Debug)]
pub struct Part {
    /// The batch's id; new with the first part.
    pub batch: TaskId,
    /// Only with the first part: the part common to the batch's tasks, and its limits. The work and the id in it are
    /// ignored.
    pub first: Option<(Box<Command>, BatchLimits)>,
    /// Each has a new random id.
    pub items: Vec<BatchItem>,
    /// Whether more parts follow.
    pub more: bool,
}

/// A task of a batch that has not been added yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchItem {
    pub id: TaskId,
    pub argv: Box<[OsText]>,
}

/// How a new task is ordered among others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Its group; `None` means the default group.
    pub group: Option<Arc<str>>,
    /// Priority: higher starts first.
    pub priority: i32,
    /// How many slots it occupies.
    pub slots: u32,
    /// Conditions on other tasks.
    pub after: Vec<After>,
    pub start: Option<StartTime>,
    /// Whether it is held until it is released.
    pub hold: bool,
    /// Whether and when it starts again after ending by itself.
    pub again: Option<Rule>,
}

impl Default for PlanRequest {
    fn default() -> Self {
        let (group, priority, slots, after) = (None, 0, 1, Vec::new());
        Self { group, priority, slots, after, start: None, hold: false, again: None }
    }
}

/// When a task may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartTime {
    /// This many milliseconds from now.
    In(u64),
    /// At this wall-clock time.
    At(Timestamp),
}

/// Changes to a pending task; `None` leaves a value as it is.
#[derive(Clone, Debug)]
pub struct Edit {
    pub id: TaskRef,
    /// New description, for people; empty for none.
    pub description: Option<Box<str>>,
    /// New group.
    pub group: Option<Arc<str>>,
    /// New priority.
    pub priority: Option<i32>,
    /// How many slots it occupies from now on.
    pub slots: Option<u32>,
    /// Conditions on other tasks, which replace the earlier ones.
    pub after: Option<Vec<After>>,
    /// New earliest start.
    pub start: Option<StartTime>,
}

/// Which tasks a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Ids(Vec<TaskRef>),
    /// All tasks, or all of one parent session.
    All {
        session: Option<Arc<str>>,
    },
    /// The tasks that pass this filter.
    Matching(Box<Filter>),
}

/// Which tasks to submit again.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// The tasks. Those not selected by id are skipped unless they have ended.
    pub which: Selection,
    /// Whether to restrict them to failed tasks.
    pub failed: bool,
    /// Whether to include tasks that were cancelled because their condition on one of these tasks could no longer be
    /// met.
    pub with_dependents: bool,
    /// Idempotency key.
    pub key: Option<Arc<str>>,
    /// A random number from which the new ids are derived.
    pub seed: u128,
}

/// Which tasks to cancel, and how.
#[derive(Clone, Debug)]
pub struct Cancel {
    pub which: Selection,
    /// The first signal; `None` for SIGTERM.
    pub signal: Option<i32>,
    /// The grace before SIGKILL, in milliseconds; `None` for the configured one.
    pub grace_ms: Option<u64>,
}

/// Why an agent did not accept a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: ErrorKind,
    /// The problem, in words for people.
    pub message: Box<str>,
    /// What to do about it.
    pub hint: Option<Box<str>>,
}

impl From<RpcError> for Refusal {
    fn from(error: RpcError) -> Self {
        let hint = error.data.hint.map(Into::into);
        Self { kind: error.data.kind, message: error.message.into(), hint }
    }
}

impl Refusal {
    /// Creates a refusal without a hint.
    pub fn new(kind: ErrorKind, message: impl Into<Box<str>>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// Adds a hint on what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Box<str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// An observation of an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The process is running, or the agent's session has received this run's prompt.
    Started {
        /// The process id; `None` for an agent whose process the daemon did not start.
        pid: Option<i32>,
    },
    /// The process could not be started.
    StartFailed {
        /// Why the start failed.
        failure: SpawnFailure,
    },
    /// The agent did not accept the prompt.
    Refused(Box<Refusal>),
    /// The limits of the agent in this run, which the configuration may have changed since the prompt was submitted.
    /// Comes before [`Fact::Started`], and before any warning about the run.
    Limits {
        /// How long it may be silent before it is marked as stalled, in milliseconds.
        stalled_after_ms: u64,
        /// How long its questions wait before they are denied, in milliseconds.
        ask_timeout_ms: u64,
    },
    /// The agent's id for the conversation is known.
    Session {
        /// The agent's own id for the conversation.
        id: Arc<str>,
    },
    /// The agent has called tools.
    Tools {
        /// The number of calls, at least that of the names.
        calls: u64,
        /// Names of the latest calls, for people, the latest last: all of them, or the last
        /// [`LAST_TOOLS`](crate::LAST_TOOLS).
        latest: Vec<Box<str>>,
    },
    /// The agent's consumption: tokens, context and cost.
    Consumed(Box<Report>),
    /// The agent has made or changed its plan.
    Planned {
        /// All steps that are kept.
        steps: Arc<[PlanStep]>,
    },
    /// Requests of the agent were denied automatically, without asking a person.
    Denied {
        /// How often, at least once.
        times: u64,
        /// The request denied last, for people.
        what: Box<str>,
    },
    /// A note about the agent. Does not count as activity.
    Noted {
        note: Note,
        /// For people.
        text: Box<str>,
    },
    /// The agent showed activity.
    Activity,
    /// The agent asks a question and waits for the answer.
    Asked {
        /// The executor's number for the question, unique within the run.
        key: u64,
        /// The question, for people.
        question: Box<str>,
        /// The possible answers.
        options: Arc<[InputOption]>,
    },
    /// The agent no longer waits for the answer to this question.
    Withdrawn {
        /// The executor's number for the question.
        key: u64,
    },
    /// The agent has ended its turn, and its answer can be read.
    TurnEnded {
        /// Success, or the error.
        result: Result<(), Box<str>>,
    },
    /// The run's processes have received the oldest undelivered order to continue or to end. Each order is reported, in
    /// sequence, unless the run ends first.
    Delivered,
    /// The leader has ended.
    Exited {
        /// How it ended.
        exit: Exit,
        /// Whether other processes of its tree are still alive; [`Fact::TreeEmpty`] follows then.
        others: bool,
        /// When it ended, if no daemon ran then.
        at: Option<Timestamp>,
    },
    /// The run's use of the machine. Comes before [`Fact::Exited`], and again before [`Fact::TreeEmpty`] if the rest of
    /// the tree counts too.
    Used(Usage),
    /// No process of the tree is left.
    TreeEmpty,
    /// Processes of the tree are still alive long after SIGKILL. [`Fact::Exited`] and [`Fact::TreeEmpty`] may still
    /// follow, but the daemon no longer waits for them.
    GaveUp {
        /// Which processes, and why they are still alive, for people.
        why: Box<str>,
    },
    /// The process is ready, as defined by [`Spec::ready`].
    Ready,
    /// The process was not ready within [`Spec::ready_timeout_ms`].
    NotReady,
    /// The output has grown, or part of it was dropped.
    Output {
        /// Output bytes so far, per stream.
        bytes: [u64; 2],
        /// Output bytes dropped so far, per stream.
        dropped: [u64; 2],
        /// Whether to publish an event.
        publish: bool,
    },
    /// The daemon could not write part of the output, for example because the disk is full.
    Lost {
        /// Bytes lost since the last such fact.
        bytes: u64,
        /// Why, for people.
        why: Box<str>,
    },
    /// An output file was truncated or removed by something other than the daemon; later output starts at its beginning.
    Erased {
        /// Output bytes that were in the file, per stream, including dropped ones.
        bytes: [u64; 2],
        /// Why, for people.
        why: Box<str>,
    },
    /// A report of another machine or a cluster about a run there.
    Elsewhere(PlaceFact),
}

/// A report of another machine or a cluster about a run there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceFact {
    /// The run is about to be submitted as part of this submission, and may exist there from now on. A durable daemon
    /// submits it once this fact is persisted.
    Submitting {
        key: Arc<str>,
        /// The run's index in the submission.
        index: u32,
    },
    /// The place has accepted the run.
    Accepted {
        /// Its id there.
        id: Box<str>,
    },
    /// The run waits there.
    Waiting {
        /// The reason, in the words of that place.
        reason: Box<str>,
    },
    /// The run was not submitted: it waits for the end of the tasks on the previous host of its machine.
    Unsent {
        /// The name of that host.
        awaits: Box<str>,
        /// The reason, for people.
        reason: Box<str>,
    },
    /// The run has started there. Reported again if the time becomes known later.
    Started {
        /// When, by the clock there; `None` if unknown.
        at: Option<Timestamp>,
    },
    /// The running task was requeued there.
    Requeued {
        /// The reason, in the words of that place.
        reason: Box<str>,
    },
    /// The place can't be queried at the moment. Nothing about the run follows from that.
    Unknown {
        /// Why, for people.
        why: Box<str>,
    },
    /// The place can be queried again.
    Known,
    /// The processes of the run were paused or continued there, by whomever.
    Paused {
        /// True if paused, false if continued.
        paused: bool,
    },
    /// The place refused an operation on the run, which keeps running as before.
    Refused {
        /// The refused operation; `None` if the place refused something with the submission.
        control: Option<Control>,
        /// The refused request and the reason, for people.
        why: Box<str>,
    },
    /// The run did not start, and the place no longer has it: its dependency there did not succeed, or can't be
    /// tracked.
    GivenBack {
        /// The task's environment.
        env: Arc<Env>,
    },
    /// Some of its output is missing from the files here. A durable daemon writes no later output to them until this is
    /// persisted.
    Lost {
        stream: Stream,
        bytes: u64,
        /// Why, for people.
        why: Box<str>,
    },
    /// The run has ended.
    Concluded(Conclusion),
}
