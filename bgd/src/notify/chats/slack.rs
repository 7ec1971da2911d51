//! The channel `slack`: Slack's web API, which has no typing indicator for bots.

use std::rc::Rc;

use futures_util::future::{FutureExt as _, LocalBoxFuture};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::bot::{Bot, Call, Service};
use super::http::{ChatResponse, DeliveryError, Http, Post};
use crate::channels::{BotSettings, Chat};
use crate::notice::{Style, escaped, fitting};
use crate::notify::adapter::{Adapter, Notification};
use crate::notify::outcomes::Outcomes;
use crate::notify::undelivered::Undelivered;

/// The maximum text length that Slack recommends, in characters. Slack truncates much longer texts.
const TEXT_CHARS: usize = 4000;

/// Escapes everything, so that nothing becomes a mention or a link.
const STYLE: Style = Style { words: escaped, result: escaped };

/// Transient errors that come with a successful HTTP status.
const PASSING: [&str; 7] = [
    "fatal_error",
    "internal_error",
    "rate_limited",
    "ratelimited",
    "request_timeout",
    "service_unavailable",
    "team_added_to_org",
];

pub const SERVICE: Service = Service {
    chat: Chat::Slack,
    is_chat,
    chats: "the ID of a channel, a direct message or a user, such as C024BE91L",
    user_agent: None,
    authorization: Some("Bearer"),
    judge,
};

pub struct Slack(Bot);

impl Slack {
    pub fn new(http: Rc<Http>, outcomes: &Outcomes, settings: &BotSettings) -> Self {
        Self(Bot::new(&SERVICE, http, outcomes, settings))
    }
}

impl Adapter for Slack {
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        let text = fitting(&notification.notice, STYLE, TEXT_CHARS, |text| text.chars().count());
        let call = move |chat: &str| {
            let body = json!({
                "channel": chat,
                "text": text,
                "mrkdwn": false,
                "parse": "none",
                "link_names": false,
                "unfurl_links": false,
                "unfurl_media": false,
            });
            Call { path: "/chat.postMessage".to_owned(), body: Some(body) }
        };
        self.0.deliver(notification, call).boxed_local()
    }

    fn state(&self) -> Option<Box<RawValue>> {
        self.0.rate_limits().state()
    }

    fn resume(&self, state: &RawValue) {
        self.0.rate_limits().resume(state);
    }
}

/// Reports whether a text is the ID of a conversation or a user.
fn is_chat(text: &str) -> bool {
    let is_number = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit();
    (2..=32).contains(&text.len())
        && text.starts_with(['C', 'D', 'G', 'U', 'W'])
        && text.bytes().all(is_number)
}

/// The body of a response.
#[derive(Deserialize)]
struct ApiResponse {
    ok: bool,
    error: Option<String>,
}

fn judge(post: &Post, answer: &ChatResponse) -> Result<(), DeliveryError> {
    let Ok(response) = serde_json::from_slice::<ApiResponse>(&answer.body) else {
        return Err(answer.unintelligible(post));
    };
    if response.ok && answer.status.is_success() {
        return Ok(());
    }
    let mut trouble = answer.refused(post, response.error.as_deref());
    trouble.is_transient |= response.error.is_some_and(|error| PASSING.contains(&error.as_str()));
    Err(trouble)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_chat_is_conversation_or_user_id() {
        assert!(["C024BE91L", "D024BE91L", "G012AC86C", "U024BE7LH", "W024BE7LH"].into_iter().all(is_chat));
        assert!(!["", "C", "X024BE91L", "c024be91l", "#general", "C024 BE", "foo"].into_iter().any(is_chat));
    }
}
