//! The state of a connection that is carried over an upgrade in place.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::session::TurnState;

#[derive(Debug, Serialize, Deserialize)]
pub struct OpencodeState {
    pub(super) access: (String, Option<String>),
    pub(super) version: Option<String>,
    pub(super) took: Duration,
    pub(super) sessions: Vec<SessionState>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionState {
    pub(super) key: Arc<str>,
    pub(super) directory: Arc<str>,
    /// Whether its turn was asked to end.
    #[serde(rename = "told")]
    pub(super) is_stop_requested: bool,
    pub(super) turn: TurnState,
}

impl OpencodeState {
    /// Returns the keys of the sessions.
    pub fn sessions(&self) -> impl Iterator<Item = &Arc<str>> {
        self.sessions.iter().map(|session| &session.key)
    }
}
