//! Waits for one descriptor until a deadline, or for several at once and for the reader of standard output to go away:
//! without a reader there is no point in continuing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::failure::Failure;

/// Sleeps until one of the given descriptors is readable, or until the deadline. Returns which of them are readable.
///
/// # Errors
/// The reader of standard output is gone.
pub fn sleep<const COUNT: usize>(
    descriptors: [Option<BorrowedFd<'_>>; COUNT],
    until: Option<Instant>,
) -> Result<[bool; COUNT], Failure> {
    let out = io::stdout();
    let there = descriptors.iter().flatten();
    let mut sources: Vec<_> = there.map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Without requested events, poll only reports that the reader is gone.
    sources.push(PollFd::new(out.as_fd(), PollFlags::empty()));
    loop {
        match poll(&mut sources, until.map_or(PollTimeout::NONE, poll_timeout)) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(Failure::io("can't wait", &error.into())),
        }
    }
    let mut met = sources.iter().map(|source| source.any().unwrap_or(false));
    let which = descriptors.map(|descriptor| descriptor.is_some() && met.next().unwrap_or(false));
    if met.next().unwrap_or(false) {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
    }
    Ok(which)
}

/// Checks that standard output has a reader.
///
/// # Errors
/// It is gone.
pub fn check_reader() -> Result<(), Failure> {
    let out = io::stdout();
    match poll(&mut [PollFd::new(out.as_fd(), PollFlags::empty())], PollTimeout::ZERO) {
        Ok(1..) => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        _ => Ok(()),
    }
}

/// Waits until the deadline for a descriptor to become ready for these events. Returns whether it has.
///
/// # Errors
/// A system error.
pub fn becomes_ready(fd: impl AsFd, events: PollFlags, until: Instant) -> Result<bool, Errno> {
    loop {
        match poll(&mut [PollFd::new(fd.as_fd(), events)], poll_timeout(until)) {
            Err(Errno::EINTR) => {}
            outcome => return outcome.map(|count| count > 0),
        }
    }
}

/// Returns the time left until the deadline; zero after it.
pub fn time_left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Returns the time left until the deadline for `poll`, rounded up so that a wait does not end too early.
pub fn poll_timeout(until: Instant) -> PollTimeout {
    PollTimeout::try_from(time_left(until).as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX)
}
