//! Params of `task.submit`.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::terminal::{OriginTerminal, TerminalSize};
use crate::error::RpcError;
use crate::id::TaskRef;
use crate::long_env;
use crate::order::{After, PRIORITIES, Restart, Retry};
use crate::ready::Ready;
use crate::resources::Resources;
use crate::rlimit::Rlimits;
use crate::settings::AgentSettings;
use crate::task::Task;
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
    /// A pipe for `task.write` that the submitter fills. The task can't be run again, as its input is gone then.
    Sent,
}

impl Stdin {
    /// Reports whether it is a pipe for `task.write`.
    pub const fn is_pipe(self) -> bool {
        match self {
            Self::Pipe | Self::Sent => true,
            Self::Fd => false,
        }
    }
}

/// Destination of an output of a process other than the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Given {
    /// The descriptor that travels with the line (`SCM_RIGHTS`).
    Fd,
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
    /// Terminal from which the task is submitted, for the channel `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<OriginTerminal>,
    /// Inherit folder, environment and umask from the process at the other end of the connection, which for a client on
    /// another machine is `bgctl dial`. `cwd` may then be relative to its folder, `env` adds to its environment, and
    /// both may be omitted.
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
    /// The parts of `cwd` and `env` that were chosen for this task, as opposed to inherited from the submitter's shell:
    /// only these are sent to another machine.
    #[serde(default, skip_serializing_if = "Chosen::is_empty")]
    pub chosen: Chosen,
    /// Name of the executor that runs the task; `local`, the default, is this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// With `on`: resources that the task requests from the cluster.
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
    /// Run in a terminal of this size, which becomes the controlling terminal and is used for all streams that are not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// Whether it is a foreground job of this connection: it starts at once, its terminal is shown here with
    /// `output` notifications, and it ends by SIGHUP if the connection closes before `task.detach`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreground: bool,
    /// With `foreground` and `pty`: the job continues in the background if the connection closes; the same submit
    /// regains it.
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
    /// Slots it occupies in its group, 0 up to those of the group. Default 1.
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
    /// Whether to hold the task until `task.release`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// When to retry the task after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// When to restart the task, until it is cancelled. Can't be combined with `retry`.
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
    /// Creates the params of a task that does nothing, which shows whether tasks can run and be reported. It waits
    /// neither for a slot nor for other tasks.
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

/// Result of `task.submit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubmitResult {
    /// The task.
    pub task: Task,
    /// Whether the task with this `key` existed before this call, which then submitted nothing. Also true for a repeated
    /// call if the first one has arrived.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
}

/// The parts of a task's surroundings that its submitter chose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Chosen {
    /// Whether the folder was chosen.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cwd: bool,
    /// Names of the chosen variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
}

impl Chosen {
    /// Reports whether nothing was chosen.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
