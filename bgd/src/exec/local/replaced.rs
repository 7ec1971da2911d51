//! The state of a keeper that has replaced another one, or was found incomplete, until it is complete.

use std::sync::Weak;

use crate::keeper::client::Socket;

/// What remains to be done until a replacement keeper holds all current runs.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// Whether the replacement is being started.
    pub(super) is_starting: bool,
    /// Ended keepers to which processes may have announced themselves that are not known yet.
    pub(super) gone: Vec<Weak<Socket>>,
    /// The number of runs that are being copied for the replacement.
    pub(super) copying: usize,
    /// Whether the replacement is still to be notified when it is complete.
    pub(super) is_due: bool,
    /// Whether copying something to it has failed.
    pub(super) lacks: bool,
    /// Whether the journal still lacks the outcomes of runs that the replacement does not hold: those of the previous
    /// daemon, which are not fully known, or those that had ended when the old keeper ended.
    pub(super) is_doubtful: bool,
    /// The number of the [`Durable::caught_up`](crate::exec::executor::Durable::caught_up) call that ends the doubt.
    pub(super) mark: u64,
}

impl Replaced {
    /// Reports whether running tasks are still to be passed to the replacement.
    pub(super) fn lacks_runs(&self) -> bool {
        self.is_starting || self.copying > 0
    }

    /// Reports whether the replacement has received everything.
    pub(super) fn is_over(&self) -> bool {
        !self.lacks_runs() && !self.is_doubtful && self.gone.iter().all(|gone| gone.strong_count() == 0)
    }
}
