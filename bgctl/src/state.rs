//! Where a daemon that bgctl starts keeps what is its own.

use std::path::PathBuf;

/// The daemon's part of `$XDG_STATE_HOME`, as it is for this process.
pub fn state_folder() -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("XDG_STATE_HOME")
        .or_else(|| var("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_default()
        .join("bgd")
}

/// Its log.
pub fn log_file() -> PathBuf {
    state_folder().join("bgd.log")
}
