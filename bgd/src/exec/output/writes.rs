//! Tells that somebody has written to an output file, once and without polling: by inotify. It looks into no
//! file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use crate::os::watch::{self, Changes};

/// One write to any file of a folder, or to certain files elsewhere, told once.
pub(super) struct FirstWrite {
    changes: AsyncFd<Changes>,
    folder: PathBuf,
    /// The files elsewhere, as they were watched last. Else a file to which nobody writes any more would be
    /// watched for ever.
    elsewhere: Vec<WatchDescriptor>,
}

impl FirstWrite {
    /// For a folder.
    ///
    /// # Errors
    /// The system has no inotify to give.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let changes = watch::changes(Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?)?;
        Ok(Self { changes, folder: folder.to_path_buf(), elsewhere: Vec::new() })
    }

    /// Begins to watch once more, the folder and these files; those of the last time are forgotten. False:
    /// the system has no watch to give.
    pub fn arm(&mut self, elsewhere: &[Arc<Path>]) -> bool {
        let once = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ONESHOT;
        for old in self.elsewhere.drain(..) {
            // One that has told is gone by itself.
            let _ = self.changes.get_ref().0.rm_watch(old);
        }
        // Whoever arms looks at the files next, so what was told before says nothing any more.
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

    /// Waits for the write.
    ///
    /// # Errors
    /// The runtime is about to end.
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
        // A file that is forgotten, and what was told before, wake nobody.
        assert!(first.arm(std::slice::from_ref(&path)));
        far.write_all(b"x").unwrap();
        assert!(first.arm(&[]));
        far.write_all(b"x").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(1), first.wait()).await.is_err());
    }
}
