//! File locks that end with the process, however it ends.
//!
//! They are record locks (`fcntl`), not `flock`: until it executes its program, a process being started holds copies of
//! the daemon's descriptors, and would keep the `flock` of a daemon that is killed at that moment. A record lock
//! belongs to the process alone. It would be lost if the same process opened and closed the file again, which it never
//! does.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;

use bgd_shared::holder::{Note, whole_file};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use serde::{Deserialize, Serialize};

/// A lock, held until it is dropped.
#[derive(Debug)]
pub struct ProcessLock(File);

/// The maximum number of bytes read of a note.
const NOTE_BYTES: usize = 16 * 1024;

impl ProcessLock {
    /// Tries to take a lock. Returns `None` if another process holds it.
    ///
    /// # Errors
    /// The file can't be opened or locked.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = open(path)?;
        match fcntl(&file, FcntlArg::F_SETLK(&whole_file())) {
            Ok(_) => Ok(Some(Self(file))),
            Err(Errno::EACCES | Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes a lock, waiting while another process holds it.
    ///
    /// # Errors
    /// The file can't be opened or locked.
    pub fn take(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        loop {
            match fcntl(&file, FcntlArg::F_SETLKW(&whole_file())) {
                Ok(_) => return Ok(Self(file)),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes a lock on a thread, which waits while another process holds it: the kernel offers no deadline. The thread
    /// ends with the process, or once it has delivered its result. Until then the process must not close the file
    /// elsewhere.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn take_on_thread(
        path: PathBuf,
        hand_over: impl FnOnce(io::Result<Self>) + Send + 'static,
    ) -> io::Result<()> {
        let wait = move || hand_over(Self::take(&path));
        thread::Builder::new().name("lock".to_owned()).spawn(wait).map(drop)
    }
}

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId(u64, u64);

impl FileId {
    /// Returns the identity of the file at a path, if there is one. Does not follow symlinks.
    pub fn of(path: &Path) -> Option<Self> {
        std::fs::symlink_metadata(path).ok().map(|meta| Self(meta.dev(), meta.ino()))
    }
}

impl AsFd for ProcessLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ProcessLock {
    /// Takes over a lock that the previous program has taken in this process. A program that failed to take over has
    /// lost the lock on the way back, so it is taken again.
    pub fn taken(fd: OwnedFd) -> Self {
        let file = File::from(fd);
        if let Err(error) = fcntl(&file, FcntlArg::F_SETLK(&whole_file())) {
            tracing::error!(%error, "another process has taken a lock of this daemon while it was being upgraded");
        }
        Self(file)
    }

    /// Reports whether the lock's file is still at this path.
    pub fn is_at(&self, path: &Path) -> bool {
        let own = self.0.metadata().ok().map(|meta| FileId(meta.dev(), meta.ino()));
        own.is_some() && own == FileId::of(path)
    }

    /// Returns the note that the last holder wrote to the file; empty if there is no readable one.
    pub fn note(&self) -> Note {
        let mut text = vec![0; NOTE_BYTES];
        let count = self.0.read_at(&mut text, 0).unwrap_or(0);
        serde_json::from_slice(&text[..count]).unwrap_or_default()
    }

    /// Writes a note to the file, for processes that find the lock held. If the disk is full, they learn less.
    pub fn write_note(&self, note: &Note) {
        let mut text = note.text();
        let before = self.0.metadata().map_or(0, |meta| usize::try_from(meta.len()).unwrap_or(0));
        // In a single write: no reader may find the rest of a longer note behind this one, and reject both.
        text.resize(text.len().max(before.min(NOTE_BYTES)), b' ');
        if let Err(error) = self.0.write_all_at(&text, 0) {
            tracing::warn!(%error, "cannot write the note in the lock");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
