//! What the core is told: requests of clients, facts of executors, and what else happens.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::agent::{AgentSettings, InputOption};
use bgd_shared::error::ErrorKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::order::After;
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::CoreLimits;
use super::agent::Note;
use super::caller::ReplyTo;
use super::filter::Filter;
use super::plan::Rule;
use super::task::{SpawnFailure, Spec};

/// Everything that can happen to the core, apart from time going by.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client asks for something.
    Request {
        /// Who gets the answer.
        to: ReplyTo,
        /// What is asked for.
        request: Request,
    },
    /// An executor saw something.
    Fact {
        /// The task.
        task: TaskId,
        /// The run of it.
        run: u32,
        /// What was seen.
        fact: Fact,
    },
    /// A client is gone; it waits for nothing any more.
    Disconnected {
        /// The connection.
        client: u64,
    },
    /// Nothing has happened; [`super::Core::has_more`] asked for it.
    GoOn,
    /// The configuration has changed.
    Configure {
        /// The limits.
        limits: CoreLimits,
        /// The groups besides the default one, with their slots.
        groups: BTreeMap<Arc<str>, u32>,
    },
}

/// A request that changes something or waits for something. Questions are asked of the core directly.
#[derive(Clone, Debug)]
pub enum Request {
    /// R01. The id is new and random.
    Submit(Box<Command>),
    /// R112: a part of a batch.
    SubmitMany(Box<Part>),
    /// R116: submits tasks again.
    Rerun(Box<Rerun>),
    /// Moves a foreground job of the client to the background.
    Detach {
        /// The task.
        id: TaskRef,
    },
    /// R70: takes over a process that another program started.
    Adopt {
        /// What it is. Its environment and its idempotency key are not looked at.
        command: Box<Command>,
        /// Its number.
        pid: i32,
        /// Since when it runs.
        started_at: Timestamp,
    },
    /// R30: gives a follow-up prompt to the session of a completed agent task.
    Resume {
        /// The task.
        id: TaskRef,
        /// What the agent is told.
        prompt: Arc<str>,
        /// What is set in the session from now on; the rest stays.
        settings: Box<AgentSettings>,
    },
    /// Answers a question that an agent waits with.
    Answer {
        /// The task.
        id: TaskRef,
        /// The number of the question.
        request: u64,
        /// The id of one of its options.
        option: Box<str>,
    },
    /// R21: notes that the result was asked for.
    Retrieve {
        /// The task.
        id: TaskRef,
        /// Whether it must be completed (R07).
        complete: bool,
    },
    /// R22 to R25.
    Block {
        /// The tasks.
        which: Selection,
        /// How long at most, in milliseconds.
        timeout_ms: Option<u64>,
        /// For all of them, or for one.
        mode: BlockMode,
        /// What each must be.
        until: BlockUntil,
    },
    /// R05.
    Cancel(Cancel),
    /// R10.
    Clear {
        /// Which tasks.
        which: Selection,
        /// Whether active ones are cancelled and cleared too.
        active_too: bool,
    },
    /// R106: holds pending tasks, or releases them.
    Hold {
        /// Which tasks. If they are named, all of them must be pending.
        which: Selection,
        /// Whether they are held from now on.
        held: bool,
    },
    /// R107: changes what a pending task waits for.
    Edit(Box<Edit>),
    /// R100: makes a group, or gives it another number of slots.
    SetGroup {
        /// Its name.
        name: Arc<str>,
        /// How many slots it has, at least 1.
        slots: u32,
    },
    /// R100: pauses a group, or lets it go on.
    PauseGroup {
        /// Its name.
        name: Arc<str>,
        /// Whether nothing in it starts from now on.
        paused: bool,
    },
    /// R100: removes a group whose tasks have all ended.
    RemoveGroup {
        /// Its name.
        name: Arc<str>,
    },
    /// A signal for a running task.
    Signal {
        /// The task.
        id: TaskRef,
        /// The number of the signal.
        signal: i32,
        /// For every process of the tree.
        tree: bool,
    },
    /// R106: has the processes of tasks stopped, or go on.
    SetPaused {
        /// Which tasks.
        which: Selection,
        /// Whether they are paused then.
        paused: bool,
    },
    /// R54.
    EndSession {
        /// The parent session's key.
        session: Arc<str>,
    },
    /// R54: the parent session ends when this client is gone, unless another one owns it too.
    OwnSession {
        /// The parent session's key.
        session: Arc<str>,
    },
    /// What a parent session was told and has not acknowledged.
    ReadInbox {
        /// The parent session's key.
        session: Arc<str>,
        /// Only items with a higher number.
        after: u64,
        /// How long to wait for the first one, in milliseconds.
        wait_ms: u64,
        /// At most so many.
        limit: usize,
    },
    /// Forgets items of an inbox.
    AckInbox {
        /// The parent session's key.
        session: Arc<str>,
        /// The number of the last one.
        upto: u64,
    },
    /// R11.
    Shutdown {
        /// How long tasks have to end, in milliseconds.
        grace_ms: Option<u64>,
    },
}

/// A new task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Its id.
    pub id: TaskId,
    /// What it is.
    pub spec: Spec,
    /// The complete environment of its process.
    pub env: Env,
    /// What an agent is told.
    pub prompt: Option<Arc<str>>,
    /// Idempotency key, within its parent session.
    pub key: Option<Arc<str>>,
    /// Whether it is a foreground job of the client.
    pub foreground: bool,
    /// How it shall be ordered among others.
    pub plan: PlanRequest,
}

/// The limits of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLimits {
    /// How many of it run at once.
    pub jobs: Option<u32>,
    /// When so many have failed, the rest is cancelled.
    pub max_fails: Option<u32>,
}

