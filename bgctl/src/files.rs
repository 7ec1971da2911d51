//! Files that bgctl installs for its user: where they belong, and how they are written.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The user's home. `None` if `$HOME` is not set.
pub fn home() -> Option<PathBuf> {
    set("HOME")
}

/// The folder for data of programs. `None` without a home.
pub fn data_home() -> Option<PathBuf> {
    set("XDG_DATA_HOME").or_else(|| Some(home()?.join(".local/share")))
}

/// The folder for configurations. `None` without a home.
pub fn config_home() -> Option<PathBuf> {
    set("XDG_CONFIG_HOME").or_else(|| Some(home()?.join(".config")))
}

/// The path in an environment variable, unless it is empty.
pub fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Writes a file that others may read, and its folder. Whoever opens it meanwhile reads the old one or the new one.
///
/// # Errors
/// The folder or the file can't be written; then the old file stays.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let part = path.with_extension(format!("part-{}", std::process::id()));
    let written = fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(&part)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // The error of the write is the one to tell.
        let _ = fs::remove_file(&part);
    }
    written
}
