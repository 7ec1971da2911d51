//! The parameters that a terminal is opened with.

use std::os::fd::OwnedFd;

use bgd_shared::id::TaskId;
use bgd_shared::request::TerminalSize;

use super::still::Before;
use super::viewers::Viewer;
use crate::exec::output::loss::Loss;

/// A terminal to follow.
#[derive(Debug)]
pub struct Opening {
    pub task: TaskId,
    /// The terminal's master. It is made non-blocking.
    pub master: OwnedFd,
    /// The terminal's slave, to be kept open; otherwise the master reports a hang-up, and is not read any more, as soon
    /// as no process has the terminal open.
    pub slave: Option<OwnedFd>,
    pub size: TerminalSize,
    /// The output file that records the terminal.
    pub output: OwnedFd,
    /// Reports output that can't be saved.
    pub loss: Loss,
    /// The socket on which its leader reports about the job, if it has a leader.
    pub leader_news: Option<OwnedFd>,
    /// The viewer that is shown it from the first byte on, if any.
    pub owner: Option<Viewer>,
    /// Its state in the previous program, after an upgrade.
    pub before: Option<Box<Before>>,
}
