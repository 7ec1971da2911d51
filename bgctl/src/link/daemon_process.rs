//! The process of a daemon: found by the locks that it holds, even if it can't be reached, and referenced by a pidfd,
//! so that a signal can't hit another process.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use bgd_shared::holder::{Holder, of_lock};
use bgd_shared::socket::SocketPath;
use nix::poll::PollFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::wait::becomes_ready;
use crate::failure::Failure;
use crate::state::state_folder;

/// A running daemon.
#[derive(Debug)]
pub struct DaemonProcess {
    /// The daemon's process, and the note in its lock file.
    pub holder: Holder,
    pidfd: OwnedFd,
}

impl DaemonProcess {
    /// Returns the daemon of this socket: the holder of the lock next to the socket, else the holder of an instance
    /// lock in the state folder that serves this socket, in case the socket was removed together with its folder.
    pub fn of(socket: &SocketPath) -> Option<Self> {
        Self::holding(&socket.beside("lock"), |_| true).or_else(|| {
            let is_its = |holder: &Holder| holder.note.socket.as_os_str() == socket.as_path().as_os_str();
            let lives = fs::read_dir(state_folder().join("instances")).ok()?.flatten();
            lives.map(|life| life.path().join("lock")).find_map(|lock| Self::holding(&lock, is_its))
        })
    }

    fn holding(lock: &Path, is_meant: impl Fn(&Holder) -> bool) -> Option<Self> {
        let holder = of_lock(lock).ok()??;
        let pidfd = pidfd_open(Pid::from_raw(holder.pid)?, PidfdFlags::empty()).ok()?;
        // If the process still holds the lock, the pidfd refers to it and not to a process that reused its pid.
        let again = of_lock(lock).ok()??;
        (again.pid == holder.pid && is_meant(&again)).then_some(Self { holder: again, pidfd })
    }

    pub fn pid(&self) -> i32 {
        self.holder.pid
    }

    /// Reports whether the daemon is stopped and needs SIGCONT to continue.
    pub fn is_stopped(&self) -> bool {
        self.holder.state().is_some_and(bgd_shared::holder::State::is_stopped)
    }

    /// Sends the daemon a signal. Succeeds if it has ended already.
    ///
    /// # Errors
    /// This user may not signal the daemon.
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Failure::io(format!("the daemon (pid {})", self.pid()), &error.into())),
        }
    }

    /// Waits at most this long for the daemon to end. Returns whether it has ended.
    pub fn has_ended(&self, at_most: Duration) -> bool {
        becomes_ready(&self.pidfd, PollFlags::POLLIN, Instant::now() + at_most).unwrap_or(false)
    }
}
