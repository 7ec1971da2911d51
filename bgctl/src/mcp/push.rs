//! Tells a client of what happens as it happens, where it takes that: as log messages once it has set a level or while
//! a request is under way that names one, and as events of the channel that Claude Code puts before its model. Neither
//! says that it was read, so that the next answer tells it all the same.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bgd_shared::client::ClientError;
use bgd_shared::limits::DURATION_MS;
use bgd_shared::notice::{InboxItem, NoticeKind};
use bgd_shared::request::{InboxRead, InboxReadParams};
use rmcp::model::{CustomNotification, ProtocolVersion, RequestId, ServerNotification};
#[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam};
use rmcp::service::{Peer, RequestContext, RoleServer, SubscriptionSink};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::ledger::Ledger;
use super::link::{Connection, Link, is_absent};
use super::words;

/// The capability and the method of Claude Code's channels.
pub const CLAUDE_CHANNEL: &str = "claude/channel";

const CLAUDE_METHOD: &str = "notifications/claude/channel";

/// What Claude Code calls itself.
const CLAUDE_CODE: &str = "claude-code";

/// The event that tells of the daemon's end.
const ENDED: &str = "daemon_ended";

const DAEMON_ENDED: &str = "The bgd daemon has ended. All earlier tasks are lost, as they are kept only in its \
     memory. The next call of one of these tools starts a new daemon; then start the ones you still need again.";

/// How long to wait before the daemon is asked again to be listened to; each time is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest of these pauses.
const LAST_PAUSE: Duration = Duration::from_mins(1);

/// Who is told, and of what.
#[derive(Debug, Default)]
pub struct Push {
    client: OnceLock<Peer<RoleServer>>,
    levels: Mutex<Levels>,
    has_channel: AtomicBool,
    /// Whether it gets changes of the list of tools only if it asks for them.
    has_subscriptions: AtomicBool,
    lists: watch::Sender<Lists>,
}

/// The list of tools names the agents, which only a daemon knows.
#[derive(Debug, Default)]
struct Lists {
    /// Whether a list was given without them.
    is_owed: bool,
    /// How often there was a better one since.
    changes: u64,
}

/// The log messages that are wanted: of these levels and above.
#[derive(Debug, Default)]
struct Levels {
    /// Of the whole conversation, in the revisions that have one.
    set: Option<u8>,
    /// Of the requests that are under way and name one.
    asked: HashMap<RequestId, u8>,
}

/// A request that is under way, and may want log messages until this is dropped.
#[derive(Debug)]
pub struct Asking<'a> {
    push: &'a Push,
    request: RequestId,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.push.levels().asked.remove(&self.request);
    }
}

impl Push {
    /// Learns from a request who the client is.
    pub fn meets(&self, context: &RequestContext<RoleServer>) {
        if self.client.get().is_some() {
            return;
        }
        let is_claude = context.client_info().is_some_and(|client| client.name == CLAUDE_CODE);
        let declares = context
            .client_capabilities()
            .and_then(|capabilities| capabilities.experimental)
            .is_some_and(|experimental| experimental.contains_key(CLAUDE_CHANNEL));
        self.has_channel.store(is_claude || declares, Ordering::Relaxed);
        let version = context.protocol_version();
        let is_inline = version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        self.has_subscriptions.store(is_inline, Ordering::Relaxed);
        // It may have been set meanwhile, to the same one.
        let _ = self.client.set(context.peer.clone());
    }

    fn levels(&self) -> MutexGuard<'_, Levels> {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client wants log messages of this level and above.
    #[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
    pub fn sets(&self, level: LoggingLevel) {
        self.levels().set = Some(severity(level));
    }

