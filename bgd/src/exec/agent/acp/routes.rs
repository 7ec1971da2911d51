//! Which session's news go where, and whether it is in a turn. It sends nothing to the agent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as Gate, Notify, OwnedMutexGuard, oneshot};

use super::setup::Setup;
use crate::exec::agent::connection::Updates;

/// The sessions that the agent holds for this connection.
#[derive(Debug, Default)]
pub struct Routes(Mutex<HashMap<Arc<str>, Route>>);

#[derive(Debug, Default)]
struct Route {
    /// Nowhere if nobody wants them any more.
    updates: Option<Updates>,
    /// Until the first prompt, the news of a session that was loaded are the end of its replay.
    replaying: bool,
    setup: Arc<Setup>,
    /// Wakes whoever waits for the end of the replay, with every piece of it.
    replayed: Arc<Notify>,
    turn: Turn,
    /// The turn's last piece of the answer.
    last: LastPiece,
    /// Dropping one of them calls off a question of this turn.
    asks: Vec<oneshot::Sender<()>>,
    /// Held from a prompt until the agent's answer, even if nobody waits for that any more.
    gate: Arc<Gate<()>>,
    /// Wakes a prompt that waits at the gate when it is cancelled.
    interrupted: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    None,
    Running,
    Cancelled,
}

/// The piece of the answer before the next one.
#[derive(Debug, Default)]
enum LastPiece {
    /// There was none in this turn.
    #[default]
    None,
    /// It was of this message, as far as it named one.
    Of(Option<String>),
}

impl Routes {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Route>> {
        // Nothing in here can be left half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent holds this session now, or goes on with it: its news go here, and to no earlier place.
    pub fn open(&self, session: &Arc<str>, updates: Updates, replaying: bool, setup: Arc<Setup>) {
        let mut routes = self.lock();
        let route = routes.entry(Arc::clone(session)).or_default();
        route.updates = Some(updates);
        route.replaying |= replaying;
        route.setup = setup;
    }

    /// What is set in a session, if the agent still holds it.
    pub fn setup(&self, session: &str) -> Option<Arc<Setup>> {
        self.lock().get(session).map(|route| Arc::clone(&route.setup))
    }

    /// Nobody wants this session any more.
    pub fn close(&self, session: &str) {
        self.lock().remove(session);
    }

    /// Where the news of a session go.
    pub fn updates(&self, session: &str) -> Option<Updates> {
        let routes = self.lock();
        let route = routes.get(session)?;
        if route.replaying {
            route.replayed.notify_one();
            return None;
        }
        route.updates.clone()
    }

    /// Notes the message of a piece of the answer: whether the piece before it was of another one.
    pub fn is_another_message(&self, session: &str, message: Option<String>) -> bool {
        let mut routes = self.lock();
        let Some(route) = routes.get_mut(session) else { return false };
        let last = std::mem::replace(&mut route.last, LastPiece::Of(message));
        matches!((last, &route.last), (LastPiece::Of(before), LastPiece::Of(now)) if before != *now)
    }

    /// Waits until nothing of a replay has come for so long.
    pub async fn quiet(&self, session: &str, span: Duration) {
        let Some(replayed) = self.lock().get(session).map(|route| Arc::clone(&route.replayed)) else {
            return;
        };
        while tokio::time::timeout(span, replayed.notified()).await.is_ok() {}
    }

    /// Takes up a question: where it goes, and what resolves when it is called off. Nowhere if the session is
    /// in no turn, or in one that was cancelled.
    pub fn ask(&self, session: &str) -> Option<(Updates, oneshot::Receiver<()>)> {
        let mut routes = self.lock();
        let route = routes.get_mut(session).filter(|route| route.turn == Turn::Running)?;
        let updates = route.updates.clone()?;
        let (held, called_off) = oneshot::channel();
        route.asks.retain(|ask| !ask.is_closed());
        route.asks.push(held);
        Some((updates, called_off))
    }

    /// Waits until the agent has answered the session's last prompt. `Err`: the session is not open, or the
    /// turn was cancelled before it began.
    pub async fn begin(&self, session: &str) -> Result<OwnedMutexGuard<()>, NotBegun> {
        let (gate, interrupted) = {
            let routes = self.lock();
            let route = routes.get(session).ok_or(NotBegun::NotOpen)?;
            (Arc::clone(&route.gate), Arc::clone(&route.interrupted))
        };
        let held = tokio::select! {
            biased;
            () = interrupted.notified() => return Err(NotBegun::Cancelled),
            held = gate.lock_owned() => held,
        };
        let mut routes = self.lock();
        let route = routes.get_mut(session).ok_or(NotBegun::NotOpen)?;
        route.turn = Turn::Running;
        route.replaying = false;
        route.last = LastPiece::None;
        Ok(held)
    }

    /// The turn is to end: a prompt that waits does not begin, and a later question is called off at once.
    pub fn cancel(&self, session: &str) {
        if let Some(route) = self.lock().get_mut(session) {
            route.interrupted.notify_waiters();
            if route.turn == Turn::Running {
                route.turn = Turn::Cancelled;
            }
        }
    }

    /// Calls off the questions of a session.
    pub fn call_off(&self, session: &str) {
        if let Some(route) = self.lock().get_mut(session) {
            route.asks.clear();
        }
    }

    /// The turn is over, and so are its questions.
    pub fn end(&self, session: &str) {
        if let Some(route) = self.lock().get_mut(session) {
            route.turn = Turn::None;
            route.asks.clear();
        }
    }
}

/// Why a turn did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// The session is not open.
    NotOpen,
    /// It was cancelled while it waited for the turn before it.
    Cancelled,
}
