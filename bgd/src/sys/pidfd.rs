//! Process descriptors: the only way in which the daemon signals a process, so that a number that was
//! given to another process meanwhile is never hit.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use bgd_shared::task::Exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The signal that no process survives.
pub const SIGKILL: i32 = libc::SIGKILL;

/// A handle to one process, which stays on it when the process has ended.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// A handle to the process that has this number now. The caller checks afterwards that it is the
    /// one that was meant.
    ///
    /// # Errors
    /// `ESRCH`: there is none. `EMFILE`: no descriptors are left.
    #[allow(unsafe_code, reason = "pidfd_open has no wrapper in a safe crate")]
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = i32::try_from(Errno::result(fd)?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal to this very process.
    ///
    /// # Errors
    /// `ESRCH`: it has ended. `EPERM`: it runs as somebody else now.
    #[allow(unsafe_code, reason = "pidfd_send_signal has no wrapper in a safe crate")]
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open for the length of the call and a null siginfo is allowed.
        let result =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, no_info, 0) };
        Errno::result(result)?;
        Ok(())
    }

    /// Takes away an ended child of ours, and tells how it ended. `None`: it can't be taken away yet, as a
    /// debugger holds on to it.
    #[allow(unsafe_code, reason = "the safe wrapper does not know the real-time signals")]
    pub fn reap(&self) -> Option<Exit> {
        // SAFETY: siginfo_t is plain data, for which all zeros is a value.
        let mut info = unsafe { std::mem::zeroed::<libc::siginfo_t>() };
        loop {
            let id = self.0.as_raw_fd().cast_unsigned();
            let flags = libc::WEXITED | libc::WNOHANG;
            // SAFETY: `info` is a siginfo_t of ours; the descriptor is open.
            let result = unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, flags) };
            match Errno::result(result) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Some(Exit::Unknown(format!("waiting for it failed: {error}").into())),
            }
        }
        // SAFETY: after a successful waitid these are the fields that are set.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        match (pid, info.si_code) {
            (0, _) => None,
            (_, libc::CLD_EXITED) => Some(Exit::Code(status)),
            (_, libc::CLD_KILLED | libc::CLD_DUMPED) => Some(Exit::Signal(status)),
            (_, code) => Some(Exit::Unknown(format!("the system reported the code {code}").into())),
        }
    }

    /// Whether the process has ended (it may still wait to be reaped).
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..))
    }
}

impl From<OwnedFd> for PidFd {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
