//! Locks on files that end with the process, however it ends.
//!
//! They are record locks (`fcntl`), not `flock`: a process that is being started holds copies of the
//! daemon's descriptors until it executes its program, and would keep an `flock` of a daemon that was
//! killed in that moment. A record lock belongs to the process alone. It would be lost if the same
//! process opened and closed the file once more, which nobody does.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use bgd_shared::holder::Note;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub struct ProcessLock(File);

/// The most bytes of a note that are read.
const NOTE_BYTES: usize = 16 * 1024;

impl ProcessLock {
    /// Takes a lock, or returns `None` if another process has it.
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

    /// Takes a lock, and waits for it while another process has it.
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
}

/// Which file something is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl FileId {
    /// What is at a path, if there is something.
    pub fn of(path: &Path) -> Option<Self> {
        std::fs::symlink_metadata(path).ok().map(|meta| Self(meta.dev(), meta.ino()))
    }
}

impl ProcessLock {
    /// Whether the file of this lock is at this path still.
    pub fn is_at(&self, path: &Path) -> bool {
        let own = self.0.metadata().ok().map(|meta| FileId(meta.dev(), meta.ino()));
        own.is_some() && own == FileId::of(path)
    }

    /// What the last holder has noted in the file; an empty note if there is none that can be read.
    pub fn note(&self) -> Note {
        let mut text = vec![0; NOTE_BYTES];
        let count = self.0.read_at(&mut text, 0).unwrap_or(0);
        serde_json::from_slice(&text[..count]).unwrap_or_default()
    }

    /// Notes something in the file, for those who find the lock held. Without space for it they are told less.
    pub fn write_note(&self, note: &Note) {
        let text = note.text();
        let written =
            self.0.write_all_at(&text, 0).and_then(|()| self.0.set_len(text.len().try_into().unwrap_or(0)));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot write the note in the lock");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn whole_file() -> libc::flock {
    #[allow(clippy::cast_possible_truncation, reason = "the constants of fcntl fit their fields")]
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}
