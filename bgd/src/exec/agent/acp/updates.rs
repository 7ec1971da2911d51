//! What an agent tells of a session, in the words that all back ends share. Every release of the protocol
//! brings new kinds of updates; one that is not known shows that the agent moves, and breaks nothing.

use agent_client_protocol::RawJsonRpcParams;
use agent_client_protocol::v1::schema::{ContentBlock, SessionNotification, SessionUpdate, ToolKind};
use bgd_shared::text::beginning;
use serde::Deserialize;
use serde_json::Value;

use crate::exec::agent::connection::Update;
use crate::exec::agent::signs;

/// How much of a message's id tells it from others.
const MESSAGE_BYTES: usize = 256;

/// What a `session/update` says.
pub struct News {
    /// The session.
    pub session: String,
    /// `None`: it is not news, but what the daemon said itself.
    pub update: Option<Update>,
    /// The message that a piece of the answer is of, where the agent tells messages apart.
    pub message: Option<String>,
}

/// Reads a `session/update`. Nothing if it names no session.
pub fn read(params: Option<RawJsonRpcParams>) -> Option<News> {
    let params = params?.into_value();
    let session = params.get("sessionId")?.as_str()?.to_owned();
    let of_model = [&params["update"]["_meta"], &params["_meta"]].into_iter().find_map(signs::of_news);
    let update = match SessionNotification::deserialize(&params) {
        Ok(notification) => known(notification.update),
        Err(error) => {
            tracing::debug!(%error, "an agent sent an update that is not known");
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
        // What was set before the prompt is no sign that the prompt is there.
        SessionUpdate::UserMessageChunk(_)
        | SessionUpdate::CurrentModeUpdate(_)
        | SessionUpdate::ConfigOptionUpdate(_) => None,
        // The crate says that there may be more kinds; all but those above only show that the agent moves.
        _ => Some(Update::Activity),
    }
}

/// An update that the crate does not take. Of an answer with a kind of content that is not known, a mark stays.
fn unknown(update: &Value) -> Update {
    let is = |tag: &str| update["sessionUpdate"].as_str() == Some(tag);
    match update["content"]["type"].as_str() {
        Some(kind) if is("agent_message_chunk") => Update::Text(format!("[{kind}]")),
        Some(_) | None => Update::Activity,
    }
}

/// A kind of tool as a word: the protocol's own.
pub fn tool_kind(kind: ToolKind) -> String {
    let word = serde_json::to_value(kind).unwrap_or_default();
    word.as_str().unwrap_or("tool").to_owned()
}

/// The text of a block, or a mark for what is none.
pub fn text(content: ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(_) => "[image]".to_owned(),
        ContentBlock::Audio(_) => "[audio]".to_owned(),
        ContentBlock::ResourceLink(link) => format!("[{}]", link.uri),
        ContentBlock::Resource(_) => "[resource]".to_owned(),
        // The crate says that there may be more kinds.
        _ => "[content]".to_owned(),
    }
}
