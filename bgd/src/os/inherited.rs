//! Descriptors by number: closes inherited ones that are not meant for this process, and passes others on to the
//! program that it executes in its place.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{UnixAddr, getsockname};

/// The first descriptor that a service manager passes (`SD_LISTEN_FDS_START`).
const LISTEN_FDS_START: RawFd = 3;

/// Closes every inherited descriptor except the standard ones, those of socket activation and `keep`, so that a pipe of
/// the process that started the daemon is not held open forever. Must be called before anything is opened. Returns
/// `keep` as an owned descriptor.
///
/// # Errors
/// `keep` is not open, or is a standard descriptor.
#[allow(unsafe_code, reason = "descriptors are named by number here, before anybody owns one")]
pub fn close_all_but(keep: Option<RawFd>) -> io::Result<Option<OwnedFd>> {
    if keep.is_some_and(|fd| fd < LISTEN_FDS_START) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it must be 3 or more"));
    }
    let first = LISTEN_FDS_START + activated();
    for fd in LISTEN_FDS_START..first {
        // SAFETY: fcntl on a number is harmless, whatever the number.
        let _ = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    match keep {
        Some(keep) if keep >= first => {
            close_range(first, keep - 1);
            close_range(keep + 1, RawFd::MAX);
        }
        Some(_) | None => close_range(first, RawFd::MAX),
    }
    let Some(keep) = keep else { return Ok(None) };
    // SAFETY: fcntl on a number is harmless, whatever the number.
    Errno::result(unsafe { libc::fcntl(keep, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: the descriptor is open, as fcntl has just confirmed, and nothing in this process owns descriptors yet.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(keep) }))
}

/// Sets whether a program that this process executes in its place inherits these descriptors.
///
/// # Errors
/// A descriptor is not open. The others may have been changed.
#[allow(unsafe_code, reason = "their owners lie in many places, and each is named by its number")]
pub fn set_inheritable(numbers: &[RawFd], is_inheritable: bool) -> io::Result<()> {
    let flags = if is_inheritable { 0 } else { libc::FD_CLOEXEC };
    for fd in numbers {
        // SAFETY: fcntl on a number is harmless, whatever the number.
        Errno::result(unsafe { libc::fcntl(*fd, libc::F_SETFD, flags) })?;
    }
    Ok(())
}

/// Sets the position of a file back to its beginning, for all processes that share it.
///
/// # Errors
/// The descriptor is not open, or is not a file.
#[allow(unsafe_code, reason = "its owner is elsewhere, and it is named by its number")]
pub fn rewind(number: RawFd) -> io::Result<()> {
    // SAFETY: lseek on a number is harmless, whatever the number.
    Errno::result(unsafe { libc::lseek(number, 0, libc::SEEK_SET) })?;
    Ok(())
}

/// Takes over a descriptor that the previous program has left open.
#[allow(unsafe_code, reason = "descriptors are named by number here, before anybody owns one")]
pub fn claim(number: RawFd) -> OwnedFd {
    // SAFETY: the caller takes each number once, and only those that were left open for it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Returns the path of the socket that a service manager has passed to this very process; `None` if it has passed none,
/// or one without a path.
pub fn activated_socket() -> Option<PathBuf> {
    if activated() == 0 {
        return None;
    }
    let address: UnixAddr = getsockname(LISTEN_FDS_START).ok()?;
    address.path().map(Path::to_owned)
}

/// Returns how many descriptors a service manager has passed to this very process.
fn activated() -> RawFd {
    let number = |name| std::env::var(name).ok().and_then(|count| count.parse::<RawFd>().ok());
    let is_for_us = number("LISTEN_PID") == Some(std::process::id().cast_signed());
    number("LISTEN_FDS").filter(|_| is_for_us).unwrap_or(0).clamp(0, 1024)
}

#[allow(unsafe_code, reason = "descriptors are named by number here, before anybody owns one")]
fn close_range(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: called before anything is opened, so nothing in this process uses these numbers. A kernel
        // without the call (before 5.9) leaves them open, which does not harm the daemon.
        let _ = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}
