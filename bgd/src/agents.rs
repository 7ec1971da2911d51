//! The known agents: those in the configuration, and built-in ones that need no configuration. This module looks up
//! programs but must not start them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::agent::{AgentInfo, AgentProtocol, AgentSettings, Permissions};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::text::{Env, OsText};
use serde::{Deserialize, Serialize};

use crate::features::Feature;
use crate::os::search_path::{candidates, is_program};
use crate::remotes::Ssh;

/// The placeholder for the prompt in a template's command line.
pub const PROMPT: &str = "{prompt}";

/// The placeholder for the path of a file that holds the prompt in a template's command line.
pub const PROMPT_FILE: &str = "{prompt_file}";

/// The placeholder for the agent's session ID in a template's command line.
pub const SESSION: &str = "{session}";

/// Another machine, on which an agent's program runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The name of its executor.
    pub name: Arc<str>,
    /// How to reach it, and the settings of its tasks.
    pub ssh: Ssh,
}

/// One agent's complete settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// The name users refer to it by.
    pub name: Arc<str>,
    /// The protocol it speaks.
    pub protocol: AgentProtocol,
    /// The program and its arguments. Empty if `url` is set.
    pub command: Vec<String>,
    /// For `template`: the command line that resumes a session.
    pub resume: Vec<String>,
    /// For `template`: JSON pointer to the session ID in the program's output.
    pub session: Option<String>,
    /// For `template`: JSON pointer to the answer in the program's output. `None`: the whole output is the answer.
    pub result: Option<String>,
    /// For `template`: JSON pointers to numbers in the program's output.
    pub counts: Counts,
    /// For `opencode`: the URL of a server that is already running.
    pub url: Option<String>,
    /// The machine on which its program runs; `None` for this one.
    pub on: Option<Arc<Machine>>,
    /// Variables added to the submitter's environment; on another machine, to the environment there.
    pub env: BTreeMap<String, String>,
    /// How its permission requests are handled.
    pub permissions: Permissions,
    /// For `acp`: settings applied to its sessions.
    pub settings: AgentSettings,
    /// Maximum number of concurrent turns in one agent process.
    pub max_sessions: usize,
    /// How long an idle process is kept.
    pub keep_warm: Duration,
    /// How long a turn may be silent before it is marked as stalled.
    pub stalled_after: Duration,
    /// Time limit for starting the process, and for opening a session.
    pub start_timeout: Duration,
    /// How long a question waits for an answer.
    pub ask_timeout: Duration,
    /// Whether the configuration has an entry for it.
    pub configured: bool,
    /// The command that installs it.
    #[serde(skip)]
    pub install: Option<&'static str>,
}

/// JSON pointers to a program's figures about its consumption in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Pointer to the number of tokens that the model has read.
    pub input: Option<String>,
    /// Pointer to the number of tokens that the model has written.
    pub output: Option<String>,
    pub cost: Option<String>,
    /// The unit of the cost.
    pub currency: String,
}

/// The settings of one agent session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// How permission requests are handled.
    pub permissions: Permissions,
    /// Explicit settings. If they name no mode, a mode in which the agent asks is chosen, unless everything is allowed.
    pub named: AgentSettings,
}

/// The variable that configures which permissions opencode asks for.
const OPENCODE_PERMISSION: &str = "OPENCODE_PERMISSION";

/// The variable with which `bgctl mcp` counts how many levels of agents have started agents.
const DEPTH: &str = "BGD_MCP_DEPTH";

impl Agent {
    /// Creates an agent of this name with default settings.
    pub fn new(name: &str) -> Self {
        let known = KNOWN.iter().find(|known| known.name == name);
        Self {
            name: name.into(),
            protocol: AgentProtocol::Acp,
            command: known
                .map(|known| known.command.iter().map(ToString::to_string).collect())
                .unwrap_or_default(),
            resume: Vec::new(),
            session: None,
            result: None,
            counts: Counts::default(),
            url: None,
            on: None,
            env: BTreeMap::new(),
            permissions: Permissions::Deny,
            settings: AgentSettings::default(),
            max_sessions: 8,
            keep_warm: Duration::from_mins(1),
            stalled_after: Duration::from_mins(5),
            start_timeout: Duration::from_mins(1),
            ask_timeout: Duration::from_mins(10),
            configured: false,
            install: known.map(|known| known.install),
        }
    }

