//! Every method with its params and its result, declared once.
//!
//! Optional params may be left out or null; a param that is not known is an error that names it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::agent::{AgentListParams, AgentListResult, AnswerParams, ResumeParams};
pub use crate::encoding::Encoding;
use crate::id::{TaskId, TaskRef};
use crate::limits::BLOCK_TIMEOUT_MS;
use crate::rlimit::Rlimits;
use crate::task::{Status, Summary, Task};
use crate::text::{Env, OsText};

/// A method of the protocol: its name with the types of its params and of its result.
pub trait Method {
    /// The name on the wire.
    const NAME: &'static str;
    /// What it takes.
    type Params: Serialize + DeserializeOwned;
    /// What it returns.
    type Result: Serialize + DeserializeOwned;
}

macro_rules! methods {
    ($($(#[$doc:meta])+ $method:ident = $name:literal, $params:ty => $result:ty;)+) => {
        $(
            $(#[$doc])+
            #[derive(Debug)]
            pub enum $method {}

            impl Method for $method {
                const NAME: &'static str = $name;
                type Params = $params;
                type Result = $result;
            }
        )+

        /// The names of all methods that this version knows.
        pub const METHODS: &[&str] = &[$($name),+];

        /// The JSON Schema of params and result of every method, by name.
        #[cfg(feature = "schema")]
        pub fn method_schemas(
            generator: &mut schemars::SchemaGenerator,
        ) -> Vec<(&'static str, schemars::Schema, schemars::Schema)> {
            vec![$((
                $name,
                generator.subschema_for::<$params>(),
                generator.subschema_for::<$result>(),
            )),+]
        }
    };
}

methods! {
    /// Says who calls, and learns whom it speaks with.
    Hello = "hello", HelloParams => HelloResult;
    /// Hands over a command (R01).
    TaskSubmit = "task.submit", SubmitParams => TaskResult;
    /// Gives a follow-up prompt to the session of a completed agent task (R30 to R36).
    TaskResume = "task.resume", ResumeParams => TaskResult;
    /// A page of tasks, the newest first (R06).
    TaskList = "task.list", ListParams => ListResult;
    /// One task.
    TaskGet = "task.get", IdParams => TaskResult;
    /// A part of a task's output (R20, R21).
    TaskOutput = "task.output", OutputParams => OutputResult;
    /// The result of a completed task (R07).
    TaskResultOf = "task.result", IdParams => ResultResult;
    /// Waits for tasks to end (R22 to R25).
    TaskBlock = "task.block", BlockParams => BlockResult;
    /// Ends tasks (R05).
    TaskCancel = "task.cancel", CancelParams => TasksResult;
    /// Removes finished tasks with their output (R10).
    TaskClear = "task.clear", ClearParams => ClearResult;
    /// Sends a signal to a running task's leader.
    TaskSignal = "task.signal", SignalParams => TaskResult;
    /// Writes to the standard input of a task that was submitted with `stdin: "pipe"`.
    TaskWrite = "task.write", WriteParams => WriteResult;
    /// Asks to be told what happens.
    EventsSubscribe = "events.subscribe", SubscribeParams => SubscribeResult;
    /// Ends a parent session: cancels its active tasks and clears all of them (R54).
    SessionEnd = "session.end", SessionEndParams => SessionEndResult;
    /// The agents that are configured or known.
    AgentList = "agent.list", AgentListParams => AgentListResult;
    /// Answers a question that an agent waits with.
    AgentAnswer = "agent.answer", AnswerParams => TaskResult;
    /// How the daemon is (R08).
    DaemonStatusOf = "daemon.status", NoParams => DaemonStatus;
    /// Reads the configuration again.
    DaemonReload = "daemon.reload", NoParams => ReloadResult;
    /// Cancels everything and ends the daemon (R11).
    DaemonShutdown = "daemon.shutdown", ShutdownParams => ShutdownResult;
}

/// Params of a method that takes none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// Params of `hello`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HelloParams {
    /// The name and version of the client, for logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The protocol that the client speaks. A version that the daemon does not speak is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
}

/// Result of `hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HelloResult {
    /// The protocol of this connection: 1.
    pub protocol: u32,
    /// The version of the daemon.
    pub version: String,
    /// This life of the daemon; another one means that all earlier tasks are gone.
    pub instance: String,
    /// The daemon's process id.
    pub pid: i32,
    /// The limits in force.
    pub limits: Limits,
}

/// The limits of a daemon that a client may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// The longest request line in bytes, newline included.
    pub frame_bytes: u64,
    /// Connections at once.
    pub connections: u64,
    /// Unanswered requests of one connection.
    pub requests: u64,
    /// Bytes that wait to be written to one client before its next request is read.
    pub write_queue_bytes: u64,
    /// Tasks in the daemon, finished ones included.
    pub tasks: u64,
    /// Bytes of output that are kept of one task.
    pub output_bytes: u64,
    /// Bytes of past events that are kept for `since`.
    pub event_history_bytes: u64,
    /// Tasks that run at once.
    pub max_concurrent_tasks: u64,
}

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
    /// The task whose conversation the prompt continues; all else is ignored then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<TaskRef>,
    /// What people shall read in lists. Default: the command. Required with `prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Where news of the task is delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The folder to run in, absolute. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<OsText>,
    /// The complete environment. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Env>,
    /// The file mode creation mask, 0 to 0o777. Default 0o022.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Resource limits by `prlimit`'s names. One above what the daemon itself may have is lowered to that.
    #[serde(default, skip_serializing_if = "Rlimits::is_empty")]
    pub rlimits: Rlimits,
    /// Standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Stdin>,
    /// Whether stdout and stderr go to two files. Their order against each other is lost then.
    #[serde(default)]
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
    /// How many, 1 to 1000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
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
    pub ids: Vec<TaskRef>,
    /// How long to wait at most, in milliseconds; null for as long as it takes. Default 60000.
    #[serde(default = "default_block_timeout")]
    pub timeout_ms: Option<u64>,
    /// When to answer.
    #[serde(default)]
    pub mode: BlockMode,
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

