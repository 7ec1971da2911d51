//! The `[agents]` part of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use bgd_shared::agent::{AgentProtocol, AgentSettings, Permissions, Setting};
use bgd_shared::limits::CURRENCY_BYTES;
use bgd_shared::request::LOCAL_EXECUTOR;
use serde::{Deserialize, Serialize};

use super::span::Span;
use crate::agents::{Agent, Counts, PROMPT, PROMPT_FILE, SESSION};

/// One `[agents.NAME]` table. Omitted keys have the defaults of [`Agent::new`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<AgentProtocol>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resume: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<TokensConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permissions: Option<Permissions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<BTreeMap<String, Setting>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_sessions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_warm: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stalled_after: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_timeout: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ask_timeout: Option<Span>,
}

/// Where the numbers of tokens are in the output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokensConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

/// The unit of an agent's cost unless the configuration says otherwise.
const CURRENCY: &str = "USD";

/// The keys of an agent, for suggestions on mistyped keys and for the documentation.
pub const KEYS: [&str; 20] = [
    "protocol",
    "command",
    "resume",
    "session",
    "result",
    "tokens",
    "cost",
    "currency",
    "url",
    "on",
    "env",
    "permissions",
    "mode",
    "model",
    "config",
    "max_sessions",
    "keep_warm",
    "stalled_after",
    "start_timeout",
    "ask_timeout",
];

/// The maximum length of an agent name in bytes.
const NAME_BYTES: usize = 64;

/// A key and what is wrong with its value.
pub type Fault = (String, String);

impl AgentConfig {
    /// Reports whether variables are set, whose values may be secret.
    pub fn has_variables(&self) -> bool {
        self.env.as_ref().is_some_and(|env| !env.is_empty())
    }

    /// Builds and checks the agent.
    ///
    /// # Errors
    /// A value is invalid; the fault names the key and the reason.
    pub fn agent(&self, name: &str) -> Result<Agent, Fault> {
        let default = Agent::new(name);
        let span = |span: Option<Span>, default: Duration| span.map_or(default, |span| span.0);
        let protocol = self.protocol.unwrap_or(default.protocol);
        let agent = Agent {
            protocol,
            command: self
                .command
                .clone()
                .unwrap_or_else(|| default_command(&default, protocol, self.url.is_some())),
            resume: self.resume.clone().unwrap_or_default(),
            session: self.session.clone(),
            result: self.result.clone(),
            counts: self.counts(),
            url: self.url.clone(),
            on: None,
            env: self.env.clone().unwrap_or_default(),
            permissions: self.permissions.unwrap_or(default.permissions),
            settings: self.settings(),
            max_sessions: self.max_sessions.unwrap_or(default.max_sessions),
            keep_warm: span(self.keep_warm, default.keep_warm),
            stalled_after: span(self.stalled_after, default.stalled_after),
            start_timeout: span(self.start_timeout, default.start_timeout),
            ask_timeout: span(self.ask_timeout, default.ask_timeout),
            configured: true,
            name: default.name,
            install: default.install.filter(|_| self.command.is_none()),
        };
        self.check(&agent).map_err(|(key, what)| (format!("agents.{name}{key}"), what))?;
        Ok(agent)
    }

    /// Returns the name of the executor that the agent's program runs on; `None` for this machine.
    pub fn on(&self) -> Option<&str> {
        self.on.as_deref().filter(|on| *on != LOCAL_EXECUTOR)
    }

    fn counts(&self) -> Counts {
        let tokens = self.tokens.clone().unwrap_or_default();
        let currency = self.currency.as_deref().unwrap_or(CURRENCY).to_owned();
        Counts { input: tokens.input, output: tokens.output, cost: self.cost.clone(), currency }
    }

    fn settings(&self) -> AgentSettings {
        AgentSettings {
            mode: self.mode.clone(),
            model: self.model.clone(),
            config: self.config.clone().unwrap_or_default(),
        }
    }

    /// Checks the keys that only template agents have.
    fn check_pointers(&self, agent: &Agent) -> Result<(), Fault> {
        let fault = |key: &str, what: &str| Err((key.to_owned(), what.to_owned()));
        let template = agent.protocol == AgentProtocol::Template;
        for (key, given) in [
            (".resume", self.resume.is_some()),
            (".session", agent.session.is_some()),
            (".result", agent.result.is_some()),
            (".tokens", self.tokens.is_some()),
            (".cost", self.cost.is_some()),
            (".currency", self.currency.is_some()),
        ] {
            if given && !template {
                return fault(key, "requires protocol = \"template\"");
            }
        }
        if agent.counts.currency.is_empty() || agent.counts.currency.len() > CURRENCY_BYTES {
            return fault(".currency", "must be 1 to 16 bytes, as in \"USD\"");
        }
        for (key, pointer) in [
            (".session", &agent.session),
            (".result", &agent.result),
            (".tokens.input", &agent.counts.input),
            (".tokens.output", &agent.counts.output),
            (".cost", &agent.counts.cost),
        ] {
            if pointer.as_ref().is_some_and(|pointer| !pointer.starts_with('/')) {
                return fault(key, "is not a JSON pointer: it must begin with /, as in \"/session_id\"");
            }
        }
        Ok(())
    }

