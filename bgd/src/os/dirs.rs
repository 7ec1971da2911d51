//! The XDG base directories that the daemon uses.

use std::path::PathBuf;

fn folder(variable: &str, below_home: &str) -> PathBuf {
    // The specification says to ignore relative paths.
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| home().join(below_home))
}

/// Returns the user's home directory: `$HOME`, else the one in the user database, else `/`.
pub fn home() -> PathBuf {
    let named = std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
        user.map_or_else(|| PathBuf::from("/"), |user| user.dir)
    })
}

/// Returns `$XDG_CONFIG_HOME`, or `~/.config` by default.
pub fn config_home() -> PathBuf {
    folder("XDG_CONFIG_HOME", ".config")
}

/// Returns `$XDG_STATE_HOME/bgd`, or `~/.local/state/bgd` by default.
pub fn state() -> PathBuf {
    folder("XDG_STATE_HOME", ".local/state").join("bgd")
}
