//! A task in the core: the parts that never change, and its state with the data that belongs to that state.

use std::sync::Arc;

use bgd_shared::agent::AgentSettings;
use bgd_shared::id::TaskId;
use bgd_shared::ready::Ready;
use bgd_shared::request::{LOCAL_EXECUTOR, OriginTerminal, Stdin, TerminalSize};
use bgd_shared::resources::ExecutorKind;
use bgd_shared::rlimit::Rlimits;
use bgd_shared::task::{Exit, Kind, Origin, Status};
use bgd_shared::text::{Env, OsText};
use bgd_shared::time::Timestamp;
use bgd_shared::usage::Usage;
use serde::{Deserialize, Serialize};

use super::agent::{AgentPart, AgentWork};
use super::caller::ReplyTo;
use super::elsewhere::{Elsewhere, Placement};
pub use super::ended::{Failure, Finished, Lingering, Outcome, SpawnFailure, StopReason};
pub use super::ordinal::Ordinal;
use super::plan::{NotBefore, PLAIN, Plan};
pub use super::queue_place::{Blocked, QueuePlace};
use super::sharing::KeptEnv;
use super::time::{Mono, RunTime};
use super::undelivered::Undelivered;

/// The signal that no process can catch or ignore.
pub const SIGKILL: i32 = 9;

/// The first signal sent to end a task, unless the request names another.
pub const SIGTERM: i32 = 15;

/// How long a process has to disappear once SIGKILL is due, in milliseconds, even if it is still being started. After
/// that, the daemon stops waiting for it.
pub const GIVE_UP_MS: u64 = 10_000;

/// The work of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A program and its arguments.
    Argv(Box<[OsText]>),
    /// A command line for the shell.
    Shell(OsText),
    /// A prompt for an agent.
    Agent(AgentWork),
}

impl Work {
    /// Returns the program and its arguments, as they are executed. Empty for an agent: its executor starts a program
    /// by its own rules.
    pub fn argv(&self) -> Vec<&[u8]> {
        match self {
            Self::Argv(argv) => argv.iter().map(OsText::as_bytes).collect(),
            Self::Shell(line) => vec![b"/bin/sh", b"-c", b"--", line.as_bytes()],
            Self::Agent(_) => Vec::new(),
        }
    }
}

/// The name of an executor in the dispatcher's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecutorName(pub &'static str);

impl ExecutorName {
    /// Runs processes on this machine.
    pub const LOCAL: Self = Self(LOCAL_EXECUTOR);
    /// Gives prompts to AI agents.
    pub const AGENT: Self = Self("agent");
}

/// Each kind of place elsewhere has an executor of that name.
impl From<ExecutorKind> for ExecutorName {
    fn from(kind: ExecutorKind) -> Self {
        Self(kind.as_str())
    }
}

/// Where a submitter can be reached. Tasks with equal ones share one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SubmitterLocation {
    /// The terminal that the task was submitted from.
    pub terminal: Option<OriginTerminal>,
    /// The submitter's environment variables that are needed to reach it, such as `DBUS_SESSION_BUS_ADDRESS` and
    /// `TERM_PROGRAM`.
    pub env: Env,
}

/// Everything about a task that never changes. All snapshots of the task share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// How the task was submitted.
    pub origin: Origin,
    /// Description for people; `None` means the command line.
    pub description: Option<Box<str>>,
    pub work: Work,
    /// Where it runs, if not on this machine. An agent has no place: it is a process of this daemon, even if its program
    /// runs elsewhere.
    pub on: Option<Arc<Placement>>,
    pub session: Option<Arc<str>>,
    /// The channel for its notices.
    pub channel: Option<Arc<str>>,
    /// Where the submitter is; only set if the channel needs it.
    pub place: Option<Arc<SubmitterLocation>>,
    pub tags: Box<[Box<str>]>,
    /// The working directory.
    pub cwd: Arc<OsText>,
    /// File mode creation mask.
    pub umask: u32,
    /// Its resource limits; `None` for the daemon's.
    #[serde(default, with = "super::rlimits")]
    pub rlimits: Option<Arc<Rlimits>>,
    pub stdin: Option<Stdin>,
    /// Whether standard output and standard error go to descriptors of the submitter.
    pub given: [bool; 2],
    /// The initial size of its pseudo-terminal; `None` without one.
    pub pty: Option<TerminalSize>,
    /// Whether the user started it directly, so that it can't be moved to the background.
    pub direct: bool,
    /// Whether it continues in the background when its client is gone.
    #[serde(default)]
    pub stays: bool,
    /// Whether standard output and standard error have separate output files.
    pub split: bool,
    /// The file that the process itself writes to, instead of an output file of the daemon.
    pub output_file: Option<Box<OsText>>,
    /// Time limit for a run, in milliseconds.
    pub time_limit_ms: Option<u64>,
    /// When the process counts as ready.
    pub ready: Option<Box<Ready>>,
    /// How long it may take to become ready, in milliseconds.
    pub ready_timeout_ms: Option<u64>,
}

