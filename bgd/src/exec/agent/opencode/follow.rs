//! Follows a server's stream of events, and passes each event to its session. When the stream ends, requests it again,
//! and notifies every session that events may be missing. Never waits for a session: one that does not keep up loses
//! events, gets a gap signal, and reads the missed messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bgd_shared::mutex::Mutex;
use bgd_shared::pauses::pause_after;
use futures_util::StreamExt as _;
use sse_stream::SseByteStream;
use tokio::sync::{mpsc, oneshot, watch};

use super::api::{Api, ApiError};
use super::wire::{self, Event};

/// How many events may be queued for a session. Further ones are dropped, and the session reads the missed messages.
pub const EVENTS: usize = 1024;

/// The longest event in bytes. A longer one ends the stream, and the session reads the missed messages.
const EVENT: usize = 32 << 20;

/// How long the stream may be silent. The server sends a heartbeat every 10 s.
const SILENCE: Duration = Duration::from_secs(25);

/// After how many consecutive failures of the stream the server's health is checked.
const TRIES: u32 = 8;

/// How many sessions of subagents are known at a time. Further ones are found when they ask something.
const CHILDREN: usize = 4096;

/// A signal to a session.
#[derive(Debug)]
pub enum Signal {
    /// An event happened.
    Event(Box<Event>),
    /// Events may be missing between the last one and the next.
    Gap,
}

/// The recipient of a session's events.
#[derive(Debug)]
struct Route {
    signals: mpsc::Sender<Signal>,
    /// Whether the session has to be notified of a gap before it gets anything else.
    lost: bool,
}

impl Route {
    fn send(&mut self, event: Event) {
        self.mend();
        if !self.lost && self.signals.try_send(Signal::Event(Box::new(event))).is_err() {
            self.lost = true;
        }
    }

    /// Reports the gap, if there is one and the queue has room.
    fn mend(&mut self) {
        if self.lost && self.signals.try_send(Signal::Gap).is_ok() {
            self.lost = false;
        }
    }
}

/// The recipients of the events of all sessions.
#[derive(Debug, Default)]
pub struct Routes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<Arc<str>, Route>,
    /// The sessions of subagents, each with the root session that it works for.
    children: HashMap<String, Arc<str>>,
}

impl Routes {
    /// Registers a session. Returns the receiver of its events.
    pub fn add(&self, session: Arc<str>) -> mpsc::Receiver<Signal> {
        let (signals, receiver) = mpsc::channel(EVENTS);
        self.0.lock().sessions.insert(session, Route { signals, lost: false });
        receiver
    }

    /// Removes a session. Its events are discarded from now on.
    pub fn remove(&self, session: &Arc<str>) {
        let mut table = self.0.lock();
        table.sessions.remove(session);
        table.children.retain(|_, root| root != session);
    }

    /// Returns the root session that a session works for, if the root session is registered.
    pub fn root(&self, session: &str) -> Option<Arc<str>> {
        self.0.lock().root(session)
    }

    /// Registers that `child` works for `parent`. Returns the root session, if it is registered.
    pub fn adopt(&self, child: String, parent: &str) -> Option<Arc<str>> {
        let mut table = self.0.lock();
        let root = table.root(parent)?;
        if table.children.len() < CHILDREN {
            table.children.insert(child, Arc::clone(&root));
        }
        Some(root)
    }

    fn pass_on(&self, session: &str, event: Event) {
        if let Event::Child(child) = event {
            self.adopt(child.id, session);
            return;
        }
        let mut table = self.0.lock();
        // Only the questions of a subagent matter; its text goes to the agent that started it.
        let asks = matches!(event, Event::Permission(_) | Event::Questions(_) | Event::Answered(_));
        let root = match table.sessions.contains_key(session) {
            true => Some(Arc::from(session)),
            false if asks => table.root(session),
            false => None,
        };
        if let Some(route) = root.and_then(|root| table.sessions.get_mut(&root)) {
            route.send(event);
        }
    }

    fn gap(&self) {
        for route in self.0.lock().sessions.values_mut() {
            route.lost = true;
            route.mend();
        }
    }
}

impl Table {
    fn root(&self, session: &str) -> Option<Arc<str>> {
        let own = self.sessions.get_key_value(session).map(|(session, _)| session);
        own.or_else(|| self.children.get(session)).cloned()
    }
}

/// Follows the events until the server is gone, and returns the reason. `first` fires when the first attempt
/// delivers an event or fails. `waits` are the shortest and the longest delay before the next attempt.
pub async fn follow(
    api: Arc<Api>,
    routes: Arc<Routes>,
    waits: [Duration; 2],
    first: oneshot::Sender<()>,
) -> Box<str> {
    let mut first = Some(first);
    let mut failures: u32 = 0;
    loop {
        let ended = listen(&api, &routes, || {
            failures = 0;
            first.take().map(|first| first.send(()));
        });
        let why = ended.await;
        first.take().map(|first| first.send(()));
        tracing::debug!(%why, failures, "the events of an opencode server have ended");
        failures = failures.saturating_add(1);
        // The server may be healthy even without events, if something in between blocks the stream.
        if failures >= TRIES
            && let Err(error) = api.health().await
        {
            return format!("the server no longer answers: {error}").into();
        }
        tokio::time::sleep(pause_after(failures, waits)).await;
    }
}

/// Passes on events until the stream ends, and returns the reason.
async fn listen(api: &Api, routes: &Routes, begun: impl FnOnce()) -> ApiError {
    let streamed = match api.events().await {
        Ok(streamed) => streamed,
        Err(error) => return error,
    };
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let bytes = streamed.content().map(move |piece| {
        let piece = piece.map_err(std::io::Error::other)?;
        match counted.fetch_add(piece.len(), Ordering::Relaxed) {
            before if before <= EVENT => Ok(piece),
            _ => Err(std::io::Error::other(format!("an event is longer than {EVENT} bytes"))),
        }
    });
    let mut events = std::pin::pin!(SseByteStream::new(bytes));
    let mut begun = Some(begun);
    loop {
        let data = match tokio::time::timeout(SILENCE, events.next()).await {
            Ok(Some(Ok(event))) => event.data.unwrap_or_default(),
            Ok(Some(Err(error))) => return ApiError::Strange(error.to_string().into()),
            Ok(None) => return ApiError::Strange("the server has ended them".into()),
            Err(_) => return ApiError::Strange(format!("nothing arrived for {SILENCE:?}").into()),
        };
        taken.store(0, Ordering::Relaxed);
        if let Some(begun) = begun.take() {
            // The server's first event confirms the subscription. So anything that a session reads after this gap is
            // followed by events without another gap.
            begun();
            routes.gap();
        }
        if let Some((session, event)) = wire::event(&data) {
            routes.pass_on(&session, event);
        }
    }
}

/// Waits until the server is reported as gone, and returns the reason.
pub async fn wait_until_lost(mut gone: watch::Receiver<Option<Box<str>>>) -> Box<str> {
    let why = match gone.wait_for(Option::is_some).await {
        Ok(why) => why.clone(),
        Err(_) => None,
    };
    why.unwrap_or_else(|| "the connection was abandoned".into())
}
