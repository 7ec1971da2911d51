//! The channels that speak HTTPS: the bots of chats, and webhooks. Which of them there are is for the configuration.

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
pub use self::settings::look_at;
use self::slack::Slack;
use self::telegram::Telegram;
use self::webhook::Webhook;
use crate::channels::ChannelKind;
use crate::notify::{Adapter, Outcomes};

/// What all of these channels share.
#[derive(Debug, Default)]
pub struct Chats {
    http: Rc<Http>,
}

impl Chats {
    /// The adapter to a channel. `None` if it is none of these.
    pub fn adapter(&self, outcomes: &Outcomes) -> Option<Rc<dyn Adapter>> {
        let http = Rc::clone(&self.http);
        Some(match &outcomes.channel.kind {
            ChannelKind::Webhook { url, headers, timeout } => {
                Rc::new(Webhook::new(http, outcomes, (url, headers), *timeout))
            }
            ChannelKind::Telegram(bot) => Rc::new(Telegram::new(http, outcomes, bot)),
            ChannelKind::Discord(bot) => Rc::new(Discord::new(http, outcomes, bot)),
            ChannelKind::Slack(bot) => Rc::new(Slack::new(http, outcomes, bot)),
            ChannelKind::Exec { .. } | ChannelKind::Desktop | ChannelKind::Tty | ChannelKind::Inbox => {
                return None;
            }
        })
    }
}
