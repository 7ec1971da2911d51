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

use self::bot::{ChatBot, Service};
use self::http::Http;
pub use self::settings::{TokenFiles, check_settings};
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
            ChannelKind::Chat(chat, settings) => {
                Rc::new(ChatBot::new(service(*chat), http, outcomes, settings))
            }
            ChannelKind::Exec { .. } | ChannelKind::Desktop | ChannelKind::Tty | ChannelKind::Inbox => {
                return None;
            }
        })
    }
}

/// Returns how to call the API of a chat service.
const fn service(chat: Chat) -> &'static Service {
    match chat {
        Chat::Telegram => &telegram::SERVICE,
        Chat::Discord => &discord::SERVICE,
        Chat::Slack => &slack::SERVICE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_the_one_that_its_descriptor_describes() {
        for chat in Chat::ALL {
            assert_eq!(service(chat).chat, chat);
            assert_eq!(service(chat).typing.is_some(), chat.descriptor().shows_typing, "{chat:?}");
        }
    }
}
