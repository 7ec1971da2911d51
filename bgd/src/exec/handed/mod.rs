//! Processes that other programs started and hand over while they run (R70).
//!
//! They are not children of the daemon, which supervises them by the received pidfds, like its own. Their output is
//! drained from the pipes whose read ends were received. The program that started them may end at any time. Nothing
//! here may touch a process or a pipe before the core has accepted the task.

pub mod check;
pub mod copies;
pub mod drain;
pub mod exit;
pub mod facts;
pub mod kinds;
mod offer;
pub mod tree;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bgd_shared::request::TerminalSize;

use self::check::Checked;
use self::copies::FlowCopy;
use self::drain::Prepared;
pub use self::offer::Handoff;
use super::terminal::still::Copies;
use crate::os::pty::slave_of;

/// A process that is taken over as soon as the core has a task for it.
#[derive(Debug)]
pub struct Ready {
    pub checked: Checked,
    pub recorded: Recorded,
}

/// Where the output of a handed-over process goes.
#[derive(Debug)]
pub enum Recorded {
    /// It is drained into the task's files.
    Drained {
        prepared: Prepared,
        /// Whether standard output and error have separate files.
        split: bool,
        /// Copies of the drains' descriptors for the keeper, if there is one.
        copies: Vec<FlowCopy>,
    },
    /// The process itself writes it to this file.
    File(PathBuf),
    /// The daemon follows its terminal, and records it in the task's file.
    Terminal(HandedTerminal),
}

/// A terminal that comes with a process.
#[derive(Debug)]
pub struct HandedTerminal {
    pub master: OwnedFd,
    pub size: TerminalSize,
    /// The new output file, which records the terminal.
    pub output: OwnedFd,
}

impl HandedTerminal {
    /// Copies its descriptors.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn copies(&self) -> io::Result<Copies> {
        let Self { master, size: _, output } = self;
        Ok(Copies {
            master: master.try_clone()?,
            // Without the slave, the terminal is followed as long as any process has it open.
            slave: slave_of(master).ok(),
            leader_news: None,
            output: output.try_clone()?,
            began_at: 0,
        })
    }
}
