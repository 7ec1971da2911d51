//! The messages of opencode's server, limited to the fields that matter here. Other fields are skipped, and fields that
//! a version may omit have a default: a new version of the server must not end a turn.

use bgd_shared::consumption::Amount;
use bgd_shared::text::truncated;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::core::Tokens;

/// The longest text for people, in characters.
const WORDS: usize = 2000;

/// `GET /global/health`.
#[derive(Debug, Deserialize)]
pub struct Health {
    /// Whether the server is healthy. Required, because other kinds of servers don't send it.
    #[serde(rename = "healthy")]
    pub _healthy: bool,
    #[serde(default)]
    pub version: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SessionInfo {
    pub id: String,
    /// The folder that the server keeps the session under.
    #[serde(default)]
    pub directory: String,
    /// The session that started this one, if it is a subagent's.
    #[serde(default, rename = "parentID")]
    pub parent: Option<String>,
}

/// The status of a session in `GET /session/status`, which omits idle ones.
#[derive(Debug, Deserialize)]
pub struct Status {
    /// `busy`, `retry` or `idle`.
    #[serde(rename = "type")]
    pub kind: String,
    /// With `retry`: the number of the attempt.
    #[serde(default)]
    pub attempt: Option<u64>,
    /// With `retry`: why the last attempt failed.
    #[serde(default)]
    pub message: Option<String>,
}

impl Status {
    /// Returns why the session retries; `None` if it does not.
    fn retry(self) -> Option<Box<str>> {
        let message = self.message.filter(|_| self.kind == "retry")?;
        let attempt = self.attempt.map(|attempt| format!(" (attempt {attempt})")).unwrap_or_default();
        Some(bounded(&format!("{message}{attempt}")))
    }
}

/// A message with its parts.
#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    /// The message without its parts.
    pub info: Info,
    #[serde(default)]
    pub parts: Vec<Part>,
}

/// A message without its parts.
#[derive(Clone, Debug, Deserialize)]
pub struct Info {
    pub id: String,
    /// `user` or `assistant`.
    pub role: String,
    /// The user message that an assistant message answers.
    #[serde(default, rename = "parentID")]
    pub parent: Option<String>,
    #[serde(default)]
    pub time: Times,
    /// Why the assistant gave up.
    #[serde(default)]
    pub error: Option<Fault>,
    /// Why the model stopped: `stop`, `tool-calls`, `length`, …
    #[serde(default)]
    pub finish: Option<String>,
    /// The tokens of the steps so far.
    #[serde(default)]
    tokens: Option<TokenCounts>,
    /// The cost of the steps so far, in US dollars.
    #[serde(default)]
    cost: f64,
    /// Whether the message summarizes the conversation for the model, so that it is not an answer.
    #[serde(default)]
    summary: Flag,
}

/// The token counts of a message.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct TokenCounts {
    input: f64,
    output: f64,
    reasoning: f64,
    cache: CacheCounts,
}

/// The token counts of a cache.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct CacheCounts {
    read: f64,
    write: f64,
}

/// The consumption of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    pub tokens: Tokens,
    /// In US dollars.
    pub cost: Amount,
}

impl Info {
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    /// Returns its consumption; `None` until it is known.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the casts saturate")]
    pub fn taken(&self) -> Option<Taken> {
        let TokenCounts { input, output, reasoning, cache } = self.tokens?;
        let count = |tokens: f64| tokens as u64;
        let tokens = Tokens {
            input: count(input),
            output: count(output + reasoning),
            cached: count(cache.read + cache.write),
        };
        let taken = Taken { tokens, cost: Amount::of(self.cost).unwrap_or_default() };
        (taken != Taken::default()).then_some(taken)
    }

    /// Returns whether the message is a summary instead of an answer.
    pub fn is_summary(&self) -> bool {
        matches!(self.summary, Flag::Is(true))
    }

    /// Returns whether the message is complete.
    pub fn is_done(&self) -> bool {
        self.error.is_some() || self.time.completed.is_some()
    }
}

/// A boolean in assistant messages, but an object in user messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Flag {
    Is(bool),
    Other(IgnoredAny),
}

