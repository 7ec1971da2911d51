//! Follows the events of a server, and hands each to the session that it is about. When the events end,
//! it asks for them again, and tells every session that some may be missing. It waits for no session: one
//! that does not keep up loses events, is told so, and reads what it missed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use sse_stream::SseByteStream;
use tokio::sync::{mpsc, oneshot, watch};

use super::api::{Api, ApiError};
use super::wire::{self, Event};

/// How many events of a session may wait for it. What is beyond is dropped, and read later.
pub const EVENTS: usize = 1024;

/// The longest event in bytes. A longer one ends the stream, and what it said is read.
const EVENT: usize = 32 << 20;

/// How long the events may be silent. The server sends a heartbeat every 10 s.
const SILENCE: Duration = Duration::from_secs(25);

/// How often in a row the events may fail to come before it matters whether the server is there at all.
const TRIES: u32 = 8;

/// How many sessions of subagents are known at a time. Those beyond are found when they ask something.
const CHILDREN: usize = 4096;

/// What a session is told.
#[derive(Debug)]
pub enum Signal {
    /// Something happened.
    Event(Box<Event>),
    /// Between the last event and the next, some may be missing.
    Gap,
}

/// Where the events of a session go.
#[derive(Debug)]
struct Route {
    signals: mpsc::Sender<Signal>,
    /// It has to be told of a gap before it is told of anything else.
    lost: bool,
}

impl Route {
    fn send(&mut self, event: Event) {
        self.mend();
        if !self.lost && self.signals.try_send(Signal::Event(Box::new(event))).is_err() {
            self.lost = true;
        }
    }

    /// Tells of the gap, if there is one and room to tell of it.
    fn mend(&mut self) {
        if self.lost && self.signals.try_send(Signal::Gap).is_ok() {
            self.lost = false;
        }
    }
}

/// Where the events go.
#[derive(Debug, Default)]
pub struct Routes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<Arc<str>, Route>,
    /// The sessions of subagents, with the one that they work for in the end.
    children: HashMap<String, Arc<str>>,
}

impl Routes {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing is done with it that could leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the events of this session come here.
    pub fn add(&self, session: Arc<str>) -> mpsc::Receiver<Signal> {
        let (signals, receiver) = mpsc::channel(EVENTS);
        self.table().sessions.insert(session, Route { signals, lost: false });
        receiver
    }

    /// The events of this session go nowhere.
    pub fn remove(&self, session: &Arc<str>) {
        let mut table = self.table();
        table.sessions.remove(session);
        table.children.retain(|_, root| root != session);
    }

    /// The session that another one works for in the end, if it is one of ours.
    pub fn root(&self, session: &str) -> Option<Arc<str>> {
        self.table().root(session)
    }

    /// A session works for another one. Gives the one that it works for in the end, if it is one of ours.
    pub fn adopt(&self, child: String, parent: &str) -> Option<Arc<str>> {
        let mut table = self.table();
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
        let mut table = self.table();
        // Of a subagent only its questions matter; what it says goes to the agent that asked it.
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
        for route in self.table().sessions.values_mut() {
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

/// Follows the events until the server is gone, and says how that showed. `first` hears of the end of the
/// first try. `waits` are the first and the longest wait before the next one.
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
        // Events may be missing though the server is fine, with something between that lets none through.
        if failures >= TRIES
            && let Err(error) = api.health().await
        {
            return format!("the server does not answer any more: {error}").into();
        }
        let wait = waits[0].saturating_mul(1 << (failures - 1).min(16)).min(waits[1]);
        tokio::time::sleep(wait).await;
    }
}

/// Hands on events until they end, and says why they did.
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
            Err(_) => return ApiError::Strange(format!("nothing came for {SILENCE:?}").into()),
        };
        taken.store(0, Ordering::Relaxed);
        if let Some(begun) = begun.take() {
            // The server greets whom it will tell from now on. What a session reads after this gap is
            // followed by events without another one.
            begun();
            routes.gap();
        }
        if let Some((session, event)) = wire::event(&data) {
            routes.pass_on(&session, event);
        }
    }
}

/// Waits until the server is told to be gone, and says why.
pub async fn told(mut gone: watch::Receiver<Option<Box<str>>>) -> Box<str> {
    let why = match gone.wait_for(Option::is_some).await {
        Ok(why) => why.clone(),
        Err(_) => None,
    };
    why.unwrap_or_else(|| "the connection was given up".into())
}
