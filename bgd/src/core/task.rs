//! A task in the core: what never changes of it, and the state that it is in with that state's data.

use std::sync::Arc;

use bgd_shared::agent::AgentSettings;
use bgd_shared::id::TaskId;
use bgd_shared::order::Condition;
use bgd_shared::ready::Ready;
use bgd_shared::request::{OriginTerminal, Stdin, TerminalSize};
use bgd_shared::rlimit::Rlimits;
use bgd_shared::task::{Exit, Kind, Origin, Status};
use bgd_shared::text::{Env, OsText};
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::agent::{AgentPart, AgentWork};
use super::caller::ReplyTo;
pub use super::ordinal::Ordinal;
use super::plan::{AttemptError, EndedTask, NotBefore, PLAIN, Plan};
use super::time::Mono;

/// The signal that nobody survives.
pub const SIGKILL: i32 = 9;

/// The first signal that ends a task, unless another one is named.
pub const SIGTERM: i32 = 15;

/// What does the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A program with its arguments.
    Argv(Box<[OsText]>),
    /// A line for the shell.
    Shell(OsText),
    /// An agent, which is given a prompt.
    Agent(AgentWork),
}

impl Work {
    /// Who does it.
    pub const fn executor(&self) -> ExecutorName {
        match self {
            Self::Argv(_) | Self::Shell(_) => ExecutorName::LOCAL,
            Self::Agent(_) => ExecutorName::AGENT,
        }
    }
}

/// The name that an executor has in the daemon's table of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecutorName(pub &'static str);

impl ExecutorName {
    /// Processes of this machine.
    pub const LOCAL: Self = Self("local");
    /// Prompts for AI agents.
    pub const AGENT: Self = Self("agent");
}

/// Where a submitter can be reached. Told tasks of one place share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The terminal that it was submitted from.
    pub terminal: Option<OriginTerminal>,
    /// The variables of its environment that say how it can be reached, such as
    /// `DBUS_SESSION_BUS_ADDRESS` and `TERM_PROGRAM`.
    pub env: Env,
}

/// Everything about a task that never changes, shared by all snapshots of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// How it came.
    pub origin: Origin,
    /// For people; `None` stands for the command.
    pub description: Option<Box<str>>,
    /// What does the work.
    pub work: Work,
    /// The parent session.
    pub session: Option<Arc<str>>,
    /// Where news is delivered.
    pub channel: Option<Arc<str>>,
    /// Where the submitter is, if its channel wants to know.
    pub place: Option<Arc<Place>>,
    /// Free labels.
    pub tags: Box<[Box<str>]>,
    /// The folder to run in.
    pub cwd: Arc<OsText>,
    /// File mode creation mask.
    pub umask: u32,
    /// Resource limits that differ from the daemon's.
    pub rlimits: Option<Arc<Rlimits>>,
    /// Standard input.
    pub stdin: Option<Stdin>,
    /// Which of standard output and error go to a descriptor of the submitter.
    pub given: [bool; 2],
    /// The terminal that it begins in.
    pub pty: Option<TerminalSize>,
    /// The user started it directly: it can't be moved to the background.
    pub direct: bool,
    /// Two output files.
    pub split: bool,
    /// The file that it writes to by itself, in place of one of the daemon's.
    pub output_file: Option<Box<OsText>>,
    /// How long it may run, in milliseconds.
    pub time_limit_ms: Option<u64>,
    /// When it is ready.
    pub ready: Option<Box<Ready>>,
    /// How long it has for that, in milliseconds.
    pub ready_timeout_ms: Option<u64>,
}

impl Spec {
    /// The order for a process that is no task's own: nothing in it differs from the daemon's.
    pub fn of_daemon() -> Self {
        Self {
            origin: Origin::Submit,
            description: None,
            work: Work::Argv([].into()),
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
            split: false,
            output_file: None,
            time_limit_ms: None,
            ready: None,
            ready_timeout_ms: None,
        }
    }

    /// Command or agent.
    pub const fn kind(&self) -> Kind {
        match self.work {
            Work::Argv(_) | Work::Shell(_) => Kind::Process,
            Work::Agent(_) => Kind::Agent,
        }
    }

