//! The channel `discord`: Discord's bot API.

use std::time::Duration;

use bgd_shared::notice::Notice;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::bot::{Call, Service, Typing};
use super::http::{ChatResponse, DeliveryError, Post};
use crate::channels::Chat;
use crate::notice::{Style, fitting};

/// The maximum content length of a message, in UTF-16 units. Discord's own count never exceeds this one.
const CONTENT_UNITS: usize = 2000;

/// Less than the ten seconds that Discord shows typing per call.
const TYPING_EVERY: Duration = Duration::from_millis(8500);

/// The flag `SUPPRESS_EMBEDS`: no link previews.
const NO_PREVIEWS: u32 = 1 << 2;

/// Characters that Discord's Markdown may interpret. A backslash escapes them.
const MARKDOWN: [char; 17] =
    ['\\', '*', '_', '~', '`', '|', '>', '<', '#', '-', '+', '[', ']', '(', ')', ':', '@'];

/// Prose is escaped; results are put into a code block.
const STYLE: Style = Style { words: escaped, result: quoted };

pub const SERVICE: Service = Service {
    chat: Chat::Discord,
    // Discord rejects requests without this form of user agent. It recommends a URL before the version, but the
    // project has none, and an invented one would belong to someone else.
    user_agent: Some(concat!("DiscordBot (bgd, ", env!("CARGO_PKG_VERSION"), ")")),
    authorization: Some("Bot"),
    message,
    typing: Some(Typing { every: TYPING_EVERY, call: typing }),
    judge,
};

fn message(notice: &Notice, chat: &str) -> Call {
    let body = json!({
        "content": fitting(notice, STYLE, CONTENT_UNITS, |text| text.encode_utf16().count()),
        "allowed_mentions": {"parse": []},
        "flags": NO_PREVIEWS,
        // If a request arrived but its response was lost, the retried message is not shown twice.
        "nonce": nonce(&notice.key),
        "enforce_nonce": true,
    });
    Call { path: format!("/channels/{chat}/messages"), body: Some(body) }
}

fn typing(chat: &str) -> Call {
    Call { path: format!("/channels/{chat}/typing"), body: None }
}

/// Escapes Markdown, mentions and links.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for (at, c) in text.char_indices() {
        // `1.` at the beginning of a line would start a list.
        let is_list = c == '.' && text[..at].ends_with(|c: char| c.is_ascii_digit());
        if is_list || MARKDOWN.contains(&c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Puts a text into a code block that the text can't close.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 16);
    quoted.push_str("```\n");
    let mut ticks = 0;
    for c in text.chars() {
        ticks = if c == '`' { ticks + 1 } else { 0 };
        // Three backticks in a row would end the block; separate them with a zero-width space.
        if ticks == 3 {
            quoted.push('\u{200b}');
            ticks = 1;
        }
        quoted.push(c);
    }
    quoted.push_str("\n```");
    quoted
}

/// Returns a hash of the notice's key, as a nonce may have at most 25 characters. The same in all versions of bgd: a
/// notice may be sent again after an upgrade.
fn nonce(key: &str) -> String {
    let digest = Sha256::digest(key);
    let first = digest.first_chunk::<8>().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(first))
}

/// The body of an error response.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    message: Option<String>,
    retry_after: Option<f64>,
    global: bool,
}

fn judge(post: &Post, answer: &ChatResponse) -> Result<(), DeliveryError> {
    if answer.status.is_success() {
        return Ok(());
    }
    let body: ErrorBody = serde_json::from_slice(&answer.body).unwrap_or_default();
    let mut trouble = answer.refused(post, body.message.as_deref());
    let wait = body.retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    if answer.status.as_u16() == 429 && wait.is_some() {
        trouble.wait = wait;
    }
    trouble.is_for_all = answer.is_for_all || body.global;
    Err(trouble)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_in_sentences_is_escaped() {
        let cases = [
            ("[a](http://b.c)", r"\[a\]\(http\://b.c\)"),
            ("@everyone <@42> <#1>", r"\@everyone \<\@42\> \<\#1\>"),
            ("`a` **b** __c__ ~~d~~ ||e||", r"\`a\` \*\*b\*\* \_\_c\_\_ \~\~d\~\~ \|\|e\|\|"),
            ("a\\\n> b\n- c\n1. d", "a\\\\\n\\> b\n\\- c\n1\\. d"),
            ("took 1 h; \"x\" and v.w!", "took 1 h; \"x\" and v.w!"),
        ];
        for (text, expected) in cases {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn result_cannot_close_its_code_block() {
        assert_eq!(quoted("a `b` ``c``"), "```\na `b` ``c``\n```");
        for ticks in 3..10 {
            let text = quoted(&format!("a\n{}\n@everyone", "`".repeat(ticks)));
            assert_eq!(text.matches("```").count(), 2, "{text}");
            assert_eq!(text.replace('\u{200b}', "").matches('`').count(), 6 + ticks);
        }
    }

    #[test]
    fn nonce_is_the_same_in_all_versions() {
        assert_eq!(nonce("abc"), "ba7816bf8f01cfea");
    }

    #[test]
    fn rate_limit_applies_to_one_route_unless_global() {
        let post = Post::new("http://x", reqwest::header::HeaderMap::new(), vec![], Duration::ZERO, vec![]);
        let post = post.ok().unwrap();
        let judged = |is_for_all, global| {
            let body = json!({"message": "slow down", "retry_after": 1.5, "global": global});
            let answer = ChatResponse {
                status: reqwest::StatusCode::TOO_MANY_REQUESTS,
                place: "http://x".to_owned(),
                wait: Some(Duration::from_secs(2)),
                is_for_all,
                body: body.to_string().into_bytes(),
            };
            let trouble = judge(&post, &answer).unwrap_err();
            assert_eq!(trouble.wait, Some(Duration::from_millis(1500)));
            trouble.is_for_all
        };
        assert!(!judged(false, false) && judged(true, false) && judged(false, true));
    }
}
