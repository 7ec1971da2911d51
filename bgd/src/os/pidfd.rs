//! Process descriptors (pidfds). The daemon signals processes only through them, so that a reused PID is never hit; the
//! kernel itself ends the processes of a cgroup. The leader of a terminal signals by PID, but only the group of its job,
//! while that is stopped.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use bgd_shared::proc;
use bgd_shared::task::Exit;
use bgd_shared::usage::Usage;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The signal that no process survives.
pub const SIGKILL: i32 = libc::SIGKILL;

/// The signal that continues a stopped process.
pub const SIGCONT: i32 = libc::SIGCONT;

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
    /// Opens a handle to the process that has this PID now. The caller must check afterwards that it is the intended
    /// one.
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

    /// Sends a signal to this process.
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

    /// Reaps an ended child. Returns its exit, and the usage of the child and the descendants that were waited for.
    /// `None`: it can't be reaped yet because a debugger holds it.
    pub fn reap(&self) -> Option<(Exit, Usage)> {
        match self.wait(libc::WEXITED) {
            Some((Change::Ended(exit), used)) => Some((exit, usage(&used))),
            Some((Change::Stopped(_) | Change::Continued, _)) | None => None,
        }
    }

    /// Returns the child's state change since the last call, if any. Reaps the child if it has ended.
    pub fn change(&self) -> Option<Change> {
        self.wait(libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED).map(|(change, _)| change)
    }

    #[allow(
        unsafe_code,
        reason = "the wrappers know neither the real-time signals nor what the child has used"
    )]
    fn wait(&self, what: i32) -> Option<(Change, libc::rusage)> {
        // SAFETY: both are plain data, for which all zeros is valid.
        let (mut info, mut used) =
            unsafe { (std::mem::zeroed::<libc::siginfo_t>(), std::mem::zeroed::<libc::rusage>()) };
        loop {
            let (of, id) = (libc::P_PIDFD, self.0.as_raw_fd());
            let flags = what | libc::WNOHANG;
            // SAFETY: `info` and `used` are valid and ours, and the descriptor is open. The system call takes one more
            // argument than the function of the C library.
            let result =
                unsafe { libc::syscall(libc::SYS_waitid, of, id, &raw mut info, flags, &raw mut used) };
            match Errno::result(result) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => {
                    let why = format!("waiting for it failed: {error}");
                    return Some((Change::Ended(Exit::Unknown(why.into())), used));
                }
            }
        }
        // SAFETY: a successful waitid sets these fields.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        let change = match (pid, info.si_code) {
            (0, _) => return None,
            (_, libc::CLD_EXITED) => Change::Ended(Exit::Code(status)),
            (_, libc::CLD_KILLED | libc::CLD_DUMPED) => Change::Ended(Exit::Signal(status)),
            (_, libc::CLD_STOPPED) => Change::Stopped(status),
            (_, libc::CLD_CONTINUED) => Change::Continued,
            (_, code) => Change::Ended(Exit::Unknown(format!("the system reported the code {code}").into())),
        };
        Some((change, used))
    }

    /// Returns how a process ended, even if it is not a child of ours. The kernel keeps that information for a handle
    /// once the parent has reaped the process (Linux 6.15). `None`: it is not reaped yet.
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
        let has_exit = info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0;
        Ok(has_exit.then(|| exit_of_status(info.exit_code)))
    }

    /// Duplicates the handle.
    ///
    /// # Errors
    /// `EMFILE`: no descriptors are left.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Reports whether the process has ended; it may not be reaped yet.
    pub fn has_ended(&self) -> bool {
        has_ended(&self.0)
    }

    /// Blocks until the process has ended. Use it only for a process that is about to end.
    pub fn until_ended(&self) {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        while poll(&mut fds, PollTimeout::NONE) == Err(Errno::EINTR) {}
    }
}

/// Reports whether the process of a pidfd has ended; it may not be reaped yet.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..))
}

/// Converts the kernel's figures for an ended child. Its peak memory starts with that of the daemon, from which it was
/// cloned, so it is meaningless unless it is higher than that.
fn usage(used: &libc::rusage) -> Usage {
    let ms = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + u64::try_from(time.tv_usec).unwrap_or(0) / 1000
    };
    let bytes = |count: i64, unit: u64| u64::try_from(count).unwrap_or(0).saturating_mul(unit);
    Usage {
        user_ms: ms(used.ru_utime),
        system_ms: ms(used.ru_stime),
        peak_memory_bytes: exceeds_own_peak(used.ru_maxrss).then(|| bytes(used.ru_maxrss, 1024)),
        written_bytes: bytes(used.ru_oublock, 512),
    }
}

/// The basic tolerance between two figures of the same memory, in KiB: the counters of each of a few processors may
/// have 64 pages that are not added up.
const PEAK_SLACK_KIB: i64 = 2048;

/// The peak memory of the daemon in KiB when it was last read. It only grows.
static OWN_PEAK: AtomicI64 = AtomicI64::new(0);

/// The peak memory in KiB of the programs of the daemon that this process ran before this one, or 0. The kernel begins
/// to count anew with each program, while children that it cloned from an earlier one keep the peak of that.
static EARLIER_PEAK: AtomicI64 = AtomicI64::new(0);

/// Returns the peak memory of the daemon in KiB, in all programs that it ran as; `None` if the kernel does not tell.
pub fn daemon_peak_kib() -> Option<i64> {
    // `getrusage` would include the program that started the daemon.
    let own: i64 = proc::status("self", "VmHWM")?.split_whitespace().next()?.parse().ok()?;
    Some(own.max(EARLIER_PEAK.load(Ordering::Relaxed)))
}

/// Tells the peak memory in KiB of the daemon's earlier programs.
pub fn set_earlier_peak_kib(kib: i64) {
    EARLIER_PEAK.store(kib, Ordering::Relaxed);
}

/// Reports whether this is more memory, in KiB, than the daemon has had at any time. Reads the peak again only if this is
/// more than the known one, as a task that needs little memory should cost little.
fn exceeds_own_peak(kib: i64) -> bool {
    if !is_more(kib, OWN_PEAK.load(Ordering::Relaxed)) {
        return false;
    }
    let peak = daemon_peak_kib();
    OWN_PEAK.store(peak.unwrap_or(i64::MAX), Ordering::Relaxed);
    peak.is_some_and(|peak| is_more(kib, peak))
}

/// Reports whether the first amount of memory is certainly larger than the second, in KiB. The kernel counts a
/// process's memory per processor, and adds the counters up only roughly for a cloned child, so the two can differ by
/// some pages.
const fn is_more(kib: i64, peak: i64) -> bool {
    kib > peak.saturating_add(PEAK_SLACK_KIB).saturating_add(peak / 16)
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
