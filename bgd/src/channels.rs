//! The known channels, configured and built-in, and the choice of the channel that receives a task's notices
//! (R50). This module decides and describes; it delivers nothing.

mod chat;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::notice::NoticeKind;

pub use self::chat::{Chat, ChatDescriptor};
use crate::features::Feature;

/// The name that means "no channel".
pub const NONE: &str = "none";

/// The channel name of the parent session's inbox.
pub const INBOX: &str = "inbox";

/// The channel name of the terminal that a task was submitted from.
pub const TTY: &str = "tty";

/// Channels that exist without configuration.
pub const BUILT_IN: [&str; 3] = ["desktop", INBOX, TTY];

/// Key prefixes of parent sessions that `bgctl` detects in a terminal.
const TERMINALS: [&str; 3] = ["ssh", "tmux", "tty"];

/// Key prefix of the parent sessions that `bgctl console` creates for itself. A running console reports everything
/// itself.
const CONSOLE: &str = "console";

/// Key prefix of the parent sessions that `bgctl mcp` creates for itself. It reads the inbox.
const MCP: &str = "mcp";

/// A secret text; its `Debug` output hides the value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Where a bot's token comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// Given in the configuration.
    Given(Secret),
    /// A file, read for each delivery so that it can be replaced at any time.
    File(PathBuf),
}

/// The settings of a chat bot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BotSettings {
    /// The token that authenticates it.
    pub token: Token,
    /// The chat for tasks whose parent session names no chat.
    pub chat: Option<String>,
    /// The base URL of the API, without a trailing slash. It may contain a secret.
    pub api_base: Secret,
    /// The timeout of a request.
    pub timeout: Duration,
}

/// The type of a channel, with everything needed to deliver to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelKind {
    /// A command that receives each notice on standard input.
    Exec {
        /// The program with its arguments.
        command: Vec<String>,
        /// Variables added to the daemon's environment.
        env: BTreeMap<String, Secret>,
        timeout: Duration,
    },
    /// An HTTP POST for each notice.
    Webhook {
        /// May contain a secret.
        url: Secret,
        /// Additional request headers.
        headers: BTreeMap<String, Secret>,
        timeout: Duration,
    },
    Chat(Chat, BotSettings),
    /// Desktop notifications.
    Desktop,
    /// A line in the terminal that the task was submitted from.
    Tty,
    /// Only the inbox, which every parent session has anyway.
    Inbox,
}

impl ChannelKind {
    /// Returns the channel's `type` in the configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Exec { .. } => "exec",
            Self::Webhook { .. } => "webhook",
            Self::Chat(chat, _) => chat.as_str(),
            Self::Desktop => "desktop",
            Self::Tty => TTY,
            Self::Inbox => INBOX,
        }
    }

    /// Returns the end of a sentence about the feature that this build lacks to support the channel, if any.
    pub fn missing_feature(&self) -> Option<String> {
        match self {
            Self::Webhook { .. } | Self::Chat(..) => Feature::Chats.missing_feature(),
            Self::Desktop => Feature::Desktop.missing_feature(),
            Self::Exec { .. } | Self::Tty | Self::Inbox => None,
        }
    }

    pub fn is_bot(&self) -> bool {
        matches!(self, Self::Chat(..))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The name users refer to it by.
    pub name: Arc<str>,
    pub kind: ChannelKind,
    /// Whether the channel is notified when a task starts.
    pub started: bool,
}

impl Channel {
    /// Reports whether the channel delivers notices of this kind. The inbox gets its items in another way.
    pub fn wants(&self, kind: NoticeKind) -> bool {
        self.kind != ChannelKind::Inbox && (kind != NoticeKind::Started || self.started)
    }
}

/// All channels, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels {
    by_name: BTreeMap<Arc<str>, Arc<Channel>>,
    /// `default_deliver_to`, if set.
    default: Option<Vec<Arc<str>>>,
}

impl Default for Channels {
    fn default() -> Self {
        Self::new(Vec::new(), None)
    }
}

impl Channels {
    /// Combines the configured channels with the built-in ones that they do not override.
    pub fn new(configured: Vec<Channel>, default: Option<&[String]>) -> Self {
        // Submitters see for themselves that their task starts; a line or a bubble about that would be noise.
        let built_in = [ChannelKind::Desktop, ChannelKind::Inbox, ChannelKind::Tty].map(|kind| Channel {
            name: kind.as_str().into(),
            kind,
            started: false,
        });
        let by_name = built_in
            .into_iter()
            .chain(configured)
            .map(|channel| (Arc::clone(&channel.name), Arc::new(channel)))
            .collect();
        let default = default.map(|names| names.iter().map(|name| name.as_str().into()).collect());
        Self { by_name, default }
    }

