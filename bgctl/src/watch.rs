//! Detects file changes: by inotify, or by polling four times per second if no inotify instance or watch is
//! available, or another machine may write the file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::fs::statfs;

use crate::failure::Failure;

/// Polling interval where the kernel sends no events.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Returns when to poll next.
pub fn next_look() -> Instant {
    Instant::now() + LOOK_EVERY
}

/// The types of file systems that no other machine writes to: ext, XFS, Btrfs, tmpfs, overlayfs, F2FS, ZFS and bcachefs.
const LOCAL: [i64; 8] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e];

/// Watches for the growth of a file.
pub struct Changes {
    /// `None` if no inotify instance or watch was available.
    events: Option<Inotify>,
    /// Whether the file must be polled, as there may be no events.
    is_polled: bool,
}

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
            Ok(changes) => Ok(Self { events: Some(changes), is_polled: may_be_written_elsewhere(path) }),
            Err(error) if is_exhausted(error) => Ok(Self { events: None, is_polled: true }),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a descriptor that is readable once a process of this machine has written to the file, if there is one.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// Returns when to poll next; `None` if inotify sends events.
    pub fn next_look(&self) -> Option<Instant> {
        self.is_polled.then(next_look)
    }

    /// Consumes pending events, so that the next growth is reported again.
    ///
    /// # Errors
    /// Reading the events fails.
    pub fn take(&self) -> Result<(), Failure> {
        match self.events.as_ref().map(Inotify::read_events) {
            None | Some(Ok(_) | Err(Errno::EAGAIN | Errno::EINTR)) => Ok(()),
            Some(Err(error)) => Err(Failure::io("can't wait", &error.into())),
        }
    }
}

/// Reports whether another machine may write the file: inotify does not report that. An output that the daemon did not
/// create itself, as that of a Slurm job, is a link to where it lies.
fn may_be_written_elsewhere(path: &Path) -> bool {
    let is_link = path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    is_link && !statfs(path).is_ok_and(|system| LOCAL.iter().any(|local| is_type(system.f_type, *local)))
}

/// Compares types of file systems. The system's type is signed or not and may be only 32 bits wide, depending on the
/// machine.
fn is_type(system: impl TryInto<i64>, local: i64) -> bool {
    system.try_into().is_ok_and(|system| system & 0xffff_ffff == local)
}

/// Returns whether the user's limit of inotify instances or watches is exhausted.
pub fn is_exhausted(error: Errno) -> bool {
    matches!(error, Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC | Errno::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn r148_linked_output_on_foreign_file_system_is_polled() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::write(place("own"), "").unwrap();
        symlink("own", place("local")).unwrap();
        symlink("/proc/self/stat", place("foreign")).unwrap();
        let is_polled = |name: &str| Changes::of(&place(name)).unwrap().next_look().is_some();
        assert!(!is_polled("own") && is_polled("foreign"));
        let is_known = is_type(statfs(folder.path()).unwrap().f_type, LOCAL[0]);
        assert!(!is_known || !is_polled("local"));
    }
}
