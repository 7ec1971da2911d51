//! Process descriptors (pidfds). The daemon signals processes only through them, so that a reused PID is never hit.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Instant;

use bgd_shared::task::Exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The signal that no process survives.
pub const SIGKILL: i32 = libc::SIGKILL;

/// A state change of a child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The process has ended.
    Ended(Exit),
    /// The process was stopped by this signal.
    Stopped(i32),
    /// The process was continued.
    Continued,
}

/// A handle to one process; it stays valid after the process has ended.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens a handle to the process that has this PID now. The caller must check afterwards that it is
    /// the intended one.
    ///
    /// # Errors
    /// `ESRCH`: no such process. `EMFILE`: no descriptors are left.
    #[allow(unsafe_code, reason = "pidfd_open has no wrapper in a safe crate")]
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = i32::try_from(Errno::result(fd)?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just created this descriptor for us; nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal to this very process.
    ///
    /// # Errors
    /// `ESRCH`: it has ended. `EPERM`: it runs as another user now.
    #[allow(unsafe_code, reason = "pidfd_send_signal has no wrapper in a safe crate")]
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open during the call, and a null siginfo is allowed.
        let result =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, no_info, 0) };
        Errno::result(result)?;
        Ok(())
    }

    /// Reaps an ended child and returns how it ended. `None`: it can't be reaped yet because a debugger holds it.
    pub fn reap(&self) -> Option<Exit> {
        match self.wait(libc::WEXITED) {
            Some(Change::Ended(exit)) => Some(exit),
            Some(Change::Stopped(_) | Change::Continued) | None => None,
        }
    }

    /// Returns the child's state change since the last call, if any. Reaps the child if it has ended.
    pub fn change(&self) -> Option<Change> {
        self.wait(libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED)
    }

    #[allow(unsafe_code, reason = "the safe wrapper does not know the real-time signals")]
    fn wait(&self, what: i32) -> Option<Change> {
        // SAFETY: siginfo_t is plain data, for which all zeros is valid.
        let mut info = unsafe { std::mem::zeroed::<libc::siginfo_t>() };
        loop {
            let id = self.0.as_raw_fd().cast_unsigned();
            let flags = what | libc::WNOHANG;
            // SAFETY: `info` is a valid siginfo_t of ours; the descriptor is open.
            let result = unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, flags) };
            match Errno::result(result) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => {
                    let why = format!("waiting for it failed: {error}");
                    return Some(Change::Ended(Exit::Unknown(why.into())));
                }
            }
        }
        // SAFETY: a successful waitid sets these fields.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        Some(match (pid, info.si_code) {
            (0, _) => return None,
            (_, libc::CLD_EXITED) => Change::Ended(Exit::Code(status)),
            (_, libc::CLD_KILLED | libc::CLD_DUMPED) => Change::Ended(Exit::Signal(status)),
            (_, libc::CLD_STOPPED) => Change::Stopped(status),
            (_, libc::CLD_CONTINUED) => Change::Continued,
            (_, code) => Change::Ended(Exit::Unknown(format!("the system reported the code {code}").into())),
        })
    }

    /// Returns how a process ended, even if it is not a child of ours. The kernel keeps that information for a
    /// handle once the parent has reaped the process (Linux 6.15). `None`: it is not reaped yet.
    ///
    /// # Errors
    /// This kernel does not support it (any error), or the information is lost (`ESRCH`, Linux 6.13 and 6.14).
    #[allow(unsafe_code, reason = "the request has no wrapper in a safe crate")]
    pub fn exit_info(&self) -> io::Result<Option<Exit>> {
        // SAFETY: pidfd_info is plain data, for which all zeros is valid.
        let mut info = unsafe { std::mem::zeroed::<libc::pidfd_info>() };
        info.mask = libc::PIDFD_INFO_EXIT.into();
        // SAFETY: the request number encodes the size of the structure, which limits what the kernel writes; the
        // descriptor is open.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
        Errno::result(result)?;
        let is_told = info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0;
        Ok(is_told.then(|| exit_of_status(info.exit_code)))
    }

    /// Duplicates the handle.
    ///
    /// # Errors
    /// `EMFILE`: no descriptors are left.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Whether the process has ended; it may not be reaped yet.
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..))
    }

    /// Blocks until the process has ended. Use it only for a process that is about to end.
    pub fn until_ended(&self) {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        while poll(&mut fds, PollTimeout::NONE) == Err(Errno::EINTR) {}
    }
}

/// Decodes a status as returned by `wait`.
pub fn exit_of_status(status: i32) -> Exit {
    match status {
        status if libc::WIFEXITED(status) => Exit::Code(libc::WEXITSTATUS(status)),
        status if libc::WIFSIGNALED(status) => Exit::Signal(libc::WTERMSIG(status)),
        status => Exit::Unknown(format!("the system reported the status {status}").into()),
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

/// Blocks until all of these processes have ended. Returns false if the deadline passes first.
pub fn wait_for_all<'a>(processes: impl IntoIterator<Item = &'a PidFd>, deadline: Instant) -> bool {
    processes.into_iter().all(|process| {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, timeout), Ok(1..))
    })
}
