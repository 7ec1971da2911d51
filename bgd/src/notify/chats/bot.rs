//! Common parts of the chat bots: the token, the choice of the chat for a notice, and API requests.

use std::cell::Cell;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::notice::Notice;
use bgd_shared::small_file;
use futures_util::future::{FutureExt as _, LocalBoxFuture};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::http::{ChatResponse, DeliveryError, Http, Post};
use super::retry::{self, RateLimits};
use crate::channels::{BotSettings, Chat, ChatDescriptor, Secret, Token};
use crate::notice::one_line;
use crate::notify::adapter::{Adapter, Notification, Signal};
use crate::notify::counts::Counts;
use crate::notify::one_at_a_time::OneAtATime;
use crate::notify::outcomes::Outcomes;
use crate::notify::undelivered::Undelivered;

/// The maximum size of a token file. A larger file is not a token file.
const TOKEN_BYTES: u64 = 4096;

/// The specifics of a chat service.
pub struct Service {
    pub chat: Chat,
    /// The user agent that the service requires; `None` for the default one.
    pub user_agent: Option<&'static str>,
    /// The scheme of the `Authorization` header; `None` if the token is part of the URL.
    pub authorization: Option<&'static str>,
    /// Builds the call that posts a notice to a chat.
    pub message: fn(&Notice, &str) -> Call,
    /// How a bot shows typing; `None` if it can't.
    pub typing: Option<Typing>,
    /// Interprets a response.
    pub judge: fn(&Post, &ChatResponse) -> Result<(), DeliveryError>,
}

/// How a service shows that a bot is typing.
#[derive(Clone, Copy)]
pub struct Typing {
    /// How often to repeat the call.
    pub every: Duration,
    /// Builds the call for a chat.
    pub call: fn(&str) -> Call,
}

/// The adapter of a chat bot.
pub struct ChatBot(Rc<Bot>);

impl ChatBot {
    pub fn new(
        service: &'static Service,
        http: Rc<Http>,
        outcomes: &Outcomes,
        settings: &BotSettings,
    ) -> Self {
        Self(Rc::new(Bot::new(service, http, outcomes, settings)))
    }
}

impl Adapter for ChatBot {
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        self.0.deliver(notification).boxed_local()
    }

    fn state(&self) -> Option<Box<RawValue>> {
        self.0.rate_limits.state()
    }

    fn resume(&self, state: &RawValue) {
        self.0.rate_limits.resume(state);
    }

    fn start_typing(&self, session: Option<&str>) -> Option<Signal> {
        self.0.start_typing(session)
    }
}

pub struct Call {
    /// The path below the API's base URL; below the token, if that is part of the URL.
    pub path: String,
    pub body: Option<Value>,
}

impl Call {
    /// Returns the key of the rate limit that applies: method and chat. Typing and messages have separate limits.
    fn route(&self, chat: &str) -> String {
        format!("{} {chat}", self.path)
    }
}

struct Bot {
    service: &'static Service,
    http: Rc<Http>,
    channel: Rc<str>,
    settings: BotSettings,
    rate_limits: RateLimits,
    counts: Arc<Counts>,
    /// Whether the warning about a token readable by others has been logged.
    has_warned: Cell<bool>,
    /// Reads the token file, which may be on a file system that hangs.
    reading: OneAtATime,
}

impl Bot {
    fn new(service: &'static Service, http: Rc<Http>, outcomes: &Outcomes, settings: &BotSettings) -> Self {
        Self {
            service,
            http,
            channel: (&*outcomes.channel.name).into(),
            settings: settings.clone(),
            rate_limits: RateLimits::default(),
            counts: Arc::clone(&outcomes.counts),
            has_warned: Cell::new(false),
            reading: OneAtATime::default(),
        }
    }

    /// Returns the chat for a parent session: the one named in its key, as in `telegram:42`, else the configured one.
    /// If the key's prefix is the channel's name and not the service's, the rest need not be a chat.
    ///
    /// # Errors
    /// No chat is known, or the key names something that can't be a chat. In the latter case the configured chat is not
    /// used, as the message is meant for someone else.
    fn chat(&self, session: Option<&str>) -> Result<String, Undelivered> {
        let ChatDescriptor { name, chat_key, is_chat, chats, .. } = *self.service.chat.descriptor();
        let (family, id) = session.and_then(|key| key.split_once(':')).unwrap_or_default();
        let is_of_service = family == name;
        if (is_of_service || family == &*self.channel) && is_chat(id) {
            return Ok(id.to_owned());
        }
        if is_of_service {
            let id = one_line(id);
            return Err(Undelivered(format!(
                "its parent session {name}:{id} is not a chat: the colon must be followed by {chats}"
            )));
        }
        self.settings.chat.clone().ok_or_else(|| {
            Undelivered(format!(
                "no chat is known for it: set `{chat_key}` in [channels.{}], or submit with a parent session such as {name}:ID",
                self.channel
            ))
        })
    }

