//! opencode's own server over HTTP: any number of sessions, each with its own async task, and one stream of events for
//! all of them. The server is not polled while no turn runs.
//!
//! `turn`, `ending` and `text` decide, without I/O; `session`, `follow` and `asks` act; `api`, `wire` and `exec::http`
//! implement the requests to the server. The stream of events may break at any time without loss of text.

mod api;
mod asks;
mod carry;
mod ending;
mod follow;
mod pieces;
#[cfg(test)]
mod scripted;
mod session;
mod state;
#[cfg(test)]
mod suite;
mod text;
mod turn;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bgd_shared::agent::{AgentCheck, Continuation};
use bgd_shared::error::ErrorKind;
use bgd_shared::mutex::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use self::api::{Api, ApiError, SessionAddress};
use self::follow::Routes;
use self::session::{Order, Parts, Session, Stop, Timing, TurnState};
pub use self::state::OpencodeState;
pub use self::wire::{Event, bounded, event};
use super::connection::{Opened, TurnEnd, Updates, Wanted};
use crate::core::Refusal;
use crate::exec::http;
use crate::exec::threads::job::Job;

/// How many prompts of a session may be queued. The daemon sends one at a time.
const ORDERS: usize = 4;

/// How long to wait for the first event while connecting. The stream is retried anyway.
const GREETING: Duration = Duration::from_secs(5);

/// A connection to opencode's server.
#[derive(Debug)]
pub struct Opencode {
    api: Arc<Api>,
    routes: Arc<Routes>,
    sessions: Mutex<HashMap<Arc<str>, Handle>>,
    gone: watch::Receiver<Option<Box<str>>>,
    version: Option<String>,
    took: Duration,
    timing: Timing,
    /// The server's address and its password.
    access: (String, Option<String>),
    hold: watch::Sender<bool>,
    _follower: Job,
}

/// The connection's handle to the async task of a session.
#[derive(Debug)]
struct Handle {
    directory: Arc<str>,
    orders: mpsc::Sender<Order>,
    stop: Arc<Stop>,
    updates: Updates,
    /// Whether [`Opencode::prompt`] is waiting for the end of a turn.
    prompting: Arc<AtomicBool>,
    /// The task's state as visible to an upgrade.
    shown: Arc<Mutex<Option<TurnState>>>,
    /// Whether the next prompt resumes a turn from before an upgrade.
    goes_on: bool,
    _work: Job,
}

/// Clears the flag when nothing waits for the end of a turn any more.
struct Prompting(Arc<AtomicBool>);

impl Drop for Prompting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Opencode {
    /// Connects to a server that listens at this address, with its password if it has one, and follows its
    /// events from now on.
    ///
    /// # Errors
    /// The address is invalid, or no opencode server answers there.
    pub async fn connect(url: &str, password: Option<&str>) -> Result<Self, Refusal> {
        Self::connect_timed(url, password, Timing::default()).await
    }

    async fn connect_timed(url: &str, password: Option<&str>, timing: Timing) -> Result<Self, Refusal> {
        let began = Instant::now();
        let api = Arc::new(Api::new(url, password).map_err(|why| unavailable(&why))?);
        let health = api.health().await.map_err(|error| unavailable(&error))?;
        let access = (url.to_owned(), password.map(str::to_owned));
        let (this, greeted) = Self::following(api, access, timing);
        // Polling finds the end of a turn even without events, so missing events are no reason to refuse.
        let _ = tokio::time::timeout(GREETING, greeted).await;
        Ok(Self { version: health.version, took: began.elapsed(), ..this })
    }

    /// Starts to follow the events of a server. The receiver resolves at the first event, or when the first attempt
    /// fails.
    fn following(
        api: Arc<Api>,
        access: (String, Option<String>),
        timing: Timing,
    ) -> (Self, oneshot::Receiver<()>) {
        let routes = Arc::new(Routes::default());
        let (leave, gone) = watch::channel(None);
        let (greet, greeted) = oneshot::channel();
        let following = follow::follow(Arc::clone(&api), Arc::clone(&routes), timing.waits, greet);
        let follower = Job::start(async move {
            let why = following.await;
            leave.send_replace(Some(why));
            // Keeps the reason readable.
            leave.closed().await;
        });
        let this = Self {
            api,
            routes,
            sessions: Mutex::default(),
            gone,
            version: None,
            took: Duration::ZERO,
            timing,
            access,
            hold: watch::channel(false).0,
            _follower: follower,
        };
        (this, greeted)
    }

    /// Opens a new session, or resumes the wanted one. Its updates go to this channel from now on.
    ///
    /// # Errors
    /// The session is gone, or the server does not create one.
    pub async fn open(&self, wanted: &Wanted, updates: Updates) -> Result<Opened, Refusal> {
        let cwd = std::str::from_utf8(wanted.cwd.as_bytes()).map_err(|_| {
            Refusal::new(ErrorKind::Unsupported, "an opencode server works only in folders with UTF-8 names")
        })?;
        let opened = match &wanted.session {
            Some(session) => self.api.session(session, cwd).await,
            // Without a title, the server would ask the model for one.
            None => match &wanted.title {
                Some(title) => self.api.create(title, cwd).await,
                None => self.api.create(&format!("bgd {}", wanted.task), cwd).await,
            },
        };
        let info = opened.map_err(|error| match (&error, &wanted.session) {
            // For an id unlike its own ids, the server reports another error.
            (ApiError::NotFound(_), Some(_)) => expired(),
            (ApiError::Refused(_), Some(session)) if !session.starts_with("ses") => expired(),
            (error, _) => unavailable(error),
        })?;
        let directory = if info.directory.is_empty() { cwd } else { &info.directory };
        let key: Arc<str> = info.id.into();
        self.add(Arc::clone(&key), directory.into(), updates, TurnState::default());
        Ok(Opened { session: Some(Arc::clone(&key)), key, warning: None })
    }

