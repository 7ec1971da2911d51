//! A user's home directory, and the XDG base directories in it. The daemon and its clients resolve them by the same
//! rule, so that each finds the other's files.

use std::ffi::OsString;
use std::path::PathBuf;

/// Returns the path if it is absolute. The XDG specification says to ignore others: they would depend on the current
/// folder.
fn absolute(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

fn folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    absolute(std::env::var_os(variable)).or_else(|| Some(known_home()?.join(below_home)))
}

/// Returns the path in an environment variable. An empty one counts as unset.
pub fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the user's home directory: `$HOME`, else the one in the user database. `None` if neither is set.
pub fn known_home() -> Option<PathBuf> {
    absolute(std::env::var_os("HOME")).or_else(|| {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten()?;
        absolute(Some(user.dir.into_os_string()))
    })
}

/// Returns the user's home directory, or `/` for a user without one.
pub fn home() -> PathBuf {
    known_home().unwrap_or_else(|| PathBuf::from("/"))
}

/// Returns `$XDG_DATA_HOME`, or `~/.local/share` by default. `None` for a user without a home.
pub fn known_data_home() -> Option<PathBuf> {
    folder("XDG_DATA_HOME", ".local/share")
}

/// Returns `$XDG_CONFIG_HOME`, or `~/.config` by default. `None` for a user without a home.
pub fn known_config_home() -> Option<PathBuf> {
    folder("XDG_CONFIG_HOME", ".config")
}

/// Returns `$XDG_CONFIG_HOME`, or `~/.config` by default.
pub fn config_home() -> PathBuf {
    known_config_home().unwrap_or_else(|| PathBuf::from("/.config"))
}

/// Returns `$XDG_STATE_HOME/bgd`, or `~/.local/state/bgd` by default. `None` for a user without a home.
pub fn known_state() -> Option<PathBuf> {
    Some(folder("XDG_STATE_HOME", ".local/state")?.join("bgd"))
}

/// Returns `$XDG_STATE_HOME/bgd`, or `~/.local/state/bgd` by default.
pub fn state() -> PathBuf {
    known_state().unwrap_or_else(|| PathBuf::from("/.local/state/bgd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_ignored() {
        assert_eq!(absolute(Some("/state".into())), Some("/state".into()));
        for other in ["", ".", "state", "../state"] {
            assert_eq!(absolute(Some(other.into())), None, "{other}");
        }
        assert_eq!(absolute(None), None);
    }
}