    /// The bytes of its texts: what the size of its task object depends on.
    pub fn text_bytes(&self) -> usize {
        let work = match &self.work {
            Work::Argv(argv) => argv.iter().map(|text| text.as_bytes().len()).sum(),
            Work::Shell(line) => line.as_bytes().len(),
            Work::Agent(agent) => agent.name.len(),
        };
        let tags: usize = self.tags.iter().map(|tag| tag.len()).sum();
        let file = self.output_file.as_ref().map_or(0, |file| file.as_bytes().len());
        let ready = self.ready.as_ref().map_or(0, |ready| ready.text_bytes());
        work + tags
            + file
            + ready
            + self.cwd.as_bytes().len()
            + self.description.as_deref().map_or(0, str::len)
    }
}

/// Why a task is being ended. The first reason is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// A user asked for it.
    Cancelled,
    /// Its time limit, in milliseconds, was over.
    TimedOut(u64),
    /// It was not ready after so long, in milliseconds.
    NotReady(u64),
    /// Its parent session has ended.
    SessionEnded,
    /// It was a foreground job, and its client is gone (R71).
    Abandoned,
    /// The daemon ends.
    Shutdown,
    /// A condition on another task can't come true any more (R103).
    Dependency(Condition, EndedTask),
    /// So many of its batch have failed (R112).
    MaxFails(u32),
    /// It has ended by itself, and what is left of its tree goes before its next attempt (R108, R109).
    NextAttempt,
}

/// The order to end a task that has not started yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// Why.
    pub reason: StopReason,
    /// The first signal.
    pub signal: i32,
    /// How long it has, in milliseconds.
    pub grace_ms: u64,
}

impl StopOrder {
    /// This order with a later one on top: the first reason is kept, and SIGKILL can only come sooner.
    pub fn then(self, later: Self) -> Self {
        let signal = if self.signal == SIGKILL { SIGKILL } else { later.signal };
        Self { reason: self.reason, signal, grace_ms: self.grace_ms.min(later.grace_ms) }
    }
}

/// Where a task is, with the data that only exists there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Waits for a slot.
    Queued {
        /// Dropped as soon as the process has it.
        env: Arc<Env>,
    },
    /// Has a slot; its process is being started, or its agent is being told.
    Starting {
        /// It was told to end meanwhile.
        stop: Option<StopOrder>,
    },
    /// Its process runs, or its agent works.
    Running {
        /// The leader, or the agent's process; none if that is not ours.
        pid: Option<i32>,
        /// Since when.
        started_at: Timestamp,
        /// When its time is over.
        time_limit: Option<Mono>,
    },
    /// Its tree is being ended.
    Stopping {
        /// The leader, or the agent's process.
        pid: Option<i32>,
        /// Since when it ran.
        started_at: Timestamp,
        /// Why it is ended.
        reason: StopReason,
        /// When SIGKILL comes; `None` once it has.
        kill_at: Option<Mono>,
        /// How the leader ended, if only others are left.
        exit: Option<Exit>,
    },
    /// It has ended.
    Finished(Finished),
    /// It has ended, and a follow-up prompt is on its way to the agent. Until that is there, everybody
    /// sees the task as it was.
    Resuming {
        /// How it had ended.
        finished: Finished,
        /// What the agent will be told.
        prompt: Arc<str>,
        /// What will be set in its session.
        settings: Arc<AgentSettings>,
        /// Who resumes it.
        to: ReplyTo,
        /// It was told to end meanwhile.
        stop: Option<StopOrder>,
    },
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Well, badly, or by request.
    pub outcome: Outcome,
    /// The leader that it had.
    pub pid: Option<i32>,
    /// When that began.
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub completed_at: Timestamp,
    /// How the leader ended.
    pub exit: Option<Exit>,
    /// What is left of its tree.
    pub lingering: Lingering,
}

/// The verdict on a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Well.
    Completed,
    /// Badly, and why.
    Failed(Failure),
    /// By request, and for which reason.
    Cancelled(StopReason),
}

