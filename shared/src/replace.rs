//! Replaces files as a whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::owned;

/// Replaces a file, or creates it with this mode, less the rights that the umask denies to others. A concurrent reader
/// sees either the old file or the new one, even if several writers replace it at once. `write` gets the new, empty
/// file, which is not synchronised with the disk.
///
/// # Errors
/// The system's, such as a full disk; then the old file stays.
pub fn replace(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let (draft, mut file) = draft(path, mode)?;
    let written = write(&mut file).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // A partial file is useless, and may occupy the last free space of the disk.
        let _ = fs::remove_file(draft);
    }
    written
}

/// Creates an empty file beside another one. The draft of another process may have the same name: of one with the same
/// pid, in another container or on another machine with this folder, or of one that was killed.
fn draft(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    loop {
        // Hidden, since other programs may search for files whose names begin like this one.
        let mut name = OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
        name.push(format!(".{}-{}.new", process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed)));
        let draft = path.with_file_name(name);
        match owned::new_file(OpenOptions::new().write(true), &draft, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (draft, file)),
        }
    }
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
    fn draft_of_another_process_with_the_same_pid_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        let (first, _) = draft(&path, 0o600).unwrap();
        let number: u64 = {
            let name = first.file_name().unwrap().to_str().unwrap().strip_suffix(".new").unwrap();
            name.rsplit_once('-').unwrap().1.parse().unwrap()
        };
        fs::remove_file(&first).unwrap();
        // Other tests of this process draw numbers meanwhile.
        let others: Vec<_> = (number + 1..number + 1000)
            .map(|next| folder.path().join(format!(".note.{}-{next}.new", process::id())))
            .collect();
        for other in &others {
            fs::write(other, b"theirs").unwrap();
        }
        replace(&path, 0o600, |file| file.write_all(b"ours")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        assert!(others.iter().all(|other| fs::read(other).unwrap() == b"theirs"));
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
