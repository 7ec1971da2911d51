//! What a terminal is opened with.

use std::os::fd::OwnedFd;

use bgd_shared::id::TaskId;
use bgd_shared::request::TerminalSize;

use super::viewers::Viewer;
use crate::exec::loss::Loss;

/// A terminal that is to be followed.
#[derive(Debug)]
pub struct Opening {
    /// The task that runs in it.
    pub task: TaskId,
    /// The terminal's master. It is set not to block.
    pub master: OwnedFd,
    /// Its processes' side, to be kept open; without it the master reports a hang-up, and is not read any
    /// more, as soon as no process has the terminal open.
    pub slave: Option<OwnedFd>,
    /// Its size.
    pub size: TerminalSize,
    /// Where what it shows is kept.
    pub output: OwnedFd,
    /// Who hears of what can't be kept.
    pub loss: Loss,
    /// Where its leader tells of the job, if there is one.
    pub leader_news: Option<OwnedFd>,
    /// Who is shown it from the first byte on.
    pub owner: Option<Viewer>,
}
