//! Notes in the folders of durable daemons that are not running, written by a daemon that continues none of their
//! tasks, and read by the next one that may.

use std::fs;
use std::path::Path;

use bgd_shared::show;
use bgd_shared::time::Timestamp;

use crate::os::files::remove_if_there;

/// The note that the processes were ended, with the kind of the daemon that did it.
const ENDED: &str = "ended";

/// What the note has if that daemon was a durable one with another journal.
const BY_ANOTHER: &str = "another";

/// The note of when a durable daemon first found that its journal does not know the folder, in milliseconds since 1970.
const UNKNOWN: &str = "unknown";

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Notes that this daemon, durable or not, has ended the processes of this folder's daemon.
pub(super) fn note_ended(folder: &Path, is_durable: bool) {
    let by = if is_durable { BY_ANOTHER } else { "" };
    if let Err(error) = fs::write(folder.join(ENDED), by) {
        tracing::warn!(path = %folder.display(), %error, "cannot note that its tasks were ended");
    }
}

/// Returns why the tasks of this folder's daemon have ended, if another daemon has ended them.
pub(super) fn why_ended(folder: &Path) -> Option<&'static str> {
    let by = fs::read_to_string(folder.join(ENDED)).ok()?;
    Some(if by == BY_ANOTHER {
        "a daemon without the journal of this task has ended it"
    } else {
        "a daemon without `durable` has ended it"
    })
}

/// Removes the notes, as the daemon of this folder is running again.
pub(super) fn remove_notes(folder: &Path) {
    for note in [ENDED, UNKNOWN] {
        if let Err(error) = remove_if_there(&folder.join(note)) {
            tracing::warn!(path = %folder.display(), %error, "cannot remove a note");
        }
    }
}

/// Reports whether the journal has not known this folder for this many days. Notes when that was first found.
pub(super) fn is_expired(folder: &Path, days: u64) -> bool {
    let (path, now) = (folder.join(UNKNOWN), Timestamp::now().unix_ms());
    let since = fs::read_to_string(&path).ok().and_then(|text| text.parse::<i64>().ok());
    // A clock that was ahead must not keep the folder forever.
    if let Some(since) = since.filter(|since| *since <= now) {
        return now - since >= i64::try_from(days).unwrap_or(i64::MAX).saturating_mul(DAY_MS);
    }
    if let Err(error) = fs::write(&path, now.to_string()) {
        tracing::warn!(path = %folder.display(), %error, "cannot note that the journal does not know it");
    }
    false
}

/// Returns the warning about the outputs of this many tasks in this folder, for users.
pub(super) fn warning(output: &Path, tasks: usize, days: u64) -> String {
    format!(
        "the journal does not know {} of an earlier daemon: their outputs are in {}, and are removed {} after this was \
         first found",
        show::count(tasks, "task"),
        output.display(),
        show::count(days, "day")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r130_folder_that_no_journal_knows_expires() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_expired(folder.path(), 1), "it was found just now");
        let note = |at: i64| fs::write(folder.path().join(UNKNOWN), at.to_string()).unwrap();
        let now = Timestamp::now().unix_ms();
        for (at, expected) in [(now - DAY_MS / 2, false), (now - DAY_MS, true), (now + DAY_MS, false)] {
            note(at);
            assert_eq!(is_expired(folder.path(), 1), expected, "{at}");
        }
        assert!(!is_expired(folder.path(), u64::MAX));
        remove_notes(folder.path());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn r131_note_says_which_daemon_has_ended_the_tasks() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(why_ended(folder.path()), None);
        for (is_durable, part) in [(false, "without `durable`"), (true, "without the journal")] {
            note_ended(folder.path(), is_durable);
            assert!(why_ended(folder.path()).is_some_and(|why| why.contains(part)));
        }
    }
}
