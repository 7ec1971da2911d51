//! What a connection carries over an upgrade in place, as data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::hello::Hello;
use super::routes::RouteState;
use super::wire::WireState;

/// A connection, as data.
#[derive(Debug, Serialize, Deserialize)]
pub struct AcpState {
    pub(super) wire: WireState,
    pub(super) routes: Vec<RouteState>,
    pub(super) hello: Hello,
}

impl AcpState {
    /// Returns the keys of the sessions.
    pub fn sessions(&self) -> impl Iterator<Item = &Arc<str>> {
        self.routes.iter().map(|route| &route.session)
    }
}