/// Params of `task.cancel`: `ids`, or `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelParams {
    /// The tasks. One that has ended is returned as it is; what lingers of it is ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
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

/// Params of `events.subscribe`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubscribeParams {
    /// Only events of tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only events of these tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// Replay what came after this number first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}

/// Result of `events.subscribe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubscribeResult {
    /// The number that its notifications carry.
    pub subscription: u64,
    /// The number of the latest event so far.
    pub seq: u64,
}

/// Params of `session.end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SessionEndParams {
    /// The parent session's key.
    pub session: String,
}

/// Result of `session.end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionEndResult {
    /// How many tasks were active.
    pub cancelled: u64,
    /// How many were removed.
    pub cleared: u64,
}

/// Result of `daemon.status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonStatus {
    /// How many tasks are `pending`, `running` or `resumed`.
    pub active: u64,
    /// How many tasks are in each status.
    pub summary: Summary,
    /// How long the daemon has run, in milliseconds.
    pub uptime_ms: u64,
    /// Its resident memory in bytes.
    pub memory_bytes: u64,
    /// Clients that are connected.
    pub connections: u64,
    /// Subscriptions to events.
    pub subscriptions: u64,
    /// The number of the latest event.
    pub seq: u64,
    /// This life of the daemon.
    pub instance: String,
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: i32,
    /// Its socket.
    pub socket: String,
    /// The folder with output and log.
    pub state_dir: String,
    /// The configuration file; it may not exist.
    pub config: String,
    /// Whether that file exists and is in force.
    pub config_loaded: bool,
    /// How trees are kept together: `cgroup` or `session`.
    pub tree: String,
    /// The limits in force.
    pub limits: Limits,
    /// What needs somebody's attention, such as a full disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Result of `daemon.reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReloadResult {
    /// The keys that changed and are in force now.
    pub changed: Vec<String>,
    /// The keys that changed and need a restart.
    pub needs_restart: Vec<String>,
}

/// Params of `daemon.shutdown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ShutdownParams {
    /// How long tasks have to end, in milliseconds, before SIGKILL. Default `grace.cancel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Result of `daemon.shutdown`, sent when every task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShutdownResult {
    /// How many tasks were cancelled for it.
    pub cancelled: u64,
}
