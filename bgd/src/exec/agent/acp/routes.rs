//! Tracks where each session's updates go, and whether the session is in a turn. Sends nothing to the agent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::mutex::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as Gate, Notify, OwnedMutexGuard, oneshot};

use super::setup::{Setup, SetupState};
use crate::exec::agent::connection::Updates;
use crate::exec::agent::patience::sleep_then_drain;

/// The sessions that the agent holds for this connection.
#[derive(Debug, Default)]
pub struct Routes(Mutex<HashMap<Arc<str>, Route>>);

#[derive(Debug, Default)]
struct Route {
    /// `None` if the updates have no receiver.
    updates: Option<Updates>,
    /// Set for a loaded session until its first prompt: until then, its updates are the end of the replay.
    replaying: bool,
    setup: Arc<Setup>,
    /// Notified of every piece of the replay.
    replayed: Arc<Notify>,
    turn: TurnState,
    last: LastPiece,
    /// The questions of this turn; dropping one calls it off.
    asks: Vec<oneshot::Sender<()>>,
    /// Locked from a prompt until the agent's answer, even if the answer is no longer awaited.
    gate: Arc<Gate<()>>,
    /// Wakes a prompt that waits at the gate, when the prompt is cancelled.
    interrupted: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum TurnState {
    #[default]
    None,
    Running,
    Cancelled,
}

/// The most recent piece of the answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
enum LastPiece {
    /// The turn has no answer yet.
    #[default]
    None,
    /// The piece belongs to this message; `None` if the agent does not distinguish messages.
    Of(Option<String>),
}

/// A session, as carried over an upgrade.
#[derive(Debug, Serialize, Deserialize)]
pub struct RouteState {
    pub session: Arc<str>,
    replaying: bool,
    setup: SetupState,
    turn: TurnState,
    last: LastPiece,
}

impl Routes {
    /// Restores the sessions after an upgrade. `updates` returns the update channel of a session.
    pub fn restore(
        all: Vec<RouteState>,
        last_setup: &mut Arc<Setup>,
        mut updates: impl FnMut(&Arc<str>) -> Option<Updates>,
    ) -> Self {
        let routes = all.into_iter().map(|state| {
            let RouteState { session, replaying, setup, turn, last } = state;
            let setup = Setup::restore(setup, last_setup);
            let route =
                Route { updates: updates(&session), replaying, setup, turn, last, ..Route::default() };
            (session, route)
        });
        Self(Mutex::new(routes.collect()))
    }

    /// Returns all sessions; `None` if the channel of one of them still holds an update.
    pub fn state(&self) -> Option<Vec<RouteState>> {
        let mut all = Vec::new();
        for (session, route) in &*self.0.lock() {
            // Nothing waits for the other fields after an upgrade: open questions are asked again.
            let Route {
                updates,
                replaying,
                setup,
                turn,
                last,
                replayed: _,
                asks: _,
                gate: _,
                interrupted: _,
            } = route;
            let updates = updates.as_ref().filter(|updates| !updates.is_closed());
            if updates.is_some_and(|updates| updates.capacity() < updates.max_capacity()) {
                return None;
            }
            all.push(RouteState {
                session: Arc::clone(session),
                replaying: *replaying,
                setup: setup.state(),
                turn: *turn,
                last: last.clone(),
            });
        }
        Some(all)
    }

    /// Returns whether the session is in a turn.
    pub fn is_in_turn(&self, session: &str) -> bool {
        self.0.lock().get(session).is_some_and(|route| route.turn != TurnState::None)
    }