impl Spec {
    /// Creates a spec with only the daemon's own settings: for helper processes, and as a base for other specs.
    pub fn of_daemon() -> Self {
        Self {
            origin: Origin::Submit,
            description: None,
            work: Work::Argv([].into()),
            on: None,
            session: None,
            channel: None,
            place: None,
            tags: [].into(),
            cwd: Arc::new(OsText::from("/")),
            umask: 0o077,
            rlimits: None,
            stdin: None,
            given: [false; 2],
            pty: None,
            direct: false,
            stays: false,
            split: false,
            output_file: None,
            time_limit_ms: None,
            ready: None,
            ready_timeout_ms: None,
        }
    }

    /// Reports whether it starts with descriptors that its submitter has sent.
    pub fn takes_descriptors(&self) -> bool {
        self.stdin == Some(Stdin::Fd) || self.given != [false; 2]
    }

    /// Reports whether the input or output of its submitter is used up by its first run.
    pub fn uses_up_streams(&self) -> bool {
        self.takes_descriptors() || self.stdin == Some(Stdin::Sent)
    }

    pub fn executor(&self) -> ExecutorName {
        match (&self.on, self.kind()) {
            (Some(on), _) => on.kind.into(),
            (None, Kind::Process | Kind::Unknown) => ExecutorName::LOCAL,
            (None, Kind::Agent) => ExecutorName::AGENT,
        }
    }

    /// Reports whether another machine or a cluster runs it.
    pub fn is_elsewhere(&self) -> bool {
        self.on.is_some()
    }

    /// Reports whether its time limit is enforced where it runs, and only there.
    pub fn is_limited_elsewhere(&self) -> bool {
        self.on.as_ref().is_some_and(|on| on.kind.enforces_time_limit())
    }

    /// Reports whether it runs as a process of this machine.
    pub fn is_here(&self) -> bool {
        self.executor() == ExecutorName::LOCAL
    }

    pub const fn kind(&self) -> Kind {
        match self.work {
            Work::Argv(_) | Work::Shell(_) => Kind::Process,
            Work::Agent(_) => Kind::Agent,
        }
    }

    /// Returns the size of its texts, on which the size of its task object depends.
    pub fn text_bytes(&self) -> usize {
        let work = match &self.work {
            Work::Argv(argv) => argv.iter().map(|text| text.as_bytes().len()).sum(),
            Work::Shell(line) => line.as_bytes().len(),
            Work::Agent(agent) => agent.name.len(),
        };
        let tags: usize = self.tags.iter().map(|tag| tag.len()).sum();
        let file = self.output_file.as_ref().map_or(0, |file| file.as_bytes().len());
        let ready = self.ready.as_ref().map_or(0, |ready| ready.text_bytes());
        let on = self.on.as_ref().map_or(0, |on| on.name.len() + on.resources.text_bytes());
        on + work
            + tags
            + file
            + ready
            + self.cwd.as_bytes().len()
            + self.description.as_deref().map_or(0, str::len)
    }
}

/// An order to end a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    pub reason: StopReason,
    /// The first signal.
    pub signal: i32,
    /// The grace before SIGKILL, in milliseconds.
    pub grace_ms: u64,
}

impl StopOrder {
    /// Merges a later order into this one: the first reason is kept, and SIGKILL can only come sooner.
    pub fn then(self, later: Self) -> Self {
        let signal = if self.signal == SIGKILL { SIGKILL } else { later.signal };
        Self { reason: self.reason, signal, grace_ms: self.grace_ms.min(later.grace_ms) }
    }
}

