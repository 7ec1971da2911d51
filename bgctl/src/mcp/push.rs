//! Pushes notifications to the client as things happen, if the client accepts them: as log messages once it has set a
//! level or while a request that names a level is in flight, and as events of the channel that Claude Code shows to its
//! model. Neither is acknowledged, so the next answer reports the same items again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::limits::DURATION_MS;
use bgd_shared::mutex::Mutex;
use bgd_shared::notice::{InboxItem, NoticeKind};
use bgd_shared::pauses::next_pause;
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

/// The client name of Claude Code.
const CLAUDE_CODE: &str = "claude-code";

/// The event reported when the daemon has ended.
const ENDED: &str = "daemon_ended";

/// The first and the longest pause before another attempt to listen to the daemon.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_mins(1)];

/// Tracks the client and the notifications that it wants.
#[derive(Debug, Default)]
pub struct Push {
    client: OnceLock<Peer<RoleServer>>,
    levels: Mutex<Levels>,
    has_channel: AtomicBool,
    /// Whether the client receives changes of the tool list only if it subscribes to them.
    has_subscriptions: AtomicBool,
    lists: watch::Sender<Lists>,
}

/// Tracks tool lists that need an update: they name the agents, which are known only if a daemon runs.
#[derive(Debug, Default)]
struct Lists {
    /// Whether a list was sent without the agents.
    has_pending: bool,
    /// How often a better list has become available.
    changes: u64,
}

/// The minimum levels of the log messages that the client wants.
#[derive(Debug, Default)]
struct Levels {
    /// For the whole connection, in protocol revisions that have such a level.
    set: Option<u8>,
    /// For each request in flight that names a level.
    asked: HashMap<RequestId, u8>,
}

/// A request in flight. Log messages at its level are sent until this is dropped.
#[derive(Debug)]
pub struct Asking<'a> {
    push: &'a Push,
    request: RequestId,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.push.levels.lock().asked.remove(&self.request);
    }
}

impl Push {
    /// Identifies the client from a request.
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
        // Another request, of the same client, may have set it meanwhile.
        let _ = self.client.set(context.peer.clone());
    }

    /// Sets the minimum level of log messages.
    #[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
    pub fn sets(&self, level: LoggingLevel) {
        self.levels.lock().set = Some(severity(level));
    }

    /// Registers a request in flight, which may name a level itself, as clients of 2026-07-28 do.
    pub fn asks(&self, context: &RequestContext<RoleServer>) -> Asking<'_> {
        if let Some(level) = context.meta.log_level() {
            self.levels.lock().asked.insert(context.id.clone(), severity(level));
        }
        Asking { push: self, request: context.id.clone() }
    }

    /// Returns the lowest level that is wanted now.
    fn wanted(&self) -> Option<u8> {
        let levels = self.levels.lock();
        levels.set.into_iter().chain(levels.asked.values().copied()).min()
    }

    /// Listens to every daemon that the link connects to. Never returns.
    pub async fn listen(self: Arc<Self>, link: Arc<Link>, ledger: Arc<Ledger>, session: String) {
        let mut connections = link.connections();
        let mut listener = Listener { push: self, ledger, session, instance: String::new(), after: 0 };
        let mut over = None;
        while connections.changed().await.is_ok() {
            let daemon = connections.borrow_and_update().clone();
            // The link reconnected to the same daemon shortly before its end.
            if over.as_ref() == Some(&daemon) {
                continue;
            }
            if listener.instance != daemon.instance {
                (listener.instance, listener.after) = (daemon.instance.clone(), 0);
            }
            listener.push.relist();
            if listener.until_gone(&link).await {
                listener.push.report_end().await;
                over = Some(daemon);
            }
        }
    }

    /// Records that the client got a tool list that can be improved once a daemon runs.
    pub fn owes_list(&self) {
        self.lists.send_modify(|lists| lists.has_pending = true);
    }

    /// Announces a better tool list, if one is owed, as a daemon runs now.
    fn relist(&self) {
        self.lists.send_if_modified(|lists| {
            let has_pending = std::mem::take(&mut lists.has_pending);
            lists.changes += u64::from(has_pending);
            has_pending
        });
    }

    /// Notifies the client of every change of the tool list. Never returns.
    pub async fn tell_lists(self: Arc<Self>) {
        let mut lists = self.lists.subscribe();
        while next_list(&mut lists).await {
            if let Some(client) = self.client.get()
                && !self.has_subscriptions.load(Ordering::Relaxed)
            {
                // A client that is gone is noticed at the end of its input.
                let _ = client.notify_tool_list_changed().await;
            }
        }
    }

    /// Like [`Self::tell_lists`], for a client that has subscribed, as those of 2026-07-28 do, until `stop`
    /// completes.
    pub async fn tell_lists_to(&self, client: &SubscriptionSink, stop: impl Future<Output = ()>) {
        let mut lists = self.lists.subscribe();
        let notifying =
            async { while next_list(&mut lists).await && client.notify_tool_list_changed().await.is_ok() {} };
        tokio::select! {
            () = notifying => {}
            () = stop => {}
        }
    }

    /// Notifies the client that the daemon has ended.
    #[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
    async fn report_end(&self) {
        let Some(client) = self.client.get() else { return };
        let level = LoggingLevel::Warning;
        if self.wanted().is_some_and(|wanted| severity(level) >= wanted) {
            let data = json!({"event": ENDED, "text": words::DAEMON_ENDED});
            let message = LoggingMessageNotificationParam::new(level, data).with_logger("bgd");
            let _ = client.notify_logging_message(message).await;
        }
        if self.has_channel.load(Ordering::Relaxed) {
            let event = json!({"content": words::DAEMON_ENDED, "meta": {"event": ENDED}});
            let event = CustomNotification::new(CLAUDE_METHOD, Some(event));
            let _ = client.send_notification(ServerNotification::CustomNotification(event)).await;
        }
    }

    /// Sends an item as a log message, if the client wants it.
    async fn log(&self, item: &InboxItem) {
        let Some(client) = self.client.get() else { return };
        let level = level(item.notice.kind);
        if self.wanted().is_some_and(|wanted| severity(level) >= wanted) {
            // A client that is gone is noticed at the end of its input.
            #[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
            let _ = client.notify_logging_message(message(level, item)).await;
        }
    }

    /// Sends an item as a channel event, unless an answer reports the item.
    async fn wake(self: Arc<Self>, ledger: Arc<Ledger>, instance: String, item: InboxItem) {
        let Some(client) = self.client.get() else { return };
        if !ledger.was_reported(&instance, &item).await {
            let event = CustomNotification::new(CLAUDE_METHOD, Some(channel_event(&item)));
            let _ = client.send_notification(ServerNotification::CustomNotification(event)).await;
        }
    }
}

