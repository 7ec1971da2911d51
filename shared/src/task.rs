//! The task object that every method returns. It never contains the task's environment.

use serde::{Deserialize, Serialize};

use crate::consumption::{AgentUsage, PlanStep};
use crate::failure::Failure;
use crate::id::TaskId;
use crate::lenient;
use crate::order::{CancelReason, DEFAULT_GROUP, Dependency, Restart, Retry, Waiting};
use crate::question::NeedsInput;
use crate::ready::Ready;
use crate::resources::{Elsewhere, Resources};
use crate::settings::AgentSettings;
use crate::show;
use crate::text::OsText;
use crate::time::Timestamp;
use crate::usage::Usage;

/// State of a task in its life cycle.
///
/// ```text
/// pending ─▶ running ─▶ completed | failed | cancelled
/// pending ─▶ cancelled
/// running ─▶ pending                                          (between two attempts, or put back by a cluster)
/// completed ─▶ resumed ─▶ completed | failed | cancelled      (agent tasks only)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waiting for the reason given in `waiting`, or about to start.
    Pending,
    /// Running in a slot.
    Running,
    /// The agent is working on a follow-up prompt.
    Resumed,
    /// Ended successfully.
    Completed,
    /// Failed; see `error`.
    Failed,
    /// Cancelled by a user, by the end of its parent session, or by the end of the daemon.
    Cancelled,
}

impl Status {
    /// Every status, in the order of the summary.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Running, Self::Resumed, Self::Completed, Self::Failed, Self::Cancelled];

    /// Reports whether the task has not ended yet.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Resumed)
    }

    /// Returns the name on the wire and in tables.
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

/// Kind of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A command.
    Process,
    /// A prompt for an AI agent.
    Agent,
    /// A kind added by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// How a task was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Started by the daemon in the background.
    Submit,
    /// Started by the daemon as a foreground job.
    Run,
    /// Started by another program and handed over while it ran.
    Handoff,
    /// A way added by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// How a process ended. Exit codes are never made up: if the code can't be known, the reason is given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// The process exited with this code, 0 to 255.
    Code(i32),
    /// The signal with this number ended the process.
    Signal(i32),
    /// Nobody knows, for this reason.
    Unknown(Box<str>),
}

impl Exit {
    /// The exit code of a shell if the program can't be run.
    pub const NOT_EXECUTABLE: i32 = 126;
    /// The exit code of a shell if there is no such program.
    pub const NOT_FOUND: i32 = 127;

    /// Returns the exit status as a shell reports it: the code, or 128 + the signal. `None` if it is unknown.
    pub fn shell_code(&self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(*code),
            Self::Signal(signal) => Some(128 + signal),
            Self::Unknown(_) => None,
        }
    }

    /// Describes the exit in words that follow the name of the ended process.
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
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Start time; `completed_at` if it could not start.
    pub started_at: Timestamp,
    /// End time.
    pub completed_at: Timestamp,
    /// How its process ended.
    pub exit: Option<Exit>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Resources that it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Start of its output within the task's output, in bytes.
    pub offset: u64,
    /// With `split`: start of its standard error within the task's, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_offset: Option<u64>,
}

/// Progress of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    /// Bytes of output so far. May be slightly out of date for a running process, except in `task.get` and
    /// `task.output`.
    pub output_bytes: u64,
    /// Last line of the output, truncated to 200 characters. Only in `task.get` and `task.output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
    /// Number of tool calls of the agent. Always 0 for a process.
    #[serde(default)]
    pub tool_calls: u64,
    /// The agent's last three tool calls, latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_tools: Vec<String>,
    /// The agent's plan for this run, as last reported: at most 32 steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<PlanStep>,
    /// Number of requests of the agent in this run that were denied by the configuration, for lack of an answer, or
    /// because too many questions were open.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denied: u64,
    /// The last request denied in this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_denied: Option<String>,
    /// Time of the last activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Timestamp>,
    /// Whether the agent has been silent for `stalled_after`. The task is not ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stalled: bool,
    /// The agent's last output besides its answer: a retry, or the last lines of its stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_words: Option<String>,
    /// The agent's open question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs_input: Option<NeedsInput>,
}

