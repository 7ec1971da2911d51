//! Where a daemon that bgctl starts keeps its state, and bgctl notes when its user has looked.

use std::fs;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use bgd_shared::time::Timestamp;

/// Returns the daemon's folder in `$XDG_STATE_HOME`, as this process resolves it.
pub fn state_folder() -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("XDG_STATE_HOME")
        .or_else(|| var("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_default()
        .join("bgd")
}

/// When the user last looked at what has ended, with `bgctl` alone or `bgctl top`. `None`: never, or nobody can tell.
pub fn last_look() -> Option<Timestamp> {
    let modified = fs::metadata(look_file()).and_then(|meta| meta.modified()).ok()?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok().map(Timestamp::from_unix_ms)
}

/// Notes that the user has looked now. Without a place for the note, more is shown the next time.
pub fn note_look() {
    let file = look_file();
    let _ = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&file, ""));
}

/// The file whose time is that of the last look.
fn look_file() -> PathBuf {
    state_folder().join("looked")
}

/// Returns the path of the daemon's log.
pub fn log_file() -> PathBuf {
    state_folder().join("bgd.log")
}
