//! Reserves room for the journal on a full disk: blocks are allocated to its log before they are needed, so that no
//! other process can take them. Changes by which users free room (`cancel`, `clear`) are written there; requests that
//! add work are refused meanwhile. This module itself writes nothing.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;

/// Maximum reserve of the log, in bytes.
const AHEAD: u64 = 8 << 20;

/// The reserve is at most the free space divided by this.
const PART: u64 = 8;

/// A disk with fewer free bytes than this is full.
const LEAST: u64 = 256 << 10;

#[derive(Debug)]
pub(super) struct Room {
    log: File,
    /// Up to where blocks were allocated to the log here, in bytes.
    taken: u64,
}

impl Room {
    /// Opens the log, which must exist.
    pub fn of(log: &Path) -> io::Result<Self> {
        Ok(Self { log: File::options().write(true).open(log)?, taken: 0 })
    }

    /// Reports whether the disk is full, apart from the log's reserve. If it is not, refills a reserve that is less
    /// than half full. A disk whose free space is unknown counts as not full: writing will show.
    pub fn is_short(&mut self) -> bool {
        let Some(free) = self.free() else { return false };
        if free >= LEAST {
            self.take(AHEAD.min(free / PART));
        }
        free < LEAST
    }

    fn take(&mut self, ahead: u64) {
        let Ok(length) = self.log.metadata().map(|meta| meta.len()) else { return };
        let wanted = length.saturating_add(ahead);
        if self.taken >= length.saturating_add(ahead / 2) {
            return;
        }
        // Ignored on failure, such as on a file system without this call: tried again once the log has grown.
        let _ = fallocate(&self.log, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, wanted.try_into().unwrap_or(0));
        self.taken = wanted;
    }

    /// Returns how many bytes of the disk the user may fill; `None` if unknown.
    fn free(&self) -> Option<u64> {
        let disk = fstatvfs(&self.log).ok()?;
        let free = if geteuid().is_root() { disk.blocks_free() } else { disk.blocks_available() };
        free_bytes(disk.blocks(), free, disk.fragment_size())
    }
}

/// Returns how many bytes are free on a disk with this many blocks of this many bytes; `None` for a file system that
/// reports no sizes, such as some network and FUSE file systems: all its values are zero.
const fn free_bytes(blocks: u64, free: u64, of_block: u64) -> Option<u64> {
    if blocks == 0 { None } else { Some(free.saturating_mul(of_block)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r130_disk_that_reports_no_sizes_does_not_count_as_full() {
        assert_eq!(free_bytes(0, 0, 0), None);
        assert_eq!(free_bytes(0, 0, 4096), None);
        assert_eq!(free_bytes(1000, 0, 4096), Some(0));
        assert_eq!(free_bytes(1000, 3, 4096), Some(3 * 4096));
    }
}
