//! Saves the state of a connection for an upgrade in place, and restores the connection from it. Everything else is
//! requested from the server again: the stream of its events is started again, and each session closes the gap with a
//! look.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::api::Api;
use super::session::Timing;
use super::state::{OpencodeState, SessionState};
use super::{Handle, Opencode};
use crate::exec::agent::connection::Updates;

impl Opencode {
    /// Restores a connection after an upgrade. `updates` returns the update channel of a session.
    ///
    /// # Errors
    /// The server's address can't be used.
    pub fn restore(
        state: OpencodeState,
        mut updates: impl FnMut(&Arc<str>) -> Option<Updates>,
    ) -> io::Result<Self> {
        let OpencodeState { access, version, took, sessions } = state;
        let api = Api::new(&access.0, access.1.as_deref()).map_err(io::Error::other)?;
        let (this, _) = Self::following(Arc::new(api), access, Timing::default());
        for SessionState { key, directory, is_stop_requested, turn } in sessions {
            if let Some(updates) = updates(&key) {
                this.add(key, directory, updates, turn)
                    .is_requested
                    .store(is_stop_requested, Ordering::Relaxed);
            }
        }
        Ok(Self { version, took, ..this })
    }

    /// Holds back the server's updates, or releases them.
    pub fn hold(&self, holds: bool) {
        self.hold.send_if_modified(|held| std::mem::replace(held, holds) != holds);
    }

    /// Returns the state; `None` while something that the state does not include is in progress.
    pub fn state(&self) -> Option<OpencodeState> {
        // The ignored fields are created again.
        let Self {
            access,
            version,
            took,
            gone,
            sessions: _,
            api: _,
            routes: _,
            timing: _,
            hold: _,
            _follower,
        } = self;
        if gone.borrow().is_some() {
            return None;
        }
        let mut sessions = Vec::new();
        for (key, handle) in &*self.sessions.lock() {
            let Handle { directory, stop, updates, prompting, shown, orders: _, goes_on: _, _work } = handle;
            let turn = shown.lock().clone()?;
            let is_prompting = prompting.load(Ordering::Relaxed);
            let is_drained = updates.is_closed() || updates.capacity() == updates.max_capacity();
            if turn.runs != is_prompting || !is_drained {
                return None;
            }
            turn.asks.references()?;
            let (key, directory) = (Arc::clone(key), Arc::clone(directory));
            let is_stop_requested = stop.is_requested.load(Ordering::Relaxed);
            sessions.push(SessionState { key, directory, is_stop_requested, turn });
        }
        Some(OpencodeState { access: access.clone(), version: version.clone(), took: *took, sessions })
    }

    /// Returns the names of the open questions of a session.
    pub fn asking(&self, key: &str) -> Vec<String> {
        let sessions = self.sessions.lock();
        let shown = sessions.get(key).map(|handle| handle.shown.lock());
        shown.and_then(|shown| shown.as_ref()?.asks.references()).unwrap_or_default()
    }
}
