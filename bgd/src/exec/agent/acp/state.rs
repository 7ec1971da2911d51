//! The state of a connection that is carried over an upgrade in place.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::hello::Hello;
use super::routes::RouteState;
use super::wire::WireState;

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