/// A part of a batch.
#[derive(Clone, Debug)]
pub struct Part {
    /// The batch; new with the first part.
    pub batch: TaskId,
    /// With the first part: what its tasks have in common, and its limits. The work and the id are not looked at.
    pub first: Option<(Box<Command>, BatchLimits)>,
    /// Its tasks: new random ids, each with its command.
    pub items: Vec<BatchItem>,
    /// Whether further parts follow.
    pub more: bool,
}

/// A task of a batch before it is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchItem {
    /// Its id.
    pub id: TaskId,
    /// Its command.
    pub argv: Box<[OsText]>,
}

/// How a new task shall be ordered among others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Its group; `None` stands for the default one.
    pub group: Option<Arc<str>>,
    /// Higher starts first.
    pub priority: i32,
    /// How many slots it takes.
    pub slots: u32,
    /// What must become of other tasks first.
    pub after: Vec<After>,
    /// When it may start.
    pub start: Option<StartTime>,
    /// Whether it waits to be released.
    pub hold: bool,
    /// Whether and when it starts again after an end of its own.
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
    /// So many milliseconds from now.
    In(u64),
    /// At this time of the wall clock.
    At(Timestamp),
}

/// What is changed about a pending task; the rest stays.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The task.
    pub id: TaskRef,
    /// For people.
    pub description: Option<Box<str>>,
    /// Its group.
    pub group: Option<Arc<str>>,
    /// Its priority.
    pub priority: Option<i32>,
    /// How many slots it takes.
    pub slots: Option<u32>,
    /// What must become of other tasks first, in place of what was asked before.
    pub after: Option<Vec<After>>,
    /// When it may start.
    pub start: Option<StartTime>,
}

/// Which tasks a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// These.
    Ids(Vec<TaskRef>),
    /// All, or all of one parent session.
    All {
        /// The parent session.
        session: Option<Arc<str>>,
    },
    /// Those for which this holds.
    Matching(Box<Filter>),
}

/// Which tasks are submitted again.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// These; of those that are not named one by one, the ones that have ended.
    pub which: Selection,
    /// Only those of them that have failed.
    pub failed: bool,
    /// Those too that were cancelled because one of them went otherwise than they wanted.
    pub with_dependents: bool,
    /// A random number, from which the new ids are made.
    pub seed: u128,
}

/// How tasks are cancelled.
#[derive(Clone, Debug)]
pub struct Cancel {
    /// Which tasks.
    pub which: Selection,
    /// The first signal.
    pub signal: Option<i32>,
    /// How long they have before SIGKILL, in milliseconds.
    pub grace_ms: Option<u64>,
}

/// Why a prompt could not be given to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What programs key on.
    pub kind: ErrorKind,
    /// What is wrong, for people.
    pub message: Box<str>,
    /// What to do about it.
    pub hint: Option<Box<str>>,
}

impl Refusal {
    /// A refusal without advice.
    pub fn new(kind: ErrorKind, message: impl Into<Box<str>>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// The same with a word on what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Box<str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// What an executor saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The process runs; or the prompt of this run is with the agent's session.
    Started {
        /// The process's id; `None` for an agent whose process is not ours.
        pid: Option<i32>,
    },
    /// The process could not be started.
    StartFailed {
        /// Why.
        failure: SpawnFailure,
    },
    /// The prompt could not be given to the agent.
    Refused(Box<Refusal>),
    /// The agent has a name for the conversation.
    Session {
        /// Its own id of it.
        id: Arc<str>,
    },
    /// The agent calls a tool.
    Tool {
        /// Which, for people.
        name: Box<str>,
    },
    /// The agent was denied something without being asked about.
    Denied {
        /// What, for people.
        what: Box<str>,
    },
    /// There is something that people should know of the agent. It does not show that it moves.
    Noted {
        /// What it is about.
        note: Note,
        /// The words.
        text: Box<str>,
    },
    /// The agent showed that it moves.
    Activity,
    /// The agent asks for a decision, and waits for it.
    Asked {
        /// The executor's number for the question; no other of the same run has it.
        key: u64,
        /// What it asks, for people.
        question: Box<str>,
        /// The answers that it takes.
        options: Arc<[InputOption]>,
    },
    /// The agent does not wait for this decision any more.
    Withdrawn {
        /// The executor's number for the question.
        key: u64,
    },
    /// The agent has ended its turn, and its answer can be read.
    TurnEnded {
        /// Well, or why not.
        result: Result<(), Box<str>>,
    },
    /// The leader has ended.
    Exited {
        /// How.
        exit: Exit,
        /// Whether others of its tree live on; [`Fact::TreeEmpty`] will follow then.
        others: bool,
    },
    /// No process of the tree is left.
    TreeEmpty,
    /// Processes of the tree were sent SIGKILL long ago, and have not ended. [`Fact::Exited`] and
    /// [`Fact::TreeEmpty`] may still follow, but nobody waits for them any longer.
    GaveUp {
        /// Which ones, and why they live on, for people.
        why: Box<str>,
    },
    /// The process is ready, as [`Spec::ready`] says.
    Ready,
    /// It was not within [`Spec::ready_timeout_ms`].
    NotReady,
    /// The output has grown, or a part of it was dropped.
    Output {
        /// Bytes so far, in each stream.
        bytes: [u64; 2],
        /// Bytes of it that were dropped, in each stream.
        dropped: [u64; 2],
        /// Whether subscribers shall hear of it.
        tell: bool,
    },
    /// The daemon could not write a part of the output, such as on a full disk.
    Lost {
        /// Bytes that were lost since the last such fact.
        bytes: u64,
        /// Why, for people.
        why: Box<str>,
    },
}
