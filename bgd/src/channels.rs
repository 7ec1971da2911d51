//! The channels that the daemon knows: those of the configuration and the built-in ones, and which of them
//! news of a task goes to (R50). It decides and describes; it delivers nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};

use crate::features::Feature;

/// The name that stands for no channel.
pub const NONE: &str = "none";

/// The name of the inbox of the parent session as a channel.
pub const INBOX: &str = "inbox";

/// The name of the terminal that a task was submitted from.
pub const TTY: &str = "tty";

/// Channels that are there without configuration.
pub const BUILT_IN: [&str; 3] = ["desktop", INBOX, TTY];

/// What parent sessions of a chat begin with. They are types of channels, too.
const CHATS: [&str; 3] = ["discord", "slack", "telegram"];

/// What the keys of parent sessions begin with that `bgctl` finds in a terminal.
const TERMINALS: [&str; 3] = ["ssh", "tmux", "tty"];

/// What the keys of parent sessions begin with that `bgctl console` makes for itself. As long as it runs it
/// tells all there is to tell.
const CONSOLE: &str = "console";

/// What the keys of parent sessions begin with that `bgctl mcp` makes for itself: it reads the inbox.
const MCP: &str = "mcp";

/// A text that must not be seen: it is shown nowhere.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Where a bot's token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// In the configuration.
    Given(Secret),
    /// In a file, read with each delivery, so that it can be changed at any time.
    File(PathBuf),
}

/// A bot of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bot {
    /// By which it is known.
    pub token: Token,
    /// The chat that gets news of tasks whose parent session names none.
    pub chat: Option<String>,
    /// The beginning of the API's addresses, without a slash at its end. It may have a secret in it.
    pub api_base: Secret,
    /// How long a request may take.
    pub timeout: Duration,
}

/// What a channel is, with everything that it takes to deliver by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelKind {
    /// A command that gets each notice on standard input.
    Exec {
        /// The program with its arguments.
        command: Vec<String>,
        /// What is added to the daemon's environment.
        env: BTreeMap<String, Secret>,
        /// How long it may run.
        timeout: Duration,
    },
    /// A POST of each notice.
    Webhook {
        /// Where to. It may have a secret in it.
        url: Secret,
        /// What is sent along.
        headers: BTreeMap<String, Secret>,
        /// How long a request may take.
        timeout: Duration,
    },
    /// Telegram's bot API.
    Telegram(Bot),
    /// Discord's bot API.
    Discord(Bot),
    /// Slack's web API.
    Slack(Bot),
    /// Notifications of the desktop.
    Desktop,
    /// A line in the terminal that the task was submitted from.
    Tty,
    /// Nothing but the inbox, which every parent session has anyway.
    Inbox,
}

impl ChannelKind {
    /// Its `type` in the configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Exec { .. } => "exec",
            Self::Webhook { .. } => "webhook",
            Self::Telegram(_) => "telegram",
            Self::Discord(_) => "discord",
            Self::Slack(_) => "slack",
            Self::Desktop => "desktop",
            Self::Tty => TTY,
            Self::Inbox => INBOX,
        }
    }

    /// The end of a sentence about what this build lacks for it, if it lacks anything.
    pub fn lack(&self) -> Option<String> {
        match self {
            Self::Webhook { .. } | Self::Telegram(_) | Self::Discord(_) | Self::Slack(_) => {
                Feature::Chats.lack()
            }
            Self::Desktop => Feature::Desktop.lack(),
            Self::Exec { .. } | Self::Tty | Self::Inbox => None,
        }
    }

    /// Whether it is a bot of a chat.
    pub fn is_bot(&self) -> bool {
        matches!(self, Self::Telegram(_) | Self::Discord(_) | Self::Slack(_))
    }
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// What users call it.
    pub name: Arc<str>,
    /// What it is.
    pub kind: ChannelKind,
    /// Whether it is told when a task starts.
    pub started: bool,
}

/// All channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels {
    by_name: BTreeMap<Arc<str>, Arc<Channel>>,
    /// What `default_deliver_to` says, if it is there.
    default: Option<Vec<Arc<str>>>,
}

impl Default for Channels {
    fn default() -> Self {
        Self::new(Vec::new(), None)
    }
}

impl Channels {
    /// These, and the built-in ones that they do not replace.
    pub fn new(configured: Vec<Channel>, default: Option<&[String]>) -> Self {
        // Whoever submits sees by himself that it starts: a line or a bubble about that would only disturb.
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

    /// The channel of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Channel>> {
        self.by_name.get(name)
    }