    /// Returns the session settings of a task that names these settings.
    pub fn settings(&self, named: &AgentSettings) -> Settings {
        Settings { permissions: self.permissions, named: named.over(&self.settings) }
    }

    /// Checks whether a task may name these settings. A session's actual capabilities are known only once it is open.
    ///
    /// # Errors
    /// The agent's protocol supports no settings.
    pub fn takes(&self, named: &AgentSettings) -> Result<(), RpcError> {
        let Some(key) = named.first().filter(|_| self.protocol != AgentProtocol::Acp) else { return Ok(()) };
        let message = format!(
            "the agent {:?} does not support --{key}: only protocol acp does, and its protocol is {}",
            &*self.name,
            self.protocol.as_str()
        );
        let how = match self.protocol {
            AgentProtocol::Acp | AgentProtocol::Opencode => {
                "set it in the agent's own configuration".to_owned()
            }
            AgentProtocol::Template => {
                format!("put it into the `command` of [agents.{}], or of another entry", self.name)
            }
        };
        Err(RpcError::new(ErrorKind::InvalidParams, message).hint(how))
    }

    /// Returns [`Self::stalled_after`] in milliseconds.
    pub fn stalled_after_ms(&self) -> u64 {
        ms(self.stalled_after)
    }

    /// Returns [`Self::ask_timeout`] in milliseconds.
    pub fn ask_timeout_ms(&self) -> u64 {
        ms(self.ask_timeout)
    }

    /// Reports whether the user has configured what the agent asks for by means other than a mode.
    pub fn is_configured_to_ask(&self, submitter: &Env) -> bool {
        self.env.contains_key(OPENCODE_PERMISSION) || submitter.get(OPENCODE_PERMISSION).is_some()
    }

    /// Returns whether the agent may act without asking although its `permissions` are meant to prevent that: nothing
    /// else that is configured or named decides when it asks.
    pub fn may_act_unasked(&self, submitter: &Env, named: &AgentSettings) -> bool {
        self.permissions != Permissions::Allow
            && named.over(&self.settings).mode.is_none()
            && !self.is_configured_to_ask(submitter)
    }

    /// Returns a warning if the agent is known to act without asking despite its `permissions`. For other agents, this
    /// is known only once a session is open.
    pub fn warning(&self, submitter: &Env, named: &AgentSettings) -> Option<String> {
        let program = self.command.first().map(Path::new).and_then(Path::file_name)?;
        (program == "opencode" && self.may_act_unasked(submitter, named)).then(|| {
            let name = &self.name;
            // Only this protocol has modes.
            let modes = match self.protocol {
                AgentProtocol::Acp => format!(", a mode in [agents.{name}], or --mode"),
                AgentProtocol::Opencode | AgentProtocol::Template => String::new(),
            };
            format!(
                "opencode does most things without asking, so permissions = \"{}\" has little effect: set \
                 {OPENCODE_PERMISSION} in [agents.{name}.env]{modes}",
                self.permissions.as_str(),
            )
        })
    }

    /// Returns the environment of the agent's program: the submitter's, with the configured variables added. For
    /// another machine, only the configured variables and the depth of agents: the rest is known there.
    pub fn environment(&self, submitter: &Env) -> Env {
        if let Some(machine) = &self.on {
            let theirs = machine.ssh.env.iter().filter(|(name, _)| !self.env.contains_key(*name));
            let all: Vec<(Box<str>, OsText)> = theirs
                .chain(&self.env)
                .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
                .collect();
            let is_set = all.iter().any(|(name, _)| &**name == DEPTH);
            let depth = submitter.get(DEPTH).filter(|_| !is_set).map(|depth| (DEPTH.into(), depth.clone()));
            return all.into_iter().chain(depth).collect();
        }
        let kept = submitter.0.iter().filter(|(name, _)| !self.env.contains_key(&**name)).cloned();
        let added = self.env.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
        kept.chain(added).collect()
    }

