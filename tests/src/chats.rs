//! The chats' APIs as far as the channels use them, on a test server that accepts only documented requests. A request
//! that breaks a rule gets 400 and fails the test when the server is dropped.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::{Value, json};

use crate::hooks::{HookServer, Reply, Request};

/// A chat's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Telegram,
    /// Discord's API, version 10.
    Discord,
    Slack,
}

impl Api {
    /// Returns the type of its channels in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Telegram => "telegram",
            Self::Discord => "discord",
            Self::Slack => "slack",
        }
    }
}

/// A message or typing notice that a chat has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub chat: String,
    /// The text as displayed; `None` for a typing notice.
    pub text: Option<String>,
    /// The text as sent.
    pub sent: Option<String>,
    pub token: String,
}

/// A server of one chat API.
#[derive(Debug)]
pub struct ChatServer {
    /// The HTTP server underneath.
    pub server: HookServer,
    api: Api,
    broken: Arc<Mutex<Vec<String>>>,
}

impl ChatServer {
    #[track_caller]
    pub fn start(api: Api) -> Self {
        let broken = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&broken);
        let usual = move |request: &Request| match read(api, request) {
            Ok(message) => done(api, &message),
            Err(rule) => {
                noted.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{rule}: {request:?}"));
                Reply::json(400, &json!({"ok": false, "description": rule, "message": rule, "error": rule}))
            }
        };
        Self { server: HookServer::with(|request| !is_typing(request), usual), api, broken }
    }

    /// Returns the base URL, for `api_base`.
    pub fn base(&self) -> String {
        self.server.url("/base")
    }

    pub fn messages(&self) -> Vec<Message> {
        self.read(&self.server.requests())
    }

    fn read(&self, requests: &[Request]) -> Vec<Message> {
        requests.iter().filter_map(|request| read(self.api, request).ok()).collect()
    }

    /// Waits until `check` returns a value for the messages received so far.
    #[track_caller]
    pub fn wait_for<T>(&self, mut check: impl FnMut(&[Message]) -> Option<T>) -> T {
        self.server.wait_for(|requests| check(&self.read(requests)))
    }

    /// Waits for a message with these words in its text.
    #[track_caller]
    pub fn wait_text(&self, words: &str) -> Message {
        self.wait_for(|messages| {
            let is_it = |message: &&Message| message.text.as_ref().is_some_and(|text| text.contains(words));
            messages.iter().find(is_it).cloned()
        })
    }
}

impl Drop for ChatServer {
    fn drop(&mut self) {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(thread::panicking() || broken.is_empty(), "rules of the API are broken: {broken:#?}");
    }
}

fn is_typing(request: &Request) -> bool {
    request.path.ends_with("/typing") || request.path.ends_with("/sendChatAction")
}

/// Returns the answer to a valid request.
fn done(api: Api, message: &Message) -> Reply {
    match (api, &message.text) {
        (Api::Telegram, None) => Reply::json(200, &json!({"ok": true, "result": true})),
        (Api::Telegram, Some(text)) => {
            Reply::json(200, &json!({"ok": true, "result": {"message_id": 1, "date": 0, "text": text}}))
        }
        (Api::Discord, None) => Reply::Answer { status: 204, headers: Vec::new(), body: String::new() },
        (Api::Discord, Some(text)) => {
            Reply::json(200, &json!({"id": "1", "channel_id": message.chat, "content": text}))
        }
        (Api::Slack, _) => Reply::json(200, &json!({"ok": true, "channel": message.chat, "ts": "1.2"})),
    }
}

/// Parses a request, or returns the rule it breaks.
fn read(api: Api, request: &Request) -> Result<Message, &'static str> {
    let path = request.path.strip_prefix("/base/").ok_or("the base is not the configured one")?;
    if request.method != "POST" {
        return Err("the method is POST");
    }
    let header = |name: &str| request.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value);
    if !is_typing(request) || api == Api::Telegram {
        let kind = header("content-type").map_or("", String::as_str);
        if kind != "application/json" && kind != "application/json; charset=utf-8" {
            return Err("the content is JSON");
        }
    }
    let authorization = header("authorization").map_or("", String::as_str);
    match api {
        Api::Telegram => telegram(path, &body(request)?),
        Api::Discord => {
            let agent = header("user-agent").is_some_and(|agent| agent.starts_with("DiscordBot ("));
            let token = authorization.strip_prefix("Bot ").ok_or("Authorization is `Bot TOKEN`")?;
            if !agent {
                return Err("User-Agent is `DiscordBot (URL, VERSION)`");
            }
            discord(path, token, request)
        }
        Api::Slack => {
            let token = authorization.strip_prefix("Bearer ").ok_or("Authorization is `Bearer TOKEN`")?;
            slack(path, token, &body(request)?)
        }
    }
}

fn body(request: &Request) -> Result<Value, &'static str> {
    serde_json::from_slice(&request.body).map_err(|_| "the body is JSON")
}

