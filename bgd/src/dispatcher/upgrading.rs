//! An upgrade in place in progress, as data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::holder;

use super::state::ResourcesState;
use crate::carry::program::{Candidate, Trial};
use crate::carry::{CarriedFds, Obstacle};
use crate::client::answer::Answer;
use crate::os::clock::Stamp;
use crate::wire::connection::Connection;
use crate::wire::connections::Connections;

/// Returns the resources that the next program takes over.
type CaptureResources = dyn Fn(&mut CarriedFds) -> Result<ResourcesState, Obstacle>;

/// The parts that an upgrade needs besides the dispatcher.
pub struct UpgradeContext {
    /// The connections and their gate.
    pub connections: Arc<Connections<Connection>>,
    /// Returns the resources acquired at startup: locks, folders, the socket. Fails while the socket is recreated.
    pub state: Box<CaptureResources>,
    /// Publishes the daemon's phase, for clients that get no answer.
    pub says: Box<dyn Fn(holder::Phase)>,
    /// Announces to the service manager that the dispatcher ends within this time.
    pub stopping: fn(Duration),
}

#[derive(Debug)]
pub(super) struct Upgrade {
    pub(super) answer: Answer,
    /// Start of the current wait for a moment without work; there is one wait before the trial and one after it.
    pub(super) waits_since: Instant,
    /// How long requests have been held back in total.
    pub(super) held: Duration,
    /// The process that reads the state, if there is one.
    pub(super) trial: Trial,
    pub(super) phase: Phase,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// A worker checks or tries the program.
    OnWorker,
    /// Requests are held back since then, until the state can be written.
    Holding { since: Stamp, program: Box<Candidate>, was_tried: bool },
    /// Requests pass until the next hold.
    Resting { until: Instant, program: Box<Candidate>, was_tried: bool },
}

/// Returns the error for an upgrade that did not happen.
pub(super) fn refusal(why: &str) -> RpcError {
    RpcError::new(ErrorKind::UpgradeRefused, format!("not upgraded, and nothing has changed: {why}"))
}

/// Returns the error for an upgrade of a daemon that is shutting down.
pub(super) fn shutting_down() -> RpcError {
    RpcError::new(ErrorKind::ShuttingDown, "the daemon is shutting down")
}
