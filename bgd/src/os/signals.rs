//! What this process does with signals that are not for it.

use std::io;

use nix::errno::Errno;

/// Ignores the signal that comes when a file would grow over a limit (`ulimit -f`) and ends who does not:
/// the write fails with `EFBIG` then, like any that the disk does not take.
///
/// # Errors
/// What the system says.
#[allow(unsafe_code, reason = "the safe wrapper asks for a promise about handlers, and there is none here")]
pub fn ignore_full_files() -> io::Result<()> {
    // SAFETY: no handler is set that could run at a bad time, and none is replaced that others rely on.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last().into()) } else { Ok(()) }
}
