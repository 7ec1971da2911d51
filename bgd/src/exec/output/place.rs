//! Writes output that came from elsewhere, such as parts of it at their offsets. Bytes that could not be written are counted
//! exactly: a disk may accept the beginning of a part.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;

use bgd_shared::id::TaskId;
use bgd_shared::request::Stream;

use super::OutputFolder;
use crate::core::Fact;

impl OutputFolder {
    /// Writes bytes at an offset of a task's file for a stream, which must exist. Returns the loss of those that the
    /// disk did not accept.
    pub fn put(&self, task: TaskId, stream: Stream, bytes: &[u8], at: u64) -> Option<Fact> {
        let files = self.files(task, stream == Stream::Stderr);
        let lost = |bytes: usize, error: io::Error| Fact::Lost {
            bytes: bytes as u64,
            why: error.to_string().into(),
        };
        match fs::OpenOptions::new().write(true).open(files.path(stream)) {
            Ok(file) => {
                let (left, error) = write_all(bytes, at, |bytes, at| file.write_at(bytes, at)).err()?;
                Some(lost(left, error))
            }
            Err(error) => Some(lost(bytes.len(), error)),
        }
    }
}

/// Writes all bytes from an offset on, or returns the number of those left and the error.
///
/// # Errors
/// That of a call of `write`, which gets the bytes that are left and their offset, and returns how many it has written.
pub fn write_all(
    mut bytes: &[u8],
    mut at: u64,
    write: impl Fn(&[u8], u64) -> io::Result<usize>,
) -> Result<(), (usize, io::Error)> {
    while !bytes.is_empty() {
        match write(bytes, at) {
            Ok(0) => return Err((bytes.len(), io::ErrorKind::WriteZero.into())),
            Ok(count) => {
                bytes = &bytes[count..];
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((bytes.len(), error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A disk that accepts at most three bytes at once, and eight in all.
    #[test]
    fn r150_only_bytes_the_disk_refused_are_lost() {
        let disk = RefCell::new(Vec::new());
        let calls = RefCell::new(0);
        let write = |bytes: &[u8], at: u64| {
            let mut disk = disk.borrow_mut();
            assert_eq!(at, disk.len() as u64 + 100);
            *calls.borrow_mut() += 1;
            if *calls.borrow() == 2 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match bytes.len().min(3).min(8 - disk.len()) {
                0 => Err(io::ErrorKind::StorageFull.into()),
                count => {
                    disk.extend_from_slice(&bytes[..count]);
                    Ok(count)
                }
            }
        };
        assert!(write_all(b"hello", 100, write).is_ok());
        let (left, error) = write_all(b"world", 105, write).unwrap_err();
        assert_eq!((left, error.kind()), (2, io::ErrorKind::StorageFull));
        assert_eq!(*disk.borrow(), b"hellowor");
        let (left, error) = write_all(b"x", 0, |_, _| Ok(0)).unwrap_err();
        assert_eq!((left, error.kind()), (1, io::ErrorKind::WriteZero));
    }
}
