//! The channel `telegram`: Telegram's bot API.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{FutureExt as _, LocalBoxFuture};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::bot::{Bot, Call, Service};
use super::http::{ChatResponse, DeliveryError, Http, Post};
use crate::channels::{BotSettings, Chat};
use crate::notice::{Style, fitting};
use crate::notify::adapter::{Adapter, Notification, Signal};
use crate::notify::outcomes::Outcomes;
use crate::notify::undelivered::Undelivered;

/// The maximum length of a message in UTF-16 units.
const TEXT_UNITS: usize = 4096;

/// Less than the five seconds that Telegram shows typing per call.
const TYPING_EVERY: Duration = Duration::from_millis(4500);

pub const SERVICE: Service = Service {
    chat: Chat::Telegram,
    is_chat,
    chats: "the number of a chat, or the @NAME of a public one",
    user_agent: None,
    authorization: None,
    judge,
};

pub struct Telegram(Rc<Bot>);

impl Telegram {
    pub fn new(http: Rc<Http>, outcomes: &Outcomes, settings: &BotSettings) -> Self {
        Self(Rc::new(Bot::new(&SERVICE, http, outcomes, settings)))
    }
}

impl Adapter for Telegram {
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        let text =
            fitting(&notification.notice, Style::PLAIN, TEXT_UNITS, |text| text.encode_utf16().count());
        let call = move |chat: &str| {
            let body = json!({"chat_id": chat, "text": text, "link_preview_options": {"is_disabled": true}});
            Call { path: "/sendMessage".to_owned(), body: Some(body) }
        };
        self.0.deliver(notification, call).boxed_local()
    }

    fn state(&self) -> Option<Box<RawValue>> {
        self.0.rate_limits().state()
    }

    fn resume(&self, state: &RawValue) {
        self.0.rate_limits().resume(state);
    }

    fn start_typing(&self, session: Option<&str>) -> Option<Signal> {
        self.0.signal(session, TYPING_EVERY, |chat| Call {
            path: "/sendChatAction".to_owned(),
            body: Some(json!({"chat_id": chat, "action": "typing"})),
        })
    }
}

/// Reports whether a text is the number of a chat (negative for a group) or the `@NAME` of a public chat.
fn is_chat(text: &str) -> bool {
    let is_number = |text: &str| (1..=20).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
    let is_name = |name: &str| {
        (1..=32).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
    };
    is_number(text.strip_prefix('-').unwrap_or(text)) || text.strip_prefix('@').is_some_and(is_name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telegram_chat_is_number_or_name() {
        assert!(["42", "-1001234567890", "@some_channel"].into_iter().all(is_chat));
        assert!(!["", "-", "4 2", "@", "@a/b", "4711x", "--1"].into_iter().any(is_chat));
    }
}
