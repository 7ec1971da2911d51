//! The place of a keeper's socket. Reports when the socket is no longer there, so that no daemon can connect any more,
//! wherever its folder was moved. It removes nothing but the keeper's own socket.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::fs::{AtFlags, Mode, OFlags, open, statat};
use rustix::io::Errno;

use super::SOCKET;

pub(super) struct Place {
    path: PathBuf,
    /// The inode number of the socket. A file with another number belongs to the next daemon, which assumes that this
    /// keeper has ended.
    number: Option<u64>,
    /// The folder of the socket.
    folder: Option<OwnedFd>,
    /// Reports removals from the folder, while it is watched.
    changes: Option<Inotify>,
}

impl Place {
    /// Returns the place of the socket at this path, with its inode number if known.
    pub(super) fn new(path: PathBuf, number: Option<u64>) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = path.parent().and_then(|folder| open(folder, flags, Mode::empty()).ok());
        Self { path, number, folder, changes: None }
    }

    /// Watches the folder from now on, and forgets earlier changes: call it before [`Self::is_lost`].
    pub(super) fn watch(&mut self) {
        if let Some(changes) = &self.changes {
            while changes.read_events().is_ok() {}
            return;
        }
        let Some(folder) = &self.folder else { return };
        let removals = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVE | AddWatchFlags::IN_ONLYDIR;
        let watched = || {
            let changes = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            changes.add_watch(format!("/proc/self/fd/{}", folder.as_raw_fd()).as_str(), removals)?;
            Ok::<_, nix::Error>(changes)
        };
        self.changes = watched().ok();
    }

    /// Stops watching the folder.
    pub(super) fn ignore(&mut self) {
        self.changes = None;
    }

    /// Returns the descriptor that is readable after a change of the folder; `None` if it is not watched.
    pub(super) fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(Inotify::as_fd)
    }

    /// Reports whether no daemon can connect any more: the socket was removed, or another one has replaced it.
    pub(super) fn is_lost(&self) -> bool {
        let Some(folder) = &self.folder else { return false };
        match statat(folder, SOCKET, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(meta) => self.number.is_some_and(|number| meta.st_ino != number),
            Err(error) => error == Errno::NOENT,
        }
    }

    /// Removes the keeper's own socket.
    pub(super) fn remove(&self) {
        let is_own = |meta: fs::Metadata| self.number.is_none_or(|number| meta.ino() == number);
        if fs::metadata(&self.path).is_ok_and(is_own) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