impl Default for Flag {
    fn default() -> Self {
        Self::Is(false)
    }
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Times {
    /// When a message was created.
    #[serde(default)]
    pub created: f64,
    /// When it was completed.
    #[serde(default)]
    pub completed: Option<f64>,
    /// When a part was completed.
    #[serde(default)]
    pub end: Option<f64>,
}

/// A part of a message.
#[derive(Clone, Debug, Deserialize)]
pub struct Part {
    pub id: String,
    /// The message that the part belongs to.
    #[serde(default, rename = "messageID")]
    pub message: String,
    /// `text`, `reasoning`, `tool`, `step-start`, `compaction`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The content so far of a text or reasoning part.
    #[serde(default)]
    pub text: String,
    /// Whether the server itself wrote the part, on behalf of another author.
    #[serde(default)]
    pub synthetic: bool,
    /// With `compaction`: whether the server compacts the conversation by itself.
    #[serde(default)]
    pub auto: bool,
    #[serde(default)]
    pub time: Option<Times>,
    /// The tool's name.
    #[serde(default)]
    pub tool: String,
    #[serde(default)]
    pub state: Option<ToolState>,
}

/// The state of a tool call.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ToolState {
    /// `pending`, `running`, `completed` or `error`.
    #[serde(default)]
    pub status: String,
}

/// An error of a session or of a message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Fault {
    /// The name, such as `APIError`.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub data: FaultData,
}

/// The details of an error.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FaultData {
    /// The description for people.
    #[serde(default)]
    pub message: Option<String>,
    /// The HTTP status that the model's server returned.
    #[serde(default, rename = "statusCode")]
    pub status: Option<u16>,
}

impl Fault {
    /// Returns the name and the message.
    pub fn words(&self) -> Box<str> {
        let name = if self.name.is_empty() { "the agent failed" } else { &self.name };
        match &self.data.message {
            Some(message) if !message.is_empty() => bounded(&format!("{name}: {message}")),
            _ => bounded(name),
        }
    }
}

/// A permission request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Permission {
    pub id: String,
    /// The session that asks, possibly a subagent's.
    #[serde(rename = "sessionID")]
    pub session: String,
    /// The kind of permission, such as `bash`.
    #[serde(default, rename = "permission")]
    pub action: String,
    /// The objects of the permission, such as a command or a file.
    #[serde(default)]
    pub patterns: Vec<String>,
    /// The details of the tool's action, such as the change of a file or an address.
    #[serde(default)]
    pub metadata: Value,
    /// The patterns that would be allowed permanently.
    #[serde(default)]
    pub always: Vec<String>,
    /// The tool call that waits for it.
    #[serde(default)]
    pub tool: Option<Call>,
}

/// Questions that the model asks the user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Questions {
    pub id: String,
    /// The session that asks, possibly a subagent's.
    #[serde(rename = "sessionID")]
    pub session: String,
    /// In order.
    #[serde(default, rename = "questions")]
    pub list: Vec<Question>,
    /// The tool call that waits for the answers.
    #[serde(default)]
    pub tool: Option<Call>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    #[serde(default)]
    pub question: String,
    /// The answers to choose from.
    #[serde(default)]
    pub options: Vec<Choice>,
}

/// An answer to choose.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Choice {
    #[serde(default)]
    pub label: String,
}

/// The location of a tool call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The message that contains the tool call.
    #[serde(default, rename = "messageID")]
    pub message: String,
}

/// An event in a session.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message was created or changed.
    Message(Info),
    /// A part was created or changed; this is the whole part.
    Part(Part),
    /// A part has grown.
    Delta(Delta),
    /// The session is busy; contains the reason if it retries.
    Busy(Option<Box<str>>),
    /// The session is idle, or seems to be.
    Idle,
    /// The session reported an error.
    Fault(Fault),
    /// The model asks for permission.
    Permission(Permission),
    /// The model asks the user questions.
    Questions(Questions),
    /// The question with this id no longer needs an answer.
    Answered(String),
    /// The model changed its list of todos.
    Todos(Vec<Todo>),
    /// The session started another session, for a subagent.
    Child(SessionInfo),
    Deleted,
}

/// A planned step of the agent.
#[derive(Clone, Debug, Deserialize)]
pub struct Todo {
    /// The description of the step.
    #[serde(default)]
    pub content: String,
    /// `pending`, `in_progress`, `completed` or `cancelled`.
    #[serde(default)]
    pub status: String,
}

/// An addition to a part.
#[derive(Clone, Debug, Deserialize)]
pub struct Delta {
    #[serde(rename = "messageID")]
    pub message: String,
    #[serde(rename = "partID")]
    pub part: String,
    /// The name of the field that grew.
    #[serde(default)]
    pub field: String,
    /// The appended text.
    #[serde(default, rename = "delta")]
    pub piece: String,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    payload: Payload<'a>,
}

#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow, default)]
    properties: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Owner {
    #[serde(rename = "sessionID")]
    session: String,
}

