//! The task object, as every method returns it. The environment of a task is never in it.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::id::TaskId;
use crate::order::{CancelReason, DEFAULT_GROUP, Dependency, Waiting};
use crate::question::NeedsInput;
use crate::ready::Ready;
use crate::settings::AgentSettings;
use crate::show;
use crate::text::OsText;
use crate::time::Timestamp;

/// Where a task is in its life.
///
/// ```text
/// pending ─▶ running ─▶ completed | failed | cancelled
/// pending ─▶ cancelled
/// running ─▶ pending                                          (between two attempts)
/// completed ─▶ resumed ─▶ completed | failed | cancelled      (agent tasks only)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits: for a free slot, or for what `waiting` says.
    Pending,
    /// Has a slot.
    Running,
    /// A follow-up prompt is with the agent.
    Resumed,
    /// Ended well.
    Completed,
    /// Ended badly; `error` says how.
    Failed,
    /// Was ended by a user, by the end of its parent session or by the end of the daemon.
    Cancelled,
}

impl Status {
    /// Every status, in the order of the summary.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Running, Self::Resumed, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether the task is still to end.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Resumed)
    }

    /// The word on the wire and in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Resumed => "resumed",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|status| status.as_str()).collect();
            format!("unknown status {text:?}: one of {}", known.join(", "))
        })
    }
}

/// What does the work of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A command.
    Process,
    /// A prompt given to an AI agent.
    Agent,
}

/// How a task came to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Started by the daemon, in the background from the first moment.
    Submit,
    /// Started by the daemon as a foreground job.
    Run,
    /// Started by another program and handed over while it ran.
    Handoff,
}

/// How a process ended. An exit code is never made up: where it can't be known, the reason is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited with this code, 0 to 255.
    Code(i32),
    /// A signal of this number ended it.
    Signal(i32),
    /// Nobody can say, and this is why.
    Unknown(Box<str>),
}

impl Exit {
    /// The exit status as a shell reports it: the code, or 128 + the signal. `None` where it is not known.
    pub fn shell_code(&self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(*code),
            Self::Signal(signal) => Some(128 + signal),
            Self::Unknown(_) => None,
        }
    }

    /// The same in words, behind the name of what has ended.
    pub fn words(&self) -> String {
        match self {
            Self::Code(code) => format!("exited with code {code}"),
            Self::Signal(signal) => format!("ended by signal {}", show::signal(*signal)),
            Self::Unknown(why) => format!("its exit status is unknown: {why}"),
        }
    }
}

/// One attempt of a task that was tried several times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attempt {
    /// Its number, from 1.
    pub attempt: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub completed_at: Timestamp,
    /// How its process ended.
    pub exit: Option<Exit>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where its output begins in the task's output, in bytes.
    pub offset: u64,
    /// Where its standard error begins in the task's, in bytes, if that is kept apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_offset: Option<u64>,
}

/// What is known of a task's work while it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    /// Bytes of output so far. The daemon is not in the data path, so for a running process this may be
    /// a moment old; `task.get` and `task.output` look it up.
    pub output_bytes: u64,
    /// The last line of the output, cut to 200 characters. Only `task.get` and `task.output` look it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
    /// How many tools the agent has called. Always 0 for a process.
    #[serde(default)]
    pub tool_calls: u64,
    /// The agent's last three tools, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_tools: Vec<String>,
    /// How often the agent was denied something because of its configuration, or because nobody answered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denied: u64,
    /// What that was the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_denied: Option<String>,
    /// When the task last showed that it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Timestamp>,
    /// Whether the agent has been silent for its `stalled_after`. It is not ended for that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stalled: bool,
    /// What the agent last said beside its answer: that it tries again, or the last lines of its stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_words: Option<String>,
    /// What the agent asks, and waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs_input: Option<NeedsInput>,
}

/// Where a task's output is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Output {
    /// The file that the task writes to: stdout and stderr in true order, or stdout alone with `split`.
    pub path: String,
    /// The file of stderr, with `split`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_path: Option<String>,
    /// The size of the output so far, in bytes, dropped ones included: offsets stay true. With `split`
    /// both streams together.
    pub bytes: u64,
    /// Bytes that were given back to the disk because the output grew past `limits.output_bytes`. They
    /// lie behind the first 64 KiB of the file and read as NUL.
    pub dropped_bytes: u64,
    /// The same for the file of stderr, with `split`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stderr_dropped_bytes: u64,
    /// Bytes that the daemon could not write, such as on a full disk: what a terminal showed, or what came out
    /// of a pipe that was handed over. They are in no file and not counted in `bytes`. A process that
    /// writes to its file by itself gets the error itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_bytes: u64,
    /// Why they were lost, the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_because: Option<String>,
}

