//! The `[channels]` part of the configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::agents::Fault;
use super::span::Span;
use crate::channels::{BotSettings, Channel, ChannelKind, Chat, ChatDescriptor, NONE, Secret, Token};

/// One `[channels.NAME]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelConfig {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<BTreeMap<String, Hidden>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<Hidden>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<BTreeMap<String, Hidden>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Hidden>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_base: Option<Hidden>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<bool>,
}

/// The keys of a channel, for suggestions on mistyped keys and for the documentation.
pub const KEYS: [&str; 12] = [
    "type",
    "command",
    "env",
    "url",
    "headers",
    "token",
    "token_file",
    "chat_id",
    "channel_id",
    "api_base",
    "timeout",
    "started",
];

/// A secret of the configuration, never shown. It serializes as a hash, which only serves comparisons.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
struct Hidden(String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Serialize for Hidden {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        serializer.collect_str(&format_args!("secret {:016x}", hasher.finish()))
    }
}

impl Hidden {
    fn secret(&self) -> Secret {
        Secret(self.0.clone())
    }
}

/// Headers that control request framing.
const FRAMING: [&str; 4] = ["connection", "content-length", "expect", "transfer-encoding"];

/// The maximum length of a channel name in bytes.
const NAME_BYTES: usize = 64;

/// Returns the channel types, each with the keys that it accepts besides `type` and `started`.
pub fn types() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let chats = Chat::ALL.map(|chat| {
        (chat.as_str(), vec!["token", "token_file", chat.descriptor().chat_key, "api_base", "timeout"])
    });
    [("exec", vec!["command", "env", "timeout"]), ("webhook", vec!["url", "headers", "timeout"])]
        .into_iter()
        .chain(chats)
        .chain(["desktop", "tty", "inbox"].map(|name| (name, Vec::new())))
}

impl ChannelConfig {
    /// Builds and checks the channel.
    ///
    /// # Errors
    /// A value is invalid; the fault names the key and the reason.
    pub fn channel(&self, name: &str) -> Result<Channel, Fault> {
        self.checked(name).map_err(|(key, what)| match key {
            "" => (format!("channels.{name}"), what),
            _ => (format!("channels.{name}.{key}"), what),
        })
    }

    fn checked(&self, name: &str) -> Result<Channel, (&'static str, String)> {
        let is_blank = |c: char| c.is_control() || c.is_whitespace();
        if name.is_empty() || name.len() > NAME_BYTES || name.contains(is_blank) || name == NONE {
            let what =
                format!("is not a valid channel name: use 1 to 64 bytes without blanks, and not {NONE:?}");
            return Err(("", what));
        }
        let kind = self.kind()?;
        if let Some(missing) = kind.missing_feature() {
            return Err(("type", format!("is {:?}, which {missing}", kind.as_str())));
        }
        let started = self
            .started
            .unwrap_or(!matches!(kind, ChannelKind::Desktop | ChannelKind::Tty | ChannelKind::Inbox));
        Ok(Channel { name: name.into(), kind, started })
    }

    fn kind(&self) -> Result<ChannelKind, (&'static str, String)> {
        let names = || types().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        let Some(kind) = self.kind.as_deref() else {
            return Err(("type", format!("is missing: use one of {}", names())));
        };
        let Some((_, takes)) = types().find(|(name, _)| *name == kind) else {
            return Err(("type", format!("is an unknown type, {kind:?}; it must be one of {}", names())));
        };
        for (key, given) in self.given() {
            if given && !takes.contains(&key) {
                let takes = if takes.is_empty() { "no more keys".to_owned() } else { takes.join(", ") };
                return Err((key, format!("is not allowed with type = {kind:?}, which takes {takes}")));
            }
        }
        if let Some(chat) = Chat::named(kind) {
            return Ok(ChannelKind::Chat(chat, self.bot(chat)?));
        }
        Ok(match kind {
            "exec" => self.exec()?,
            "webhook" => ChannelKind::Webhook {
                url: address("url", self.url.as_ref().map(|url| url.0.as_str()))?,
                headers: self.headers()?,
                timeout: self.timeout(10)?,
            },
            "desktop" => ChannelKind::Desktop,
            "tty" => ChannelKind::Tty,
            "inbox" => ChannelKind::Inbox,
            _ => return Err(("type", format!("is {kind:?}, which this bgd can't deliver to"))),
        })
    }