    /// Every channel, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Channel>> {
        self.by_name.values()
    }

    /// All names in one line.
    pub fn names(&self) -> String {
        self.by_name.keys().map(|name| &**name).collect::<Vec<_>>().join(", ")
    }

    /// Whether a channel goes to where the submitter is.
    pub fn wants_place(&self, name: &str) -> bool {
        self.get(name).is_some_and(|channel| matches!(channel.kind, ChannelKind::Desktop | ChannelKind::Tty))
    }

    /// Whether a channel is the terminal that a task was submitted from.
    pub fn is_terminals(&self, name: &str) -> bool {
        self.get(name).is_some_and(|channel| matches!(channel.kind, ChannelKind::Tty))
    }

    /// R50: the channel that was named; else the one that the parent session's key names; else the first
    /// of `default_deliver_to`; else, if the key is that of a terminal and the configuration says nothing,
    /// that terminal; if it is that of a console, which tells by itself, nobody; if it is that of an agent's
    /// server, which reads the inbox, that; else none.
    ///
    /// # Errors
    /// The one that was named is not known, or can't be meant.
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
        // An inbox belongs to a parent session.
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
        if let Some(missing) = channel.kind.lack() {
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

    /// The channel for parent sessions whose key begins like this: the one of this name; else the first of
    /// this type. A chat that is not configured is named all the same, so that it is missed, and not
    /// another channel told in its place.
    fn of_family(&self, family: &str) -> Option<Arc<str>> {
        if TERMINALS.contains(&family) {
            return None;
        }
        if let Some(channel) = self.get(family) {
            return Some(Arc::clone(&channel.name));
        }
        let of_type = self.iter().find(|channel| channel.kind.as_str() == family);
        let is_chat = CHATS.contains(&family);
        of_type.map(|channel| Arc::clone(&channel.name)).or_else(|| is_chat.then(|| family.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bot() -> Bot {
        Bot {
            token: Token::Given(Secret("123:abc".into())),
            chat: None,
            api_base: Secret("http://127.0.0.1:1/b4se".into()),
            timeout: Duration::from_secs(1),
        }
    }

    fn channels(default: Option<&[&str]>) -> Channels {
        let configured = vec![
            Channel { name: "discord".into(), kind: ChannelKind::Discord(bot()), started: true },
            Channel { name: "family".into(), kind: ChannelKind::Telegram(bot()), started: true },
        ];
        let default: Option<Vec<String>> =
            default.map(|names| names.iter().map(ToString::to_string).collect());
        Channels::new(configured, default.as_deref())
    }

    /// Channel, session and default that are given, and the channel that is expected.
    type Case<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a [&'a str]>, Option<&'a str>);

    /// Every case of the source text, and what lies between them.
    #[test]
    fn r50_the_channel_of_a_task() {
        let cases: [Case<'_>; 25] = [
            // The one that was named wins over everything.
            (Some("desktop"), Some("discord:4711"), Some(&["tty"]), Some("desktop")),
            (Some("family"), None, None, Some("family")),
            (Some("none"), Some("discord:4711"), Some(&["tty"]), Some("none")),
            (Some("inbox"), Some("mcp:9f2c"), None, Some("inbox")),
            // The parent session's key wins over the configuration.
            (None, Some("discord:4711"), Some(&["desktop"]), Some("discord")),
            (None, Some("discord:4711"), None, Some("discord")),
            (None, Some("telegram:42"), Some(&["desktop"]), Some("family")),
            (None, Some("family:42"), Some(&["desktop"]), Some("family")),
            (None, Some("slack:C1"), Some(&["desktop"]), Some("slack")),
            (None, Some("desktop:1"), None, Some("desktop")),
            // Neither says anything: the first of the configuration.
            (None, Some("mcp:9f2c"), Some(&["desktop", "discord"]), Some("desktop")),
            (None, None, Some(&["discord"]), Some("discord")),
            (None, Some("discord"), Some(&["desktop"]), Some("desktop")),
            (None, Some("tmux:%3"), Some(&["desktop"]), Some("desktop")),
            (None, Some("mcp:9f2c"), Some(&["inbox"]), Some("inbox")),
            // A terminal, where the configuration says nothing.
            (None, Some("tmux:%3"), None, Some("tty")),
            (None, Some("ssh:10.0.0.1:5"), None, Some("tty")),
            // A console tells by itself.
            (None, Some("console:17"), Some(&["desktop"]), Some("desktop")),
            (None, Some("console:17"), Some(&[]), Some("none")),
            (None, Some("console:17"), None, Some("none")),
            // An agent's server reads the inbox.
            (None, Some("mcp:9f2c"), Some(&[]), Some("inbox")),
            (None, Some("mcp:9f2c"), None, Some("inbox")),
            // None.
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
    fn r50_a_channel_that_is_not_known_is_an_error_that_names_the_known_ones() {
        let error = channels(None).resolve(Some("dicsord"), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidParams);
        assert!(error.message.contains("\"dicsord\""), "{error:?}");
        let hint = error.data.hint.unwrap();
        assert!(hint.contains("desktop, discord, family, inbox, tty and `none`"), "{hint}");
        let error = channels(None).resolve(Some("inbox"), None).unwrap_err();
        assert!(error.message.contains("no parent session"), "{error:?}");
    }

    #[test]
    fn a_secret_is_not_shown() {
        let shown = format!("{:?}", channels(None));
        assert!(shown.contains("(secret)"), "{shown}");
        assert!(!shown.contains("123:abc") && !shown.contains("b4se"), "{shown}");
    }
}
