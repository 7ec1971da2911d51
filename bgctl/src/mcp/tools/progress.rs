//! Progress notifications of a wait, for clients that ask for them.

use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext, RoleServer};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// Interval between notifications.
const EVERY: Duration = Duration::from_secs(5);

/// Returns the ticks at which to send notifications; the first one is immediate.
pub fn ticks() -> Interval {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Notifies a client of the progress of a wait.
#[derive(Debug)]
pub struct Progress {
    client: Peer<RoleServer>,
    token: ProgressToken,
    begun: Instant,
    /// The last value sent; the next one must be higher.
    last: f64,
}

impl Progress {
    /// Returns `None` if the client did not ask for progress.
    pub fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        Some(Self { client: context.peer.clone(), token, begun: Instant::now(), last: -1.0 })
    }

    /// Sends a progress notification.
    pub async fn notify(&mut self, message: impl Into<String>) {
        self.last = self.begun.elapsed().as_secs_f64().max(self.last + 0.001);
        let params = ProgressNotificationParam::new(self.token.clone(), self.last).with_message(message);
        // A client that is gone is noticed at the end of its input.
        let _ = self.client.notify_progress(params).await;
    }
}
