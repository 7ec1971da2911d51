//! Agents and agent tasks as the wire has them: what is configured, what an agent asks, and the answer.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::error::RpcError;
use crate::id::TaskRef;
use crate::long_env;
pub use crate::question::{InputOption, NeedsInput, OptionKind};
pub use crate::settings::{AgentSettings, Setting};
use crate::text::{Env, OsText};

/// How the daemon speaks with an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgentProtocol {
    /// The Agent Client Protocol, on the agent's standard input and output.
    #[default]
    Acp,
    /// opencode's own server, over HTTP.
    Opencode,
    /// A command line for each prompt.
    Template,
}

impl AgentProtocol {
    /// The word in the configuration and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acp => "acp",
            Self::Opencode => "opencode",
            Self::Template => "template",
        }
    }
}

/// What happens when an agent asks whether it may do something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Permissions {
    /// It is denied.
    #[default]
    Deny,
    /// It is allowed.
    Allow,
    /// The task shows `needs_input` until somebody answers, or a time is over, which denies.
    Ask,
}

impl Permissions {
    /// The word in the configuration and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Ask => "ask",
        }
    }
}

/// Params of `task.resume`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumeParams {
    /// The completed task whose conversation goes on.
    pub id: TaskRef,
    /// What the agent is told. Blank is an error.
    #[serde(default)]
    pub prompt: String,
    /// What is set in the session from now on. What it leaves open stays as the task has it.
    #[serde(default, skip_serializing_if = "AgentSettings::is_empty")]
    pub settings: AgentSettings,
}

/// Params of `agent.answer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerParams {
    /// The task.
    pub id: TaskRef,
    /// The number of the question: `progress.needs_input.request`.
    pub request: u64,
    /// The id of one of its options.
    pub option: String,
}

/// Params of `agent.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentListParams {
    /// The environment in whose `PATH` programs are looked for, and in which they are started with
    /// `check`. Default: the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Env>,
    /// In place of `env`: it is in a memory file whose descriptor travels with the line, as with
    /// `task.submit`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub env_fd: bool,
    /// Whether each one that is there is started, and asked what it is and what it can do.
    #[serde(default)]
    pub check: bool,
    /// Only these. One that is not known is an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl AgentListParams {
    /// An environment that would make the line too long goes into a memory file.
    pub(crate) fn out_of_line(&self) -> Result<Option<(Self, OwnedFd)>, RpcError> {
        let file = self.env.as_ref().map(long_env::put).transpose()?.flatten();
        Ok(file.map(|file| (Self { env: None, env_fd: true, ..self.clone() }, file)))
    }
}

/// Result of `agent.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentListResult {
    /// The agents, by name.
    pub agents: Vec<AgentInfo>,
}

/// How an earlier conversation is continued when the agent's process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Continuation {
    /// The agent takes it up again.
    Resume,
    /// The agent plays it back, which is not shown again.
    Load,
    /// It can't be continued.
    None,
}

impl Continuation {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Load => "load",
            Self::None => "none",
        }
    }
}

/// What a started agent says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentCheck {
    /// Its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How an earlier conversation is continued.
    pub continuation: Continuation,
    /// How long it took to start, in milliseconds. Missing for a command line, which is started for a prompt
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_in_ms: Option<u64>,
}

/// An agent that the daemon knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentInfo {
    /// What `task.submit` calls it.
    pub name: String,
    /// How the daemon speaks with it.
    pub protocol: AgentProtocol,
    /// Its command line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<OsText>,
    /// The address of a server that is there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Whether the configuration names it; else the daemon knows it by itself.
    pub configured: bool,
    /// Whether it is the `default_agent`.
    #[serde(default)]
    pub default: bool,
    /// Whether its program is there.
    pub available: bool,
    /// The file that its program is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<OsText>,
    /// What happens when it asks for a permission.
    pub permissions: Permissions,
    /// The command that installs it, if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
    /// With `check`: what it says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<AgentCheck>,
    /// With `check`: why it does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
