//! Signal dispositions of this process.

use std::io;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::unix::AsyncFd;

use super::watch;

/// Keeps all signals of this thread pending.
pub fn block() {
    // This only fails for a wrong argument.
    let _ = SigSet::all().thread_block();
}

/// Handles signals again, pending ones first; except those that are read, see [`block_child`] and [`block_commands`].
pub fn unblock() {
    let mut signals = SigSet::all();
    for signal in &(child() | commands()) {
        signals.remove(signal);
    }
    let _ = signals.thread_unblock();
}

/// Keeps SIGCHLD pending for [`of_children`], in this thread and those that it starts. Must be called before there are
/// others: any thread that does not block SIGCHLD would take it from the descriptor. If the parent ignored it, so that
/// the system would reap children itself, this ends that. `os::spawn` gives each task an empty mask; a `Command` passes
/// this one on, so it may only start this program.
#[allow(unsafe_code, reason = "the safe wrapper asks for a promise about handlers, and there is none here")]
pub fn block_child() {
    let _ = child().thread_block();
    // SAFETY: installs no handler that could run at a bad time, and replaces none that others rely on.
    let _ = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Returns a descriptor that is readable when a child has ended since the last read.
///
/// # Errors
/// No descriptor is left.
pub fn of_children() -> io::Result<AsyncFd<SignalFd>> {
    watch::signals(SignalFd::with_flags(&child(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Keeps the signals that command the daemon pending for [`commands_to_daemon`], in this thread and those that it
/// starts. Must be called before there are others. A signal that was not read when the daemon executes the next program
/// in its place is thus read by that one. As in [`block_child`], a `Command` passes this mask on, so it may only start
/// this program: any other could not be ended by these signals.
pub fn block_commands() {
    let _ = commands().thread_block();
}

/// Returns a descriptor from which SIGHUP, SIGINT and SIGTERM are read.
///
/// # Errors
/// No descriptor is left.
pub fn commands_to_daemon() -> io::Result<AsyncFd<SignalFd>> {
    watch::signals(SignalFd::with_flags(&commands(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Reports whether a signal that ends the daemon was sent but is not read yet.
#[allow(unsafe_code, reason = "the call has no wrapper in a safe crate")]
pub fn is_end_pending() -> bool {
    // SAFETY: sigset_t is plain data, for which all zeros is valid; the call only fills it.
    let pending = unsafe {
        let mut pending = std::mem::zeroed::<libc::sigset_t>();
        libc::sigpending(&raw mut pending);
        SigSet::from_sigset_t_unchecked(pending)
    };
    ENDS.into_iter().any(|signal| pending.contains(signal))
}

fn commands() -> SigSet {
    ENDS.into_iter().chain([Signal::SIGHUP]).collect()
}

fn child() -> SigSet {
    SigSet::from_iter([Signal::SIGCHLD])
}

/// The signals that end the daemon.
const ENDS: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

/// The signals that by default end a process, but have no meaning for the daemon. Others send them to any daemon: the
/// first two are in many recipes for rotating logs.
const MEANINGLESS: [Signal; 7] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
];

/// Ignores the signals that would end the daemon for no good reason. Among them is SIGXFSZ, which is sent when a file
/// would exceed its size limit (`ulimit -f`): the write then fails with `EFBIG`, like any other failed write.
/// `os::spawn` resets them for tasks, and the keeper inherits them.
///
/// # Errors
/// The system call fails.
#[allow(unsafe_code, reason = "the safe wrapper asks for a promise about handlers, and there is none here")]
pub fn ignore_needless() -> io::Result<()> {
    for signal in MEANINGLESS.into_iter().chain([Signal::SIGXFSZ]) {
        // SAFETY: installs no handler that could run at a bad time, and replaces none that others rely on.
        let before = unsafe { libc::signal(signal as libc::c_int, libc::SIG_IGN) };
        if before == libc::SIG_ERR {
            return Err(Errno::last().into());
        }
    }
    Ok(())
}