    /// Makes further prompts to the session wait until the guard is dropped; returns `None` if the session is unknown,
    /// or prompts already have to wait.
    pub fn lock_prompts(&self, session: &str) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.0.lock().get(session)?.gate).try_lock_owned().ok()
    }

    /// Registers a session that the agent holds. From now on its updates go to this channel only.
    pub fn open(&self, session: &Arc<str>, updates: Updates, replaying: bool, setup: Arc<Setup>) {
        let mut routes = self.0.lock();
        let route = routes.entry(Arc::clone(session)).or_default();
        route.updates = Some(updates);
        route.replaying |= replaying;
        route.setup = setup;
    }

    /// Returns the setup of a session, if the agent still holds the session.
    pub fn setup(&self, session: &str) -> Option<Arc<Setup>> {
        self.0.lock().get(session).map(|route| Arc::clone(&route.setup))
    }

    /// Removes a session that is no longer needed.
    pub fn close(&self, session: &str) {
        self.0.lock().remove(session);
    }

    /// Returns a session's update channel; `None` if its updates are discarded, as during a replay.
    pub fn updates(&self, session: &str) -> Option<Updates> {
        let routes = self.0.lock();
        let route = routes.get(session)?;
        if route.replaying {
            route.replayed.notify_one();
            return None;
        }
        route.updates.clone()
    }

    /// Records the message that a piece of the answer belongs to. Returns whether the previous piece belonged to
    /// another message.
    pub fn is_another_message(&self, session: &str, message: Option<String>) -> bool {
        let mut routes = self.0.lock();
        let Some(route) = routes.get_mut(session) else { return false };
        let last = std::mem::replace(&mut route.last, LastPiece::Of(message));
        matches!((last, &route.last), (LastPiece::Of(before), LastPiece::Of(now)) if before != *now)
    }

    /// Waits until no piece of a replay has come for `span`.
    pub async fn quiet(&self, session: &str, span: Duration) {
        let Some(replayed) = self.0.lock().get(session).map(|route| Arc::clone(&route.replayed)) else {
            return;
        };
        loop {
            tokio::select! {
                biased;
                () = replayed.notified() => {}
                () = sleep_then_drain(span) => return,
            }
        }
    }

    /// Registers a question. Returns the session's update channel, and a receiver that resolves when the question is
    /// called off; `None` if the session is in no turn, or if its turn was cancelled.
    pub fn ask(&self, session: &str) -> Option<(Updates, oneshot::Receiver<()>)> {
        let mut routes = self.0.lock();
        let route = routes.get_mut(session).filter(|route| route.turn == TurnState::Running)?;
        let updates = route.updates.clone()?;
        let (held, called_off) = oneshot::channel();
        route.asks.retain(|ask| !ask.is_closed());
        route.asks.push(held);
        Some((updates, called_off))
    }

    /// Waits until the agent has answered the session's last prompt, and begins the turn. Fails if the session is not
    /// open, or if the turn was cancelled before it began.
    pub async fn begin(&self, session: &str) -> Result<OwnedMutexGuard<()>, NotBegun> {
        let (gate, interrupted) = {
            let routes = self.0.lock();
            let route = routes.get(session).ok_or(NotBegun::NotOpen)?;
            (Arc::clone(&route.gate), Arc::clone(&route.interrupted))
        };
        let held = tokio::select! {
            biased;
            () = interrupted.notified() => return Err(NotBegun::Cancelled),
            held = gate.lock_owned() => held,
        };
        let mut routes = self.0.lock();
        let route = routes.get_mut(session).ok_or(NotBegun::NotOpen)?;
        route.turn = TurnState::Running;
        route.replaying = false;
        route.last = LastPiece::None;
        Ok(held)
    }

    /// Marks the turn as cancelled: a waiting prompt does not begin, and later questions are called off at once.
    pub fn cancel(&self, session: &str) {
        if let Some(route) = self.0.lock().get_mut(session) {
            route.interrupted.notify_waiters();
            if route.turn == TurnState::Running {
                route.turn = TurnState::Cancelled;
            }
        }
    }

    /// Calls off the questions of a session.
    pub fn call_off(&self, session: &str) {
        if let Some(route) = self.0.lock().get_mut(session) {
            route.asks.clear();
        }
    }

    /// Ends the turn, and calls off its questions.
    pub fn end(&self, session: &str) {
        if let Some(route) = self.0.lock().get_mut(session) {
            route.turn = TurnState::None;
            route.asks.clear();
        }
    }
}

/// Why a turn did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// The session is not open.
    NotOpen,
    /// The turn was cancelled while it waited for the previous turn.
    Cancelled,
}
