//! The folders of the XDG base directory specification that the daemon uses.

use std::path::PathBuf;

fn folder(variable: &str, below_home: &str) -> PathBuf {
    // The specification wants relative paths ignored.
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| home().join(below_home))
}

/// The user's home: `$HOME`, else as the user database has it, else the root folder.
pub fn home() -> PathBuf {
    let named = std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
        user.map_or_else(|| PathBuf::from("/"), |user| user.dir)
    })
}

/// `$XDG_CONFIG_HOME`, else `~/.config`.
pub fn config_home() -> PathBuf {
    folder("XDG_CONFIG_HOME", ".config")
}

/// `$XDG_STATE_HOME/bgd`, else `~/.local/state/bgd`.
pub fn state() -> PathBuf {
    folder("XDG_STATE_HOME", ".local/state").join("bgd")
}
