//! Wire types of agents and agent tasks: the configured agents, their questions and the answers.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::error::RpcError;
use crate::id::TaskRef;
use crate::long_env;
pub use crate::question::{InputOption, NeedsInput, OptionKind};
pub use crate::settings::{AgentSettings, Setting};
use crate::text::{Env, OsText};

/// Protocol between the daemon and the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgentProtocol {
    /// The Agent Client Protocol, on the agent's standard input and output.
    #[default]
    Acp,
    /// opencode's own server, over HTTP.
    Opencode,
    /// One command line per prompt.
    Template,
}

impl AgentProtocol {
    /// Returns the name in the configuration and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acp => "acp",
            Self::Opencode => "opencode",
            Self::Template => "template",
        }
    }
}

/// How permission requests of an agent are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Permissions {
    /// The request is denied.
    #[default]
    Deny,
    /// The request is allowed.
    Allow,
    /// The task shows `needs_input` until it is answered; denied after a timeout.
    Ask,
}

impl Permissions {
    /// Returns the name in the configuration and on the wire.
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
    /// Id of the completed agent task.
    pub id: TaskRef,
    /// The follow-up prompt. A blank one is an error.
    #[serde(default)]
    pub prompt: String,
    /// Session options from now on. Omitted ones stay unchanged.
    #[serde(default, skip_serializing_if = "AgentSettings::is_empty")]
    pub settings: AgentSettings,
}

/// Params of `agent.answer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Number of the question, from `progress.needs_input.request`.
    pub request: u64,
    /// Id of one of the question's options; without it, the request is denied even if no option does that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
}

/// Params of `agent.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentListParams {
    /// Inherit the environment from the process at the other end of the connection, as in `task.submit`; `env` then
    /// adds to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inherit: bool,
    /// Environment whose `PATH` is searched for programs, and in which they are started with `check`. Default: the
    /// daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Env>,
    /// Instead of `env`: the environment is in a memory file whose descriptor is sent with the line, as in
    /// `task.submit`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub env_fd: bool,
    /// Whether to start each available agent and query its version and capabilities.
    #[serde(default)]
    pub check: bool,
    /// List only these agents. An unknown name is an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl AgentListParams {
    /// Moves an environment that would make the line too long into a memory file.
    pub(crate) fn out_of_line(&self) -> Result<Option<(Self, OwnedFd)>, RpcError> {
        let file = self.env.as_ref().map(long_env::put).transpose()?.flatten();
        Ok(file.map(|file| (Self { env: None, env_fd: true, ..self.clone() }, file)))
    }
}

/// Result of `agent.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentListResult {
    /// The agents, sorted by name.
    pub agents: Vec<AgentInfo>,
}

/// How an agent continues a conversation after its process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Continuation {
    /// The agent resumes the conversation.
    Resume,
    /// The agent replays the conversation; the replay is not shown again.
    Load,
    /// The conversation can't be continued.
    None,
    /// A way added by a newer daemon.
    #[serde(other)]
    Unknown,
}

impl Continuation {
    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Load => "load",
            Self::None => "none",
            Self::Unknown => "unknown",
        }
    }
}

/// Result of checking an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentCheck {
    /// Name that the agent reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version that the agent reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How the agent continues a conversation after its process has ended.
    pub continuation: Continuation,
    /// Start time in milliseconds. Missing for `template` agents, which start only for a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_in_ms: Option<u64>,
}

/// An agent that the daemon knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentInfo {
    /// Name for `agent` in `task.submit`.
    pub name: String,
    /// Protocol between the daemon and the agent.
    pub protocol: AgentProtocol,
    /// Command line of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<OsText>,
    /// Address of a running server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Whether the agent is in the configuration; otherwise it is built in.
    pub configured: bool,
    /// Whether the agent is the `default_agent`.
    #[serde(default)]
    pub default: bool,
    /// Whether its program was found.
    pub available: bool,
    /// Path of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<OsText>,
    /// How its permission requests are answered.
    pub permissions: Permissions,
    /// Command that installs the agent, if it is not available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
    /// With `check`: the agent's report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<AgentCheck>,
    /// With `check`: why the agent does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
