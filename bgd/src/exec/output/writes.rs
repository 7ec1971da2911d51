//! Reports by inotify that somebody has written to an output file, once and without polling. Does not read files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use crate::os::watch::{self, Changes};

/// Reports one write to any file of a folder, or to certain files elsewhere.
pub(super) struct FirstWrite {
    changes: AsyncFd<Changes>,
    folder: PathBuf,
    /// The watches on files elsewhere, removed when the watch is rearmed. Otherwise a file that nobody writes to any
    /// more would be watched forever.
    elsewhere: Vec<WatchDescriptor>,
}

impl FirstWrite {
    /// Prepares a watch of a folder, which [`Self::arm`] begins.
    ///
    /// # Errors
    /// No inotify instance is available.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let changes = watch::changes(Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?)?;
        Ok(Self { changes, folder: folder.to_path_buf(), elsewhere: Vec::new() })
    }

    /// Arms the watch for the folder and these files, which replace those of the last call. Returns false if the
    /// folder can't be watched or the system has no watch left.
    pub fn arm(&mut self, elsewhere: &[Arc<Path>]) -> bool {
        let once = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ONESHOT;
        for old in self.elsewhere.drain(..) {
            // A one-shot watch that has fired no longer exists.
            let _ = self.changes.get_ref().0.rm_watch(old);
        }
        // The caller looks at the files next, so earlier events are obsolete.
        while self.changes.get_ref().0.read_events().is_ok() {}
        let folder = self.changes.get_ref().0.add_watch(&self.folder, once);
        if let Err(error) = &folder {
            tracing::debug!(%error, "cannot watch the output folder");
        }
        let mut is_armed = folder.is_ok();
        for path in elsewhere {
            match self.changes.get_ref().0.add_watch(&**path, once) {
                Ok(watched) => self.elsewhere.push(watched),
                Err(Errno::ENOSPC | Errno::ENOMEM) => is_armed = false,
                Err(error) => tracing::debug!(path = %path.display(), %error, "a file can't be watched"),
            }
        }
        is_armed
    }

    /// Waits for a write.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn wait(&self) -> io::Result<()> {
        loop {
            let mut ready = self.changes.readable().await?;
            let mut is_told = false;
            while let Ok(events) = self.changes.get_ref().0.read_events() {
                is_told |= !events.is_empty();
            }
            ready.clear_ready();
            if is_told {
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
    async fn a_write_to_the_folder_or_elsewhere_is_told_once() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path: Arc<Path> = other.path().join("log").into();
        let (mut near, mut far) =
            (File::create(home.path().join("f")).unwrap(), File::create(&path).unwrap());
        let mut first = FirstWrite::new(home.path()).unwrap();
        let gone: Arc<Path> = other.path().join("gone").into();
        for _ in 0..3 {
            assert!(first.arm(&[Arc::clone(&path), Arc::clone(&gone)]));
            far.write_all(b"x").unwrap();
            first.wait().await.unwrap();
            assert!(first.arm(std::slice::from_ref(&path)));
            near.write_all(b"x").unwrap();
            first.wait().await.unwrap();
        }
        // Neither a forgotten file nor earlier events wake the waiter.
        assert!(first.arm(std::slice::from_ref(&path)));
        far.write_all(b"x").unwrap();
        assert!(first.arm(&[]));
        far.write_all(b"x").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(1), first.wait()).await.is_err());
    }
}
