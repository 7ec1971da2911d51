//! The state of a keeper that has replaced another one, or was found without everything, until it has that.

use std::sync::Weak;

use crate::keeper::client::Socket;

/// What is to be done until a keeper that has replaced another one has all that runs.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// Keepers that are gone, to which something may have announced itself that is not known yet.
    pub(super) gone: Vec<Weak<Socket>>,
    /// How many runs are being copied for the new one.
    pub(super) copying: usize,
    /// Whether the new one is to be told when it has everything.
    pub(super) is_due: bool,
    /// Whether it lacks something.
    pub(super) lacks: bool,
    /// Whether it is not written down yet what became of runs that the new one is not given: those of the daemon before, which
    /// are not known whole, or those that had ended when the keeper that held them went.
    pub(super) is_doubtful: bool,
    /// Which answer ends the doubt, [`Executor::caught_up`](crate::exec::executor::Executor::caught_up).
    pub(super) mark: u64,
}

impl Replaced {
    /// Whether everything was given to the new one.
    pub(super) fn is_over(&self) -> bool {
        !self.is_doubtful && self.copying == 0 && self.gone.iter().all(|gone| gone.strong_count() == 0)
    }
}
