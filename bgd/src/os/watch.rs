//! Descriptors registered with the async runtime.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};

use nix::sys::inotify::Inotify;
use nix::sys::signalfd::SignalFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::pidfd::PidFd;

/// Watches for the end of a process.
///
/// # Errors
/// The system can't watch more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn process(pidfd: PidFd) -> io::Result<AsyncFd<PidFd>> {
    // SAFETY: a PidFd owns its one descriptor, which stays open and unchanged until it is dropped.
    unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }.map_err(io::Error::from)
}

/// Watches for room to write, and thus also for the other end being closed.
///
/// # Errors
/// The system can't watch more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn writable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and unchanged until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::WRITABLE) }.map_err(io::Error::from)
}

/// Watches for data to read.
///
/// # Errors
/// The system can't watch more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and unchanged until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// Watches for signals.
///
/// # Errors
/// The system can't watch more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn signals(fd: SignalFd) -> io::Result<AsyncFd<SignalFd>> {
    // SAFETY: a SignalFd owns its one descriptor, which stays open and unchanged until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// An inotify instance that the runtime can watch without duplicating its descriptor, as descriptors are scarce.
#[derive(Debug)]
pub struct Changes(pub Inotify);

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches for file changes.
///
/// # Errors
/// The system can't watch more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn changes(inotify: Inotify) -> io::Result<AsyncFd<Changes>> {
    // SAFETY: an Inotify owns its one descriptor, which stays open and unchanged until it is dropped.
    unsafe { AsyncFd::register_with_interest(Changes(inotify), Interest::READABLE) }.map_err(io::Error::from)
}

/// Watches for urgent events, such as a change of the mount list.
///
/// # Errors
/// The system can't watch more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn urgent(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and unchanged until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }.map_err(io::Error::from)
}

/// Watches for both data to read and room to write.
///
/// # Errors
/// The system can't watch more descriptors.
#[allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub fn both(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and unchanged until it is dropped.
    let both = Interest::READABLE | Interest::WRITABLE;
    unsafe { AsyncFd::register_with_interest(fd, both) }.map_err(io::Error::from)
}
