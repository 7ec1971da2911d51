//! Params and results of the methods on tasks.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::foreground::{Given, TerminalSize};
use super::order::Matching;
use crate::encoding::Encoding;
use crate::error::RpcError;
use crate::id::{TaskId, TaskRef};
use crate::limits::BLOCK_TIMEOUT_MS;
use crate::long_env;
use crate::order::{After, PRIORITIES, Restart, Retry};
use crate::ready::Ready;
use crate::resources::Resources;
use crate::rlimit::Rlimits;
use crate::settings::AgentSettings;
use crate::task::{Status, Summary, Task};
use crate::text::{Env, OsText};
use crate::time::Timestamp;

/// Standard input of a process. Null or missing: empty, as from `/dev/null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// The descriptor sent with the line (`SCM_RIGHTS`).
    Fd,
    /// A pipe for `task.write`.
    Pipe,
}

/// Params of `task.submit`: exactly one of `argv`, `shell` and `prompt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another thing")]
pub struct SubmitParams {
    /// Program and arguments, passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<OsText>>,
    /// Command line for `/bin/sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<OsText>,
    /// Prompt for an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Agent for the prompt. Default: the configured `default_agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// With `prompt`: options of the agent's session.
    #[serde(default, skip_serializing_if = "AgentSettings::is_empty")]
    pub settings: AgentSettings,
    /// Id of the task whose conversation the prompt continues; everything else except `settings` is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<TaskRef>,
    /// Description for lists. Default: the command. Required with `prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Key of the parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Channel for notifications: a configured or built-in one, or `none`. Default: according to the key of the
    /// parent session, else to the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Terminal from which it is submitted, for the channel `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<OriginTerminal>,
    /// Inherit folder, environment and umask from the process at the other end of the connection, which for a client
    /// on another machine is `bgctl dial`. `cwd` may then be relative to its folder, `env` adds to its environment,
    /// and both may be omitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inherit: bool,
    /// Absolute path of the folder to run in. Required without `inherit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<OsText>,
    /// Complete environment. Required without `inherit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Env>,
    /// Instead of `env`: the environment is in a memory file (`memfd_create`) whose descriptor follows those of the
    /// streams. The file must be sealed against writing, shrinking and growing, contain NUL-terminated `NAME=value`
    /// entries, as in `/proc/PID/environ`, and have at most 6 MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub env_fd: bool,
    /// Which of `cwd` and `env` were chosen for this task, as opposed to being those of the submitter's shell: only
    /// these go to another machine.
    #[serde(default, skip_serializing_if = "Chosen::is_empty")]
    pub chosen: Chosen,
    /// Name of the executor that runs it elsewhere. Default: this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// With `on`: what it asks of the cluster.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// The file mode creation mask, 0 to 0o777. Default 0o022.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Resource limits by `prlimit`'s names, lowered to the daemon's own limits if necessary.
    #[serde(default, skip_serializing_if = "Rlimits::is_empty")]
    pub rlimits: Rlimits,
    /// Standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Stdin>,
    /// Standard output. Default: the task's output, or its terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Given>,
    /// Standard error. Default: as standard output without `stdout`. The descriptors of `stdin`, `stdout` and
    /// `stderr` are sent in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Given>,
    /// Run in a terminal of this size, which becomes the controlling terminal and is used for all streams that are
    /// not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// Whether it is a foreground job of this connection: it starts at once, its terminal is shown here with
    /// `output` notifications, and it ends by SIGHUP if the connection closes before `task.detach`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreground: bool,
    /// With `foreground` and `pty`: goes on in the background if the connection closes; the same submit regains it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
    /// With `foreground`: the user started it directly, so it can't be moved to the background.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// Whether to store stdout and stderr in separate files. Their relative order is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub split: bool,
    /// Maximum run time in milliseconds, for each run of an agent task; then it fails with `timed out after …`.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_ms: Option<u64>,
    /// Tags chosen by the submitter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Idempotency key: the same key in the same parent session returns the same task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Group to run in. Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Priority within its group, -100 to 100. Default 0; higher starts first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Slots it takes in its group, 0 up to those of the group. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Tasks to start after, at most 1000. All conditions must be met; when one can no longer be met, the task is
    /// cancelled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<After>,
    /// Delay before it may start, in milliseconds. Time while the machine sleeps does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Earliest start time, by the wall clock. A time in the past means now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// Whether to hold it until `task.release`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// When to retry it after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// When to restart it, until it is cancelled. Can't be combined with `retry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// How to tell that its process is ready: `line:REGEX`, `tcp:[HOST:]PORT`, `http:URL`, `file:PATH` or `notify`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// Time limit for becoming ready in each run, in milliseconds; then it fails with `not ready after …`. Default:
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_timeout_ms: Option<u64>,
}

