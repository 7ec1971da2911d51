//! Waiting for several descriptors at once, and for a reader of standard output that goes away: nobody works for one
//! that is gone.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::failure::Failure;

/// Sleeps until something can be read from one of these that are there, or until then at the latest; which of them can
/// be.
///
/// # Errors
/// Nobody reads standard output any more.
pub fn sleep<const COUNT: usize>(
    descriptors: [Option<BorrowedFd<'_>>; COUNT],
    until: Option<Instant>,
) -> Result<[bool; COUNT], Failure> {
    let out = io::stdout();
    let there = descriptors.iter().flatten();
    let mut sources: Vec<_> = there.map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Without flags only a reader who went away is told.
    sources.push(PollFd::new(out.as_fd(), PollFlags::empty()));
    loop {
        match poll(&mut sources, until.map_or(PollTimeout::NONE, left_until)) {
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

/// How long to wait until then. Rounded up, so that it does not end too early.
pub fn left_until(until: Instant) -> PollTimeout {
    let left = until.saturating_duration_since(Instant::now());
    PollTimeout::try_from(left.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX)
}
