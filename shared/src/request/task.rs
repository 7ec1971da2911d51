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
use crate::order::{After, Restart, Retry};
use crate::ready::Ready;
use crate::rlimit::Rlimits;
use crate::settings::AgentSettings;
use crate::task::{Status, Summary, Task};
use crate::text::{Env, OsText};
use crate::time::Timestamp;

/// What a process gets as standard input. Null, or left out: nothing, as from `/dev/null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// The descriptor that travels with the line (`SCM_RIGHTS`).
    Fd,
    /// A pipe that `task.write` writes to.
    Pipe,
}

/// Params of `task.submit`: exactly one of `argv`, `shell` and `prompt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another thing")]
pub struct SubmitParams {
    /// A program with its arguments, passed on as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<OsText>>,
    /// A line for `/bin/sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<OsText>,
    /// A prompt for an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The agent that gets the prompt. Default: `default_agent` of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// With `prompt`: what is set in the agent's session.
    #[serde(default, skip_serializing_if = "AgentSettings::is_empty")]
    pub settings: AgentSettings,
    /// The task whose conversation the prompt continues; all else but `settings` is ignored then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<TaskRef>,
    /// What people shall read in lists. Default: the command. Required with `prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Where news of the task is delivered: a channel of the configuration or a built-in one, or `none`.
    /// Default: what the key of the parent session says, else what the configuration says (R50).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The terminal that it is submitted from, for the channel `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<OriginTerminal>,
    /// The folder to run in, absolute. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<OsText>,
    /// The complete environment. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Env>,
    /// In place of `env`: it is in a memory file (`memfd_create`) whose descriptor travels behind those of
    /// the streams. The file is sealed against writing, shrinking and growing, holds `NAME=value` entries
    /// with a NUL behind each, as `/proc/PID/environ` does, and has at most 6 MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub env_fd: bool,
    /// The file mode creation mask, 0 to 0o777. Default 0o022.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Resource limits by `prlimit`'s names. One above what the daemon itself may have is lowered to that.
    #[serde(default, skip_serializing_if = "Rlimits::is_empty")]
    pub rlimits: Rlimits,
    /// Standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Stdin>,
    /// Standard output. Default: the task's output, or its terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Given>,
    /// Standard error. Default: as standard output without `stdout`. The descriptors of `stdin`, `stdout`
    /// and `stderr` travel in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Given>,
    /// A terminal of this size for what none of the three gives elsewhere. It is the controlling terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// Whether it is a foreground job of this connection (R60 to R71): it starts at once, whatever else
    /// runs, what its terminal shows is sent here as `output` notifications, and it ends by SIGHUP if the
    /// connection ends before `task.detach`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreground: bool,
    /// With `foreground`: the user started it directly, so it can't be moved to the background (R64).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// Whether stdout and stderr go to two files. Their order against each other is lost then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub split: bool,
    /// How long it may run, in milliseconds from its start; then it fails with `timed out after …`. Each
    /// run of an agent task has so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_ms: Option<u64>,
    /// Free labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Idempotency: the same key in the same parent session gives the same task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The group that it waits and runs in (R100). Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its priority in its group, -100 to 100 (R101). Default 0; higher starts first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// How many slots of its group it takes, at most as many as that has (R102). Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The tasks that it starts after, at most 1000 (R103). All conditions must come true; when one can't any more,
    /// the task is cancelled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<After>,
    /// How long it waits before it may start, in milliseconds (R105). Time that the machine sleeps does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// When it may start, by the wall clock (R105). A time that is over is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// Whether it waits until `task.release` (R106).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// When it is tried again after it failed (R108).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// When it is started again, for as long as nobody ends it (R109). It excludes `retry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// When its process is ready (R110): `line:REGEX`, `tcp:[HOST:]PORT`, `http:URL`, `file:PATH` or `notify`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// How long each of its runs has to become ready, in milliseconds; then it fails with `not ready after …`.
    /// Left out: as long as it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_timeout_ms: Option<u64>,
}

impl SubmitParams {
    /// An environment that would make the line too long goes into a memory file.
    pub(super) fn out_of_line(&self) -> Result<Option<(Self, OwnedFd)>, RpcError> {
        let file = self.env.as_ref().map(long_env::put).transpose()?.flatten();
        Ok(file.map(|file| (Self { env: None, env_fd: true, ..self.clone() }, file)))
    }
}

/// The terminal that a task is submitted from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OriginTerminal {
    /// Its device, as in `/dev/pts/3`.
    pub path: String,
    /// The process that leads its session: the shell. Nothing is written to a terminal that is not its.
    pub leader: i32,
}

