//! Signal dispositions of this process.

use std::io;

use nix::errno::Errno;
use nix::sys::signal::SigSet;

/// Keeps all signals of this thread pending.
pub fn block() {
    // It fails only for a wrong argument.
    let _ = SigSet::all().thread_block();
}

/// Handles signals again, first those that are pending.
pub fn unblock() {
    let _ = SigSet::all().thread_unblock();
}

/// Ignores SIGXFSZ, which is sent when a file would exceed its size limit (`ulimit -f`) and by default ends the
/// process. The write then fails with `EFBIG`, like any other failed write.
///
/// # Errors
/// The system call fails.
#[allow(unsafe_code, reason = "the safe wrapper asks for a promise about handlers, and there is none here")]
pub fn ignore_full_files() -> io::Result<()> {
    // SAFETY: installs no handler that could run at a bad time, and replaces none that others rely on.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last().into()) } else { Ok(()) }
}
