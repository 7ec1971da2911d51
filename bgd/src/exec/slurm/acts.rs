//! What is to be done to jobs: orders of one kind that come together are carried out together. Pure.

use bgd_shared::id::TaskId;
use tokio::sync::oneshot;

use super::commands::{self, Words};
use super::job::JobId;
use crate::exec::host::SIGKILL;

/// Something that is done to jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// End it in the cluster's own way.
    Cancel,
    /// End it at once.
    Kill,
    /// End it by a signal that its submitter has chosen.
    End(i32),
    /// Send it a signal.
    Signal(i32),
    /// Keep it from starting, or no longer.
    Hold(bool),
    /// Lower its priority.
    Nice(u32),
}

impl Deed {
    /// Whether it is to end the job.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Cancel | Self::Kill | Self::End(_))
    }
}

/// An order for one job.
#[derive(Debug)]
pub struct Act {
    /// What is done.
    pub deed: Deed,
    /// The task.
    pub task: TaskId,
    /// Its run.
    pub run: u32,
    /// Its job.
    pub id: JobId,
    /// Is told when it is done.
    pub done: Option<oneshot::Sender<()>>,
}

/// Takes the orders that are carried out together with the first one.
pub fn take(acts: &mut Vec<Act>) -> Vec<Act> {
    let Some(deed) = acts.first().map(|act| act.deed) else { return Vec::new() };
    if matches!(deed, Deed::Nice(_)) {
        return acts.drain(..1).collect();
    }
    acts.extract_if(.., |act| act.deed == deed).collect()
}

/// Returns the commands for these orders, which are of one kind.
pub fn commands(acts: &[Act]) -> Vec<Words> {
    let Some(first) = acts.first() else { return Vec::new() };
    let jobs: Vec<JobId> = acts.iter().map(|act| act.id).collect();
    match first.deed {
        Deed::Cancel => commands::cancel(jobs),
        Deed::Kill => [commands::cancel(jobs.clone()), commands::signal(jobs, SIGKILL)].concat(),
        Deed::End(signal) | Deed::Signal(signal) => commands::signal(jobs, signal),
        Deed::Hold(is_held) => commands::hold(jobs, is_held),
        Deed::Nice(nice) => vec![commands::nice(first.id, nice)],
    }
}
