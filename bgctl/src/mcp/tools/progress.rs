//! How far a wait is, for a client that has asked to be told.

use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext, RoleServer};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// How often a client that asked for it is told that the wait goes on.
const EVERY: Duration = Duration::from_secs(5);

/// When a client is told; the first time at once.
pub fn ticks() -> Interval {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Tells a client how far a wait is.
#[derive(Debug)]
pub struct Progress {
    client: Peer<RoleServer>,
    token: ProgressToken,
    begun: Instant,
    /// The last number that was told: the next one is higher.
    last: f64,
}

impl Progress {
    /// For the client that waits, if it asked for it.
    pub fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        Some(Self { client: context.peer.clone(), token, begun: Instant::now(), last: -1.0 })
    }

    /// Tells it.
    pub async fn tell(&mut self, message: impl Into<String>) {
        self.last = self.begun.elapsed().as_secs_f64().max(self.last + 0.001);
        let params = ProgressNotificationParam::new(self.token.clone(), self.last).with_message(message);
        // A client that is gone is noticed where its input ends.
        let _ = self.client.notify_progress(params).await;
    }
}