/// Waits for the next change of the list; returns false if the sender is gone.
async fn next_list(lists: &mut watch::Receiver<Lists>) -> bool {
    let before = lists.borrow_and_update().changes;
    lists.wait_for(|lists| lists.changes != before).await.is_ok()
}

/// Listens to one daemon.
struct Listener {
    push: Arc<Push>,
    ledger: Arc<Ledger>,
    session: String,
    instance: String,
    /// The number of the last item received.
    after: u64,
}

impl Listener {
    /// Listens on separate connections, which own nothing, until this daemon has ended; then returns true. Returns
    /// false if the daemon's answers are unintelligible, so there is nothing to listen to, or if this user is refused:
    /// more attempts would look like an attack, and the next connection made for a call shows whether another is worth
    /// it.
    async fn until_gone(&mut self, link: &Link) -> bool {
        // The daemon may later accept a call that it refuses now, and nothing is waiting for this connection.
        let mut pause = PAUSES[0];
        loop {
            let error = match link.another().await {
                Ok(connection) if connection.instance() != self.instance => return true,
                Ok(connection) => self.hear(&connection, &mut pause).await,
                // A durable daemon is the same instance after a restart.
                Err(error) if is_absent(&error) && link.comes_again().await => continue,
                Err(error) if is_absent(&error) => return true,
                Err(error) => error,
            };
            let is_refused = error.kind() == Some(ErrorKind::PermissionDenied);
            if is_refused || matches!(error, ClientError::Garbled(_)) {
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = next_pause(pause, PAUSES);
        }
    }

    /// Listens on this connection until it fails.
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
            *pause = PAUSES[0];
            for item in page.items {
                self.after = item.number;
                self.push.log(&item).await;
                if self.push.has_channel.load(Ordering::Relaxed) {
                    // This may wait for an answer in flight and must not delay other items.
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
        "text": words::item_text(item),
    });
    LoggingMessageNotificationParam::new(level, data).with_logger("bgd")
}

/// Returns a channel event: a text, and attributes whose names are identifiers.
fn channel_event(item: &InboxItem) -> Value {
    let task = &item.notice.task;
    let mut meta = Map::new();
    meta.insert("task_id".to_owned(), task.id.to_string().into());
    meta.insert("event".to_owned(), item.notice.kind.as_str().into());
    if let Some(agent) = &task.agent {
        meta.insert("agent".to_owned(), agent.as_str().into());
    }
    json!({"content": words::item_text(item), "meta": meta})
}

#[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
fn level(kind: NoticeKind) -> LoggingLevel {
    match kind {
        NoticeKind::Started | NoticeKind::Completed => LoggingLevel::Info,
        NoticeKind::Cancelled | NoticeKind::Unknown => LoggingLevel::Notice,
        NoticeKind::Failed | NoticeKind::NeedsInput => LoggingLevel::Warning,
    }
}

/// Returns the rank of a level.
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