    /// A request is under way, and may name a level itself, as clients of 2026-07-28 do.
    pub fn asks(&self, context: &RequestContext<RoleServer>) -> Asking<'_> {
        if let Some(level) = context.meta.log_level() {
            self.levels().asked.insert(context.id.clone(), severity(level));
        }
        Asking { push: self, request: context.id.clone() }
    }

    /// The least severe level that is wanted now.
    fn wanted(&self) -> Option<u8> {
        let levels = self.levels();
        levels.set.into_iter().chain(levels.asked.values().copied()).min()
    }

    /// Listens to each daemon that the link finds, for ever.
    pub async fn listen(self: Arc<Self>, link: Arc<Link>, ledger: Arc<Ledger>, session: String) {
        let mut connections = link.connections();
        let mut listener = Listener { push: self, ledger, session, instance: String::new(), after: 0 };
        let mut over = None;
        while connections.changed().await.is_ok() {
            let instance = connections.borrow_and_update().clone();
            // A connection to it was made again before its end.
            if over.as_ref() == Some(&instance) {
                continue;
            }
            if listener.instance != instance {
                (listener.instance, listener.after) = (instance, 0);
            }
            listener.push.relist();
            if listener.until_gone(&link).await {
                listener.push.tell_end().await;
                over = Some(listener.instance.clone());
            }
        }
    }

    /// A list of tools was given that can be better once there is a daemon.
    pub fn owes_list(&self) {
        self.lists.send_modify(|lists| lists.is_owed = true);
    }

    /// There is a daemon.
    fn relist(&self) {
        self.lists.send_if_modified(|lists| {
            let is_owed = std::mem::take(&mut lists.is_owed);
            lists.changes += u64::from(is_owed);
            is_owed
        });
    }

    /// Tells of each change of the list of tools, for ever.
    pub async fn tell_lists(self: Arc<Self>) {
        let mut lists = self.lists.subscribe();
        while next_list(&mut lists).await {
            if let Some(client) = self.client.get()
                && !self.has_subscriptions.load(Ordering::Relaxed)
            {
                // A client that is gone is noticed where its input ends.
                let _ = client.notify_tool_list_changed().await;
            }
        }
    }

    /// The same to a client that has asked for it, as those of 2026-07-28 do, until it does not want it any more.
    pub async fn tell_lists_to(&self, client: &SubscriptionSink, stop: impl Future<Output = ()>) {
        let mut lists = self.lists.subscribe();
        let telling =
            async { while next_list(&mut lists).await && client.notify_tool_list_changed().await.is_ok() {} };
        tokio::select! {
            () = telling => {}
            () = stop => {}
        }
    }

    /// The daemon has ended, and nobody asked.
    #[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
    async fn tell_end(&self) {
        let Some(client) = self.client.get() else { return };
        let level = LoggingLevel::Warning;
        if self.wanted().is_some_and(|wanted| severity(level) >= wanted) {
            let data = json!({"event": ENDED, "text": DAEMON_ENDED});
            let message = LoggingMessageNotificationParam::new(level, data).with_logger("bgd");
            let _ = client.notify_logging_message(message).await;
        }
        if self.has_channel.load(Ordering::Relaxed) {
            let event = json!({"content": DAEMON_ENDED, "meta": {"event": ENDED}});
            let event = CustomNotification::new(CLAUDE_METHOD, Some(event));
            let _ = client.send_notification(ServerNotification::CustomNotification(event)).await;
        }
    }

    /// As a log message, if the client wants it.
    async fn log(&self, item: &InboxItem) {
        let Some(client) = self.client.get() else { return };
        let level = level(item.notice.kind);
        if self.wanted().is_some_and(|wanted| severity(level) >= wanted) {
            // A client that is gone is noticed where its input ends.
            #[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
            let _ = client.notify_logging_message(message(level, item)).await;
        }
    }

    /// As an event of the channel, unless an answer tells it.
    async fn wake(self: Arc<Self>, ledger: Arc<Ledger>, instance: String, item: InboxItem) {
        let Some(client) = self.client.get() else { return };
        if !ledger.tells(&instance, &item).await {
            let event = CustomNotification::new(CLAUDE_METHOD, Some(channel_event(&item)));
            let _ = client.send_notification(ServerNotification::CustomNotification(event)).await;
        }
    }
}

/// Waits for the next change of the list; false at the end of everything.
async fn next_list(lists: &mut watch::Receiver<Lists>) -> bool {
    let before = lists.borrow_and_update().changes;
    lists.wait_for(|lists| lists.changes != before).await.is_ok()
}

/// Who listens to one daemon.
struct Listener {
    push: Arc<Push>,
    ledger: Arc<Ledger>,
    session: String,
    /// The life of the daemon.
    instance: String,
    /// The number of the last item that came from it.
    after: u64,
}

impl Listener {
    /// Listens on connections of its own, which own nothing, until this daemon has ended; then it is true. It is false
    /// if that can't be found out, and there is nothing to listen to.
    async fn until_gone(&mut self, link: &Link) -> bool {
        // What the daemon refuses now it may grant later. Nobody waits for it.
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match link.another().await {
                Ok(connection) if connection.instance() != self.instance => return true,
                Ok(connection) => self.hear(&connection, &mut pause).await,
                Err(error) if is_absent(&error) => return true,
                Err(error) => error,
            };
            if matches!(error, ClientError::Garbled(_)) {
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Listens on this connection as long as it can.
    async fn hear(&mut self, connection: &Connection, pause: &mut Duration) -> ClientError {
        loop {
            let params = InboxReadParams {
                session: self.session.clone(),
                after: Some(self.after),
                wait_ms: Some(DURATION_MS),
                ..InboxReadParams::default()
            };
            let page = match connection.listen::<InboxRead>(&params).await {
                Ok(page) => page,
                Err(error) => return error,
            };
            *pause = FIRST_PAUSE;
            for item in page.items {
                self.after = item.number;
                self.push.log(&item).await;
                if self.push.has_channel.load(Ordering::Relaxed) {
                    // What an answer is about to tell holds up nothing else.
                    let (push, ledger) = (Arc::clone(&self.push), Arc::clone(&self.ledger));
                    tokio::spawn(push.wake(ledger, page.instance.clone(), item));
                }
            }
        }
    }
}

#[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
fn message(level: LoggingLevel, item: &InboxItem) -> LoggingMessageNotificationParam {
    let data = json!({
        "task_id": item.notice.task.id.to_string(),
        "event": item.notice.kind.as_str(),
        "text": words::told(item),
    });
    LoggingMessageNotificationParam::new(level, data).with_logger("bgd")
}

/// The event of a channel: a text, and attributes whose names are identifiers.
fn channel_event(item: &InboxItem) -> Value {
    let task = &item.notice.task;
    let mut meta = Map::new();
    meta.insert("task_id".to_owned(), task.id.to_string().into());
    meta.insert("event".to_owned(), item.notice.kind.as_str().into());
    if let Some(agent) = &task.agent {
        meta.insert("agent".to_owned(), agent.as_str().into());
    }
    json!({"content": words::told(item), "meta": meta})
}

#[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
fn level(kind: NoticeKind) -> LoggingLevel {
    match kind {
        NoticeKind::Started | NoticeKind::Completed => LoggingLevel::Info,
        NoticeKind::Cancelled => LoggingLevel::Notice,
        NoticeKind::Failed | NoticeKind::NeedsInput => LoggingLevel::Warning,
    }
}

/// The order of the levels.
#[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
fn severity(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}
