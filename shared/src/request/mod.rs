//! Declares every method with its params and result, once.
//!
//! Optional params may be omitted or null; an unknown param is an error that names it.

use std::os::fd::OwnedFd;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::agent::{AgentListParams, AgentListResult, AnswerParams, ResumeParams};
pub use crate::encoding::Encoding;
use crate::error::RpcError;
use crate::foreground::Key;
use crate::id::TaskRef;
use crate::text::OsText;

mod batch;
mod block;
mod executor;
mod foreground;
mod group;
mod limits;
mod order;
mod session;
mod status;
mod submit;
mod task;
mod terminal;
mod usage;

pub use batch::*;
pub use block::*;
pub use executor::*;
pub use foreground::*;
pub use group::*;
pub use limits::*;
pub use order::*;
pub use session::*;
pub use status::*;
pub use submit::*;
pub use task::*;
pub use terminal::*;
pub use usage::*;

/// A method of the protocol: its name, and the types of its params and result.
pub trait Method {
    /// The name on the wire.
    const NAME: &'static str;
    /// Type of its params.
    type Params: Serialize + DeserializeOwned;
    /// Type of its result.
    type Result: Serialize + DeserializeOwned;

    /// Moves params that are too long for a line out of it. Returns the params to send instead, and the descriptor that
    /// travels after the others of the line. `None` if everything fits.
    ///
    /// # Errors
    /// The params are longer than the daemon accepts.
    fn out_of_line(_params: &Self::Params) -> Result<Option<(Self::Params, OwnedFd)>, RpcError> {
        Ok(None)
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])+ $method:ident = $name:literal, $params:ty => $result:ty $(, $out_of_line:path)?;)+) => {
        $(
            $(#[$doc])+
            #[derive(Debug)]
            pub enum $method {}

            impl Method for $method {
                const NAME: &'static str = $name;
                type Params = $params;
                type Result = $result;

                $(fn out_of_line(params: &$params) -> Result<Option<($params, OwnedFd)>, RpcError> {
                    $out_of_line(params)
                })?
            }
        )+

        /// The names of all methods of this version.
        pub const METHODS: &[&str] = &[$($name),+];

        /// Returns the name of every method with the JSON Schemas of its params and result.
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
    /// Introduces the client, and returns the daemon's version, instance and limits.
    Hello = "hello", HelloParams => HelloResult;
    /// Submits a task (R01).
    TaskSubmit = "task.submit", SubmitParams => SubmitResult, SubmitParams::out_of_line;
    /// Submits many commands at once, all or none (R112).
    TaskSubmitMany = "task.submit_many", SubmitManyParams => SubmitManyResult, SubmitManyParams::out_of_line;
    /// Sends a follow-up prompt to the session of a completed agent task (R30 to R36).
    TaskResume = "task.resume", ResumeParams => TaskResult;
    /// Returns a page of tasks, newest first (R06).
    TaskList = "task.list", ListParams => ListResult;
    /// Returns one task.
    TaskGet = "task.get", IdParams => TaskResult;
    /// Returns a part of a task's output (R20, R21).
    TaskOutput = "task.output", OutputParams => OutputResult;
    /// Returns the result of a completed task (R07).
    TaskResultOf = "task.result", IdParams => ResultResult;
    /// Waits for tasks to end (R22 to R25).
    TaskBlock = "task.block", BlockParams => BlockResult;
    /// Cancels tasks (R05).
    TaskCancel = "task.cancel", CancelParams => TasksResult;
    /// Removes finished tasks with their output (R10).
    TaskClear = "task.clear", ClearParams => ClearResult;
    /// Sends a signal to the main process of a running task, or to its process tree.
    TaskSignal = "task.signal", SignalParams => TaskResult;
    /// Writes to the terminal of a task, or to its standard input if it has `stdin: "pipe"`.
    TaskWrite = "task.write", WriteParams => WriteResult;
    /// Attaches this connection to the terminal of a task: `output` notifications follow.
    TaskAttach = "task.attach", AttachParams => TaskResult;
    /// Moves a foreground job to the background (R61, R66), or ends an attachment.
    TaskDetach = "task.detach", DetachParams => DetachResult;
    /// Reports the size of a terminal that shows a task.
    TaskResize = "task.resize", ResizeParams => TaskResult;
    /// Takes over a running process that another program started (R70).
    TaskHandoff = "task.handoff", HandoffParams => DetachResult;
    /// Reports how a handed-over process ended.
    TaskExit = "task.exit", ExitParams => TaskResult;
    /// Measures the current resource usage of running tasks (R164).
    TaskUsage = "task.usage", UsageParams => UsageResult;
    /// Holds pending tasks until they are released (R106).
    TaskHold = "task.hold", SelectParams => TasksResult;
    /// Releases held tasks (R106).
    TaskRelease = "task.release", SelectParams => TasksResult;
    /// Pauses running tasks: stops all of their processes (R106).
    TaskPause = "task.pause", SelectParams => TasksResult;
    /// Continues paused tasks (R106), and what has stopped in running ones that are not paused.
    TaskContinue = "task.continue", SelectParams => TasksResult;
    /// Changes the start conditions and the description of a pending task (R107).
    TaskEdit = "task.edit", EditParams => TaskResult;
    /// Submits ended tasks again (R116).
    TaskRerun = "task.rerun", RerunParams => RerunResult;
    /// Returns the groups: `default` first, then the others by name (R100).
    GroupList = "group.list", NoParams => GroupListResult;
    /// Creates a group, or changes its number of slots (R100).
    GroupSet = "group.set", GroupSetParams => GroupResult;
    /// Pauses a group: its pending tasks do not start (R100).
    GroupPause = "group.pause", GroupParams => GroupResult;
    /// Continues a paused group (R100).
    GroupContinue = "group.continue", GroupParams => GroupResult;
    /// Removes a group whose tasks have all ended (R100).
    GroupRemove = "group.remove", GroupParams => GroupResult;
    /// Lists the executors, where tasks can run (R145).
    ExecutorList = "executor.list", ExecutorListParams => ExecutorListResult;
    /// Subscribes to events.
    EventsSubscribe = "events.subscribe", SubscribeParams => SubscribeResult;
    /// Ends a parent session: cancels its active tasks and clears all of them (R54).
    SessionEnd = "session.end", SessionEndParams => SessionEndResult;
    /// Returns the unacknowledged items of a parent session's inbox.
    InboxRead = "inbox.read", InboxReadParams => InboxReadResult;
    /// Returns the parent sessions with unacknowledged items.
    InboxList = "inbox.list", InboxListParams => InboxListResult;
    /// Acknowledges items of an inbox, so that they are not returned again.
    InboxAck = "inbox.ack", InboxAckParams => InboxAckResult;
    /// Returns the configured and built-in agents.
    AgentList = "agent.list", AgentListParams => AgentListResult, AgentListParams::out_of_line;
    /// Answers an open question of an agent.
    AgentAnswer = "agent.answer", AnswerParams => TaskResult;
    /// Returns the state of the daemon (R08).
    DaemonStatusOf = "daemon.status", NoParams => DaemonStatus;
    /// Reloads the configuration.
    DaemonReload = "daemon.reload", NoParams => ReloadResult;
    /// Replaces the daemon with another program, which takes over everything that the daemon has (R120).
    DaemonUpgrade = "daemon.upgrade", UpgradeParams => UpgradeResult;
    /// Cancels all tasks and ends the daemon (R11).
    DaemonShutdown = "daemon.shutdown", ShutdownParams => ShutdownResult;
}

/// Params of a method without any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// Params of `hello`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HelloParams {
    /// Name and version of the client, for logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Protocol version of the client. An unsupported version is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
    /// Parent session that the connection owns, with `owns`. Without `owns` it has no effect: tasks name
    /// their session themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// With `session`: the connection owns the session. When the last connection that owns it closes, the session
    /// ends as by `session.end`.
    #[serde(default)]
    pub owns: bool,
}