    /// Posts a notice to its chat, with retries where they make sense.
    async fn deliver(&self, notification: &Notification) -> Result<(), Undelivered> {
        let Notification { notice, progress, .. } = notification;
        let chat = self.chat(notice.task.session.as_deref())?;
        let call = (self.service.message)(notice, &chat);
        let route = call.route(&chat);
        retry::deliver(&self.rate_limits, &route, progress, async || self.call(&call).await).await
    }

    async fn call(&self, call: &Call) -> Result<(), DeliveryError> {
        let token = self.token().await?;
        let post = self.post(call, &token)?;
        let answer = self.http.post(&post).await?;
        (self.service.judge)(&post, &answer)
    }

    fn post(&self, call: &Call, token: &str) -> Result<Post, DeliveryError> {
        let no_header = |_| DeliveryError::lasting("its token can't be sent in a header");
        let BotSettings { api_base, timeout, .. } = &self.settings;
        let mut headers = HeaderMap::new();
        if let Some(agent) = self.service.user_agent {
            headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        }
        let body = call.body.as_ref().map(|body| body.to_string().into_bytes()).unwrap_or_default();
        if call.body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
        }
        let Secret(api_base) = api_base;
        let url = match self.service.authorization {
            None => format!("{api_base}/bot{token}{}", call.path),
            Some(scheme) => {
                let mut value = HeaderValue::try_from(format!("{scheme} {token}")).map_err(no_header)?;
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
                format!("{api_base}{}", call.path)
            }
        };
        Post::new(&url, headers, body, *timeout, vec![token.to_owned()])
    }

    /// Returns a signal that shows typing in a chat until it is dropped; `None` if no chat is known, or the service has
    /// no typing indicator.
    fn start_typing(self: &Rc<Self>, session: Option<&str>) -> Option<Signal> {
        let Typing { every, call } = self.service.typing?;
        let chat = self.chat(session).ok()?;
        let (bot, call) = (Rc::clone(self), call(&chat));
        let route = call.route(&chat);
        let shown = async move {
            loop {
                bot.rate_limits.until_allowed(&route).await;
                if let Err(trouble) = bot.call(&call).await {
                    tracing::debug!(channel = %bot.channel, why = %trouble.why, "typing is not shown");
                    bot.rate_limits.record_wait(&route, &trouble);
                    if !trouble.is_transient {
                        return;
                    }
                }
                sleep(every).await;
            }
        };
        Some(Signal { chat, shown: Box::pin(shown) })
    }

    /// Returns the current token, reading the token file if there is one.
    async fn token(&self) -> Result<String, DeliveryError> {
        let path = match &self.settings.token {
            Token::Given(Secret(token)) => {
                return match unusable(token, "the configured token") {
                    None => Ok(token.trim().to_owned()),
                    Some(what) => Err(DeliveryError::lasting(what)),
                };
            }
            Token::File(path) => path,
        };
        let timeout = self.settings.timeout;
        let file = path.clone();
        let read = self.reading.run(move || read_token(&file));
        let read = tokio::time::timeout(timeout, read).await.map_err(|_| {
            let (shown, timeout) = (path.display(), humantime::format_duration(timeout));
            DeliveryError::passing(format!(
                "its token can't be read from {shown} (token_file) within {timeout}"
            ))
        })?;
        self.counts.token_checked(path, read.as_ref().err().map(String::as_str));
        let (token, is_open) = read.map_err(DeliveryError::lasting)?;
        if is_open && !self.has_warned.replace(true) {
            let shown = path.display();
            tracing::warn!(channel = %self.channel, "other users can read the token in {shown}: run chmod 600 \
                 {shown}");
        }
        Ok(token)
    }
}

/// Reads a token from a file. Returns it and whether users other than the owner may access the file. Fails if there is
/// no usable token; the error says what to do.
pub fn read_token(path: &Path) -> Result<(String, bool), String> {
    let shown = path.display();
    let (token, is_open) = read_line(path).map_err(|error| {
        format!("its token can't be read from {shown} (token_file): {error}; write the bot's token there")
    })?;
    match unusable(&token, &format!("the token in {shown}")) {
        None => Ok((token, is_open)),
        Some(what) => Err(what),
    }
}

/// Returns why a token is unusable, or `None` if it is fine; `place` names its origin for the message.
pub fn unusable(token: &str, place: &str) -> Option<String> {
    let token = token.trim();
    if token.is_empty() {
        return Some(format!("{place} is empty: write the bot's token there"));
    }
    // In a URL, other characters could change where it points.
    let is_token = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte));
    (!is_token).then(|| format!("{place} is not a token: it has invalid characters, or more than one line"))
}

/// Returns a file's trimmed text, and whether users other than the owner may access it.
fn read_line(path: &Path) -> io::Result<(String, bool)> {
    let (text, meta) = small_file::read(path, TOKEN_BYTES)?;
    Ok((text.trim().to_owned(), meta.mode() & 0o077 != 0))
}
