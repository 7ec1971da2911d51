//! What a connection carries over an upgrade in place. The server is asked again for everything else: the stream of its
//! events begins anew, with a gap that each session closes by a look.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Opencode;
use super::api::Api;
use super::session::Timing;
use super::state::{OpencodeState, SessionState};
use crate::exec::agent::connection::Updates;
use crate::exec::http::Http;

impl Opencode {
    /// Goes on with a connection of another program. `updates` returns where the updates of a session go.
    ///
    /// # Errors
    /// The server's address can't be used.
    pub fn again(
        state: OpencodeState,
        mut updates: impl FnMut(&Arc<str>) -> Option<Updates>,
    ) -> io::Result<Self> {
        let OpencodeState { access, version, took, sessions } = state;
        let http = Http::new(&access.0, access.1.as_deref()).map_err(io::Error::other)?;
        let (this, _) = Self::following(Arc::new(Api::new(http)), access, Timing::default());
        for SessionState { key, directory, told, turn } in sessions {
            if let Some(updates) = updates(&key) {
                this.add(key, directory, updates, turn).told.store(told, Ordering::Relaxed);
            }
        }
        Ok(Self { version, took, ..this })
    }

    /// Holds back what the server says, or lets it pass.
    pub fn hold(&self, holds: bool) {
        self.hold.send_if_modified(|held| std::mem::replace(held, holds) != holds);
    }

    /// Returns the state; `None` while something is under way in it that the state would not have.
    pub fn state(&self) -> Option<OpencodeState> {
        if self.gone.borrow().is_some() {
            return None;
        }
        let mut sessions = Vec::new();
        for (key, handle) in &*self.sessions() {
            let turn = handle.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
            let is_prompting = handle.prompting.load(Ordering::Relaxed);
            let is_told =
                handle.updates.is_closed() || handle.updates.capacity() == handle.updates.max_capacity();
            if turn.runs != is_prompting || !is_told {
                return None;
            }
            turn.asks.references()?;
            let (key, directory) = (Arc::clone(key), Arc::clone(&handle.directory));
            sessions.push(SessionState {
                key,
                directory,
                told: handle.stop.told.load(Ordering::Relaxed),
                turn,
            });
        }
        Some(OpencodeState {
            access: self.access.clone(),
            version: self.version.clone(),
            took: self.took,
            sessions,
        })
    }

    /// Returns what the open questions of a session are called.
    pub fn asking(&self, key: &str) -> Vec<String> {
        let sessions = self.sessions();
        let shown =
            sessions.get(key).map(|handle| handle.shown.lock().unwrap_or_else(PoisonError::into_inner));
        shown.and_then(|shown| shown.as_ref()?.asks.references()).unwrap_or_default()
    }
}
