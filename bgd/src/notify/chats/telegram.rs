//! The channel `telegram`: Telegram's bot API.

use std::time::Duration;

use bgd_shared::notice::Notice;
use serde::Deserialize;
use serde_json::json;

use super::bot::{Call, Service, Typing};
use super::http::{ChatResponse, DeliveryError, Post};
use crate::channels::Chat;
use crate::notice::{Style, fitting};

/// The maximum length of a message in UTF-16 units.
const TEXT_UNITS: usize = 4096;

/// Less than the five seconds that Telegram shows typing per call.
const TYPING_EVERY: Duration = Duration::from_millis(4500);

pub const SERVICE: Service = Service {
    chat: Chat::Telegram,
    user_agent: None,
    authorization: None,
    message,
    typing: Some(Typing { every: TYPING_EVERY, call: typing }),
    judge,
};

fn message(notice: &Notice, chat: &str) -> Call {
    let text = fitting(notice, Style::PLAIN, TEXT_UNITS, |text| text.encode_utf16().count());
    let body = json!({"chat_id": chat, "text": text, "link_preview_options": {"is_disabled": true}});
    Call { path: "/sendMessage".to_owned(), body: Some(body) }
}

fn typing(chat: &str) -> Call {
    let body = json!({"chat_id": chat, "action": "typing"});
    Call { path: "/sendChatAction".to_owned(), body: Some(body) }
}

/// The body of a response.
#[derive(Deserialize)]
struct ApiResponse {
    ok: bool,
    description: Option<String>,
    parameters: Option<Parameters>,
}

#[derive(Deserialize)]
struct Parameters {
    retry_after: Option<u64>,
}

fn judge(post: &Post, answer: &ChatResponse) -> Result<(), DeliveryError> {
    let Ok(response) = serde_json::from_slice::<ApiResponse>(&answer.body) else {
        return Err(answer.unintelligible(post));
    };
    if response.ok && answer.status.is_success() {
        return Ok(());
    }
    let mut trouble = answer.refused(post, response.description.as_deref());
    if let Some(seconds) = response.parameters.and_then(|parameters| parameters.retry_after) {
        trouble.wait = Some(Duration::from_secs(seconds));
        trouble.is_transient = true;
    }
    Err(trouble)
}
