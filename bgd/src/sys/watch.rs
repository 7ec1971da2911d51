//! Descriptors that the runtime watches.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::pidfd::PidFd;

/// Watches a process for its end.
///
/// # Errors
/// The system watches no more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn process(pidfd: PidFd) -> io::Result<AsyncFd<PidFd>> {
    // SAFETY: a PidFd owns its one descriptor, which stays open and the same until it is dropped.
    unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }.map_err(io::Error::from)
}

/// Watches a descriptor for room to write, and so for its other end to be closed.
///
/// # Errors
/// The system watches no more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn writable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and the same until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::WRITABLE) }.map_err(io::Error::from)
}

/// Watches a descriptor for something to read.
///
/// # Errors
/// The system watches no more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and the same until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// Watches a descriptor that is read and written.
///
/// # Errors
/// The system watches no more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn both(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and the same until it is dropped.
    let both = Interest::READABLE | Interest::WRITABLE;
    unsafe { AsyncFd::register_with_interest(fd, both) }.map_err(io::Error::from)
}
