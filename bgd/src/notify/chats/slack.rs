//! The channel `slack`: Slack's web API, which has no typing indicator for bots.

use bgd_shared::notice::Notice;
use serde::Deserialize;
use serde_json::json;

use super::bot::{Call, Service};
use super::http::{ChatResponse, DeliveryError, Post};
use crate::channels::Chat;
use crate::notice::{Style, escaped, fitting};

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
    user_agent: None,
    authorization: Some("Bearer"),
    message,
    typing: None,
    judge,
};

fn message(notice: &Notice, chat: &str) -> Call {
    let body = json!({
        "channel": chat,
        "text": fitting(notice, STYLE, TEXT_CHARS, |text| text.chars().count()),
        "mrkdwn": false,
        "parse": "none",
        "link_names": false,
        "unfurl_links": false,
        "unfurl_media": false,
    });
    Call { path: "/chat.postMessage".to_owned(), body: Some(body) }
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