/// The state of a task, with the data that only exists in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It waits for slots, or for something else in its plan.
    Queued {
        /// The environment. Dropped as soon as the process has it.
        #[serde(with = "super::sharing::env")]
        env: Arc<Env>,
    },
    /// It has its slots. The process is being started, or the agent is being given the prompt.
    Starting {
        /// Set if the task was asked to end meanwhile.
        stop: Option<StopOrder>,
        /// The environment, for the next daemon or program: on this machine only in a durable daemon. Elsewhere, a run may
        /// wait for long before its place takes it.
        #[serde(default)]
        env: Option<KeptEnv>,
        /// When the daemon stops waiting for the start of its process; only if the task was asked to end meanwhile.
        #[serde(default)]
        give_up_at: Option<Mono>,
    },
    /// The process or the agent is running.
    Running {
        /// The leader, or the agent's process; `None` if the daemon did not start it.
        pid: Option<i32>,
        started_at: Timestamp,
        /// When its time limit is exceeded; `None` without a limit.
        time_limit: Option<Mono>,
    },
    /// The tree, or the agent's turn, is being ended.
    Stopping {
        /// The leader, or the agent's process; `None` if the daemon did not start it.
        pid: Option<i32>,
        started_at: Timestamp,
        reason: StopReason,
        /// When SIGKILL is due; `None` once it was sent.
        kill_at: Option<Mono>,
        /// How the leader ended, if only other processes of the tree are left.
        exit: Option<Exit>,
    },
    Finished(Finished),
    /// It has ended, and a follow-up prompt is on its way to the agent. Until the agent receives it, clients see the
    /// task as it was.
    // Boxed: it would make the state of every task half as large again.
    Resuming(Box<Resuming>),
}

impl State {
    /// Returns the environment for a process that is still to be started.
    pub fn env(&self) -> Option<&Arc<Env>> {
        match self {
            Self::Queued { env } | Self::Starting { env: Some(KeptEnv(env)), .. } => Some(env),
            Self::Starting { env: None, .. }
            | Self::Running { .. }
            | Self::Stopping { .. }
            | Self::Finished(_)
            | Self::Resuming(_) => None,
        }
    }

    /// Like [`Self::env`], to be replaced.
    pub fn env_mut(&mut self) -> Option<&mut Arc<Env>> {
        match self {
            Self::Queued { env } | Self::Starting { env: Some(KeptEnv(env)), .. } => Some(env),
            Self::Starting { env: None, .. }
            | Self::Running { .. }
            | Self::Stopping { .. }
            | Self::Finished(_)
            | Self::Resuming(_) => None,
        }
    }

    /// Returns when SIGKILL is due, if the tree was asked to end by another signal.
    pub fn kill_at(&self) -> Option<Mono> {
        match self {
            Self::Stopping { kill_at, .. }
            | Self::Finished(Finished { lingering: Lingering::Ending(kill_at), .. }) => *kill_at,
            Self::Queued { .. }
            | Self::Starting { .. }
            | Self::Running { .. }
            | Self::Finished(_)
            | Self::Resuming(_) => None,
        }
    }

    /// Changes when SIGKILL is due, if it is due at all.
    pub fn set_kill_at(&mut self, at: Mono) {
        if let Self::Stopping { kill_at: Some(kill_at), .. }
        | Self::Finished(Finished { lingering: Lingering::Ending(Some(kill_at)), .. }) = self
        {
            *kill_at = at;
        }
    }

    /// Returns how the task ended, if it has, even while it is being resumed.
    pub fn finished(&self) -> Option<&Finished> {
        match self {
            Self::Queued { .. } | Self::Starting { .. } | Self::Running { .. } | Self::Stopping { .. } => {
                None
            }
            Self::Finished(finished) => Some(finished),
            Self::Resuming(resuming) => Some(&resuming.finished),
        }
    }
}

/// A follow-up prompt on its way to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resuming {
    /// How the task had ended.
    pub finished: Finished,
    pub prompt: Arc<str>,
    /// The settings to apply to the session.
    pub settings: Arc<AgentSettings>,
    /// Who gets the reply to the resume.
    pub to: ReplyTo,
    /// Set if the task was asked to end meanwhile.
    pub stop: Option<StopOrder>,
}