/// Why a task ended badly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// Its process could not be started.
    Spawn(Box<SpawnFailure>),
    /// Its process ended by itself, and not well; [`Finished::exit`] says how.
    Exit,
    /// Its agent refused the prompt, or ended the turn badly, and what was said of that.
    Agent(Box<str>),
    /// It was to run for ever, and ended too soon so often in a row (R109).
    CrashLoop {
        /// How often.
        ends: u32,
        /// Why the last time, where its exit does not tell.
        error: Option<Box<AttemptError>>,
    },
    /// Its time limit ended it.
    TimedOut {
        /// The limit, in milliseconds.
        limit_ms: u64,
        /// What its agent had said last beside its answer.
        last_words: Option<Box<str>>,
    },
    /// It was not ready in time.
    NotReady {
        /// The time that it had, in milliseconds.
        limit_ms: u64,
    },
}

impl Failure {
    /// The bytes of the texts in it.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Exit | Self::NotReady { .. } => 0,
            Self::CrashLoop { error, .. } => error.as_deref().map_or(0, AttemptError::text_bytes),
            Self::Spawn(failure) => failure.message.len(),
            Self::Agent(text) => text.len(),
            Self::TimedOut { last_words, .. } => last_words.as_deref().map_or(0, str::len),
        }
    }
}

/// Why a process could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnFailure {
    /// The system's number of the error, if the system refused.
    pub errno: Option<i32>,
    /// What a shell exits with where the program itself is to blame: 127 if it is not there, 126 if it can't be run.
    pub code: Option<i32>,
    /// What is wrong with what, as the executor says it.
    pub message: Box<str>,
}

impl<T: Into<Box<str>>> From<T> for SpawnFailure {
    fn from(message: T) -> Self {
        Self { errno: None, code: None, message: message.into() }
    }
}

/// What is left of a finished task's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lingering {
    /// Nothing.
    No,
    /// Processes, which nobody has told to end.
    Yes,
    /// Processes that were told to end; when SIGKILL comes, if it has not come yet.
    Ending(Option<Mono>),
    /// Processes that SIGKILL does not end. Nobody waits for them, and there is nothing left to be tried.
    Stuck,
}

impl Lingering {
    /// Whether there is nobody left to wait for.
    pub const fn is_settled(self) -> bool {
        match self {
            Self::No | Self::Stuck => true,
            Self::Yes | Self::Ending(_) => false,
        }
    }
}

/// What of a task's output the daemon could not write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// So many bytes.
    pub bytes: u64,
    /// Why, the last time.
    pub why: Box<str>,
}

/// A task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What never changes.
    pub spec: Arc<Spec>,
    /// Its idempotency key, within its parent session.
    pub key: Option<Arc<str>>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When its result was first asked for.
    pub retrieved_at: Option<Timestamp>,
    /// When this run became ready.
    pub ready_at: Option<Timestamp>,
    /// Whether its processes are paused.
    pub paused: bool,
    /// The number that facts of this run carry. It counts every attempt, also a resume that the agent
    /// refused, so that no late fact is taken for one of another run.
    pub run: u32,
    /// How often it was resumed.
    pub resume_count: u32,
    /// Bytes of output, as far as known, in each stream: all of it in the first unless the two are kept apart.
    pub output_bytes: [u64; 2],
    /// Bytes of it that were dropped, in each stream.
    pub dropped: [u64; 2],
    /// What could not be kept at all.
    pub lost: Option<Box<Lost>>,
    /// When it last showed that it moves.
    pub updated_at: Option<Timestamp>,
    /// The client whose foreground job it is.
    pub foreground: Option<u64>,
    /// What only agent tasks have.
    pub agent: Option<Box<AgentPart>>,
    /// How it is ordered among others; `None` stands for the plain plan.
    pub plan: Option<Box<Plan>>,
    /// Where it is.
    pub state: State,
    /// Only in snapshots: the lowest of the slots that it has, or whether the group that it waits in is paused.
    pub place: QueuePlace,
}

/// The most bytes that the words and numbers of a failure take besides its own texts.
const FAILURE_BYTES: usize = 64;

/// The most bytes of the sentence on a condition that can't come true.
const DEPENDENCY_BYTES: usize = 160;

/// How a snapshot's task stood with its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    /// The lowest of its slots.
    pub slot: Option<u32>,
    /// Whether its group is paused.
    pub is_paused: bool,
    /// Whether it waits for other tasks of its batch (--jobs).
    pub is_parked: bool,
}

