//! The daemon's connection to a keeper's process. This module only holds and watches it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bgd_shared::proc::ProcessStat;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::os::pidfd::{PidFd, SIGCONT};
use crate::os::watch;

/// The socket to a keeper's process, and its PID.
#[derive(Debug)]
pub struct Socket {
    pub socket: OwnedFd,
    pub pid: i32,
    /// The keeper's process, if it is a child of this process, which must therefore reap it.
    pub child: Option<PidFd>,
}

impl Socket {
    /// The socket to the keeper that the program before this one had. That program's children are this one's.
    pub fn restore(socket: OwnedFd, pid: i32) -> Self {
        let parent = || ProcessStat::of(pid)?.field::<u32>(4);
        let child = if parent() == Some(std::process::id()) { PidFd::open(pid).ok() } else { None };
        Self { socket, pid, child }
    }

    /// Continues the keeper, in case it was stopped.
    pub(super) fn wake(&self) {
        // While the socket is open at the other end, the PID is the keeper's.
        if let Ok(process) = PidFd::open(self.pid)
            && !self.is_gone()
        {
            let _ = process.signal(SIGCONT);
        }
    }

    /// Reports whether the keeper is gone. It sends nothing, so only its end makes the socket readable.
    pub fn is_gone(&self) -> bool {
        let socket = PollFd::new(self.socket.as_fd(), PollFlags::POLLIN);
        poll(&mut [socket], PollTimeout::ZERO) == Ok(1)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until the keeper at this socket is gone.
///
/// # Errors
/// The runtime can't watch the socket.
pub async fn until_gone(socket: Arc<Socket>) -> io::Result<()> {
    watch::readable(socket.socket.try_clone()?)?.readable().await?.retain_ready();
    Ok(())
}
