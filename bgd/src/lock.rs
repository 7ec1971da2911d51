//! Locks on files that end with the process, however it ends.
//!
//! They are record locks (`fcntl`), not `flock`: a process that is being started holds copies of the
//! daemon's descriptors until it executes its program, and would keep an `flock` of a daemon that was
//! killed in that moment. A record lock belongs to the process alone. It would be lost if the same
//! process opened and closed the file once more, which nobody does.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub struct ProcessLock(#[expect(dead_code, reason = "it holds the lock by being open")] File);

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

fn open(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(false).mode(0o600).open(path)
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