    /// Finds the program's file, using the `PATH` of this environment.
    pub fn program(&self, submitter: &Env) -> Option<PathBuf> {
        let name = self.command.first()?;
        let env = self.environment(submitter);
        // Nothing says in which folder a relative path would begin.
        let files = candidates(name.as_bytes(), env.get("PATH")).into_iter();
        files.filter(|file| file.is_absolute()).find(|file| is_program(file))
    }

    /// Returns what this build lacks to support the agent, if anything.
    pub fn missing_feature(&self) -> Option<String> {
        let missing = match self.protocol {
            AgentProtocol::Acp => Feature::Acp.missing_feature(),
            AgentProtocol::Opencode | AgentProtocol::Template => None,
        };
        missing.map(|missing| format!("is {:?}, which {missing}", self.protocol.as_str()))
    }

    /// Checks whether the agent could be started. The error names what is missing and the command that installs it.
    ///
    /// # Errors
    /// The program was not found, or this build does not support the agent's protocol.
    pub fn check(&self, submitter: &Env) -> Result<(), RpcError> {
        if let Some(missing) = self.missing_feature() {
            let message = format!("the protocol of the agent {:?} {missing}", &*self.name);
            return Err(RpcError::new(ErrorKind::AgentUnavailable, message));
        }
        // Whether another machine has the program is known once it is started there.
        if self.on.is_some() || self.url.is_some() || self.program(submitter).is_some() {
            return Ok(());
        }
        let program = self.command.first().map(String::as_str).unwrap_or_default();
        let place = if program.contains('/') { "no such program" } else { "not found in PATH" };
        let error = RpcError::new(
            ErrorKind::AgentUnavailable,
            format!("the agent {:?} is not installed: {program}: {place}", &*self.name),
        );
        Err(match self.install {
            Some(command) => error.hint(format!("install it: {command}")),
            None => {
                error.hint(format!("install {program}, or set another command in [agents.{}]", self.name))
            }
        })
    }

    /// Returns the agent's entry in `agent.list`.
    pub fn info(&self, submitter: &Env, default: bool) -> AgentInfo {
        let program = if self.on.is_some() { None } else { self.program(submitter) };
        let missing = self.missing_feature();
        let is_there = self.on.is_some() || self.url.is_some() || program.is_some();
        let available = missing.is_none() && is_there;
        AgentInfo {
            name: self.name.to_string(),
            protocol: self.protocol,
            command: self.command.iter().map(|word| OsText::from(word.as_str())).collect(),
            url: self.url.clone(),
            configured: self.configured,
            default,
            available,
            program: program.map(|file| OsText::from(file.into_os_string())),
            permissions: self.permissions,
            install: self.install.filter(|_| !available && missing.is_none()).map(Into::into),
            check: None,
            error: missing.map(|missing| format!("its protocol {missing}")),
        }
    }
}

/// A program that needs no configuration.
struct Known {
    name: &'static str,
    command: &'static [&'static str],
    install: &'static str,
}

/// Built-in programs that speak the Agent Client Protocol, with the commands that install them.
const KNOWN: &[Known] = &[
    Known {
        name: "claude",
        command: &["claude-agent-acp"],
        install: "npm install -g @agentclientprotocol/claude-agent-acp",
    },
    Known {
        name: "codex",
        command: &["codex-acp"],
        install: "npm install -g @agentclientprotocol/codex-acp",
    },
    Known { name: "copilot", command: &["copilot", "--acp"], install: "npm install -g @github/copilot" },
    Known { name: "gemini", command: &["gemini", "--acp"], install: "npm install -g @google/gemini-cli" },
    Known { name: "goose", command: &["goose", "acp"], install: "brew install block-goose-cli" },
    Known { name: "opencode", command: &["opencode", "acp"], install: "npm install -g opencode-ai" },
];

/// All agents: the configured ones, and the built-in ones that the configuration does not override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agents {
    by_name: BTreeMap<Arc<str>, Arc<Agent>>,
    default: Option<Arc<str>>,
}

