//! Who holds the lock of a daemon's socket: the daemon that lives there, whether or not it can be reached.
//!
//! The lock is a record lock, so the kernel tells whose it is, as a number that means something where it is
//! asked. Beside it, in the file, the daemon notes what else must be known when it can't be asked.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use serde::{Deserialize, Serialize};

use crate::proc::ProcessStat;
use crate::socket::SocketPath;
use crate::text::OsText;

/// The most bytes of a note that are read.
const NOTE_BYTES: u64 = 16 * 1024;

/// What a daemon does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It ends what a dead one left, and answers nobody yet.
    Starting,
    /// It serves.
    #[default]
    Ready,
    /// It has ended its tasks and is about to be gone.
    Ending,
}

/// What a daemon notes in the file of its lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What it does.
    #[serde(default)]
    pub phase: Phase,
    /// Its life.
    #[serde(default)]
    pub instance: String,
    /// Its socket.
    #[serde(default)]
    pub socket: OsText,
    /// The cgroup that the ones of its tasks are in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<OsText>,
}

impl Note {
    /// The note in a file; an empty one if there is none that can be read.
    pub fn read(path: &Path) -> Self {
        let mut text = Vec::new();
        let file = File::open(path).and_then(|file| file.take(NOTE_BYTES).read_to_end(&mut text));
        file.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Its text.
    pub fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: i32,
    /// What it has noted.
    pub note: Note,
}

/// Who holds this lock. Not for a file that this process has locked itself: it would lose it.
///
/// # Errors
/// The file can't be opened or asked.
pub fn of_lock(path: &Path) -> io::Result<Option<Holder>> {
    let file = File::open(path)?;
    #[allow(clippy::cast_possible_truncation, reason = "the constants of fcntl fit their fields")]
    let mut lock = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as nix::libc::c_short,
        l_whence: nix::libc::SEEK_SET as nix::libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    loop {
        match fcntl(&file, FcntlArg::F_GETLK(&mut lock)) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // One that can't be seen from here, as in another container, has no number.
    let is_held = i32::from(lock.l_type) != nix::libc::F_UNLCK && lock.l_pid > 0;
    Ok(is_held.then(|| Holder { pid: lock.l_pid, note: Note::read(path) }))
}

/// Who holds the lock of a socket, if that can be found out.
pub fn of(socket: &SocketPath) -> Option<Holder> {
    of_lock(&socket.beside("lock")).ok().flatten()
}

impl Holder {
    /// What its process does, as the kernel sees it.
    pub fn state(&self) -> Option<State> {
        ProcessStat::of(self.pid)?.state().map(State)
    }
}

/// The state of a process: a letter of proc(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub char);

impl State {
    /// Whether it goes on when it gets SIGCONT.
    pub fn is_stopped(self) -> bool {
        self.0 == 'T'
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(letter) = *self;
        match letter {
            'T' => write!(f, "is stopped (state T)"),
            't' => write!(f, "is held by a debugger (state t)"),
            'D' => write!(f, "waits for a disk or a network filesystem (state D)"),
            'Z' | 'X' => write!(f, "has ended (state {letter})"),
            'R' => write!(f, "is at work (state R)"),
            _ => write!(f, "sleeps (state {letter})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_nobody_holds_has_no_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert!(of_lock(&path).is_err(), "there is no such file");
        std::fs::write(&path, "").unwrap();
        assert_eq!(of_lock(&path).unwrap(), None);
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert_eq!(Note::read(&path), Note::default());
        let note = Note { instance: "x".into(), phase: Phase::Ending, socket: "/s".into(), cgroup: None };
        std::fs::write(&path, note.text()).unwrap();
        assert_eq!(Note::read(&path), note);
        std::fs::write(&path, "{\"phase\":\"dancing\"}").unwrap();
        assert_eq!(Note::read(&path), Note::default(), "of a newer daemon");
    }

    #[test]
    fn one_sees_how_one_is_oneself() {
        let me = Holder { pid: std::process::id().cast_signed(), note: Note::default() };
        assert!(!me.state().unwrap().is_stopped());
    }
}
