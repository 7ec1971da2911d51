//! The handshake: an agent's protocol version, name and capabilities, and how to log in.

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    ClientCapabilities, Implementation, InitializeRequest, InitializeResponse,
};
use bgd_shared::agent::{AgentCheck, Continuation};
use bgd_shared::error::ErrorKind;
use bgd_shared::text::truncated_to_bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{self, Asked, Meaning, RequestError};
use super::wire::Wire;
use crate::core::Refusal;

/// The maximum length of an agent's advice on logging in, in bytes.
const LOGIN_BYTES: usize = 1 << 10;

/// The maximum length of its name and of its version, in bytes.
const NAME_BYTES: usize = 200;

/// An agent's report about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Its name, its version, and how it continues a conversation.
    pub about: AgentCheck,
    /// Whether it can list its sessions.
    pub lists: bool,
    /// Whether it accepts the notification that a session is no longer needed.
    pub closes: bool,
    /// Advice on logging in.
    pub login: Box<str>,
}

/// Performs the handshake. Offers the agent neither files nor terminals: it runs on the machine with its files.
pub async fn greet(wire: &Wire) -> Result<Hello, Refusal> {
    let request = InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(ClientCapabilities::new())
        .client_info(Implementation::new("bgd", env!("CARGO_PKG_VERSION")));
    let answer = match wire.call("initialize", request).await {
        Ok(answer) => answer,
        Err(RequestError::Gone(why)) => return Err(no_acp(wire, &why)),
        Err(RequestError::Refused(error)) => {
            let words = error::words(&error);
            return Err(match error::meaning(&error, Asked::Within) {
                Meaning::LoggedOut => logged_out(&words, &login(&[])),
                Meaning::NoSuchSession | Meaning::Other => {
                    no_acp(wire, &format!("it rejected the initialization: {words}"))
                }
            });
        }
    };
    let version = &answer["protocolVersion"];
    if version.as_u64() != Some(1) {
        return Err(no_acp(wire, &format!("it speaks protocol version {version}, but 1 is required")));
    }
    read(&answer).ok_or_else(|| no_acp(wire, "its answer to `initialize` can't be parsed"))
}

/// Parses the answer to `initialize`.
pub fn read(answer: &Value) -> Option<Hello> {
    let answer = InitializeResponse::deserialize(answer).ok()?;
    let can = answer.agent_capabilities;
    let continuation = if can.session_capabilities.resume.is_some() {
        Continuation::Resume
    } else if can.load_session {
        Continuation::Load
    } else {
        Continuation::None
    };
    let named = |text: String| truncated_to_bytes(text.trim(), NAME_BYTES);
    let (name, version) = answer.agent_info.map(|info| (named(info.name), named(info.version))).unzip();
    let methods: Vec<(&str, Option<&str>)> =
        answer.auth_methods.iter().map(|method| (method.name(), method.description())).collect();
    Some(Hello {
        about: AgentCheck { name, version, continuation, started_in_ms: None },
        lists: can.session_capabilities.list.is_some(),
        closes: can.session_capabilities.close.is_some(),
        login: login(&methods),
    })
}

/// Builds advice on logging in from the names and descriptions of the login methods.
fn login(methods: &[(&str, Option<&str>)]) -> Box<str> {
    let ways: Vec<String> = methods
        .iter()
        .map(|(name, description)| match description {
            Some(description) => format!("{name} ({description})"),
            None => (*name).to_owned(),
        })
        .collect();
    if ways.is_empty() {
        "log in with the agent's own program".into()
    } else {
        let hint = format!("log in with the agent's own program: {}", ways.join("; or "));
        truncated_to_bytes(&hint, LOGIN_BYTES).into()
    }
}

/// Builds the refusal for a program that does not speak the protocol.
fn no_acp(wire: &Wire, why: &str) -> Refusal {
    let message = format!("the agent did not speak ACP: {why}{}", wire.noise.as_suffix());
    Refusal::new(ErrorKind::AgentUnavailable, message)
}

/// Builds the refusal for an agent that requires a login.
pub fn logged_out(words: &str, login: &str) -> Refusal {
    Refusal::new(ErrorKind::AuthenticationRequired, format!("the agent is not logged in: {words}"))
        .hint(login)
}
