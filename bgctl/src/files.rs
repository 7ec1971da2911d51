//! Files that bgctl installs for its user: where they belong, and how they are written and removed. Files of other
//! authors in their place are never touched.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

pub use bgd_shared::dirs::{
    known_config_home as config_home, known_data_home as data_home, known_home as home, variable,
};
use bgd_shared::{owned, replace};

use crate::exit::Code;
use crate::failure::Failure;

/// Writes a file that others may read, unless the umask forbids that, and creates its folder. Concurrent readers see
/// the old file or the new one.
///
/// # Errors
/// The folder or the file can't be written; then the old file stays.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        owned::folders(folder, 0o777)?;
    }
    replace::replace(path, 0o644, |file| file.write_all(bytes))
}

/// Checks that there is no file at `path`, or one that bgctl has written.
///
/// # Errors
/// bgctl did not write the file, or it can't be read.
pub fn may_replace(path: &Path, is_ours: impl FnOnce(&[u8]) -> bool) -> Result<(), Failure> {
    match fs::read(path) {
        Ok(there) if is_ours(&there) => Ok(()),
        Ok(_) => Err(not_ours(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::io(format!("can't read {}", path.display()), &error)),
    }
}

fn not_ours(path: &Path) -> Failure {
    let message = format!("{} exists, and is not what bgctl would write", path.display());
    Failure::new(Code::WRONG_STATE, "exists", message)
        .hint("keep what you need of it, then remove it yourself")
}

/// Recognises by its content a file that some bgctl has written.
pub type IsOurs<'a> = Box<dyn Fn(&[u8]) -> bool + 'a>;

/// Removes files that bgctl has written, as [`remove`] does. Returns the paths of the files that existed.
///
/// # Errors
/// bgctl did not write one of the files, or one can't be read: then none is removed. Or one can't be removed.
pub fn remove_all(files: Vec<(PathBuf, IsOurs<'_>)>) -> Result<Vec<PathBuf>, Failure> {
    for (path, is_ours) in &files {
        may_replace(path, is_ours)?;
    }
    let removed = files.into_iter().map(|(path, is_ours)| remove(path, is_ours));
    removed.filter_map(Result::transpose).collect()
}

/// Removes a file that bgctl has written, and the folders that become empty, up to the user's home or data and
/// configuration folders. Returns the path if the file existed.
///
/// # Errors
/// bgctl did not write the file, or it can't be read or removed.
pub fn remove(path: PathBuf, is_ours: impl FnOnce(&[u8]) -> bool) -> Result<Option<PathBuf>, Failure> {
    may_replace(&path, is_ours)?;
    match fs::remove_file(&path) {
        Ok(()) => {
            remove_empty(path.parent());
            Ok(Some(path))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io(format!("can't remove {}", path.display()), &error)),
    }
}

/// Removes a folder and its parents while they are empty, except those that contain the user's own folders.
pub fn remove_empty(folder: Option<&Path>) {
    let kept = [home(), data_home(), config_home()];
    let is_kept = |folder: &Path| kept.iter().flatten().any(|kept| kept.starts_with(folder));
    let mut next = folder;
    // Stops at the first folder that is not empty.
    while let Some(folder) = next.filter(|folder| !is_kept(folder) && fs::remove_dir(folder).is_ok()) {
        next = folder.parent();
    }
}
