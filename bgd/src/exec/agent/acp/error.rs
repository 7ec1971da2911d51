//! Interprets an agent's errors. Agents don't agree on codes, so the wording counts as well.

use agent_client_protocol::{Error, ErrorCode};
use bgd_shared::text::truncated_to_bytes;
use serde_json::Value;

/// The maximum length of an agent's error text, in bytes.
const WORDS_BYTES: usize = 2 << 10;

/// Why a request has no result.
#[derive(Debug)]
pub enum RequestError {
    /// The connection has ended, for this reason.
    Gone(Box<str>),
    /// The agent answered with an error.
    Refused(Error),
}

impl RequestError {
    /// Returns a description for people.
    pub fn words(&self) -> String {
        match self {
            Self::Gone(why) => why.to_string(),
            Self::Refused(error) => words(error),
        }
    }
}

/// The kinds of errors that the daemon distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The agent has no such session.
    NoSuchSession,
    /// The user has to log in first.
    LoggedOut,
    /// Anything else; the text is for people.
    Other,
}

/// The subject of the failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Resuming a session: anything missing is the session.
    Session,
    /// A call within a session: a missing item may also be a model or a file.
    Within,
}

/// Phrases for something missing, in lower case.
const MISSING: [&str; 8] = [
    "not found",
    "no rollout",
    "no such",
    "unknown session",
    "unknown thread",
    "does not exist",
    "doesn't exist",
    "no longer exists",
];

/// The words of agents for a conversation, in lower case.
const CONVERSATIONS: [&str; 4] = ["session", "conversation", "thread", "rollout"];

/// Classifies an error of the agent.
pub fn meaning(error: &Error, asked: Asked) -> Meaning {
    if error.code == ErrorCode::AUTH_REQUIRED {
        return Meaning::LoggedOut;
    }
    if error.code == ErrorCode::RESOURCE_NOT_FOUND {
        return Meaning::NoSuchSession;
    }
    let words = words(error).to_lowercase();
    let has = |list: &[&str]| list.iter().any(|word| words.contains(word));
    if words.contains("authentication required") {
        Meaning::LoggedOut
    } else if has(&MISSING) && (asked == Asked::Session || has(&CONVERSATIONS)) {
        Meaning::NoSuchSession
    } else {
        Meaning::Other
    }
}

/// Returns the agent's text for its error: the message, and the details that many agents add to it.
pub fn words(error: &Error) -> String {
    let message = error.message.trim();
    let details = error.data.as_ref().map(details).unwrap_or_default();
    let details = details.trim();
    let text = if details.is_empty() || message.contains(details) {
        message.to_owned()
    } else if message.is_empty() {
        details.to_owned()
    } else {
        format!("{message}: {details}")
    };
    if text.is_empty() {
        return format!("error {}", error.code.value());
    }
    truncated_to_bytes(&text, WORDS_BYTES)
}

/// Returns the part of an error's data that is for people, or all of it if there is no such part.
fn details(data: &Value) -> String {
    if let Value::String(text) = data {
        return text.clone();
    }
    let named = ["details", "message", "reason", "error"].iter().find_map(|name| data.get(name)?.as_str());
    match named {
        Some(text) => text.to_owned(),
        None if data.is_null() => String::new(),
        None => data.to_string(),
    }
}
