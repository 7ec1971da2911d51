//! The state of the connection to a machine.

use std::sync::Arc;
use std::time::Instant;

use bgd_shared::event::News;
use futures_util::future::BoxFuture;

use super::bridge::{Bridge, BridgeError};

pub enum Link {
    /// There is no connection, and none is needed.
    Idle,
    Opening(BoxFuture<'static, Result<Bridge, BridgeError>>),
    /// The connection exists. It is closed at this time if nothing needs it.
    Open(Arc<Bridge>, Instant),
    /// Connecting has failed, for this reason; it is retried at this time.
    Broken(Instant, BridgeError),
}

/// An event of the connection.
pub enum LinkEvent {
    Opened(Box<Bridge>),
    /// Connecting has failed.
    Failed(BridgeError),
    /// An event of a task on the machine.
    News(News),
    /// The connection broke.
    Closed,
}

impl Link {
    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> LinkEvent {
        match self {
            Self::Opening(opening) => match opening.await {
                Ok(bridge) => LinkEvent::Opened(Box::new(bridge)),
                Err(trouble) => LinkEvent::Failed(trouble),
            },
            Self::Open(bridge, _) => match bridge.next_news().await {
                Some(params) => LinkEvent::News(params.news),
                None => LinkEvent::Closed,
            },
            Self::Idle | Self::Broken(..) => std::future::pending().await,
        }
    }
}
