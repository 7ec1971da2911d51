//! The state that all requests of a server share. It has no behaviour of its own.

use std::sync::Arc;
use std::time::Duration;

use bgd_shared::request::SubmitParams;
use tokio::sync::watch;

use super::ledger::Ledger;
use super::link::Link;
use super::push::Push;
use super::waits::Waits;

/// The state that all requests share.
#[derive(Debug)]
pub struct Shared {
    pub link: Arc<Link>,
    pub ledger: Arc<Ledger>,
    pub push: Arc<Push>,
    /// The key of the parent session.
    pub session: String,
    /// The parameters common to all submitted tasks.
    pub template: SubmitParams,
    /// The longest wait of `background_block`.
    pub max_block: Duration,
    /// The depth of this server, or the value of the depth variable if it is not a number.
    pub depth: Result<u32, String>,
    /// Only servers with a depth below this may start tasks.
    pub most_depth: u32,
    /// Whether tasks of other sessions may be shown.
    pub all_sessions: bool,
    /// Whether answers include structured content.
    pub structured: bool,
    /// Whether the parent session outlives this server.
    pub keeps: bool,
    /// Whether the input has ended.
    pub ended: watch::Receiver<bool>,
    pub waits: Waits,
}