impl SubmitParams {
    /// Creates the params of a task that does nothing, which shows whether tasks can run and be reported. It waits neither
    /// for a slot nor behind others.
    pub fn trial(description: &str, channel: &str) -> Self {
        Self {
            argv: Some(vec!["true".into()]),
            description: Some(description.to_owned()),
            channel: Some(channel.to_owned()),
            inherit: true,
            slots: Some(0),
            priority: Some(*PRIORITIES.end()),
            ..Self::default()
        }
    }
}

impl SubmitParams {
    /// Moves an environment that would make the line too long into a memory file.
    pub(super) fn out_of_line(&self) -> Result<Option<(Self, OwnedFd)>, RpcError> {
        let file = self.env.as_ref().map(long_env::put).transpose()?.flatten();
        Ok(file.map(|file| (Self { env: None, env_fd: true, ..self.clone() }, file)))
    }
}

/// The parts of a task's surroundings that its submitter chose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Chosen {
    /// Whether the folder was.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cwd: bool,
    /// Names of the variables that were.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
}

impl Chosen {
    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The terminal from which a task was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OriginTerminal {
    /// Device path, as in `/dev/pts/3`.
    pub path: String,
    /// Process id of its session leader, the shell. The daemon writes to the terminal only as long as this is its
    /// leader.
    pub leader: i32,
}

/// Params of a method on one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IdParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
}

/// Result of a method that returns one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskResult {
    /// The task.
    pub task: Task,
}

/// Params of `task.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// Only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only tasks with one of these statuses. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<Status>,
    /// Only tasks of this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Only tasks of this batch: its id, or a unique prefix of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskRef>,
    /// Only tasks with all of these tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Only tasks that have not ended before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Only tasks with this text in their description, command line, prompt or tags, ignoring case. 1 to 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Maximum number of tasks, 1 to 1000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Cursor: `next` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

impl From<Matching> for ListParams {
    fn from(matching: Matching) -> Self {
        let Matching { session, group, batch, tags, status } = matching;
        Self { session, status, group, batch, tags, ..Self::default() }
    }
}

/// Result of `task.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListResult {
    /// The tasks, newest first.
    pub tasks: Vec<Task>,
    /// Cursor of the next page, if there is one. New tasks do not shift it. A page of a search for `text` may have fewer
    /// tasks than `limit`, or none, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// Number of tasks by status in this session (or in all), ignoring `status`.
    pub summary: Summary,
}

/// One of the two outputs of a task submitted with `split`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output; without `split`, both.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

/// Params of `task.output`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OutputParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Start in bytes; negative: from the end. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// Maximum number of bytes, 0 to 262144. Default 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// With `split`: which stream. Default: stdout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<Stream>,
}

/// Result of `task.output`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputResult {
    /// The task, with its progress.
    pub task: Task,
    /// The bytes.
    pub data: String,
    /// Encoding of `data`.
    pub encoding: Encoding,
    /// Start of `data`: the requested offset, or the end of a dropped part.
    pub offset: u64,
    /// Offset to continue from.
    pub next: u64,
    /// Whether the output is complete: the task has ended, and `next` is the end. A resumed agent task can write
    /// more.
    pub eof: bool,
}

/// Result of `task.result`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResultResult {
    /// The task.
    pub task: Task,
    /// Final answer of an agent, at most its last 1 MiB; output of a process, at most its last 256 KiB.
    pub result: String,
    /// Encoding of `result`.
    pub encoding: Encoding,
    /// Bytes omitted before that.
    pub truncated_bytes: u64,
}

/// When `task.block` returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlockMode {
    /// All tasks have ended.
    #[default]
    All,
    /// One task has ended.
    Any,
    /// All tasks have ended, or one that has not asks a question.
    AllOrAsks,
    /// One task has ended or asks a question.
    AnyOrAsks,
}

impl BlockMode {
    /// Whether one ended task is enough.
    pub const fn is_any(self) -> bool {
        matches!(self, Self::Any | Self::AnyOrAsks)
    }

    /// Whether a question ends the wait.
    pub const fn ends_on_question(self) -> bool {
        matches!(self, Self::AllOrAsks | Self::AnyOrAsks)
    }
}

/// State that `task.block` waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlockUntil {
    /// The task has ended.
    #[default]
    Ended,
    /// The task is ready, as defined by its `ready`, or has ended.
    Ready,
}