    /// Reports whether nothing in the configuration mentions this channel: it is built-in, and not the first entry of
    /// `default_deliver_to`.
    pub fn is_unset(&self, name: &str) -> bool {
        let default = self.default.as_ref().and_then(|names| names.first());
        BUILT_IN.contains(&name) && default.is_none_or(|default| **default != *name)
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Channel>> {
        self.by_name.get(name)
    }

    /// Reports whether the channel of this name exists and has the same type as this one.
    pub fn has_type(&self, name: &str, kind: &ChannelKind) -> bool {
        self.get(name).is_some_and(|channel| channel.kind.as_str() == kind.as_str())
    }

    /// Returns all channels in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Channel>> {
        self.by_name.values()
    }

    /// Returns all names, comma-separated.
    pub fn names(&self) -> String {
        self.by_name.keys().map(|name| &**name).collect::<Vec<_>>().join(", ")
    }

    /// Reports whether the channel delivers to the submitter's desktop or terminal, and therefore needs its location.
    pub fn wants_place(&self, name: &str) -> bool {
        self.get(name).is_some_and(|channel| matches!(channel.kind, ChannelKind::Desktop | ChannelKind::Tty))
    }

    /// Reports whether the channel is the terminal that a task was submitted from.
    pub fn is_tty(&self, name: &str) -> bool {
        self.get(name).is_some_and(|channel| matches!(channel.kind, ChannelKind::Tty))
    }

    /// Chooses a task's channel (R50). The first match wins:
    ///
    /// 1. the named channel;
    /// 2. the channel that the parent session's key names;
    /// 3. the first entry of `default_deliver_to`;
    /// 4. for a terminal's key, if `default_deliver_to` is not set: that terminal;
    /// 5. for a console's key: `none`, as the console reports by itself;
    /// 6. for the key of `bgctl mcp`, which reads the inbox: the inbox;
    /// 7. no channel.
    ///
    /// # Errors
    /// The named channel is unknown or can't be used here.
    pub fn resolve(&self, named: Option<&str>, session: Option<&str>) -> Result<Option<Arc<str>>, RpcError> {
        if let Some(name) = named {
            return self.named(name, session).map(Some);
        }
        let family = session.and_then(|key| key.split_once(':')).map(|(family, _)| family);
        if let Some(channel) = family.and_then(|family| self.of_family(family)) {
            return Ok(Some(channel));
        }
        let default = match (&self.default, family) {
            (Some(default), _) => default.first().cloned(),
            (None, Some(family)) if TERMINALS.contains(&family) => Some(TTY.into()),
            (None, _) => None,
        };
        let default = default.or_else(|| match family {
            Some(CONSOLE) => Some(NONE.into()),
            Some(MCP) => Some(INBOX.into()),
            _ => None,
        });
        // An inbox needs a parent session.
        Ok(default.filter(|name| session.is_some() || !self.is_inbox(name)))
    }

    fn named(&self, name: &str, session: Option<&str>) -> Result<Arc<str>, RpcError> {
        if name == NONE {
            return Ok(NONE.into());
        }
        let Some(channel) = self.get(name) else {
            let message = format!("unknown channel {name:?}");
            return Err(RpcError::new(ErrorKind::InvalidParams, message).hint(format!(
                "known channels: {} and `{NONE}`; add others as [channels.NAME] in the configuration",
                self.names()
            )));
        };
        if let Some(missing) = channel.kind.missing_feature() {
            let message = format!("`channel` is {name:?}, which {missing}");
            return Err(RpcError::new(ErrorKind::InvalidParams, message));
        }
        if session.is_none() && self.is_inbox(name) {
            let message = format!("`channel` is {name:?}, but the task has no parent session");
            return Err(RpcError::new(ErrorKind::InvalidParams, message).hint(
                "an inbox belongs to a parent session: give `session` (bgctl --session, $BGD_SESSION)",
            ));
        }
        Ok(Arc::clone(&channel.name))
    }

    fn is_inbox(&self, name: &str) -> bool {
        self.get(name).is_some_and(|channel| channel.kind == ChannelKind::Inbox)
    }

