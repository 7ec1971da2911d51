//! The chat services that bots post to: what the daemon must know of each, even in builds without `chats`. How to call
//! their APIs is in `notify/chats`.

/// A chat service that bots post to. Its name is a channel type, and the prefix of the parent sessions in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chat {
    /// Telegram's bot API.
    Telegram,
    /// Discord's bot API.
    Discord,
    /// Slack's web API.
    Slack,
}

/// The facts of a chat service.
#[derive(Debug)]
pub struct ChatDescriptor {
    /// The service's `type` in the configuration.
    pub name: &'static str,
    /// The configuration key that names a chat.
    pub chat_key: &'static str,
    /// The default `api_base`.
    pub api_base: &'static str,
    /// Whether a bot can show a typing indicator (R53).
    pub shows_typing: bool,
    /// Reports whether a text looks like the ID of a chat.
    pub is_chat: fn(&str) -> bool,
    /// The format of its chat IDs, for error messages.
    pub chats: &'static str,
    /// Whether the path of a request has the chat's ID. Anything but an ID could then call something else of the API,
    /// so the configured chat is checked, too.
    pub has_chat_in_path: bool,
}

const TELEGRAM: ChatDescriptor = ChatDescriptor {
    name: "telegram",
    chat_key: "chat_id",
    api_base: "https://api.telegram.org",
    shows_typing: true,
    is_chat: is_telegram_chat,
    chats: "the number of a chat, or the @NAME of a public one",
    has_chat_in_path: false,
};

const DISCORD: ChatDescriptor = ChatDescriptor {
    name: "discord",
    chat_key: "channel_id",
    api_base: "https://discord.com/api/v10",
    shows_typing: true,
    is_chat: is_number,
    chats: "the number of a channel",
    has_chat_in_path: true,
};

const SLACK: ChatDescriptor = ChatDescriptor {
    name: "slack",
    chat_key: "channel_id",
    api_base: "https://slack.com/api",
    shows_typing: false,
    is_chat: is_slack_chat,
    chats: "the ID of a channel, a direct message or a user, such as C024BE91L",
    has_chat_in_path: false,
};

impl Chat {
    /// All services, in the order in which they are listed to users.
    pub const ALL: [Self; 3] = [Self::Telegram, Self::Discord, Self::Slack];

    pub const fn descriptor(self) -> &'static ChatDescriptor {
        match self {
            Self::Telegram => &TELEGRAM,
            Self::Discord => &DISCORD,
            Self::Slack => &SLACK,
        }
    }

    /// Returns the service's `type` in the configuration.
    pub const fn as_str(self) -> &'static str {
        self.descriptor().name
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|chat| chat.as_str() == name)
    }
}

/// Reports whether a text is a number of the length that IDs have.
fn is_number(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit())
}

/// Reports whether a text is the number of a chat (negative for a group) or the `@NAME` of a public chat.
fn is_telegram_chat(text: &str) -> bool {
    let is_name = |name: &str| {
        (1..=32).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
    };
    is_number(text.strip_prefix('-').unwrap_or(text)) || text.strip_prefix('@').is_some_and(is_name)
}

/// Reports whether a text is the ID of a conversation or a user.
fn is_slack_chat(text: &str) -> bool {
    (2..=32).contains(&text.len())
        && text.starts_with(['C', 'D', 'G', 'U', 'W'])
        && text.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telegram_chat_is_number_or_name() {
        let is_chat = Chat::Telegram.descriptor().is_chat;
        assert!(["42", "-1001234567890", "@some_channel"].into_iter().all(is_chat));
        assert!(!["", "-", "4 2", "@", "@a/b", "4711x", "--1"].into_iter().any(is_chat));
    }

    #[test]
    fn discord_chat_is_number() {
        let is_chat = Chat::Discord.descriptor().is_chat;
        assert!(["1", "42", "1234567890", &"9".repeat(20)].into_iter().all(is_chat));
        assert!(!["", "-1", "4 2", "1/../2", "@name", "٤٢", &"9".repeat(21)].into_iter().any(is_chat));
    }

    #[test]
    fn slack_chat_is_conversation_or_user_id() {
        let is_chat = Chat::Slack.descriptor().is_chat;
        assert!(["C024BE91L", "D024BE91L", "G012AC86C", "U024BE7LH", "W024BE7LH"].into_iter().all(is_chat));
        assert!(!["", "C", "X024BE91L", "c024be91l", "#general", "C024 BE", "foo"].into_iter().any(is_chat));
    }
}