impl Output {
    /// What to tell people if a part of the output is lost.
    pub fn loss(&self) -> Option<String> {
        let why = self.lost_because.as_deref().unwrap_or("unknown error");
        let bytes = self.lost_bytes;
        (bytes > 0).then(|| format!("output incomplete: {bytes} bytes lost: {why}"))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A task, as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own on the wire")]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Command or agent.
    pub kind: Kind,
    /// How it came to the daemon.
    pub origin: Origin,
    /// Whether it is somebody's foreground job at this moment.
    #[serde(default)]
    pub foreground: bool,
    /// Whether it runs in a terminal, which can be attached to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pty: bool,
    /// Where it is in its life.
    pub status: Status,
    /// Whether its processes are paused. It keeps its slots then, and its time limit goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// What its submitter called it; else the command.
    pub description: String,
    /// The command, if it was given as arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<OsText>>,
    /// The command, if it was given as a line for the shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<OsText>,
    /// The prompt of an agent task: that of the latest run. Only `task.get` has all of it; else it is cut
    /// behind 1 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The agent's name, of an agent task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// What its submitter, or who resumed it last, has set in the agent's session.
    #[serde(default, skip_serializing_if = "AgentSettings::is_empty")]
    pub settings: AgentSettings,
    /// The agent's own id of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_session: Option<String>,
    /// The parent session: who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Where news of it is delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Its idempotency key within its parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How long each of its runs may take, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_ms: Option<u64>,
    /// When its process is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// How long each of its runs has to become ready, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_timeout_ms: Option<u64>,
    /// Free labels of its submitter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The folder it runs in.
    pub cwd: OsText,
    /// The process id of its leader, once it has started; of an agent task, that of the agent's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The number of this run: 1, and one more with each resume.
    pub run: u32,
    /// How often it was resumed.
    pub resume_count: u32,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When its process was started, or the prompt of this run was with the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When this run became ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// When the result of its latest run was first asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrieved_at: Option<Timestamp>,
    /// How its process ended; null while it has not, and for an agent task.
    pub exit: Option<Exit>,
    /// Why it failed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why it failed, in a form for programs. Only of failed tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Whether its time limit ended it. It is `failed` then, whatever `exit` says: that is how its process took the
    /// signals that ended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Whether processes of its tree live on: others than its leader, or such as SIGKILL does not end.
    #[serde(default)]
    pub lingering: bool,
    /// Why the success of a completed agent task may be none: what its agent said looks like an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// What its agent can do although its `permissions` mean to keep it from that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The group that it waits and runs in. Left out if it is `default`.
    #[serde(default = "default_group", skip_serializing_if = "is_default_group")]
    pub group: String,
    /// The batch that it was submitted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskId>,
    /// The task that it is the same as, submitted again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<TaskId>,
    /// Its priority in its group, -100 to 100. Left out if it is 0.
    #[serde(default, skip_serializing_if = "is_zero_priority")]
    pub priority: i32,
    /// How many slots it takes. Left out if it is 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slots: u32,
    /// While it has slots: the lowest of their numbers, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The tasks that it starts after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Dependency>,
    /// While it is pending: what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// The number of its latest attempt, if it may have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Its attempts that have ended, the last 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Why it was cancelled. Only of cancelled tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<CancelReason>,
    /// What is known of its work.
    pub progress: Progress,
    /// Where its output is.
    pub output: Output,
}

impl Task {
    /// Whether it has run, be it in an earlier attempt: there is an output.
    pub fn has_begun(&self) -> bool {
        self.started_at.is_some() || !self.attempts.is_empty()
    }
}

fn default_group() -> String {
    DEFAULT_GROUP.to_owned()
}

fn is_default_group(group: &str) -> bool {
    group == DEFAULT_GROUP
}

const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_one(value: &u32) -> bool {
    *value == 1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero_priority(value: &i32) -> bool {
    *value == 0
}

/// How many tasks are in each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Waiting for a slot.
    pub pending: u64,
    /// Having a slot.
    pub running: u64,
    /// Being resumed.
    pub resumed: u64,
    /// Ended well.
    pub completed: u64,
    /// Ended badly.
    pub failed: u64,
    /// Ended by request.
    pub cancelled: u64,
}

impl Summary {
    /// `pending`, `running` and `resumed` together.
    pub const fn active(&self) -> u64 {
        self.pending + self.running + self.resumed
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        self.active() + self.completed + self.failed + self.cancelled
    }

    /// The count of one status.
    pub const fn count(&self, status: Status) -> u64 {
        match status {
            Status::Pending => self.pending,
            Status::Running => self.running,
            Status::Resumed => self.resumed,
            Status::Completed => self.completed,
            Status::Failed => self.failed,
            Status::Cancelled => self.cancelled,
        }
    }

    /// The count of one status, to be changed.
    pub const fn count_mut(&mut self, status: Status) -> &mut u64 {
        match status {
            Status::Pending => &mut self.pending,
            Status::Running => &mut self.running,
            Status::Resumed => &mut self.resumed,
            Status::Completed => &mut self.completed,
            Status::Failed => &mut self.failed,
            Status::Cancelled => &mut self.cancelled,
        }
    }
}