/// Output that the daemon could not write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub bytes: u64,
    /// The most recent reason.
    pub why: Box<str>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub id: TaskId,
    pub spec: Arc<Spec>,
    /// Its idempotency key, unique within its parent session.
    pub key: Option<Arc<str>>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When its result was first requested; reset by a resume.
    pub retrieved_at: Option<Timestamp>,
    /// When this run became ready.
    pub ready_at: Option<Timestamp>,
    /// Whether its processes are paused.
    pub paused: bool,
    /// The number of this run, which its facts carry. It counts every attempt, including a resume that the agent
    /// refused, so that a late fact is never mistaken for one of another run.
    pub run: u32,
    /// How often it was resumed.
    pub resume_count: u32,
    /// Known output bytes, per stream; everything counts for the first unless the two are separate.
    pub output_bytes: [u64; 2],
    /// Output bytes that were dropped, per stream.
    pub dropped: [u64; 2],
    /// Output that could not be written at all.
    pub lost: Option<Box<Lost>>,
    pub updated_at: Option<Timestamp>,
    /// The client whose foreground job it is.
    pub foreground: Option<u64>,
    /// `None` for a process.
    pub agent: Option<Box<AgentPart>>,
    /// The reports of its run's place; `None` for a run on this machine.
    pub elsewhere: Option<Box<Elsewhere>>,
    /// Its latest run's use of the machine, once known.
    pub usage: Option<Usage>,
    /// How long its latest run that has started takes.
    #[serde(default)]
    pub run_time: RunTime,
    /// Orders that the processes of this run may not have received; only in a durable daemon.
    // Boxed: hardly any task has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undelivered: Option<Box<Undelivered>>,
    /// How it is ordered among others; `None` means [`PLAIN`].
    pub plan: Option<Box<Plan>>,
    pub state: State,
    /// Its standing in the queue. Only set in snapshots.
    pub place: QueuePlace,
}

/// A task as it was at one moment. Cheap to take.
pub type Snapshot = Box<Task>;

impl Task {
    /// Reports whether this is the first attempt.
    pub fn is_first_attempt(&self) -> bool {
        self.plan().again.as_ref().is_none_or(|again| again.attempts.is_empty())
            && self.elsewhere.as_ref().is_none_or(|elsewhere| elsewhere.requeued == 0)
    }

    /// Creates a task that has not run yet, without a key and everything that only some tasks have.
    pub fn new(id: TaskId, spec: Arc<Spec>, created_at: Timestamp, state: State) -> Self {
        Self {
            id,
            spec,
            key: None,
            created_at,
            retrieved_at: None,
            ready_at: None,
            paused: false,
            run: 1,
            resume_count: 0,
            output_bytes: [0; 2],
            dropped: [0; 2],
            lost: None,
            undelivered: None,
            updated_at: None,
            foreground: None,
            agent: None,
            elsewhere: None,
            usage: None,
            run_time: RunTime::Unknown,
            plan: None,
            state,
            place: QueuePlace::default(),
        }
    }

    /// Returns its status on the wire.
    pub fn status(&self) -> Status {
        match &self.state {
            State::Queued { .. } => Status::Pending,
            State::Starting { .. } if self.waits_elsewhere() => Status::Pending,
            State::Running { .. } | State::Stopping { .. } if self.resume_count > 0 => Status::Resumed,
            State::Starting { .. } | State::Running { .. } | State::Stopping { .. } => Status::Running,
            State::Finished(finished) => finished.outcome.status(),
            State::Resuming(resuming) => resuming.finished.outcome.status(),
        }
    }

    /// Reports whether another machine or a cluster has it, or is about to get it, and has not started it.
    pub fn waits_elsewhere(&self) -> bool {
        matches!(self.state, State::Starting { .. }) && self.spec.is_elsewhere()
    }

    /// Returns the size of its texts in lists, on which the size of its task object depends.
    pub fn text_bytes(&self) -> usize {
        let agent = self.agent.as_deref().map_or(0, AgentPart::text_bytes);
        let lost = self.lost.as_ref().map_or(0, |lost| lost.why.len());
        let key = self.key.as_deref().map_or(0, str::len);
        let plan = self.plan.as_deref().map_or(0, Plan::text_bytes);
        let elsewhere = self.elsewhere.as_deref().map_or(0, Elsewhere::text_bytes);
        self.spec.text_bytes()
            + agent
            + lost
            + key
            + plan
            + elsewhere
            + self.finished().map_or(0, Finished::text_bytes)
    }

