//! The agents that the daemon knows: what the configuration says of them, and the programs that are known
//! without it. It looks for programs, but may not start them.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::agent::{AgentInfo, AgentProtocol, AgentSettings, Permissions};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::text::{Env, OsText};

use crate::features::Feature;

/// The part of a template's command line that the prompt takes the place of.
pub const PROMPT: &str = "{prompt}";

/// The part of a template's command line that the path of a file with the prompt takes the place of.
pub const PROMPT_FILE: &str = "{prompt_file}";

/// The part of a template's command line that the agent's session takes the place of.
pub const SESSION: &str = "{session}";

/// Everything about one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// What users call it.
    pub name: Arc<str>,
    /// How it is spoken with.
    pub protocol: AgentProtocol,
    /// The program with its arguments. Empty with `url`.
    pub command: Vec<String>,
    /// With `template`: the command line that goes on with a session.
    pub resume: Vec<String>,
    /// With `template`: where the session's id is in the JSON that it prints.
    pub session: Option<String>,
    /// With `template`: where the answer is in it; else all that it prints is.
    pub result: Option<String>,
    /// With `opencode`: a server that is there already.
    pub url: Option<String>,
    /// What is added to the submitter's environment.
    pub env: BTreeMap<String, String>,
    /// What happens when it asks for a permission.
    pub permissions: Permissions,
    /// With `acp`: what is set in its sessions.
    pub settings: AgentSettings,
    /// Turns side by side in one process of it.
    pub max_sessions: usize,
    /// How long its process stays when nothing runs in it.
    pub keep_warm: Duration,
    /// How long a turn may be silent before it is marked.
    pub stalled_after: Duration,
    /// How long it has to start, and to open a session.
    pub start_timeout: Duration,
    /// How long a question waits for its answer.
    pub ask_timeout: Duration,
    /// Whether the configuration names it.
    pub configured: bool,
    /// The command that installs it.
    pub install: Option<&'static str>,
}

/// What is set in a session of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What happens when it asks for a permission.
    pub permissions: Permissions,
    /// What is named. Without a mode, one is chosen in which it asks, unless everything is allowed.
    pub named: AgentSettings,
}

/// The variable by which opencode is told what to ask for.
const OPENCODE_PERMISSION: &str = "OPENCODE_PERMISSION";

impl Agent {
    /// An agent of this name with every default.
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
            url: None,
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

    /// What is set in a session of a task that names these.
    pub fn settings(&self, named: &AgentSettings) -> Settings {
        Settings { permissions: self.permissions, named: named.over(&self.settings) }
    }

    /// Whether a task can name these. What its sessions offer is seen only when one is opened.
    ///
    /// # Errors
    /// It speaks a protocol that has none.
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

    /// Whether the user has told it what to ask for, by other means than a mode.
    pub fn is_told_to_ask(&self, submitter: &Env) -> bool {
        self.env.contains_key(OPENCODE_PERMISSION) || submitter.get(OPENCODE_PERMISSION).is_some()
    }

    /// What it is known to do without asking although its `permissions` mean to keep it from that. What others do
    /// is seen only when a session is opened.
    pub fn warning(&self, submitter: &Env, named: &AgentSettings) -> Option<String> {
        let program = self.command.first().map(Path::new).and_then(Path::file_name)?;
        let is_bound = self.permissions != Permissions::Allow && named.over(&self.settings).mode.is_none();
        (program == "opencode" && is_bound && !self.is_told_to_ask(submitter)).then(|| {
            format!(
                "opencode does most things without asking, so permissions = \"{}\" has little effect: set \
                 {OPENCODE_PERMISSION} in [agents.{}.env], a mode in [agents.{}], or --mode",
                self.permissions.as_str(),
                self.name,
                self.name
            )
        })
    }

    /// The environment that its program gets: the submitter's, with what the configuration adds.
    pub fn environment(&self, submitter: &Env) -> Env {
        let kept = submitter.0.iter().filter(|(name, _)| !self.env.contains_key(&**name)).cloned();
        let added = self.env.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
        kept.chain(added).collect()
    }

    /// The file that its program is, in this environment.
    pub fn program(&self, submitter: &Env) -> Option<PathBuf> {
        let name = Path::new(self.command.first()?);
        if name.components().count() > 1 {
            return is_program(name).then(|| name.to_path_buf());
        }
        let env = self.environment(submitter);
        let path = env.get("PATH").map_or(b"/usr/local/bin:/usr/bin:/bin".as_slice(), OsText::as_bytes);
        let folders = path.split(|byte| *byte == b':').filter(|folder| folder.starts_with(b"/"));
        folders
            .map(|folder| Path::new(std::ffi::OsStr::from_bytes(folder)).join(name))
            .find(|file| is_program(file))
    }

    /// What this build lacks for it, if it lacks anything.
    pub fn lack(&self) -> Option<String> {
        let missing = match self.protocol {
            AgentProtocol::Acp => Feature::Acp.lack(),
            AgentProtocol::Opencode | AgentProtocol::Template => None,
        };
        missing.map(|missing| format!("is {:?}, which {missing}", self.protocol.as_str()))
    }

    /// Whether it could be started; the error says what is missing, and which command installs it.
    ///
    /// # Errors
    /// Its program is not there, or this build does not speak its protocol.
    pub fn check(&self, submitter: &Env) -> Result<(), RpcError> {
        if let Some(missing) = self.lack() {
            let message = format!("the protocol of the agent {:?} {missing}", &*self.name);
            return Err(RpcError::new(ErrorKind::AgentUnavailable, message));
        }
        if self.url.is_some() || self.program(submitter).is_some() {
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

    /// What `agent.list` says of it.
    pub fn info(&self, submitter: &Env, default: bool) -> AgentInfo {
        let program = self.program(submitter);
        let missing = self.lack();
        let available = missing.is_none() && (self.url.is_some() || program.is_some());
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

/// Whether this file can be executed by somebody. Links are followed.
fn is_program(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// A program that is known without configuration.
struct Known {
    name: &'static str,
    command: &'static [&'static str],
    install: &'static str,
}

/// Programs that speak the Agent Client Protocol, with the command that installs them.
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

/// All agents: those of the configuration, and the known ones that it does not name.
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
    /// These, and the known ones.
    pub fn new(configured: Vec<Agent>, default: Option<&str>) -> Self {
        let known = KNOWN.iter().map(|known| Agent::new(known.name));
        let by_name =
            known.chain(configured).map(|agent| (Arc::clone(&agent.name), Arc::new(agent))).collect();
        Self { by_name, default: default.map(Into::into) }
    }

    /// The agent of this name, or the default one.
    ///
    /// # Errors
    /// There is none; the known ones are named.
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

    /// Whether there is one of this name.
    pub fn knows(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// All names in one line.
    pub fn names(&self) -> String {
        self.by_name.keys().map(|name| &**name).collect::<Vec<_>>().join(", ")
    }

    /// What `agent.list` says of these, or of all.
    ///
    /// # Errors
    /// One of them is not known.
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
