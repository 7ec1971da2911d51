//! Reports that the file at a path may be missing now. It uses inotify on the directories of the path, and the mount
//! list, because a mount can hide a directory. It does not check the file itself.
//!
//! Only removals and renames are watched, and creations only where something is missing, so that a busy directory
//! causes no wake-ups.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

use crate::os::watch::{self, Changes};

/// The polling interval if no watch is available.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct PathWatch(Option<Watched>);

#[derive(Debug)]
struct Watched {
    inotify: AsyncFd<Changes>,
    mounts: AsyncFd<OwnedFd>,
}

impl PathWatch {
    /// Watches for the removal of existing parts of the path, or the creation of missing ones.
    pub fn of(path: &Path) -> Self {
        let watched = Watched::of(path)
            .inspect_err(|error| tracing::debug!(%error, path = %path.display(), "no inotify: it is polled"));
        Self(watched.ok())
    }

    /// Waits until something relevant may have happened.
    pub async fn changed(&self) {
        match &self.0 {
            Some(watched) => watched.changed().await,
            None => tokio::time::sleep(LOOK).await,
        }
    }
}

impl Watched {
    fn of(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let mounts = watch::urgent(File::open("/proc/self/mountinfo")?.into())?;
        let moves = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
        let removes = moves | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVE;
        let makes = moves | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ATTRIB;
        let nearest = || path.ancestors().skip(1).find(|folder| folder.is_dir());
        let mut seen = nearest();
        loop {
            for folder in seen.into_iter().flat_map(Path::ancestors) {
                let flags = match (Some(folder) == seen, seen == path.parent()) {
                    (true, true) => removes,
                    (true, false) => makes,
                    (false, _) => moves,
                };
                match inotify.add_watch(folder, flags | AddWatchFlags::IN_ONLYDIR) {
                    // If the directory is gone, the next round finds another nearest one. An unreadable one does not
                    // report its own removal, but the directories in it report the same.
                    Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // Repeat for directories created before the watch was in place.
            let now = nearest();
            if now == seen {
                break;
            }
            seen = now;
        }
        Ok(Self { inotify: watch::changes(inotify)?, mounts })
    }

    async fn changed(&self) {
        loop {
            tokio::select! {
                ready = self.inotify.readable() => {
                    let Ok(mut ready) = ready else { return };
                    ready.clear_ready();
                }
                mounted = self.mounts.ready(tokio::io::Interest::PRIORITY) => {
                    if let Ok(mut mounted) = mounted {
                        mounted.clear_ready();
                    }
                    return;
                }
            }
            if self.inotify.get_ref().0.read_events().is_ok_and(|events| !events.is_empty()) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Far longer than any event takes; reached only if none arrives.
    const PATIENCE: Duration = Duration::from_mins(1);

    async fn until_changed(missing: &PathWatch) {
        tokio::time::timeout(PATIENCE, missing.changed()).await.expect("it is reported");
    }

    #[tokio::test]
    async fn path_watch_reports_creation_removal_and_moves() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run/bgd/bgd.sock");
        let missing = PathWatch::of(&path);
        fs::create_dir(home.path().join("run")).unwrap();
        until_changed(&missing).await;
        let missing = PathWatch::of(&path);
        fs::create_dir(home.path().join("run/bgd")).unwrap();
        until_changed(&missing).await;
        let missing = PathWatch::of(&path);
        fs::write(&path, "").unwrap();
        let beside = home.path().join("run/bgd/beside");
        fs::write(&beside, "").unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(1), missing.changed()).await.is_err(),
            "what is made where all is there says nothing"
        );
        fs::remove_file(&path).unwrap();
        until_changed(&missing).await;
        let missing = PathWatch::of(&path);
        fs::rename(home.path().join("run"), home.path().join("aside")).unwrap();
        until_changed(&missing).await;
    }
}
