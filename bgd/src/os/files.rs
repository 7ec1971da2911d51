//! Files and folders of the daemon's own.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Creates a folder that only its user can look into, and the folders above it, unless they are there.
///
/// # Errors
/// A system call fails.
pub fn private_folder(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)
}

/// Removes a file, which need not be there.
///
/// # Errors
/// A system call fails.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