/// Result of `hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HelloResult {
    /// The protocol of this connection: 1.
    pub protocol: u32,
    /// Version of the daemon.
    pub version: String,
    /// Id of the daemon, which a durable one keeps across restarts. A different one means that all earlier tasks are
    /// lost.
    pub instance: String,
    /// Process id of the daemon.
    pub pid: i32,
    /// The limits in effect.
    pub limits: Limits,
    /// Configured key that moves a foreground job to the background, such as `ctrl-b`, or `none`.
    #[serde(default)]
    pub background_key: Key,
}

/// Params of `events.subscribe`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubscribeParams {
    /// Only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only events of these tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// Replay events after this number, then continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Instance of the daemon that `since` is from, see an earlier result. Another daemon returns an error, because its
    /// numbers mean other events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// Result of `events.subscribe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubscribeResult {
    /// Id of the subscription in its notifications.
    pub subscription: u64,
    /// Number of the latest event.
    pub seq: u64,
    /// Instance of this daemon. Together with the number of an event, it identifies a place to continue from.
    pub instance: String,
}

/// Result of `daemon.reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReloadResult {
    /// Keys that changed and are in effect.
    pub changed: Vec<String>,
    /// Those of the changed keys that are back to their default, or were removed with their table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub defaulted: Vec<String>,
    /// Groups that the configuration still sets although they had been removed: they are there again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recreated_groups: Vec<String>,
    /// Keys that changed but require a restart.
    pub needs_restart: Vec<String>,
    /// Number of finished tasks that a durable daemon now clears, with their output, as they exceed the limits:
    /// `[history]`, or three quarters of `limits.tasks` or `limits.memory`.
    #[serde(default, skip_serializing_if = "crate::task::is_zero")]
    pub cleared: u64,
}

/// Params of `daemon.upgrade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpgradeParams {
    /// Absolute path of the program. Default: the file that is now at the path from which the running program was
    /// started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<OsText>,
}

/// Result of `daemon.upgrade`, sent by the program that has taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UpgradeResult {
    /// Version of the program that was replaced.
    pub from: String,
    /// Version of the program that has taken over.
    pub to: String,
    /// How long requests were held back, in milliseconds.
    pub pause_ms: u64,
    /// Number of active tasks that continue.
    pub active: u64,
    /// Number of connections that continue.
    pub connections: u64,
}

/// Params of `daemon.shutdown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ShutdownParams {
    /// Grace period of the tasks before SIGKILL, in milliseconds. Default `grace.cancel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Whether a durable daemon also cancels its tasks. Otherwise they keep running, and the next daemon finds them.
    #[serde(default)]
    pub cancel: bool,
}

/// Result of `daemon.shutdown`, sent when all tasks that must end have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShutdownResult {
    /// Number of cancelled tasks.
    pub cancelled: u64,
    /// Number of tasks that a durable daemon leaves running.
    #[serde(default, skip_serializing_if = "crate::task::is_zero")]
    pub left: u64,
    /// Number of tasks that are lost with a durable daemon, because its journal is not at its path: the next daemon finds
    /// none of them, including those left running, unless the journal's folder is put back before it starts.
    #[serde(default, skip_serializing_if = "crate::task::is_zero")]
    pub lost: u64,
    /// Why the latest changes, or all tasks with `lost`, are lost: a durable daemon could not write them to its journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_because: Option<String>,
}