/// Checks that an object has no keys but these.
fn has_only(body: &Value, keys: &[&str]) -> Result<(), &'static str> {
    let object = body.as_object().ok_or("the body is an object")?;
    let is_known = object.keys().all(|key| keys.contains(&key.as_str()));
    if is_known { Ok(()) } else { Err("the body has a key that is not known") }
}

fn text<'a>(body: &'a Value, key: &str) -> Result<&'a str, &'static str> {
    body[key].as_str().filter(|text| !text.trim().is_empty()).ok_or("a text is missing or empty")
}

fn telegram(path: &str, body: &Value) -> Result<Message, &'static str> {
    let (bot, method) = path.split_once('/').ok_or("the path is botTOKEN/METHOD")?;
    let token = bot.strip_prefix("bot").ok_or("the path is botTOKEN/METHOD")?.to_owned();
    let chat = text(body, "chat_id")?.to_owned();
    match method {
        "sendMessage" => {
            has_only(body, &["chat_id", "text", "link_preview_options"])?;
            let text = text(body, "text")?;
            if text.encode_utf16().count() > 4096 {
                return Err("a text has at most 4096 units of UTF-16");
            }
            has_only(&body["link_preview_options"], &["is_disabled"])?;
            Ok(Message { chat, text: Some(text.to_owned()), sent: Some(text.to_owned()), token })
        }
        "sendChatAction" if body["action"] == "typing" => {
            has_only(body, &["chat_id", "action"])?;
            Ok(Message { chat, text: None, sent: None, token })
        }
        _ => Err("the method is not known"),
    }
}

fn discord(path: &str, token: &str, request: &Request) -> Result<Message, &'static str> {
    let below = path.strip_prefix("channels/").ok_or("the path is channels/ID/…")?;
    let (chat, method) = below.split_once('/').ok_or("the path is channels/ID/…")?;
    if chat.is_empty() || !chat.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a channel is a number");
    }
    let (chat, token) = (chat.to_owned(), token.to_owned());
    match method {
        "typing" if request.body.is_empty() => Ok(Message { chat, text: None, sent: None, token }),
        "messages" => {
            let body = body(request)?;
            has_only(&body, &["content", "allowed_mentions", "flags", "nonce", "enforce_nonce"])?;
            let content = text(&body, "content")?;
            if content.chars().count() > 2000 {
                return Err("a content has at most 2000 characters");
            }
            if text(&body, "nonce")?.len() > 25 || !body["enforce_nonce"].is_boolean() {
                return Err("a nonce has at most 25 characters");
            }
            if body["allowed_mentions"] != json!({"parse": []}) || body["flags"] != 4 {
                return Err("nobody is to be mentioned, nothing to be previewed");
            }
            Ok(Message { chat, text: Some(shown(content)?), sent: Some(content.to_owned()), token })
        }
        _ => Err("the method is not known"),
    }
}

/// Returns a content as Discord displays it, if its only markdown is one code block.
fn shown(content: &str) -> Result<String, &'static str> {
    let parts: Vec<&str> = content.split("```").collect();
    match parts[..] {
        [whole] => unescaped(whole),
        [before, block, after] => {
            let block = block.strip_prefix('\n').and_then(|block| block.strip_suffix('\n'));
            Ok(unescaped(before)? + block.ok_or("a block has lines of its own")? + &unescaped(after)?)
        }
        _ => Err("there is one block of code, and it ends"),
    }
}

fn unescaped(text: &str) -> Result<String, &'static str> {
    let mut shown = String::new();
    let mut chars = text.chars();
    while let Some(letter) = chars.next() {
        match letter {
            '\\' => match chars.next() {
                Some(escaped) if escaped.is_ascii_punctuation() => shown.push(escaped),
                _ => return Err("only a sign can be escaped"),
            },
            letter if "*_~`|><#-+[]():@".contains(letter) => return Err("there is no markdown"),
            letter => shown.push(letter),
        }
    }
    Ok(shown)
}

fn slack(path: &str, token: &str, body: &Value) -> Result<Message, &'static str> {
    if path != "chat.postMessage" {
        return Err("the method is not known");
    }
    let off = ["mrkdwn", "link_names", "unfurl_links", "unfurl_media"];
    has_only(body, &[&off[..], &["channel", "text", "parse"]].concat())?;
    if off.iter().any(|key| body[*key] != false) || body["parse"] != "none" {
        return Err("nothing is to be made of the text");
    }
    let (chat, text) = (text(body, "channel")?.to_owned(), text(body, "text")?);
    if text.chars().count() > 4000 {
        return Err("a text has at most 4000 characters");
    }
    if text.contains(['<', '>']) {
        return Err("what is no mention and no link is escaped");
    }
    let sent = Some(text.to_owned());
    Ok(Message { chat, text: sent.clone(), sent, token: token.to_owned() })
}
