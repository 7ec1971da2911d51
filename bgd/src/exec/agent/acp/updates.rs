//! Translates an agent's session updates into the type that all back ends share. Every release of the
//! protocol brings new kinds of updates; an unknown one counts as activity, and breaks nothing.

use agent_client_protocol::v1::schema::{
    ContentBlock, Plan, PlanEntryStatus, SessionNotification, SessionUpdate, ToolKind,
};
use agent_client_protocol::{RawJsonRpcMessage, RawJsonRpcParams};
use bgd_shared::consumption::StepStatus;
use bgd_shared::text::beginning;
use serde::Deserialize;
use serde_json::Value;

use super::{lines, spent};
use crate::exec::agent::connection::{Update, plan};
use crate::exec::agent::signs;

pub const METHOD: &str = "session/update";

/// The maximum length of a compared message id, in bytes.
const MESSAGE_BYTES: usize = 256;

/// The content of a `session/update`.
pub struct News {
    pub session: String,
    /// `None` if the update only echoes the daemon's own requests.
    pub update: Option<Update>,
    /// The message that a piece of the answer belongs to, if the agent distinguishes messages.
    pub message: Option<String>,
}

/// Parses a line of an agent; `None` if it is not a `session/update`.
pub fn of_line(line: &[u8]) -> Option<News> {
    match lines::message(line)? {
        RawJsonRpcMessage::Notification(news) if &*news.method == METHOD => read(news.params),
        _ => None,
    }
}

/// Parses a `session/update`; `None` if it names no session.
pub fn read(params: Option<RawJsonRpcParams>) -> Option<News> {
    let params = params?.into_value();
    let session = params.get("sessionId")?.as_str()?.to_owned();
    let of_model = [&params["update"]["_meta"], &params["_meta"]].into_iter().find_map(signs::of_news);
    let update = match SessionNotification::deserialize(&params) {
        Ok(notification) => known(notification.update),
        Err(error) => {
            tracing::debug!(%error, "an agent sent an unknown update");
            Some(unknown(&params["update"]))
        }
    };
    let update = match (update, of_model) {
        (Some(Update::Activity), Some(of_model)) => Some(Update::Model(of_model)),
        (update, _) => update,
    };
    let message = match &params["update"]["messageId"] {
        Value::Null => None,
        Value::String(id) => Some(beginning(id, MESSAGE_BYTES).to_owned()),
        other => Some(beginning(&other.to_string(), MESSAGE_BYTES).to_owned()),
    };
    Some(News { session, update, message })
}

fn known(update: SessionUpdate) -> Option<Update> {
    match update {
        SessionUpdate::AgentMessageChunk(chunk) => Some(Update::Text(text(chunk.content))),
        SessionUpdate::ToolCall(call) if call.title.trim().is_empty() => {
            Some(Update::Tool(tool_kind(call.kind)))
        }
        SessionUpdate::ToolCall(call) => Some(Update::Tool(call.title)),
        SessionUpdate::ToolCallUpdate(_) => Some(Update::Worked),
        SessionUpdate::UsageUpdate(usage) => Some(Update::Consumed(spent::of_update(&usage))),
        SessionUpdate::Plan(plan) => Some(Update::Plan(steps(plan))),
        // An echo of the settings made before the prompt does not show that the agent has the prompt.
        SessionUpdate::UserMessageChunk(_)
        | SessionUpdate::CurrentModeUpdate(_)
        | SessionUpdate::ConfigOptionUpdate(_) => None,
        // The enum is non-exhaustive; all kinds except those above are mere activity.
        _ => Some(Update::Activity),
    }
}

fn steps(received: Plan) -> Vec<bgd_shared::consumption::PlanStep> {
    plan(received.entries.into_iter().map(|entry| {
        let status = match entry.status {
            PlanEntryStatus::InProgress => StepStatus::InProgress,
            PlanEntryStatus::Completed => StepStatus::Completed,
            // The enum is non-exhaustive.
            PlanEntryStatus::Pending | _ => StepStatus::Pending,
        };
        (entry.content, status)
    }))
}

/// Translates an update that the crate can't parse. An answer with an unknown kind of content becomes a placeholder.
fn unknown(update: &Value) -> Update {
    let is = |tag: &str| update["sessionUpdate"].as_str() == Some(tag);
    match update["content"]["type"].as_str() {
        Some(kind) if is("agent_message_chunk") => Update::Text(format!("[{kind}]")),
        Some(_) | None => Update::Activity,
    }
}

/// Returns the protocol's name for a kind of tool.
pub fn tool_kind(kind: ToolKind) -> String {
    let word = serde_json::to_value(kind).unwrap_or_default();
    word.as_str().unwrap_or("tool").to_owned()
}

/// Returns the text of a content block, or a placeholder for other content.
pub fn text(content: ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(_) => "[image]".to_owned(),
        ContentBlock::Audio(_) => "[audio]".to_owned(),
        ContentBlock::ResourceLink(link) => format!("[{}]", link.uri),
        ContentBlock::Resource(_) => "[resource]".to_owned(),
        // The enum is non-exhaustive.
        _ => "[content]".to_owned(),
    }
}
