//! A terminal that keeps still for an upgrade in place, and continues in the program that takes over (R121).
//!
//! While it keeps still, nothing is read from it or written to it, and nothing is sent to its viewers: the job's output
//! stays in the kernel.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use bgd_shared::request::TerminalSize;
use serde::{Deserialize, Serialize};

use super::screen::{Screen, ScreenState};
use super::viewers::{Viewer, ViewerState};
use crate::carry::{self, CarriedFds, Fd};
use crate::exec::threads::hold;

/// How many bytes a screen accepts at once.
const PART: usize = 64 * 1024;

/// The order to keep still.
pub type KeepStill = hold::KeepStill<Box<Still>>;

/// Keeps a terminal still until it is dropped.
pub type Hold = hold::Hold<Box<Still>>;

/// A terminal that keeps still.
#[derive(Debug)]
pub struct Still {
    pub(super) state: SessionState,
    pub(super) master: RawFd,
    pub(super) slave: Option<RawFd>,
    pub(super) leader_news: Option<RawFd>,
    pub(super) output: RawFd,
}

impl Still {
    /// Returns the state for the program that takes over.
    pub fn state(&self, named: &mut CarriedFds) -> FollowedState {
        let Self { state, master, slave, leader_news, output } = self;
        FollowedState {
            session: state.clone(),
            master: named.number(*master),
            slave: slave.map(|number| named.number(number)),
            leader_news: leader_news.map(|number| named.number(number)),
            output: named.number(*output),
        }
    }
}

/// The state of a followed terminal for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct FollowedState {
    session: SessionState,
    master: Fd,
    slave: Option<Fd>,
    leader_news: Option<Fd>,
    output: Fd,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another thing")]
pub struct SessionState {
    pub(super) unknown_end: Option<Vec<u8>>,
    #[serde(default)]
    pub(super) is_stopped: bool,
    /// Whether the job is continued if it stops now, as no viewer is left.
    #[serde(default)]
    pub is_stop_awaited: bool,
    /// The typed input that is not written yet.
    pub writes: Vec<WriteState>,
    pub(super) is_losing: bool,
    pub(super) screen: ScreenState,
    pub viewers: Vec<ViewerState>,
    #[serde(rename = "told")]
    pub(super) sent_bytes: u64,
    /// The offset in the output at which the terminal was opened: an earlier attempt had another terminal.
    #[serde(default)]
    pub(super) began_at: u64,
    #[serde(with = "carry::bytes")]
    pub(super) held: Vec<u8>,
    pub(super) is_at_end: bool,
}

/// A pending write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WriteState {
    /// The number that its owner has assigned.
    pub number: u64,
    #[serde(with = "carry::bytes")]
    pub data: Vec<u8>,
    /// The number of bytes already written.
    pub written: usize,
}

/// The state in the previous program of a terminal that is followed again.
#[derive(Debug)]
pub struct Before {
    pub state: SessionState,
    /// The viewers that are still connected.
    pub viewers: Vec<(Viewer, ViewerState)>,
}

/// A terminal of the previous program, with its descriptors. Nothing of it is touched before it is followed.
#[derive(Debug)]
pub struct Taken {
    pub state: SessionState,
    pub master: OwnedFd,
    pub slave: Option<OwnedFd>,
    pub leader_news: Option<OwnedFd>,
    pub output: OwnedFd,
}

/// Copies of a terminal's descriptors, for the daemon that continues it if this one is killed.
#[derive(Debug)]
pub struct Copies {
    pub master: OwnedFd,
    pub slave: Option<OwnedFd>,
    pub leader_news: Option<OwnedFd>,
    pub output: OwnedFd,
    /// The offset in the output at which the terminal was opened.
    pub began_at: u64,
}

impl FollowedState {
    /// Creates the state of a terminal that was just opened, when its output had `began_at` bytes, with the names of its
    /// descriptors: master, slave, the leader's socket, and the output file.
    pub fn of_new(size: TerminalSize, began_at: u64, master: Fd, sides: [Option<Fd>; 2], output: Fd) -> Self {
        let [slave, leader_news] = sides;
        let session = SessionState::after(size, &[], began_at, began_at);
        Self { session, master, slave, leader_news, output }
    }

    /// Returns the offset in the output at which the terminal was opened.
    pub fn began_at(&self) -> u64 {
        self.session.began_at
    }

    /// Restores the session from the recorded output: with the kernel's size, the screen that `shown` draws, and
    /// `sent_bytes` already shown.
    pub fn restore(&mut self, size: TerminalSize, shown: &[u8], sent_bytes: u64) {
        self.session = SessionState::after(size, shown, sent_bytes, self.session.began_at);
    }

    /// Returns the names of its master and its output file.
    pub fn master_and_output(&self) -> (Fd, Fd) {
        (self.master, self.output)
    }

    /// Takes the descriptors out of `received`.
    ///
    /// # Errors
    /// A descriptor did not arrive.
    pub fn take(self, received: &mut carry::ReceivedFds) -> io::Result<Taken> {
        let Self { session, master, slave, leader_news, output } = self;
        Ok(Taken {
            state: session,
            master: received.take(master)?,
            slave: slave.map(|fd| received.take(fd)).transpose()?,
            leader_news: leader_news.map(|fd| received.take(fd)).transpose()?,
            output: received.take(output)?,
        })
    }
}

impl SessionState {
    fn after(size: TerminalSize, shown: &[u8], sent_bytes: u64, began_at: u64) -> Self {
        let mut screen = Screen::new(size);
        for part in shown.chunks(PART) {
            screen.take(part);
            if screen.is_full() {
                screen.parse();
            }
        }
        Self {
            unknown_end: None,
            is_stopped: false,
            is_stop_awaited: false,
            writes: Vec::new(),
            is_losing: false,
            screen: screen.state(),
            viewers: Vec::new(),
            sent_bytes,
            began_at,
            held: Vec::new(),
            is_at_end: false,
        }
    }

    pub fn size(&self) -> TerminalSize {
        self.screen.size()
    }
}
