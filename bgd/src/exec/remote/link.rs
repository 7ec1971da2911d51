//! The state of the connection to a machine.

use std::sync::Arc;
use std::time::Instant;

use bgd_shared::event::News;
use futures_util::future::BoxFuture;

use super::bridge::{Bridge, Trouble};

/// The connection.
pub enum Link {
    /// There is none, and nothing needs one.
    Idle,
    /// It is being made.
    Opening(BoxFuture<'static, Result<Bridge, Trouble>>),
    /// It is there. Holds when it is closed if nothing needs it.
    Open(Arc<Bridge>, Instant),
    /// It can't be made. Holds when it is tried again, and why.
    Broken(Instant, Trouble),
}

/// News of the connection.
pub enum LinkEvent {
    /// It was made.
    Opened(Box<Bridge>),
    /// It can't be made.
    Failed(Trouble),
    /// Something happened there.
    News(News),
    /// It broke.
    Closed,
}

impl Link {
    /// Waits for news. Cancel-safe.
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