/// Params of a method on one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IdParams {
    /// The task.
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
    /// Only tasks in one of these statuses. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<Status>,
    /// Only tasks of this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Only tasks of this batch: its id, or a unique prefix of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskRef>,
    /// Only tasks that have every one of these labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// How many, 1 to 1000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the page before.
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
    /// The tasks, the newest first.
    pub tasks: Vec<Task>,
    /// The cursor of the next page, if there is one. Tasks that are added meanwhile do not move it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// How many tasks of this session (or of all) are in each status, whatever `status` asks for.
    pub summary: Summary,
}

/// Which of the two outputs of a task that was submitted with `split`.
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
    /// The task.
    pub id: TaskRef,
    /// Where to begin, in bytes. Negative: so many bytes before the end. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// How many bytes at most, 0 to 262144. Default 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Which stream, with `split`.
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
    /// How they are written.
    pub encoding: Encoding,
    /// Where they begin: the offset asked for, or the end of a dropped part if that is behind it.
    pub offset: u64,
    /// Where to go on reading.
    pub next: u64,
    /// Whether this is all that will ever be there: the task has ended and `next` is its end. An agent
    /// task may be resumed, and then write more.
    pub eof: bool,
}

/// Result of `task.result`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResultResult {
    /// The task.
    pub task: Task,
    /// The final answer of an agent, at most its last 1 MiB; the output of a process, at most its last
    /// 256 KiB.
    pub result: String,
    /// How it is written.
    pub encoding: Encoding,
    /// How many bytes of it come before that.
    pub truncated_bytes: u64,
}

/// When a block ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlockMode {
    /// When every task has ended.
    #[default]
    All,
    /// When one has.
    Any,
    /// When every task has ended, or one of those that have not asks something.
    AllOrAsks,
    /// When one has ended, or asks something.
    AnyOrAsks,
}

impl BlockMode {
    /// Whether one that has ended is enough.
    pub const fn is_any(self) -> bool {
        matches!(self, Self::Any | Self::AnyOrAsks)
    }

    /// Whether a question ends the wait.
    pub const fn hears_questions(self) -> bool {
        matches!(self, Self::AllOrAsks | Self::AnyOrAsks)
    }
}

/// What a block waits for each task to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlockUntil {
    /// Ended.
    #[default]
    Ended,
    /// Ready, as its `ready` says, or ended.
    Ready,
}

impl BlockUntil {
    /// Whether it waits for ends. Taken by reference, as serde asks.
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
    /// The tasks. None: answered at once.
    #[serde(default)]
    pub ids: Vec<TaskRef>,
    /// In place of `ids`: the tasks for which this holds at the time of the call. None: answered at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// How long to wait at most, in milliseconds; null for as long as it takes. Default 60000.
    #[serde(default = "default_block_timeout")]
    pub timeout_ms: Option<u64>,
    /// When to answer.
    #[serde(default)]
    pub mode: BlockMode,
    /// What it waits for each task to be: `mode` takes one that is so for one that has ended.
    #[serde(default, skip_serializing_if = "BlockUntil::is_ended")]
    pub until: BlockUntil,
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
    /// Every task that was named, once each, in the order of naming.
    pub tasks: Vec<Task>,
    /// Whether the timeout came first.
    pub timed_out: bool,
    /// Those that have ended.
    pub finished: Vec<TaskId>,
    /// Those that have not.
    pub active: Vec<TaskId>,
}

/// Params of `task.cancel`: `ids`, `matching` or `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelParams {
    /// The tasks. One that has ended is returned as it is; what lingers of it is ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// Every active task for which this holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Every active task (of the session, if one is named).
    #[serde(default)]
    pub all: bool,
    /// With `all`: only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The first signal: a number, or a name with or without `SIG`. Default `TERM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// How long a task has to end after it, in milliseconds, before SIGKILL. Default `grace.cancel`.
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

/// Params of `task.clear`. Neither `ids` nor `all`: every finished task (of the session, if one is named)
/// of which no process lives on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClearParams {
    /// The finished tasks to remove; what lingers of them is ended. An active one is an error. An empty
    /// list is an error too; left out, it stands for all of which nothing lingers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<TaskRef>>,
    /// In place of `ids`: the finished tasks for which this holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Active tasks too: they are cancelled first.
    #[serde(default)]
    pub all: bool,
}

/// Result of `task.clear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClearResult {
    /// How many tasks were removed.
    pub cleared: u64,
}

/// Params of `task.signal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalParams {
    /// The task.
    pub id: TaskRef,
    /// A number, or a name with or without `SIG`.
    pub signal: String,
    /// Whether the whole process tree gets it, not just its leader.
    #[serde(default)]
    pub tree: bool,
}

/// Params of `task.write`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WriteParams {
    /// The task.
    pub id: TaskRef,
    /// The bytes, at most 256 KiB.
    #[serde(default)]
    pub data: String,
    /// How they are written.
    #[serde(default)]
    pub encoding: Encoding,
    /// Whether the input ends behind them.
    #[serde(default)]
    pub eof: bool,
}

/// Result of `task.write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteResult {
    /// How many bytes the task's pipe took.
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
