//! What the live view needs from whoever starts it: links to daemons, and the terminal lent to other programs.

use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use nix::sys::signal::Signal;

use super::task_key::{HostNo, TaskKey};
use crate::failure::Failure;
use crate::link::Link;

/// What the view needs from its surroundings.
pub trait Environment {
    /// A link for another connection to a host's daemon, which prints nothing and asks nothing.
    fn link(&self, host: HostNo) -> Link;

    /// Runs a verb in the terminal: for a host, or for whatever its arguments name. Returns its exit code.
    ///
    /// # Errors
    /// It can't be started.
    fn verb(&self, host: Option<HostNo>, args: &[String], signals: &[Signal]) -> Result<u8, Failure>;

    /// Shows the output of a task in the pager. Returns its exit code.
    ///
    /// # Errors
    /// It can't be started.
    fn page(&self, task: TaskKey, signals: &[Signal]) -> Result<u8, Failure>;

    /// Whether to use colours.
    fn colour(&self) -> bool;

    /// The user leaves now, and has not seen these failures, with the times of their ends.
    fn left(&self, unseen: Vec<(TaskId, Timestamp)>);
}
