//! Where a daemon started by bgctl keeps its state, and where bgctl notes when the user last looked at the tasks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

pub use bgd_shared::dirs::state as state_folder;
use bgd_shared::id::TaskId;
use bgd_shared::owned;
use bgd_shared::replace::replace;
use bgd_shared::socket::SocketPath;
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;

/// Maximum number of failures noted as unseen; beyond it, those that ended first count as seen.
const UNSEEN: usize = 1000;

/// Maximum number of bytes read from the note.
const NOTE_BYTES: u64 = 64 * 1024;

/// The tasks that the user has seen: all that had ended by `at`, except `unseen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When the user last looked.
    pub at: Timestamp,
    /// Tasks that were not shown then.
    pub unseen: BTreeSet<TaskId>,
}

impl Seen {
    /// Reports whether the user has seen that this task ended at this time.
    pub fn has(&self, id: TaskId, ended_at: Timestamp) -> bool {
        ended_at <= self.at && !self.unseen.contains(&id)
    }
}

/// Returns what the user has seen with bare `bgctl` or `bgctl top` of the daemon at this socket. `None` if nothing yet,
/// or if the note can't be read.
pub fn last_seen(socket: &SocketPath) -> Option<Seen> {
    read_seen(&seen_file(socket))
}

/// Reports whether the user has not yet seen that a task has ended.
pub fn is_news(last_seen: Option<&Seen>, task: &Task) -> bool {
    let is_later = |at| last_seen.is_none_or(|last_seen| !last_seen.has(task.id, at));
    !task.ended_in_foreground && task.completed_at.is_some_and(is_later)
}

/// Notes that the user has seen all tasks of the daemon at this socket that had ended by `at`, except these failures
/// with their end times. Failures already seen elsewhere stay seen. If the note can't be written, more is shown the next
/// time.
pub fn record_seen(socket: &SocketPath, at: Timestamp, unseen: Vec<(TaskId, Timestamp)>) {
    if is_usual(socket) {
        // Private like the daemon's: the log beside the note names commands.
        let _ = owned::folders(&state_folder(), 0o700);
    }
    let _ = note(&seen_file(socket), at, unseen);
}

fn is_usual(socket: &SocketPath) -> bool {
    SocketPath::usual().is_ok_and(|usual| usual == *socket)
}

/// Returns the note, whose modification time is that of the last look. It lists the ids of tasks not shown, one per
/// line. Another daemon than the usual one has its own, so that looking at the one hides nothing of the other.
fn seen_file(socket: &SocketPath) -> PathBuf {
    if is_usual(socket) { state_folder().join("looked") } else { socket.beside("looked") }
}

fn read_seen(file: &Path) -> Option<Seen> {
    let file = File::open(file).ok()?;
    let since = file.metadata().and_then(|meta| meta.modified()).ok()?.duration_since(UNIX_EPOCH).ok()?;
    let at = i64::try_from(since.as_millis()).ok().map(Timestamp::from_unix_ms)?;
    let mut text = String::new();
    // Invalid text contains no ids.
    let _ = file.take(NOTE_BYTES).read_to_string(&mut text);
    Some(Seen { at, unseen: text.lines().filter_map(|line| line.parse().ok()).collect() })
}

fn note(file: &Path, at: Timestamp, mut unseen: Vec<(TaskId, Timestamp)>) -> io::Result<()> {
    let before = read_seen(file);
    unseen.retain(|(id, ended)| before.as_ref().is_none_or(|before| !before.has(*id, *ended)));
    unseen.sort_by_key(|(id, ended)| (std::cmp::Reverse(*ended), *id));
    unseen.truncate(UNSEEN);
    let text = unseen.iter().fold(String::new(), |text, (id, _)| text + &id.to_string() + "\n");
    // Another bgctl may be reading the file now.
    replace(file, 0o600, |new| {
        new.write_all(text.as_bytes())?;
        new.set_modified(UNIX_EPOCH + Duration::from_millis(u64::try_from(at.unix_ms()).unwrap_or(0)))
    })
}

/// Returns the path of the daemon's log.
pub fn log_file() -> PathBuf {
    state_folder().join("bgd.log")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_unix_ms(second * 1000)
    }

    fn id(number: u128) -> TaskId {
        TaskId::from_u128(number)
    }

    #[test]
    fn r160_failures_not_shown_stay_unseen() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("looked");
        assert_eq!(read_seen(&file), None);
        note(&file, at(10), vec![(id(1), at(5)), (id(2), at(6))]).unwrap();
        let first = read_seen(&file).unwrap();
        assert_eq!(first.at, at(10));
        assert!(first.has(id(3), at(10)) && !first.has(id(1), at(5)) && !first.has(id(3), at(11)));
        // Another process has seen 2 meanwhile and does not know about this note.
        note(&file, at(11), vec![(id(1), at(5))]).unwrap();
        note(&file, at(20), vec![(id(2), at(6)), (id(4), at(15))]).unwrap();
        let last = read_seen(&file).unwrap();
        assert_eq!(last, Seen { at: at(20), unseen: [id(4)].into() });
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn r160_looked_file_is_bounded_and_tolerates_garbage() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("looked");
        let many = (0..5000u32).map(|number| (id(number.into()), at(number.into()))).collect();
        note(&file, at(9000), many).unwrap();
        let known = read_seen(&file).unwrap();
        assert_eq!(known.unseen.len(), UNSEEN);
        assert!(known.unseen.contains(&id(4999)) && !known.unseen.contains(&id(0)));
        fs::write(&file, b"\xff\0 no id\n").unwrap();
        assert!(read_seen(&file).unwrap().unseen.is_empty());
    }
}