/// A task as it was at one moment; cheap to take.
pub type Snapshot = Box<Task>;

impl Task {
    /// Its status on the wire.
    pub fn status(&self) -> Status {
        match &self.state {
            State::Queued { .. } => Status::Pending,
            State::Running { .. } | State::Stopping { .. } if self.resume_count > 0 => Status::Resumed,
            State::Starting { .. } | State::Running { .. } | State::Stopping { .. } => Status::Running,
            State::Finished(finished) | State::Resuming { finished, .. } => match finished.outcome {
                Outcome::Completed => Status::Completed,
                Outcome::Failed(_) => Status::Failed,
                Outcome::Cancelled(_) => Status::Cancelled,
            },
        }
    }

    /// The bytes of its texts as lists show them: what the size of its task object depends on.
    pub fn text_bytes(&self) -> usize {
        let agent = self.agent.as_deref().map_or(0, AgentPart::text_bytes);
        let lost = self.lost.as_ref().map_or(0, |lost| lost.why.len());
        let key = self.key.as_deref().map_or(0, str::len);
        let plan = self.plan.as_deref().map_or(0, Plan::text_bytes);
        self.spec.text_bytes() + agent + lost + key + plan + self.failure_bytes()
    }

    /// How it is ordered among others.
    pub fn plan(&self) -> &Plan {
        self.plan.as_deref().unwrap_or(&PLAIN)
    }

    /// Whether its time limit ended it.
    pub fn timed_out(&self) -> bool {
        let outcome = self.finished().map(|finished| &finished.outcome);
        matches!(outcome, Some(Outcome::Failed(Failure::TimedOut { .. })))
    }

    /// Whether it has ended, and nobody is about to resume it.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished(_))
    }

    /// Whether it has ended and no process of its tree is left that can be ended.
    pub fn is_settled(&self) -> bool {
        matches!(&self.state, State::Finished(finished) if finished.lingering.is_settled())
    }

    /// Whether its first run has begun, so that its output is there.
    pub fn has_begun(&self) -> bool {
        match &self.state {
            State::Queued { .. } | State::Starting { .. } => {
                self.plan().again.as_ref().is_some_and(|again| !again.attempts.is_empty())
            }
            State::Running { .. } | State::Stopping { .. } => true,
            State::Finished(finished) | State::Resuming { finished, .. } => finished.started_at.is_some(),
        }
    }

    /// When it wants to be looked at again.
    pub fn deadline(&self) -> Option<Mono> {
        match &self.state {
            State::Queued { .. } => self.plan().not_before.and_then(NotBefore::mono),
            State::Starting { .. } | State::Resuming { .. } => None,
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

    /// The bytes of what is told of its failure: twice, as `error` and in `failure`.
    fn failure_bytes(&self) -> usize {
        let Some(finished) = self.finished() else { return 0 };
        match (&finished.outcome, &finished.exit) {
            (Outcome::Cancelled(StopReason::Dependency(..)), _) => DEPENDENCY_BYTES,
            (Outcome::Completed | Outcome::Cancelled(_), _) => 0,
            (
                Outcome::Failed(Failure::Exit | Failure::CrashLoop { error: None, .. }),
                Some(Exit::Unknown(why)),
            ) => 2 * (FAILURE_BYTES + why.len()),
            (Outcome::Failed(failure), _) => 2 * (FAILURE_BYTES + failure.text_bytes()),
        }
    }

    /// Drops what only its own runs need: whoever keeps a copy of it must not keep its environment.
    pub fn drop_env(&mut self) {
        if let Some(agent) = self.agent.as_deref_mut() {
            agent.drop_env();
        }
        if let Some(again) = self.plan.as_deref_mut().and_then(|plan| plan.again.as_deref_mut()) {
            again.env = Arc::default();
        }
    }

    /// How it ended, if it has; also while it is being resumed.
    pub fn finished(&self) -> Option<&Finished> {
        match &self.state {
            State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. } => None,
            State::Finished(finished) | State::Resuming { finished, .. } => Some(finished),
        }
    }
}
