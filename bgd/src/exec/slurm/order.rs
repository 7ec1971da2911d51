//! What the dispatcher orders of a cluster.

use bgd_shared::id::TaskId;
use bgd_shared::request::ExecutorCheck;
use tokio::sync::oneshot;

use super::run::Run;
use crate::core::Control;
use crate::remotes::Slurm;

/// An order for a cluster.
#[derive(Debug)]
pub enum Order {
    /// Start a run.
    Start {
        /// The task.
        task: TaskId,
        /// Its run.
        run: Box<Run>,
    },
    /// End a run, with this signal.
    End {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// The signal's number.
        signal: i32,
    },
    /// Apply a control operation.
    Control {
        /// The task.
        task: TaskId,
        /// The operation.
        control: Control,
        /// Is told when it is done.
        done: oneshot::Sender<()>,
    },
    /// Forget a task.
    Forget {
        /// The task.
        task: TaskId,
    },
    /// Try whether the cluster works.
    Check {
        /// Gets the result.
        tell: oneshot::Sender<ExecutorCheck>,
    },
    /// Use these settings from now on.
    Configure(Box<Slurm>),
    /// The daemon ends.
    Close,
}
