//! Finds the process that holds the lock of a daemon's socket: the daemon, whether or not it can be reached.
//!
//! The lock is a record lock, so the kernel reports its holder, as a pid in the caller's pid namespace. The lock file
//! also holds a note by the daemon with the facts that clients need when it does not answer.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroI32;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use serde::{Deserialize, Serialize};

use crate::proc;
use crate::socket::SocketPath;
use crate::text::OsText;

/// Maximum length of a note, in bytes.
const NOTE_BYTES: u64 = 16 * 1024;

/// Phase in the life of a daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Ends the leftovers of a dead predecessor, or takes over in an upgrade, and does not answer yet.
    Starting,
    /// Serves requests.
    #[default]
    Ready,
    /// Is shutting down: ends its tasks, or has done so and is about to exit.
    Ending,
}

/// The note that a daemon writes into its lock file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Its current phase.
    #[serde(default)]
    pub phase: Phase,
    /// Id of the daemon, which a durable one keeps across restarts.
    #[serde(default)]
    pub instance: String,
    /// Its socket.
    #[serde(default)]
    pub socket: OsText,
    /// Parent of the cgroups of its tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<OsText>,
    /// Its pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<NonZeroI32>,
    /// Whether its tasks outlive it, so that the next daemon continues them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub durable: bool,
    /// Whether it has left tasks running at its end, for the next daemon to continue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// The path of its journal if that was not there at its end, so that the next daemon does not find its tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_journal: Option<OsText>,
}

impl Note {
    /// Reads the note from a file. Returns an empty one if the file has none that can be read.
    pub fn read(path: &Path) -> Self {
        let mut text = Vec::new();
        let file = File::open(path).and_then(|file| file.take(NOTE_BYTES).read_to_end(&mut text));
        file.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Returns the note as file contents.
    pub fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its pid.
    pub pid: i32,
    /// The note in its lock file.
    pub note: Note,
}

/// Returns a record lock (`fcntl`) for a whole file, which excludes all others.
pub fn whole_file() -> nix::libc::flock {
    #[allow(clippy::cast_possible_truncation, reason = "the constants of fcntl fit their fields")]
    nix::libc::flock {
        l_type: nix::libc::F_WRLCK as nix::libc::c_short,
        l_whence: nix::libc::SEEK_SET as nix::libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Returns the holder of this lock. Must not be called for a file that this process has locked itself: closing the
/// file would release that lock.
///
/// # Errors
/// The file can't be opened or queried.
pub fn of_lock(path: &Path) -> io::Result<Option<Holder>> {
    let file = File::open(path)?;
    let mut lock = whole_file();
    loop {
        match fcntl(&file, FcntlArg::F_GETLK(&mut lock)) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // A holder outside this pid namespace, as in another container, has no pid here.
    let is_held = i32::from(lock.l_type) != nix::libc::F_UNLCK && lock.l_pid > 0;
    Ok(is_held.then(|| Holder { pid: lock.l_pid, note: Note::read(path) }))
}

/// Returns the holder of a socket's lock, if it can be determined.
pub fn of(socket: &SocketPath) -> Option<Holder> {
    of_lock(&socket.beside("lock")).ok().flatten()
}

impl Holder {
    /// Returns the state of its process as the kernel reports it.
    pub fn state(&self) -> Option<State> {
        proc::state(self.pid).map(State)
    }

    /// Reports whether its process works: it runs, waits for a disk, or has used the CPU since it had used it for
    /// `before` ([`proc::cpu_ticks`]). A process that works may be carrying out a request.
    pub fn is_working(&self, before: Option<u64>) -> bool {
        let has_run = || before.zip(proc::cpu_ticks(self.pid)).is_some_and(|(before, now)| now > before);
        match self.state() {
            Some(State('R' | 'D')) => true,
            Some(State('T' | 't' | 'Z' | 'X')) | None => false,
            Some(State(_)) => has_run(),
        }
    }
}

/// The state of a process: a letter of proc(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub char);

impl State {
    /// Reports whether SIGCONT resumes it.
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
            'R' => write!(f, "is running (state R)"),
            _ => write!(f, "is sleeping (state {letter})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_lock_has_no_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert!(of_lock(&path).is_err(), "there is no such file");
        std::fs::write(&path, "").unwrap();
        assert_eq!(of_lock(&path).unwrap(), None);
    }

    #[test]
    fn lock_note_survives_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert_eq!(Note::read(&path), Note::default());
        let note = Note {
            instance: "x".into(),
            phase: Phase::Ending,
            socket: "/s".into(),
            cgroup: None,
            pid: NonZeroI32::new(7),
            durable: true,
            left: true,
            missing_journal: Some("/state/journal.db".into()),
        };
        std::fs::write(&path, note.text()).unwrap();
        assert_eq!(Note::read(&path), note);
        std::fs::write(&path, "{\"phase\":\"dancing\"}").unwrap();
        assert_eq!(Note::read(&path), Note::default(), "of a newer daemon");
    }

    #[test]
    fn running_process_works_and_a_missing_one_does_not() {
        let of = |pid| Holder { pid, note: Note::default() };
        let me = std::process::id().cast_signed();
        // Each look takes some CPU time.
        while proc::cpu_ticks(me) == Some(0) {}
        assert!(of(me).is_working(Some(0)), "it has used the CPU since");
        assert!(!of(-1).is_working(Some(0)), "there is no such process");
    }

    #[test]
    fn own_process_is_not_reported_stopped() {
        let me = Holder { pid: std::process::id().cast_signed(), note: Note::default() };
        assert!(!me.state().unwrap().is_stopped());
    }
}
