//! The state of a keeper that has replaced another one, or was found incomplete, until it is complete.

use std::sync::Weak;

use crate::keeper::socket::Socket;

/// How far the replacement of a keeper is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Renewal {
    /// There is none, or it is complete and knows it.
    #[default]
    Complete,
    /// It is being started.
    Starting,
    /// It is still to be notified when it is complete.
    Filling,
}

/// What remains to be done until a replacement keeper holds all current runs.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    pub(super) renewal: Renewal,
    /// Ended keepers to which processes may have announced themselves that are not known yet.
    pub(super) gone: Vec<Weak<Socket>>,
    /// The number of runs that are being copied for the replacement.
    pub(super) copying: usize,
    /// Whether copying something to it has failed.
    pub(super) lacks: bool,
    /// Whether the journal still lacks the outcomes of runs that the replacement does not hold: those of the previous
    /// daemon, which are not fully known, or those that had ended when the old keeper ended.
    pub(super) is_doubtful: bool,
    /// The number of the [`Executor::caught_up`](crate::exec::executor::Executor::caught_up) call that ends the doubt.
    pub(super) mark: u64,
}

impl Replaced {
    /// Reports whether running tasks are still to be passed to the replacement.
    pub(super) fn lacks_runs(&self) -> bool {
        self.renewal == Renewal::Starting || self.copying > 0
    }

    /// Reports whether the replacement has received everything.
    pub(super) fn is_over(&self) -> bool {
        !self.lacks_runs() && !self.is_doubtful && self.gone.iter().all(|gone| gone.strong_count() == 0)
    }
}