    /// Returns the channel for parent sessions with this key prefix: the channel of that name, else the first of that
    /// type. The name of a chat is returned even if it is not configured, so that its absence is noticed instead of
    /// notices going to another channel.
    fn of_family(&self, family: &str) -> Option<Arc<str>> {
        if TERMINALS.contains(&family) {
            return None;
        }
        if let Some(channel) = self.get(family) {
            return Some(Arc::clone(&channel.name));
        }
        let of_type = self.iter().find(|channel| channel.kind.as_str() == family);
        let is_chat = Chat::named(family).is_some();
        of_type.map(|channel| Arc::clone(&channel.name)).or_else(|| is_chat.then(|| family.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bot() -> BotSettings {
        BotSettings {
            token: Token::Given(Secret("123:abc".into())),
            chat: None,
            api_base: Secret("http://127.0.0.1:1/b4se".into()),
            timeout: Duration::from_secs(1),
        }
    }

    fn channels(default: Option<&[&str]>) -> Channels {
        let configured = vec![
            Channel { name: "discord".into(), kind: ChannelKind::Chat(Chat::Discord, bot()), started: true },
            Channel { name: "family".into(), kind: ChannelKind::Chat(Chat::Telegram, bot()), started: true },
        ];
        let default: Option<Vec<String>> =
            default.map(|names| names.iter().map(ToString::to_string).collect());
        Channels::new(configured, default.as_deref())
    }

    /// Named channel, session key, `default_deliver_to`, and the expected channel.
    type Case<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a [&'a str]>, Option<&'a str>);

    /// Covers every case of the specification and combinations of them.
    #[test]
    fn r50_channel_is_resolved_by_name_session_and_default() {
        let cases: [Case<'_>; 25] = [
            // A named channel overrides everything.
            (Some("desktop"), Some("discord:4711"), Some(&["tty"]), Some("desktop")),
            (Some("family"), None, None, Some("family")),
            (Some("none"), Some("discord:4711"), Some(&["tty"]), Some("none")),
            (Some("inbox"), Some("mcp:9f2c"), None, Some("inbox")),
            // The parent session's key overrides the configuration.
            (None, Some("discord:4711"), Some(&["desktop"]), Some("discord")),
            (None, Some("discord:4711"), None, Some("discord")),
            (None, Some("telegram:42"), Some(&["desktop"]), Some("family")),
            (None, Some("family:42"), Some(&["desktop"]), Some("family")),
            (None, Some("slack:C1"), Some(&["desktop"]), Some("slack")),
            (None, Some("desktop:1"), None, Some("desktop")),
            // Neither decides: the first entry of `default_deliver_to`.
            (None, Some("mcp:9f2c"), Some(&["desktop", "discord"]), Some("desktop")),
            (None, None, Some(&["discord"]), Some("discord")),
            (None, Some("discord"), Some(&["desktop"]), Some("desktop")),
            (None, Some("tmux:%3"), Some(&["desktop"]), Some("desktop")),
            (None, Some("mcp:9f2c"), Some(&["inbox"]), Some("inbox")),
            // A terminal, without `default_deliver_to`.
            (None, Some("tmux:%3"), None, Some("tty")),
            (None, Some("ssh:10.0.0.1:5"), None, Some("tty")),
            // A console reports by itself.
            (None, Some("console:17"), Some(&["desktop"]), Some("desktop")),
            (None, Some("console:17"), Some(&[]), Some("none")),
            (None, Some("console:17"), None, Some("none")),
            // `bgctl mcp` reads the inbox.
            (None, Some("mcp:9f2c"), Some(&[]), Some("inbox")),
            (None, Some("mcp:9f2c"), None, Some("inbox")),
            // No channel.
            (None, Some("tty:/dev/pts/3"), Some(&[]), None),
            (None, None, Some(&["inbox"]), None),
            (None, None, None, None),
        ];
        for (named, session, default, expected) in cases {
            let channel = channels(default).resolve(named, session).unwrap();
            assert_eq!(channel.as_deref(), expected, "{named:?}, {session:?}, {default:?}");
        }
    }

    #[test]
    fn r50_unknown_channel_error_lists_the_known_ones() {
        let error = channels(None).resolve(Some("dicsord"), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidParams);
        assert!(error.message.contains("\"dicsord\""), "{error:?}");
        let hint = error.data.hint.unwrap();
        assert!(hint.contains("desktop, discord, family, inbox, tty and `none`"), "{hint}");
        let error = channels(None).resolve(Some("inbox"), None).unwrap_err();
        assert!(error.message.contains("no parent session"), "{error:?}");
    }

    #[test]
    fn debug_output_hides_channel_secrets() {
        let shown = format!("{:?}", channels(None));
        assert!(shown.contains("(secret)"), "{shown}");
        assert!(!shown.contains("123:abc") && !shown.contains("b4se"), "{shown}");
    }
}
