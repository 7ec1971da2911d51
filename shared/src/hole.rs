//! The hole in the file of a bounded output: what was given back to the disk behind its head, and reads as NUL.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek64};

use crate::limits::OUTPUT_HEAD_BYTES;

/// Where the hole of a file of this size ends now, as the file itself says; 0 if it has none, or is on a file system
/// that knows none. It only grows. The position of the file is not what it was.
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
