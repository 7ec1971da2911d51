//! The live view's requirements on its caller: links to daemons, and running other programs in the terminal.

use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use nix::sys::signal::Signal;

use super::task_key::{HostNo, TaskKey};
use crate::failure::Failure;
use crate::link::Link;

/// The view's interface to its surroundings.
pub trait Environment {
    /// Returns a link for another connection to a host's daemon. The link prints nothing and asks nothing.
    fn link(&self, host: HostNo) -> Link;

    /// Runs a verb in the terminal, for a host or for those named by its arguments. Returns the exit code.
    ///
    /// # Errors
    /// The verb can't be started.
    fn verb(&self, host: Option<HostNo>, args: &[String], signals: &[Signal]) -> Result<u8, Failure>;

    /// Shows the output of a task in the pager. Returns the exit code.
    ///
    /// # Errors
    /// The pager can't be started.
    fn page(&self, task: TaskKey, signals: &[Signal]) -> Result<u8, Failure>;

    /// Reports whether to use colours.
    fn colour(&self) -> bool;

    /// Called when the user leaves, with the time up to which all ends are known, and with the failures not seen yet and
    /// the times of their ends.
    fn left(&self, at: Timestamp, unseen: Vec<(TaskId, Timestamp)>);
}