impl Default for Agents {
    fn default() -> Self {
        Self::new(Vec::new(), None)
    }
}

impl Agents {
    /// Combines the configured agents with the built-in ones.
    pub fn new(configured: Vec<Agent>, default: Option<&str>) -> Self {
        let known = KNOWN.iter().map(|known| Agent::new(known.name));
        let by_name =
            known.chain(configured).map(|agent| (Arc::clone(&agent.name), Arc::new(agent))).collect();
        Self { by_name, default: default.map(Into::into) }
    }

    /// Returns the agent of this name, or the default agent.
    ///
    /// # Errors
    /// There is no such agent, or no default; the error lists the known agents.
    pub fn find(&self, name: Option<&str>) -> Result<&Arc<Agent>, RpcError> {
        let Some(name) = name.or(self.default.as_deref()) else {
            return Err(RpcError::new(ErrorKind::InvalidParams, "no agent given")
                .hint(format!("give one of {}, or set default_agent in the configuration", self.names())));
        };
        self.by_name.get(name).ok_or_else(|| {
            RpcError::new(ErrorKind::UnknownAgent, format!("unknown agent {name:?}")).hint(format!(
                "known agents: {}; add others as [agents.NAME] in the configuration",
                self.names()
            ))
        })
    }

    pub fn knows(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns all names, comma-separated.
    pub fn names(&self) -> String {
        self.by_name.keys().map(|name| &**name).collect::<Vec<_>>().join(", ")
    }

    /// Returns the `agent.list` entries of the named agents, or of all if `names` is empty.
    ///
    /// # Errors
    /// A named agent does not exist.
    pub fn list(&self, names: &[String], submitter: &Env) -> Result<Vec<(Arc<Agent>, AgentInfo)>, RpcError> {
        let chosen: Vec<&Arc<Agent>> = if names.is_empty() {
            self.by_name.values().collect()
        } else {
            names.iter().map(|name| self.find(Some(name))).collect::<Result<_, _>>()?
        };
        let with_info = |agent: &Arc<Agent>| {
            let is_default = self.default.as_deref() == Some(&agent.name);
            (Arc::clone(agent), agent.info(submitter, is_default))
        };
        Ok(chosen.into_iter().map(with_info).collect())
    }
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remotes::Shell;

    #[test]
    fn opencode_warning_advises_only_what_the_protocol_allows() {
        let of = |protocol| {
            let agent = Agent { protocol, ..Agent::new("opencode") };
            agent.warning(&Env::default(), &AgentSettings::default()).unwrap()
        };
        assert!(of(AgentProtocol::Acp).ends_with(", a mode in [agents.opencode], or --mode"));
        for protocol in [AgentProtocol::Opencode, AgentProtocol::Template] {
            let warning = of(protocol);
            assert!(warning.ends_with(": set OPENCODE_PERMISSION in [agents.opencode.env]"), "{warning}");
        }
    }

    #[test]
    fn r152_remote_agent_gets_only_its_variables_and_its_depth() {
        let (ssh, host) = ("ssh".to_owned(), "far".to_owned());
        let shell = Shell { ssh, host, connect_timeout: Duration::from_secs(1), bootstrap: false };
        let machine = Machine { name: "far".into(), ssh: Ssh { shell, folder: None, env: BTreeMap::new() } };
        let mut agent = Agent { on: Some(Arc::new(machine)), ..Agent::new("x") };
        let submitter = [("HOME", "/h"), (DEPTH, "1")];
        let submitter: Env = submitter.map(|(name, value)| (name.into(), value.into())).into_iter().collect();
        assert_eq!(agent.environment(&submitter).0.to_vec(), [(DEPTH.into(), "1".into())]);
        agent.env.insert(DEPTH.to_owned(), "0".to_owned());
        assert_eq!(agent.environment(&submitter).0.to_vec(), [(DEPTH.into(), "0".into())]);
        assert!(Agent { env: BTreeMap::new(), ..agent }.environment(&Env::default()).0.is_empty());
    }
}
