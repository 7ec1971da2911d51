//! An upgrade in place that is under way, as data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::holder;

use super::state::PremisesState;
use crate::carry::Named;
use crate::carry::program::{Candidate, Trial};
use crate::client::answer::Answer;
use crate::os::clock::Stamp;
use crate::wire::connection::Connection;
use crate::wire::connections::Connections;

/// What an upgrade needs besides the dispatcher.
pub struct Premises {
    /// The connections and their gate.
    pub connections: Arc<Connections<Connection>>,
    /// Returns what the start of the daemon has taken: locks, folders, its place.
    pub state: Box<dyn Fn(&mut Named) -> PremisesState>,
    /// Says where clients look that get no answer whether the daemon is about to answer.
    pub says: Box<dyn Fn(holder::Phase)>,
}

/// An upgrade under way.
#[derive(Debug)]
pub(super) struct Upgrade {
    pub(super) answer: Answer,
    /// When the wait for a moment without work began, which there is before the trial and after it.
    pub(super) waits_since: Instant,
    /// How long requests were held back already.
    pub(super) held: Duration,
    /// The process that looks at the state, if there is one.
    pub(super) trial: Trial,
    pub(super) phase: Phase,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// A worker looks at the program, or tries it.
    OnWorker,
    /// Requests are held back, since then, until the state can be written.
    Holding { since: Stamp, program: Box<Candidate>, was_tried: bool },
    /// Requests pass again until the next hold.
    Resting { until: Instant, program: Box<Candidate>, was_tried: bool },
}

/// Returns the error for an upgrade that was not done.
pub(super) fn refusal(why: &str) -> RpcError {
    RpcError::new(ErrorKind::UpgradeRefused, format!("not upgraded, and nothing has changed: {why}"))
}

/// Returns the error for an upgrade of a daemon that ends.
pub(super) fn shutting_down() -> RpcError {
    RpcError::new(ErrorKind::ShuttingDown, "the daemon is shutting down")
}
