//! The channels that use HTTPS: chat bots and webhooks. The configuration decides which of them exist.

mod bot;
mod discord;
mod http;
mod retry;
mod settings;
mod slack;
mod telegram;
mod webhook;

use std::rc::Rc;

use self::discord::Discord;
use self::http::Http;
pub use self::settings::{TokenFiles, check_settings};
use self::slack::Slack;
use self::telegram::Telegram;
use self::webhook::Webhook;
use crate::channels::{ChannelKind, Chat};
use crate::notify::adapter::Adapter;
use crate::notify::outcomes::Outcomes;

/// State shared by the HTTPS channels.
#[derive(Debug, Default)]
pub struct Chats {
    http: Rc<Http>,
}

impl Chats {
    /// Creates the adapter of a channel. `None` if the channel does not use HTTPS.
    pub fn adapter(&self, outcomes: &Outcomes) -> Option<Rc<dyn Adapter>> {
        let http = Rc::clone(&self.http);
        Some(match &outcomes.channel.kind {
            ChannelKind::Webhook { url, headers, timeout } => {
                Rc::new(Webhook::new(http, (url, headers), *timeout))
            }
            ChannelKind::Chat(Chat::Discord, bot) => Rc::new(Discord::new(http, outcomes, bot)),
            ChannelKind::Chat(Chat::Slack, bot) => Rc::new(Slack::new(http, outcomes, bot)),
            ChannelKind::Chat(Chat::Telegram, bot) => Rc::new(Telegram::new(http, outcomes, bot)),
            ChannelKind::Exec { .. } | ChannelKind::Desktop | ChannelKind::Tty | ChannelKind::Inbox => {
                return None;
            }
        })
    }
}