    /// Lists the keys that only some types accept, and whether each is set.
    fn given(&self) -> [(&'static str, bool); 10] {
        // Without `..`: a key that is missing here would be accepted with every type.
        let Self {
            kind: _,
            command,
            env,
            url,
            headers,
            token,
            token_file,
            chat_id,
            channel_id,
            api_base,
            timeout,
            started: _,
        } = self;
        [
            ("command", command.is_some()),
            ("env", env.is_some()),
            ("url", url.is_some()),
            ("headers", headers.is_some()),
            ("token", token.is_some()),
            ("token_file", token_file.is_some()),
            ("chat_id", chat_id.is_some()),
            ("channel_id", channel_id.is_some()),
            ("api_base", api_base.is_some()),
            ("timeout", timeout.is_some()),
        ]
    }

    fn exec(&self) -> Result<ChannelKind, (&'static str, String)> {
        let command = self.command.clone().unwrap_or_default();
        let program = command.first().map(String::as_str).unwrap_or_default();
        if program.is_empty() {
            let is = if self.command.is_some() { "empty" } else { "missing" };
            return Err(("command", format!("is {is}: give the program with its arguments")));
        }
        if program.contains('/') && !program.starts_with('/') {
            let what =
                format!("begins with {program:?}: use a program in PATH, or an absolute path without ~");
            return Err(("command", what));
        }
        if command.iter().any(|word| word.contains('\0')) {
            return Err(("command", "contains a NUL byte, which the system does not allow".to_owned()));
        }
        let env: BTreeMap<String, Secret> =
            self.env.iter().flatten().map(|(name, value)| (name.clone(), value.secret())).collect();
        for (name, Secret(value)) in &env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(("env", format!("sets {name:?}, which is not a valid variable name")));
            }
        }
        Ok(ChannelKind::Exec { command, env, timeout: self.timeout(30)? })
    }

    fn headers(&self) -> Result<BTreeMap<String, Secret>, (&'static str, String)> {
        let headers = self.headers.iter().flatten();
        headers
            .map(|(name, value)| {
                let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
                if name.is_empty() || !name.bytes().all(is_token) || value.0.contains(char::is_control) {
                    return Err(("headers", "has an invalid header name or value".to_owned()));
                }
                if FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
                    return Err(("headers", format!("has {name:?}, which bgd sets itself")));
                }
                Ok((name.clone(), value.secret()))
            })
            .collect()
    }

    fn bot(&self, service: Chat) -> Result<BotSettings, (&'static str, String)> {
        let ChatDescriptor { chat_key, api_base, is_chat, chats, has_chat_in_path, .. } =
            *service.descriptor();
        let given = [("chat_id", &self.chat_id), ("channel_id", &self.channel_id)];
        let chat = given.into_iter().find(|(key, _)| *key == chat_key).and_then(|(_, chat)| chat.as_deref());
        if has_chat_in_path && chat.is_some_and(|chat| !chat.is_empty() && !is_chat(chat)) {
            return Err((chat_key, format!("is not a chat: give {chats}, in quotes")));
        }
        let token = match (&self.token, &self.token_file) {
            (Some(token), None) if !token.0.trim().is_empty() => Token::Given(token.secret()),
            (None, Some(file)) => Token::File(file_path(file)?),
            (Some(_), Some(_)) => {
                return Err(("token", "and `token_file` can't be combined: give one of them".to_owned()));
            }
            (Some(_) | None, None) => {
                return Err(("token", "is missing: give it, or `token_file`".to_owned()));
            }
        };
        let given = self.api_base.as_ref().map_or(api_base, |base| base.0.as_str());
        let Secret(api_base) = address("api_base", Some(given))?;
        Ok(BotSettings {
            token,
            chat: chat.filter(|chat| !chat.is_empty()).map(str::to_owned),
            api_base: Secret(api_base.trim_end_matches('/').to_owned()),
            timeout: self.timeout(10)?,
        })
    }

    fn timeout(&self, default_secs: u64) -> Result<Duration, (&'static str, String)> {
        match self.timeout {
            None => Ok(Duration::from_secs(default_secs)),
            Some(Span(timeout)) if timeout.is_zero() || timeout > Duration::from_hours(1) => {
                Err(("timeout", "must be longer than 0 and at most 1h".to_owned()))
            }
            Some(Span(timeout)) => Ok(timeout),
        }
    }
}

