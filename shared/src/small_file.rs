//! Reads files that a person writes, such as a configuration. In their place may be anything: a named pipe without a
//! writer would block the reader, and a device would fill the memory.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::libc::{O_NOCTTY, O_NONBLOCK};
use nix::sys::stat::{major, minor};

/// The device number of `/dev/null`.
const NULL: (u64, u64) = (1, 3);

/// Returns the text of a file of at most `most` bytes, and its metadata. `/dev/null` is an empty file.
///
/// # Errors
/// The file is larger, is not a regular file, is not UTF-8, or can't be read.
pub fn read(path: &Path, most: u64) -> io::Result<(String, Metadata)> {
    let (file, meta) = open(path)?;
    let mut bytes = Vec::new();
    // The size may have changed since, and that of a file in /proc is always 0.
    if meta.len() <= most {
        file.take(most + 1).read_to_end(&mut bytes)?;
    }
    if meta.len() > most || bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is larger than {} KiB", most / 1024)));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))?;
    Ok((text, meta))
}

/// Opens a regular file, or `/dev/null`, for reading.
///
/// # Errors
/// The file is something else, or can't be opened.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // Opening a named pipe must not block.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK | O_NOCTTY).open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() || is_null(&meta) {
        Ok((file, meta))
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

fn is_null(meta: &Metadata) -> bool {
    meta.file_type().is_char_device() && (major(meta.rdev()), minor(meta.rdev())) == NULL
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    #[test]
    fn only_a_small_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("small"), [b'x'; 2048]).unwrap();
        assert_eq!(read(&path("small"), 2048).unwrap().0.len(), 2048);
        let why = |path: &Path| read(path, 2048).unwrap_err().to_string();
        std::fs::write(path("large"), [b'x'; 2049]).unwrap();
        assert_eq!(why(&path("large")), "it is larger than 2 KiB");
        std::fs::write(path("binary"), [0xff]).unwrap();
        assert_eq!(why(&path("binary")), "it is not UTF-8 text");
        mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        for path in [path("pipe"), folder.path().to_owned(), "/dev/zero".into()] {
            assert_eq!(why(&path), "it is not a regular file", "{}", path.display());
        }
        assert_eq!(read(Path::new("/dev/null"), 2048).unwrap().0, "");
        assert_eq!(read(&path("none"), 2048).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
