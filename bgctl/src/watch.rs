//! What tells that a file has changed: the kernel, or a look four times a second where it has no watch to give.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::failure::Failure;

/// How often something is looked at that the kernel tells nothing of.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// When to look the next time.
pub fn next_look() -> Instant {
    Instant::now() + LOOK_EVERY
}

/// What tells that a file has grown.
pub struct Changes(Option<Inotify>);

impl Changes {
    /// Watches this file.
    ///
    /// # Errors
    /// It is gone, or the system has no watch to give for another reason than that there are too many.
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

    /// What can be read when the file has grown; nothing where it has to be looked.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// When to look, where nothing tells.
    pub fn next_look(&self) -> Option<Instant> {
        self.0.is_none().then(next_look)
    }

    /// Takes what was told, so that the next growth is told anew.
    ///
    /// # Errors
    /// What the system says.
    pub fn take(&self) -> Result<(), Failure> {
        match self.0.as_ref().map(Inotify::read_events) {
            None | Some(Ok(_) | Err(Errno::EAGAIN | Errno::EINTR)) => Ok(()),
            Some(Err(error)) => Err(Failure::io("can't wait", &error.into())),
        }
    }
}

/// Whether the system has no inotify instance or watch left for this user.
pub fn is_exhausted(error: Errno) -> bool {
    matches!(error, Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC | Errno::ENOMEM)
}
