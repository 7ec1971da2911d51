//! A terminal that keeps still for an upgrade in place, and goes on in the program that takes over (R121).
//!
//! While it keeps still, nothing is read from it or written to it, and nothing is sent to its viewers: what the job writes
//! stays in the kernel.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use bgd_shared::request::TerminalSize;
use serde::{Deserialize, Serialize};

use super::screen::{Screen, ScreenState};
use super::viewers::{Viewer, ViewerState};
use crate::carry::{self, Fd, Named};
use crate::exec::hold;

/// How much a screen takes at once.
const PART: usize = 64 * 1024;

/// The order to keep still.
pub type KeepStill = hold::KeepStill<Box<Still>>;

/// Keeps a terminal still until it is dropped.
pub type Hold = hold::Hold<Box<Still>>;

/// A terminal as it stands still.
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
    pub fn state(&self, named: &mut Named) -> FollowedState {
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

/// A followed terminal for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct FollowedState {
    session: SessionState,
    master: Fd,
    slave: Option<Fd>,
    leader_news: Option<Fd>,
    output: Fd,
}

/// What a followed terminal knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another thing")]
pub struct SessionState {
    pub(super) unknown_end: Option<Vec<u8>>,
    #[serde(default)]
    pub(super) is_stopped: bool,
    /// Whether the job is continued if it stops now, as nobody is shown it any more.
    #[serde(default)]
    pub is_stop_awaited: bool,
    /// What was typed and is not written yet.
    pub writes: Vec<WriteState>,
    pub(super) is_losing: bool,
    pub(super) screen: ScreenState,
    pub viewers: Vec<ViewerState>,
    pub(super) told: u64,
    #[serde(with = "carry::bytes")]
    pub(super) held: Vec<u8>,
    pub(super) is_at_end: bool,
}

/// What was typed and is not written yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WriteState {
    /// The number that its owner gave it.
    pub number: u64,
    #[serde(with = "carry::bytes")]
    pub data: Vec<u8>,
    /// How many bytes of it were written.
    pub written: usize,
}

/// What a terminal that is followed again knows from the program before.
#[derive(Debug)]
pub struct Before {
    /// Its own state.
    pub state: SessionState,
    /// The viewers that are still there.
    pub viewers: Vec<(Viewer, ViewerState)>,
}

/// A terminal of the program before, with its descriptors. Nothing of it is touched before it is followed.
#[derive(Debug)]
pub struct Taken {
    /// What it knows.
    pub state: SessionState,
    pub master: OwnedFd,
    /// The processes' side.
    pub slave: Option<OwnedFd>,
    /// The socket of its leader.
    pub leader_news: Option<OwnedFd>,
    /// The output file.
    pub output: OwnedFd,
}

/// Copies of a terminal's descriptors, for whoever goes on with it when the daemon is killed.
#[derive(Debug)]
pub struct Copies {
    pub master: OwnedFd,
    /// The processes' side.
    pub slave: Option<OwnedFd>,
    /// The socket of its leader.
    pub leader_news: Option<OwnedFd>,
    /// The output file.
    pub output: OwnedFd,
}

impl FollowedState {
    /// Creates the state of a terminal that is just opened, with the names of its descriptors: master, processes' side,
    /// the leader's socket, and the output file.
    pub fn of_new(size: TerminalSize, master: Fd, sides: [Option<Fd>; 2], output: Fd) -> Self {
        let [slave, leader_news] = sides;
        Self { session: SessionState::after(size, &[], 0), master, slave, leader_news, output }
    }

    /// Goes on from what was kept of it: its size is what the kernel says, it shows what `shown` draws, and `told` bytes
    /// were shown before.
    pub fn go_on_after(&mut self, size: TerminalSize, shown: &[u8], told: u64) {
        self.session = SessionState::after(size, shown, told);
    }

    /// Returns the names of its master and its output file.
    pub fn master_and_output(&self) -> (Fd, Fd) {
        (self.master, self.output)
    }

    /// Takes its descriptors.
    ///
    /// # Errors
    /// One of them did not come.
    pub fn take(self, came: &mut carry::Came) -> io::Result<Taken> {
        let Self { session, master, slave, leader_news, output } = self;
        Ok(Taken {
            state: session,
            master: came.take(master)?,
            slave: slave.map(|fd| came.take(fd)).transpose()?,
            leader_news: leader_news.map(|fd| came.take(fd)).transpose()?,
            output: came.take(output)?,
        })
    }
}

impl SessionState {
    fn after(size: TerminalSize, shown: &[u8], told: u64) -> Self {
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
            told,
            held: Vec::new(),
            is_at_end: false,
        }
    }

    /// Returns the size of the terminal.
    pub fn size(&self) -> TerminalSize {
        self.screen.size()
    }
}
