//! Processes that other programs started and hand over while they run (R70).
//!
//! They are no children of the daemon: it knows them by the pidfd that came along and supervises them by
//! it, as it does its own. What they write is drained from the pipes whose reading ends came along. The
//! program that started them may end at any time. Nothing here may touch a process or a pipe before the
//! core has taken the task.

pub mod check;
pub mod drain;
pub mod exit;
pub mod facts;
pub mod kinds;
mod offer;
pub mod tree;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bgd_shared::request::TerminalSize;

use self::check::Checked;
use self::drain::Prepared;
pub use self::offer::Handoff;

/// A process that is taken over as soon as the core has a task for it.
#[derive(Debug)]
pub struct Ready {
    /// The process.
    pub checked: Checked,
    /// What becomes of its output.
    pub recorded: Recorded,
}

/// What becomes of the output of a process that is taken over.
#[derive(Debug)]
pub enum Recorded {
    /// It is drained into the task's files, two of them if it is `split`.
    Drained {
        /// Those who will drain it.
        prepared: Prepared,
        /// Whether there are two.
        split: bool,
    },
    /// The process writes it to this file by itself.
    File(PathBuf),
    /// It is shown by a terminal, and kept in the task's file.
    Terminal(HandedTerminal),
}

/// A terminal that comes with a process.
#[derive(Debug)]
pub struct HandedTerminal {
    /// Its master.
    pub master: OwnedFd,
    /// Its size.
    pub size: TerminalSize,
    /// The new file in which is kept what it shows.
    pub output: OwnedFd,
}