impl BlockUntil {
    /// Whether this is the default, which is not serialized. Serde passes a reference.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's own signature")]
    const fn is_ended(&self) -> bool {
        matches!(self, Self::Ended)
    }
}

#[allow(clippy::unnecessary_wraps, reason = "serde wants the field's own type")]
fn default_block_timeout() -> Option<u64> {
    Some(BLOCK_TIMEOUT_MS)
}

/// Params of `task.block`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BlockParams {
    /// Ids of the tasks. If empty, the call returns at once.
    #[serde(default)]
    pub ids: Vec<TaskRef>,
    /// Instead of `ids`: the tasks that match at the time of the call. If none match, the call returns at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Maximum wait in milliseconds; null for no limit. Default 60000.
    #[serde(default = "default_block_timeout")]
    pub timeout_ms: Option<u64>,
    /// When to return. Default: `all`.
    #[serde(default)]
    pub mode: BlockMode,
    /// State to wait for, which `mode` counts as ended. Default: `ended`.
    #[serde(default, skip_serializing_if = "BlockUntil::is_ended")]
    pub until: BlockUntil,
}

impl BlockParams {
    /// Returns params that wait for the end of one task, without a timeout.
    pub fn until_ended(task: TaskId) -> Self {
        Self { ids: vec![task.into()], timeout_ms: None, mode: BlockMode::All, ..Self::default() }
    }
}

impl Default for BlockParams {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            matching: None,
            timeout_ms: default_block_timeout(),
            mode: BlockMode::default(),
            until: BlockUntil::default(),
        }
    }
}

/// Result of `task.block`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlockResult {
    /// The tasks in the order given, without duplicates.
    pub tasks: Vec<Task>,
    /// Whether the call returned because of the timeout.
    pub timed_out: bool,
    /// Ids of the tasks that have ended.
    pub finished: Vec<TaskId>,
    /// Ids of the tasks that have not ended.
    pub active: Vec<TaskId>,
}

/// Params of `task.cancel`: `ids`, `matching` or `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelParams {
    /// Ids of the tasks. An ended task is returned unchanged; its remaining processes are ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// Cancel every active task that matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Cancel every active task, or those of `session`.
    #[serde(default)]
    pub all: bool,
    /// With `all`: only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// First signal: a number, or a name with or without `SIG`. Default `TERM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Grace period before SIGKILL, in milliseconds. Default `grace.cancel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Result of a method that returns several tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TasksResult {
    /// The tasks.
    pub tasks: Vec<Task>,
}

/// Params of `task.clear`. Without `ids`, `matching` and `all`: every finished task (of `session`, if given)
/// without remaining processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClearParams {
    /// Ids of the finished tasks to delete; their remaining processes are ended. An active task or an empty list is
    /// an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<TaskRef>>,
    /// Instead of `ids`: the finished tasks that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Include active tasks, cancelling them first.
    #[serde(default)]
    pub all: bool,
}

/// Result of `task.clear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClearResult {
    /// Number of deleted tasks.
    pub cleared: u64,
}

/// Params of `task.signal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Signal: a number, or a name with or without `SIG`.
    pub signal: String,
    /// Whether to signal the whole process tree, not only its main process.
    #[serde(default)]
    pub tree: bool,
}

/// Params of `task.write`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WriteParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Bytes to write, at most 256 KiB.
    #[serde(default)]
    pub data: String,
    /// Encoding of `data`.
    #[serde(default)]
    pub encoding: Encoding,
    /// Whether to close the input afterwards.
    #[serde(default)]
    pub eof: bool,
}

/// Result of `task.write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteResult {
    /// Number of bytes that were written.
    pub written: u64,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    fn sent<T: DeserializeOwned + Serialize>(said: &serde_json::Value) -> serde_json::Value {
        serde_json::to_value(T::deserialize(said).unwrap()).unwrap()
    }

    #[test]
    fn an_older_daemon_is_sent_no_field_that_was_not_asked_for() {
        let submit = json!({"argv": ["make"], "cwd": "/", "env": {}});
        assert_eq!(sent::<SubmitParams>(&submit), submit);
        let block = json!({"ids": ["3f2a"], "timeout_ms": 1000, "mode": "all"});
        assert_eq!(sent::<BlockParams>(&block), block);
        let cancel = json!({"ids": ["3f2a"], "all": false});
        assert_eq!(sent::<CancelParams>(&cancel), cancel);
        assert_eq!(sent::<ClearParams>(&cancel), cancel);
        assert_eq!(sent::<ListParams>(&json!({})), json!({}));
    }
}
