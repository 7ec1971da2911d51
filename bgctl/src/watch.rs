//! Detects file changes: by inotify, or by polling four times per second if no inotify instance or watch is
//! available.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::failure::Failure;

/// Polling interval where the kernel sends no events.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Returns when to poll next.
pub fn next_look() -> Instant {
    Instant::now() + LOOK_EVERY
}

/// Watches for the growth of a file; `None` if the file must be polled.
pub struct Changes(Option<Inotify>);

impl Changes {
    /// Watches a file.
    ///
    /// # Errors
    /// The file is gone, or inotify fails for a reason other than exhausted limits.
    pub fn of(path: &Path) -> io::Result<Self> {
        let watched = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).and_then(|changes| {
            changes.add_watch(path, AddWatchFlags::IN_MODIFY)?;
            Ok(changes)
        });
        match watched {
            Ok(changes) => Ok(Self(Some(changes))),
            Err(error) if is_exhausted(error) => Ok(Self(None)),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a descriptor that is readable once the file has grown; `None` if it must be polled.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// Returns when to poll next; `None` if inotify sends events.
    pub fn next_look(&self) -> Option<Instant> {
        self.0.is_none().then(next_look)
    }

    /// Consumes pending events, so that the next growth is reported again.
    ///
    /// # Errors
    /// Reading the events fails.
    pub fn take(&self) -> Result<(), Failure> {
        match self.0.as_ref().map(Inotify::read_events) {
            None | Some(Ok(_) | Err(Errno::EAGAIN | Errno::EINTR)) => Ok(()),
            Some(Err(error)) => Err(Failure::io("can't wait", &error.into())),
        }
    }
}

/// Returns whether the user's limit of inotify instances or watches is exhausted.
pub fn is_exhausted(error: Errno) -> bool {
    matches!(error, Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC | Errno::ENOMEM)
}