    fn add(&self, key: Arc<str>, directory: Arc<str>, updates: Updates, before: TurnState) -> Arc<Stop> {
        // First ends an earlier async task of this session, so that no update from it arrives later.
        self.forget(&key);
        let (orders, receiver) = mpsc::channel(ORDERS);
        let stop = Arc::new(Stop::default());
        let (shown, goes_on) = (Arc::default(), before.runs);
        let parts = Parts {
            api: Arc::clone(&self.api),
            routes: Arc::clone(&self.routes),
            id: Arc::clone(&key),
            directory: Arc::clone(&directory),
            updates: updates.clone(),
            signals: self.routes.add(Arc::clone(&key)),
            orders: receiver,
            stop: Arc::clone(&stop),
            gone: self.gone.clone(),
            timing: self.timing,
            hold: self.hold.subscribe(),
            shown: Arc::clone(&shown),
        };
        let work = Job::start(Session::new(parts, before).run());
        let prompting = Arc::default();
        let returned = Arc::clone(&stop);
        let handle = Handle { directory, orders, stop, updates, prompting, shown, goes_on, _work: work };
        self.sessions.lock().insert(key, handle);
        returned
    }

    /// Sends a prompt to an open session, and waits for the end of the turn; for a turn carried over an upgrade, only
    /// waits. When this returns, all updates of the turn are in the session's channel.
    pub async fn prompt(&self, key: &Arc<str>, prompt: &str) -> TurnEnd {
        let found = self.sessions.lock().get_mut(key).map(|handle| {
            handle.prompting.store(true, Ordering::Relaxed);
            let goes_on = std::mem::take(&mut handle.goes_on);
            let prompting = Prompting(Arc::clone(&handle.prompting));
            (handle.orders.clone(), Arc::clone(&handle.stop), goes_on, prompting)
        });
        let lost = || TurnEnd::Failed("the session was closed".into());
        let Some((orders, stop, goes_on, _prompting)) = found else { return lost() };
        if !goes_on {
            stop.is_requested.store(false, Ordering::Relaxed);
        }
        let prompt = (!goes_on).then(|| prompt.to_owned());
        let (reply, end) = oneshot::channel();
        if orders.send(Order { prompt, reply }).await.is_err() {
            return lost();
        }
        end.await.unwrap_or_else(|_| lost())
    }

    /// Tells the server to end the session's turn. [`Self::prompt`] returns when the turn has ended.
    pub async fn cancel(&self, key: &Arc<str>) {
        let found = self
            .sessions
            .lock()
            .get(key)
            .map(|handle| (Arc::clone(&handle.directory), Arc::clone(&handle.stop)));
        let Some((directory, stop)) = found else { return };
        stop.is_requested.store(true, Ordering::Relaxed);
        // A look finds the result, even if this future is dropped before the server answers.
        stop.look.notify_one();
        if let Err(error) = self.api.abort(SessionAddress { session: key, directory: &directory }).await {
            tracing::debug!(session = %key, %error, "cannot cancel");
        }
        stop.look.notify_one();
    }

    /// Releases a session that is no longer needed: its updates are discarded.
    pub fn forget(&self, key: &Arc<str>) {
        self.routes.remove(key);
        self.sessions.lock().remove(key);
    }

    /// Returns the report about the server.
    pub fn about(&self) -> AgentCheck {
        AgentCheck {
            name: Some("opencode".to_owned()),
            version: self.version.clone(),
            continuation: Continuation::Resume,
            started_in_ms: u64::try_from(self.took.as_millis()).ok(),
        }
    }

    /// Waits until the server is gone for good, and returns the reason. An interruption of the stream of events does
    /// not count.
    pub async fn closed(&self) -> Box<str> {
        follow::wait_until_lost(self.gone.clone()).await
    }
}

/// Returns the address in a line that a started server prints; `None` if the line has none.
pub fn address(line: &str) -> Option<String> {
    let (_, behind) = line.split_once("listening on ")?;
    let address = behind.split_whitespace().next()?;
    http::base(address).is_ok().then(|| address.to_owned())
}

fn expired() -> Refusal {
    Refusal::new(ErrorKind::SessionExpired, "its agent no longer has the session").hint("submit a new task")
}

fn unavailable(why: &dyn fmt::Display) -> Refusal {
    Refusal::new(ErrorKind::AgentUnavailable, format!("opencode's server: {why}"))
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn server_address_is_read_from_its_startup_line() {
        let line = "opencode server listening on http://127.0.0.1:4096\n";
        assert_eq!(address(line).as_deref(), Some("http://127.0.0.1:4096"));
        assert_eq!(address("Warning: OPENCODE_SERVER_PASSWORD is not set; server is unsecured."), None);
        assert_eq!(address("listening on "), None);
        assert_eq!(address("listening on nothing"), None);
    }
}
