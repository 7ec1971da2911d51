//! Descriptors that the runtime watches.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};

use nix::sys::inotify::Inotify;
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

/// Changes of files, as a descriptor that the runtime watches. No copy of it is made: descriptors are few.
#[derive(Debug)]
pub struct Changes(pub Inotify);

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches for changes of files.
///
/// # Errors
/// The system watches no more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn changes(inotify: Inotify) -> io::Result<AsyncFd<Changes>> {
    // SAFETY: an Inotify owns its one descriptor, which stays open and the same until it is dropped.
    unsafe { AsyncFd::register_with_interest(Changes(inotify), Interest::READABLE) }.map_err(io::Error::from)
}

/// Watches a descriptor for something urgent, such as a change of the list of mounts.
///
/// # Errors
/// The system watches no more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn urgent(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and the same until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }.map_err(io::Error::from)
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
