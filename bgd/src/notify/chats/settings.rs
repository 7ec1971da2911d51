//! Reports problems with the bots' settings when the configuration is read rather than with the first notice. It only
//! reports: such a channel still exists, as the token can be written at any time and a parent session can name the
//! chat.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use bgd_shared::mutex::Mutex;

use super::bot;
use crate::channels::{BotSettings, Channel, ChannelKind, Chat, ChatDescriptor, Secret, Token};
use crate::notify::counts::Counts;

/// Enough stack to read a file of a few lines.
const STACK_BYTES: usize = 64 * 1024;

/// A channel whose token is in a file.
type OfFile = (Arc<Channel>, Arc<Counts>, PathBuf);

/// The token files to be read. A single thread reads them, however often the configuration is read again, as a file may
/// be on a file system that hangs. A new configuration replaces the files that are still unread.
#[derive(Clone, Debug, Default)]
pub struct TokenFiles(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    /// Read from the end.
    unread: Vec<OfFile>,
    has_reader: bool,
}

impl TokenFiles {
    /// Returns the next file to read; `None` if there is none, and the reader must end.
    fn next(&self) -> Option<OfFile> {
        let mut files = self.0.lock();
        let next = files.unread.pop();
        files.has_reader = next.is_some();
        next
    }

    /// Replaces the unread files. Returns whether a reader must be started.
    fn replace(&self, unread: Vec<OfFile>) -> bool {
        let mut files = self.0.lock();
        files.unread = unread;
        files.unread.reverse();
        !files.unread.is_empty() && !std::mem::replace(&mut files.has_reader, true)
    }
}

/// Checks channels and records the results. Token files are read on a separate thread.
pub fn check_settings(channels: Vec<(Arc<Channel>, Arc<Counts>)>, token_files: &TokenFiles) {
    let mut files = Vec::new();
    for (channel, counts) in channels {
        let ChannelKind::Chat(service, bot) = &channel.kind else {
            counts.configured(None, None);
            continue;
        };
        let (given, file) = match &bot.token {
            Token::Given(Secret(token)) => (bot::unusable(token, "the configured token"), None),
            Token::File(path) => (None, Some(path.clone())),
        };
        let wrong: Vec<String> =
            without_chat(*service, bot, &channel.name).into_iter().chain(given).collect();
        let wrong = (!wrong.is_empty()).then(|| wrong.join("; "));
        if let Some(what) = &wrong {
            warn(&channel.name, what);
        }
        counts.configured(wrong, file.as_deref());
        files.extend(file.map(|file| (channel, counts, file)));
    }
    if !token_files.replace(files) {
        return;
    }
    let thread = thread::Builder::new().name("tokens".to_owned()).stack_size(STACK_BYTES);
    let read_by = token_files.clone();
    if let Err(error) = thread.spawn(move || read(&read_by)) {
        token_files.0.lock().has_reader = false;
        tracing::warn!(%error, "cannot start a thread to look at the files of tokens");
    }
}

fn read(files: &TokenFiles) {
    while let Some((channel, counts, file)) = files.next() {
        let wrong = bot::read_token(&file).err();
        counts.token_checked(&file, wrong.as_deref());
        if let Some(what) = wrong {
            warn(&channel.name, &what);
        }
    }
}

fn warn(channel: &str, what: &str) {
    tracing::warn!(%channel, what, "the channel can't deliver as it is configured");
}

fn without_chat(service: Chat, bot: &BotSettings, channel: &str) -> Option<String> {
    let ChatDescriptor { name, chat_key, .. } = service.descriptor();
    bot.chat.is_none().then(|| {
        format!(
            "no chat is set, so it serves only tasks with a parent session such as {name}:ID: set \
             `{chat_key}` in [channels.{channel}]"
        )
    })
}