    fn check(&self, agent: &Agent) -> Result<(), Fault> {
        let fault = |key: &str, what: &str| Err((key.to_owned(), what.to_owned()));
        let has = |words: &[String], part: &str| words.iter().any(|word| word.contains(part));
        let name = &*agent.name;
        if name.is_empty()
            || name.len() > NAME_BYTES
            || name.contains(|c: char| c.is_control() || c.is_whitespace())
        {
            return fault("", "is not a valid agent name: use 1 to 64 bytes without blanks");
        }
        if let Some(missing) = agent.missing_feature() {
            return Err((".protocol".to_owned(), missing));
        }
        check_words(agent)?;
        check_settings(agent)?;
        if agent.url.is_some() && agent.protocol != AgentProtocol::Opencode {
            return fault(".url", "requires protocol = \"opencode\"");
        }
        if agent.url.as_ref().is_some_and(|url| url.strip_prefix("http://").is_none_or(str::is_empty)) {
            return fault(
                ".url",
                "is not a server address: it must begin with http://, as in \"http://127.0.0.1:4096\"",
            );
        }
        if self.on().is_some() && agent.protocol != AgentProtocol::Acp {
            return fault(".on", "requires protocol = \"acp\": only that goes over the connection");
        }
        if agent.url.is_none() && agent.command.first().is_none_or(String::is_empty) {
            let is = if self.command.is_some() { "empty" } else { "missing" };
            return fault(".command", &format!("is {is}: give the program with its arguments"));
        }
        if !(1..=1000).contains(&agent.max_sessions) {
            return fault(".max_sessions", "must be 1 to 1000");
        }
        for (key, span) in [
            (".stalled_after", agent.stalled_after),
            (".start_timeout", agent.start_timeout),
            (".ask_timeout", agent.ask_timeout),
        ] {
            if span.is_zero() {
                return fault(key, "is 0; it must be longer");
            }
        }
        self.check_pointers(agent)?;
        if has(&agent.command, SESSION) {
            return fault(".command", "uses {session}, which a new conversation does not have; see `resume`");
        }
        check_resume(agent)
    }
}

/// Checks that the session settings are valid and supported by the protocol.
fn check_settings(agent: &Agent) -> Result<(), Fault> {
    agent.settings.check().map_err(|(key, what)| (format!(".{key}"), what))?;
    match agent.settings.first().filter(|_| agent.protocol != AgentProtocol::Acp) {
        Some(key) => Err((format!(".{key}"), "requires protocol = \"acp\"".to_owned())),
        None => Ok(()),
    }
}

/// Checks that a follow-up prompt can reach its conversation.
fn check_resume(agent: &Agent) -> Result<(), Fault> {
    let fault = |what: &str| Err((".resume".to_owned(), what.to_owned()));
    let has = |words: &[String], part: &str| words.iter().any(|word| word.contains(part));
    if agent.resume.is_empty() {
        return Ok(());
    }
    if agent.session.is_none() {
        return fault("needs `session`: the place of the conversation id in its output");
    }
    if !has(&agent.resume, SESSION) {
        return fault("must use {session}, to say which conversation to continue");
    }
    for (place, what) in [
        (PROMPT, "must use {prompt} if `command` does, and only then"),
        (PROMPT_FILE, "must use {prompt_file} if `command` does, and only then"),
    ] {
        if has(&agent.command, place) != has(&agent.resume, place) {
            return fault(what);
        }
    }
    Ok(())
}

/// Returns the default command. A built-in program's command speaks ACP only.
fn default_command(known: &Agent, protocol: AgentProtocol, has_url: bool) -> Vec<String> {
    match protocol {
        AgentProtocol::Opencode if has_url => Vec::new(),
        AgentProtocol::Opencode => SERVER.map(str::to_owned).to_vec(),
        AgentProtocol::Acp => known.command.clone(),
        AgentProtocol::Template => Vec::new(),
    }
}

/// The command that starts opencode's server on a free port of the loopback interface.
const SERVER: [&str; 6] = ["opencode", "serve", "--hostname", "127.0.0.1", "--port", "0"];

/// Checks that the program can be looked up and that the OS can pass on its arguments and environment.
fn check_words(agent: &Agent) -> Result<(), Fault> {
    let fault = |key: &str, what: String| Err((key.to_owned(), what));
    for (key, words) in [(".command", &agent.command), (".resume", &agent.resume)] {
        if words.iter().any(|word| word.contains('\0')) {
            return fault(key, "contains a NUL byte, which the system does not allow".to_owned());
        }
    }
    for word in
        agent.command.iter().chain(&agent.resume).filter(|_| agent.protocol == AgentProtocol::Template)
    {
        let place = word.strip_prefix('{').and_then(|word| word.strip_suffix('}'));
        let is_place =
            place.is_some_and(|place| place.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()));
        if is_place && ![PROMPT, PROMPT_FILE, SESSION].contains(&word.as_str()) {
            let what = format!("uses {word}, which is not one of {PROMPT_FILE}, {PROMPT} and {SESSION}");
            return fault(".command", what);
        }
    }
    // Neither the daemon nor `agent.list` has a working directory to resolve a relative path against.
    let program = agent.command.first().map(String::as_str).unwrap_or_default();
    if program.contains('/') && !program.starts_with('/') {
        let what = format!("begins with {program:?}: use a program in PATH, or an absolute path without ~");
        return fault(".command", what);
    }
    for (variable, value) in &agent.env {
        if variable.is_empty() || variable.contains(['=', '\0']) {
            return fault(".env", format!("sets {variable:?}, which is not a valid variable name"));
        }
        if value.contains('\0') {
            let what = format!("sets {variable} to a value with a NUL byte, which the system does not allow");
            return fault(".env", what);
        }
    }
    Ok(())
}
