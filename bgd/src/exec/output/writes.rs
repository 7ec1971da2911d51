//! Reports by inotify that an output file was written to, once and without polling. Does not read files.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use bgd_shared::mutex::Mutex;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use crate::os::watch::{self, Changes};

/// How each file is watched.
const ONCE: AddWatchFlags = AddWatchFlags::IN_MODIFY.union(AddWatchFlags::IN_ONESHOT);

/// Reports one write to any file of a folder, or to certain files elsewhere.
pub(super) struct FirstWrite {
    changes: AsyncFd<Changes>,
    folder: PathBuf,
    /// The watches on files elsewhere, removed when the watch is rearmed. Otherwise a file that is not written to any
    /// more would be watched forever.
    elsewhere: Mutex<Elsewhere>,
}

/// The watches on files elsewhere.
#[derive(Default)]
struct Elsewhere {
    current: Vec<WatchDescriptor>,
    /// Those of the last call. The kernel reports each that it removes, which is no write.
    removed: HashSet<WatchDescriptor>,
}

impl FirstWrite {
    /// Prepares a watch of a folder, which [`Self::arm`] starts.
    ///
    /// # Errors
    /// No inotify instance is available.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let changes = watch::changes(Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?)?;
        Ok(Self { changes, folder: folder.to_path_buf(), elsewhere: Mutex::default() })
    }

    /// Arms the watch for the folder.
    ///
    /// # Errors
    /// The folder is gone, or the system has no watch left.
    pub fn arm(&self) -> io::Result<()> {
        // The caller checks the files next, so earlier events are obsolete.
        while self.changes.get_ref().0.read_events().is_ok() {}
        self.changes.get_ref().0.add_watch(&self.folder, ONCE)?;
        Ok(())
    }

    /// Arms the watch for these files, which replace those of the last call. Blocks as long as their disks do. Returns
    /// false if the system has no watch left.
    pub fn arm_elsewhere<'a>(&self, files: impl Iterator<Item = &'a Path>) -> bool {
        let removed = {
            let mut elsewhere = self.elsewhere.lock();
            let removed = std::mem::take(&mut elsewhere.current);
            elsewhere.removed = removed.iter().copied().collect();
            removed
        };
        for old in removed {
            // A one-shot watch that has fired no longer exists.
            let _ = self.changes.get_ref().0.rm_watch(old);
        }
        let mut is_armed = true;
        for path in files {
            let watched = self.changes.get_ref().0.add_watch(path, ONCE);
            match watched {
                Ok(watched) => self.elsewhere.lock().current.push(watched),
                Err(Errno::ENOSPC | Errno::ENOMEM) => is_armed = false,
                Err(error) => tracing::debug!(path = %path.display(), %error, "a file can't be watched"),
            }
        }
        is_armed
    }

    /// Reports whether files elsewhere are watched.
    pub fn is_elsewhere(&self) -> bool {
        !self.elsewhere.lock().current.is_empty()
    }

    /// Waits for a write.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn wait(&self) -> io::Result<()> {
        loop {
            let mut ready = self.changes.readable().await?;
            let mut has_changed = false;
            while let Ok(events) = self.changes.get_ref().0.read_events() {
                let elsewhere = self.elsewhere.lock();
                has_changed |= events.iter().any(|event| {
                    !event.mask.contains(AddWatchFlags::IN_IGNORED) || !elsewhere.removed.contains(&event.wd)
                });
            }
            ready.clear_ready();
            if has_changed {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write as _;
    use std::time::Duration;

    #[tokio::test]
    async fn first_write_in_folder_or_elsewhere_wakes_once() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = other.path().join("log");
        let (mut near, mut far) =
            (File::create(home.path().join("f")).unwrap(), File::create(&path).unwrap());
        let first = FirstWrite::new(home.path()).unwrap();
        let gone = other.path().join("gone");
        let arm = |files: &[&Path]| first.arm().is_ok() && first.arm_elsewhere(files.iter().copied());
        for _ in 0..3 {
            assert!(arm(&[&path, &gone]));
            assert!(first.is_elsewhere());
            far.write_all(b"x").unwrap();
            first.wait().await.unwrap();
            assert!(arm(&[&path]));
            near.write_all(b"x").unwrap();
            first.wait().await.unwrap();
        }
        // Neither a removed file nor earlier events wake the waiter.
        assert!(arm(&[&path]));
        far.write_all(b"x").unwrap();
        assert!(arm(&[]));
        assert!(!first.is_elsewhere());
        far.write_all(b"x").unwrap();
        let is_quiet =
            || async { tokio::time::timeout(Duration::from_millis(1), first.wait()).await.is_err() };
        assert!(is_quiet().await);
        // Nor does the removal of a watch that has reported nothing.
        for files in [&[path.as_path()][..], &[path.as_path()], &[]] {
            assert!(arm(files));
            assert!(is_quiet().await, "{files:?}");
        }
    }
}