/// The output of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Output {
    /// Output file: stdout and stderr in their original order, or only stdout with `split`.
    pub path: String,
    /// With `split`: file of stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_path: Option<String>,
    /// Size of the output so far in bytes, including dropped bytes, so that offsets stay valid. With `split`: of both
    /// streams.
    pub bytes: u64,
    /// Bytes deleted from the disk because the output exceeded `limits.output_bytes`. They follow the first 64 KiB of
    /// the file and read as NUL.
    pub dropped_bytes: u64,
    /// With `split`: dropped bytes of stderr.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stderr_dropped_bytes: u64,
    /// Bytes that the daemon could not write, for example on a full disk: output of a terminal or of a handed-over
    /// pipe. A process that writes to its file directly gets the error itself. Also bytes that were in the file when
    /// something truncated it, as `>/dev/stderr` in a script does. They are in no file and not counted in `bytes`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_bytes: u64,
    /// Error of the last lost write, or that the file was truncated or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_because: Option<String>,
}

impl Output {
    /// Returns a message for people if part of the output is lost.
    pub fn loss(&self) -> Option<String> {
        let why = self.lost_because.as_deref().unwrap_or("unknown error");
        let bytes = self.lost_bytes;
        (bytes > 0).then(|| format!("output incomplete: {} lost: {why}", show::count(bytes, "byte")))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A task at one point in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own on the wire")]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// Command or agent prompt.
    pub kind: Kind,
    /// How it was created.
    pub origin: Origin,
    /// Whether it is currently a foreground job.
    #[serde(default)]
    pub foreground: bool,
    /// Whether it was a foreground job until its end, so that its user has seen how it ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended_in_foreground: bool,
    /// Whether it runs in a terminal that can be attached to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pty: bool,
    /// Status of the task.
    pub status: Status,
    /// Whether its processes are paused. It keeps its slots, and its time limit keeps counting.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Whether it is being ended: its processes were sent a signal, and SIGKILL follows after the grace period.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
    /// Description given on submit, else the command.
    pub description: String,
    /// The command, if it was given as arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<OsText>>,
    /// The command, if it was given as a line for the shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<OsText>,
    /// Prompt of the latest run of an agent task. Truncated to 1 KiB except in `task.get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Name of the agent, for an agent task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Session options given on submit or by the latest resume.
    #[serde(
        default,
        deserialize_with = "lenient::known_fields",
        skip_serializing_if = "AgentSettings::is_empty"
    )]
    pub settings: AgentSettings,
    /// The agent's own id of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_session: Option<String>,
    /// Key of the parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Channel for notifications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Its idempotency key within its parent session, as its client gave it. Absent if the client made it up: `auto:`
    /// and a UUID; and of a task that `task.rerun` submitted, as that key is the request's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Maximum time of each run, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_ms: Option<u64>,
    /// How to tell that its process is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// Time limit for becoming ready in each run, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_timeout_ms: Option<u64>,
    /// Name of the executor that runs it elsewhere. Missing: it runs on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Resources that it requests from the cluster that runs it.
    #[serde(
        default,
        deserialize_with = "lenient::known_fields",
        skip_serializing_if = "Resources::is_empty"
    )]
    pub resources: Resources,
    /// State reported by the place that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<Elsewhere>,
    /// Tags chosen by the submitter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Folder it runs in; `~`, which is no path, for a task on another machine that runs in the home there.
    pub cwd: OsText,
    /// Process id of its main process, once started; for an agent task, that of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Number of the latest run, from 1; each resume adds one.
    pub run: u32,
    /// Number of follow-ups.
    pub resume_count: u32,
    /// Time of submission.
    pub created_at: Timestamp,
    /// Start time of its process, or the time at which the agent got the prompt of this run. If its last attempt could
    /// not start: that of the last one that did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time at which this run became ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// End time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// Run time of the latest run, without waits for other attempts, in milliseconds; once the task has ended, if it had
    /// started. Setting the clock does not change it, and time while the machine sleeps does not count, unless only the
    /// wall clock knows: of runs elsewhere, or that ended while there was no daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_ms: Option<u64>,
    /// Time at which the result of the latest run was first read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrieved_at: Option<Timestamp>,
    /// How its process ended; null before that, and for agent tasks. Also null if its last attempt could not start,
    /// although an earlier one has an exit.
    pub exit: Option<Exit>,
    /// Why it failed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why it failed, for programs. Only for failed tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Whether it exceeded its time limit. Then it is `failed`, and `exit` shows how its process reacted to the
    /// signals.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Whether processes of the task are still running after its end, or survive SIGKILL.
    #[serde(default)]
    pub lingering: bool,
    /// Why the success of a completed agent task is doubtful: the answer looks like an error, or there is none after the
    /// last tool call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// Actions that its agent can take despite its `permissions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Group it runs in. Omitted for `default`.
    #[serde(default = "default_group", skip_serializing_if = "is_default_group")]
    pub group: String,
    /// Id of the batch it was submitted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskId>,
    /// Id of the task of which this one is a rerun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<TaskId>,
    /// Priority within its group, -100 to 100. Omitted if 0.
    #[serde(default, skip_serializing_if = "is_zero_priority")]
    pub priority: i32,
    /// Slots it occupies in its group. Omitted if 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slots: u32,
    /// Lowest number of its slots, from 1, while it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Tasks it starts after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Dependency>,
    /// What it waits for, while it is pending. Missing if it is the next to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Earliest start time of a pending task, or of its next attempt, whatever else it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// When it is retried after a failure.
    #[serde(default, deserialize_with = "lenient::known_fields", skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// When it is restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Number of the latest attempt, if there can be several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The last 16 ended attempts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Why it was cancelled. Only for cancelled tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<CancelReason>,
    /// Resources that the latest run has used on the machine that ran it, once its main process has ended. Missing if
    /// unknown: for agents, as one process may work for several tasks; for processes that were handed over, as only
    /// their parent learns this; and on clusters without accounting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The agent's consumption of its model, in all runs. Missing if the agent does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_usage: Option<AgentUsage>,
    /// Progress of its work.
    pub progress: Progress,
    /// Where its output is.
    pub output: Output,
}

