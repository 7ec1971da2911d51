//! The parameters that a terminal is opened with.

use std::os::fd::OwnedFd;

use bgd_shared::id::TaskId;
use bgd_shared::request::TerminalSize;

use super::still::Before;
use super::viewers::Viewer;
use crate::exec::loss::Loss;

/// A terminal to follow.
#[derive(Debug)]
pub struct Opening {
    /// The task that runs in it.
    pub task: TaskId,
    /// The terminal's master. It is made non-blocking.
    pub master: OwnedFd,
    /// The processes' side, to be kept open; otherwise the master reports a hang-up, and is not read any more, as
    /// soon as no process has the terminal open.
    pub slave: Option<OwnedFd>,
    pub size: TerminalSize,
    /// The output file, for what it shows.
    pub output: OwnedFd,
    /// Reports what can't be kept.
    pub loss: Loss,
    /// The socket on which its leader reports about the job, if it has a leader.
    pub leader_news: Option<OwnedFd>,
    /// The viewer that is shown it from the first byte on, if any.
    pub owner: Option<Viewer>,
    /// What is known of it from the program before this one, after an upgrade.
    pub before: Option<Box<Before>>,
}
