//! What all requests of a server share. It does nothing by itself.

use std::sync::Arc;
use std::time::Duration;

use bgd_shared::request::SubmitParams;
use tokio::sync::watch;

use super::ledger::Ledger;
use super::link::Link;
use super::push::Push;
use super::waits::Waits;

/// What all requests share.
#[derive(Debug)]
pub struct Shared {
    /// The way to the daemon.
    pub link: Arc<Link>,
    /// What was told.
    pub ledger: Arc<Ledger>,
    /// Who is told at once.
    pub push: Arc<Push>,
    /// The parent session.
    pub session: String,
    /// What every task is submitted with.
    pub template: SubmitParams,
    /// How long `background_block` waits at most.
    pub max_block: Duration,
    /// How deep this server is, or what the variable that counts it has instead of a number.
    pub depth: Result<u32, String>,
    /// How deep a server may be that starts tasks: less than this.
    pub most_depth: u32,
    /// Whether tasks of other sessions may be looked at.
    pub all_sessions: bool,
    /// Whether answers have structured content, too.
    pub structured: bool,
    /// Whether the parent session stays at the end.
    pub keeps: bool,
    /// Whether the input has ended.
    pub ended: watch::Receiver<bool>,
    /// Waits as tasks of the protocol.
    pub waits: Waits,
}