#[derive(Deserialize)]
struct Carried<T> {
    #[serde(rename = "sessionID")]
    session: String,
    #[serde(alias = "part", alias = "status", alias = "error", alias = "todos")]
    info: T,
}

#[derive(Deserialize)]
struct Replied {
    #[serde(rename = "sessionID")]
    session: String,
    #[serde(rename = "requestID")]
    request: String,
}

#[derive(Deserialize)]
struct Grown {
    #[serde(rename = "sessionID")]
    session: String,
    #[serde(flatten)]
    delta: Delta,
}

/// Parses the data of one event into the session and the event. `None` if the event is irrelevant or can't be parsed:
/// polls find missed information.
pub fn event(data: &str) -> Option<(String, Event)> {
    let envelope: Envelope<'_> = serde_json::from_str(data).ok()?;
    let text = envelope.payload.properties?.get();
    match envelope.payload.kind.as_str() {
        "message.updated" => carried(text, Event::Message),
        "message.part.updated" => carried(text, Event::Part),
        "message.part.delta" => {
            let grown: Grown = serde_json::from_str(text).ok()?;
            Some((grown.session, Event::Delta(grown.delta)))
        }
        "session.idle" => owned(text, Event::Idle),
        "session.status" => {
            let status: Carried<Status> = serde_json::from_str(text).ok()?;
            let event =
                if status.info.kind == "idle" { Event::Idle } else { Event::Busy(status.info.retry()) };
            Some((status.session, event))
        }
        "session.error" => carried(text, Event::Fault),
        "session.deleted" => owned(text, Event::Deleted),
        "todo.updated" => carried(text, Event::Todos),
        "session.created" => {
            let created: Carried<SessionInfo> = serde_json::from_str(text).ok()?;
            let parent = created.info.parent.clone()?;
            Some((parent, Event::Child(created.info)))
        }
        "permission.asked" => {
            let asked: Permission = serde_json::from_str(text).ok()?;
            Some((asked.session.clone(), Event::Permission(asked)))
        }
        "question.asked" => {
            let asked: Questions = serde_json::from_str(text).ok()?;
            Some((asked.session.clone(), Event::Questions(asked)))
        }
        "permission.replied" | "question.replied" | "question.rejected" => {
            let replied: Replied = serde_json::from_str(text).ok()?;
            Some((replied.session, Event::Answered(replied.request)))
        }
        _ => None,
    }
}

fn carried<'a, T: Deserialize<'a>>(text: &'a str, make: fn(T) -> Event) -> Option<(String, Event)> {
    let carried: Carried<T> = serde_json::from_str(text).ok()?;
    Some((carried.session, make(carried.info)))
}

fn owned(text: &str, event: Event) -> Option<(String, Event)> {
    let owner: Owner = serde_json::from_str(text).ok()?;
    Some((owner.session, event))
}

/// Cuts a text for people to [`WORDS`] characters, and marks the cut with an ellipsis.
pub fn bounded(text: &str) -> Box<str> {
    truncated(text, WORDS).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_parsed_with_its_session() {
        let idle =
            r#"{"directory":"/d","payload":{"type":"session.idle","properties":{"sessionID":"ses_1"}}}"#;
        assert!(matches!(event(idle), Some((session, Event::Idle)) if session == "ses_1"));
        let delta = r#"{"payload":{"type":"message.part.delta","properties":{"sessionID":"s","messageID":"m",
            "partID":"p","field":"text","delta":"abc"}}}"#;
        assert!(matches!(event(delta), Some((_, Event::Delta(delta))) if delta.piece == "abc"));
        let user = r#"{"payload":{"type":"message.updated","properties":{"sessionID":"s","info":{"id":"m",
            "role":"user","time":{"created":5},"summary":{"diffs":[]}}}}}"#;
        assert!(matches!(event(user), Some((_, Event::Message(info))) if !info.is_summary()));
    }

    #[test]
    fn unneeded_or_unknown_events_are_ignored() {
        for other in [
            r#"{"payload":{"type":"server.connected","properties":{}}}"#,
            r#"{"payload":{"type":"sync","syncEvent":{}}}"#,
            r#"{"payload":{"type":"session.idle","properties":{}}}"#,
            "[]",
            "",
        ] {
            assert!(event(other).is_none(), "{other}");
        }
    }

    #[test]
    fn error_texts_are_bounded() {
        assert_eq!(bounded(&"ü".repeat(3000)).chars().count(), WORDS + 1);
        assert_eq!(&*bounded("short"), "short");
    }
}
