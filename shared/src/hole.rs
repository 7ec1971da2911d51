//! The hole in the file of a bounded output: space after its head that was returned to the file system and reads as
//! NUL.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek64};

use crate::limits::OUTPUT_HEAD_BYTES;

/// Returns the current end of the hole in a file of this size, according to the file system; 0 if it has none, or if
/// the file system does not support holes. The end only grows. Changes the file's position.
pub fn end_of(file: impl AsFd, size: u64) -> u64 {
    if size <= OUTPUT_HEAD_BYTES {
        return 0;
    }
    match lseek64(file, OUTPUT_HEAD_BYTES.cast_signed(), Whence::SeekData) {
        Ok(offset) => u64::try_from(offset).unwrap_or(0),
        Err(Errno::ENXIO) => size,
        Err(_) => 0,
    }
}