    /// Reports whether the processes of its run may not have received an order that has an effect.
    pub fn may_lack_order(&self) -> bool {
        self.undelivered.as_deref().is_some_and(|undelivered| undelivered.last.is_some())
    }

    pub fn plan(&self) -> &Plan {
        self.plan.as_deref().unwrap_or(&PLAIN)
    }

    /// Reports whether it failed because it exceeded its time limit.
    pub fn timed_out(&self) -> bool {
        let outcome = self.finished().map(|finished| &finished.outcome);
        matches!(outcome, Some(Outcome::Failed(Failure::TimedOut { .. })))
    }

    /// Reports whether it has a run, or processes that outlived its last run.
    pub fn has_run(&self) -> bool {
        match &self.state {
            State::Starting { .. } | State::Running { .. } | State::Stopping { .. } | State::Resuming(_) => {
                true
            }
            State::Finished(finished) => finished.lingering != Lingering::No,
            State::Queued { .. } => false,
        }
    }

    /// Reports whether its run can outlive a durable daemon: its process or its place keeps running it, or its agent's
    /// turn counts as interrupted and can be resumed. Foreground jobs can't.
    pub fn outlives_daemon(&self) -> bool {
        self.foreground.is_none()
    }

    /// Reports whether its place has refused an operation, or seemed to: then its state there may differ from the one
    /// here.
    pub fn was_refused(&self) -> bool {
        self.elsewhere.as_ref().is_some_and(|known| known.refused.is_some())
    }

    /// Reports whether it has ended and is not being resumed.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished(_))
    }

    /// Reports whether it has ended and its tree has no process left that could still be ended.
    pub fn is_settled(&self) -> bool {
        matches!(&self.state, State::Finished(finished) if finished.lingering.is_settled())
    }

    /// Reports whether it has ended and none of its processes can be left, not even one that nothing can end.
    pub fn is_gone(&self) -> bool {
        matches!(&self.state, State::Finished(finished) if finished.lingering == Lingering::No)
    }

    /// Reports whether its first run has started, so that its output exists.
    pub fn has_begun(&self) -> bool {
        match &self.state {
            State::Queued { .. } | State::Starting { .. } => {
                self.plan().again.as_ref().is_some_and(|again| !again.attempts.is_empty())
                    || self.elsewhere.as_ref().is_some_and(|elsewhere| elsewhere.requeued > 0)
            }
            State::Running { .. } | State::Stopping { .. } => true,
            State::Finished(finished) => finished.started_at.is_some(),
            State::Resuming(resuming) => resuming.finished.started_at.is_some(),
        }
    }

    /// Returns when the core must check it again.
    pub fn deadline(&self) -> Option<Mono> {
        match &self.state {
            State::Queued { .. } => self.plan().not_before.and_then(NotBefore::mono),
            State::Starting { give_up_at, .. } => *give_up_at,
            State::Resuming(_) => None,
            State::Running { time_limit, .. } => {
                let agent = self.agent.as_deref().and_then(AgentPart::deadline);
                (*time_limit).into_iter().chain(agent).min()
            }
            State::Stopping { kill_at, .. } => *kill_at,
            State::Finished(finished) => match finished.lingering {
                Lingering::No | Lingering::Yes | Lingering::Stuck => None,
                Lingering::Ending(kill_at) => kill_at,
            },
        }
    }

    /// Drops the environments, which only its own runs need. For snapshots that are kept or that others see.
    pub fn drop_env(&mut self) {
        if let Some(env) = self.state.env_mut() {
            *env = Arc::default();
        }
        if let Some(agent) = self.agent.as_deref_mut() {
            agent.drop_env();
        }
        if let Some(again) = self.plan.as_deref_mut().and_then(|plan| plan.again.as_deref_mut()) {
            again.env = Arc::default();
        }
    }

    /// Returns how it ended, if it has, even while it is being resumed.
    pub fn finished(&self) -> Option<&Finished> {
        self.state.finished()
    }
}
