//! Where a daemon that bgctl starts keeps its state.

use std::path::PathBuf;

/// Returns the daemon's folder in `$XDG_STATE_HOME`, as this process resolves it.
pub fn state_folder() -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("XDG_STATE_HOME")
        .or_else(|| var("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_default()
        .join("bgd")
}

/// Returns the path of the daemon's log.
pub fn log_file() -> PathBuf {
    state_folder().join("bgd.log")
}