impl Task {
    /// Reports whether it has started, in this or an earlier attempt, so that there is output.
    pub fn has_begun(&self) -> bool {
        self.started_at.is_some() || !self.attempts.is_empty()
    }

    /// Returns how long it ran, or has been running by `now`, in milliseconds: in its latest run, without the wait for
    /// another attempt. `None` if it never started. While it is running, and if its daemon is too old for `run_ms`, this
    /// is by the wall clock: 0 if that was set back.
    pub fn run_time_ms(&self, now: Timestamp) -> Option<u64> {
        let started = self.started_at?;
        if let Some(ms) = self.run_ms.filter(|_| self.completed_at.is_some()) {
            return Some(ms);
        }
        // Two attempts may start within a millisecond; but without process and exit, the last one has not started.
        let has_started = self.pid.is_some() || self.exit.is_some();
        let is_this = |last: &&Attempt| {
            let is_alone = last.completed_at > started || last.exit == self.exit || !has_started;
            last.started_at == started && is_alone
        };
        // Later ones may not have started.
        let last = self.attempts.iter().rfind(is_this);
        let ended = self.completed_at.map(|ended| last.map_or(ended, |last| last.completed_at));
        Some(ended.unwrap_or(now).millis_since(started))
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

/// Number of tasks by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Pending tasks.
    pub pending: u64,
    /// Running tasks.
    pub running: u64,
    /// Tasks with a follow-up in progress.
    pub resumed: u64,
    /// Completed tasks.
    pub completed: u64,
    /// Failed tasks.
    pub failed: u64,
    /// Cancelled tasks.
    pub cancelled: u64,
}

impl Summary {
    /// Returns the number of `pending`, `running` and `resumed` tasks.
    pub const fn active(&self) -> u64 {
        self.pending + self.running + self.resumed
    }

    /// Returns the number of all tasks.
    pub const fn total(&self) -> u64 {
        self.active() + self.completed + self.failed + self.cancelled
    }

    /// Returns the count of one status.
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

    /// Returns a mutable reference to the count of one status.
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

/// Returns a task in JSON, with these members besides those that every task has.
#[cfg(test)]
pub(crate) fn json_of_tests(members: &str) -> String {
    format!(
        r#"{{"id":"3f2a9c1e-0000-4000-8000-000000000000","kind":"process","origin":"submit","status":"running",
            "description":"d","cwd":"/","run":1,"resume_count":0,"created_at":"2026-01-01T00:00:00Z","exit":null,
            "progress":{{"output_bytes":0}},"output":{{"path":"/o","bytes":0,"dropped_bytes":0}},{members}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_and_origin_of_a_newer_daemon_are_unknown() {
        let read = |text: &str| crate::strict::from_str::<(Kind, Origin)>(text).unwrap();
        assert_eq!(read(r#"["dream","import"]"#), (Kind::Unknown, Origin::Unknown));
        assert_eq!(read(r#"["agent","run"]"#), (Kind::Agent, Origin::Run));
    }
}
