//! Replaces files as a whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Replaces a file, or creates it with this mode. A concurrent reader sees either the old file or the new one, even if
/// several writers replace it at once. `write` gets the new, empty file, which is not synchronised with the disk.
///
/// # Errors
/// The system's, such as a full disk; then the old file stays.
pub fn replace(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    // Hidden, since other programs may search for files whose names begin like this one.
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
    name.push(format!(".{}-{}.new", process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed)));
    let draft = path.with_file_name(name);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&draft)
        .and_then(|mut file| write(&mut file))
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // A partial file is useless, and may occupy the last free space of the disk.
        let _ = fs::remove_file(draft);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn file_is_replaced_atomically_or_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        replace(&path, 0o600, |file| file.write_all(b"first, and longer")).unwrap();
        replace(&path, 0o600, |file| file.write_all(b"second")).unwrap();
        let failed = replace(&path, 0o600, |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn concurrent_replacements_are_atomic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        std::thread::scope(|scope| {
            for letter in b'a'..b'i' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..50 {
                        replace(path, 0o600, |file| file.write_all(&[letter; 5_000])).unwrap();
                        let read = fs::read(path).unwrap();
                        assert!(read.len() == 5_000 && read.iter().all(|byte| *byte == read[0]));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }
}