/// Checks a URL. Errors do not show the URL, as it may contain a secret.
fn address(key: &'static str, url: Option<&str>) -> Result<Secret, (&'static str, String)> {
    let Some(url) = url.filter(|url| !url.is_empty()) else {
        return Err((key, "is missing: give the address to send to".to_owned()));
    };
    let is_address = url.starts_with("http://") || url.starts_with("https://");
    if !is_address || url.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err((key, "is not a URL: it must begin with https:// or http://".to_owned()));
    }
    match reqwest::Url::parse(url) {
        Ok(_) => Ok(Secret(url.to_owned())),
        Err(error) => Err((key, format!("is not a URL: {error}"))),
    }
}

impl ChannelConfig {
    /// Reports whether a value may be a secret.
    pub fn may_have_secret(&self) -> bool {
        let has_some = |values: &Option<BTreeMap<String, Hidden>>| {
            values.as_ref().is_some_and(|values| !values.is_empty())
        };
        self.token.is_some() || self.url.is_some() || has_some(&self.env) || has_some(&self.headers)
    }

    /// Returns the path of the file with the token, if there is one.
    pub fn path_of_token(&self) -> Option<PathBuf> {
        self.token_file.as_deref().and_then(|file| file_path(file).ok())
    }
}

/// Parses an absolute path; a leading `~/` is replaced by the home directory.
fn file_path(text: &str) -> Result<PathBuf, (&'static str, String)> {
    let path = match text.strip_prefix("~/") {
        Some(below) => bgd_shared::dirs::home().join(below),
        None => PathBuf::from(text),
    };
    if !Path::new(&path).is_absolute() {
        // The value is not shown: it may be the token itself.
        let what = "is not a file path: it must begin with / or ~/ (use `token` for the token itself)";
        return Err(("token_file", what.to_owned()));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(text: &str) -> Result<Channel, Fault> {
        toml::from_str::<ChannelConfig>(text).unwrap().channel("c")
    }

    #[test]
    fn each_channel_type_takes_its_keys_and_defaults() {
        let exec = channel("type = \"exec\"\ncommand = [\"notify-me\"]\ntimeout = \"5s\"").unwrap();
        assert!(exec.started);
        assert!(matches!(&exec.kind, ChannelKind::Exec { command, timeout, .. }
            if command == &["notify-me"] && *timeout == Duration::from_secs(5)));
        // An empty id means none.
        let discord = channel("type = \"discord\"\ntoken = \"a\"\nchannel_id = \"\"").unwrap();
        assert!(matches!(&discord.kind, ChannelKind::Chat(Chat::Discord, bot) if bot.chat.is_none()));
        let telegram = channel("type = \"telegram\"\ntoken_file = \"/t\"\nchat_id = \"42\"").unwrap();
        let ChannelKind::Chat(Chat::Telegram, bot) = telegram.kind else { panic!("{telegram:?}") };
        assert_eq!(bot.api_base.0, "https://api.telegram.org");
        assert_eq!((bot.chat.as_deref(), bot.token), (Some("42"), Token::File("/t".into())));
        assert!(!channel("type = \"tty\"").unwrap().started);
        assert!(channel("type = \"desktop\"\nstarted = true").unwrap().started);
    }

    #[test]
    fn each_channel_type_is_built_as_its_kind() {
        for (name, takes) in types() {
            let keys = takes.into_iter().map(|key| match key {
                "command" => "command = [\"notify-me\"]\n",
                "url" => "url = \"http://localhost\"\n",
                "token" => "token = \"a\"\n",
                _ => "",
            });
            let built = channel(&format!("type = {name:?}\n{}", keys.collect::<String>())).unwrap();
            assert_eq!(built.kind.as_str(), name);
        }
        for chat in Chat::ALL {
            assert!(KEYS.contains(&chat.descriptor().chat_key), "{chat:?}");
        }
    }

    #[test]
    fn each_key_is_of_all_types_or_checked_against_them() {
        let given = ChannelConfig::default().given();
        let keys = ["type"].into_iter().chain(given.into_iter().map(|(key, _)| key)).chain(["started"]);
        assert!(keys.eq(KEYS));
    }

    #[test]
    fn invalid_channel_keys_are_named() {
        let cases = [
            ("", "channels.c.type", "is missing"),
            ("type = \"mail\"", "channels.c.type", "one of exec, webhook"),
            ("type = \"exec\"", "channels.c.command", "is missing"),
            ("type = \"exec\"\ncommand = []", "channels.c.command", "is empty"),
            ("type = \"exec\"\ncommand = [\"\"]", "channels.c.command", "is empty"),
            ("type = \"exec\"\ncommand = [\"./x\"]", "channels.c.command", "absolute"),
            (
                "type = \"exec\"\ncommand = [\"x\"]\nurl = \"http://x\"",
                "channels.c.url",
                "is not allowed with",
            ),
            ("type = \"webhook\"", "channels.c.url", "is missing"),
            ("type = \"webhook\"\nurl = \"ftp://x\"", "channels.c.url", "not a URL"),
            ("type = \"webhook\"\nurl = \"http://x\"\ntimeout = \"0s\"", "channels.c.timeout", "longer"),
            ("type = \"webhook\"\nurl = \"http://:x\"", "channels.c.url", "not a URL"),
            (
                "type = \"webhook\"\nurl = \"http://x\"\nheaders = { Content-Length = \"1\" }",
                "channels.c.headers",
                "bgd sets itself",
            ),
            ("type = \"discord\"\nchannel_id = \"1\"", "channels.c.token", "is missing"),
            ("type = \"discord\"\ntoken = \"a\"\nchannel_id = \"1/../2\"", "channels.c.channel_id", "number"),
            (
                "type = \"discord\"\ntoken = \"a\"\nchannel_id = \"123456789012345678901\"",
                "channels.c.channel_id",
                "number",
            ),
            (
                "type = \"discord\"\ntoken = \"a\"\nchat_id = \"1\"",
                "channels.c.chat_id",
                "is not allowed with",
            ),
            ("type = \"slack\"\ntoken = \"a\"\ntoken_file = \"/b\"", "channels.c.token", "can't be combined"),
            ("type = \"slack\"\ntoken_file = \"b\"", "channels.c.token_file", "must begin with / or ~/"),
            ("type = \"tty\"\ntimeout = \"1s\"", "channels.c.timeout", "no more keys"),
        ];
        for (text, key, what) in cases {
            let (named, why) = channel(text).unwrap_err();
            assert_eq!(named, key, "{text}");
            assert!(why.contains(what), "{text}: {why}");
        }
        let none: ChannelConfig = toml::from_str("type = \"tty\"").unwrap();
        assert!(none.channel("none").is_err());
    }

    #[test]
    fn changed_secret_is_detected_without_being_shown() {
        let of = |token: &str| -> ChannelConfig {
            toml::from_str(&format!("type = \"slack\"\ntoken = \"{token}\"")).unwrap()
        };
        let (one, other) = (toml::to_string(&of("xoxb-1")).unwrap(), toml::to_string(&of("xoxb-2")).unwrap());
        assert_ne!(one, other);
        assert!(!one.contains("xoxb") && !format!("{:?}", of("xoxb-1")).contains("xoxb"));
    }
}
