//! Room for the journal on a full disk: blocks that its log has before it needs them, so that nobody else can take them.
//! What users change to get room again (`cancel`, `clear`) is written there; what adds work is refused meanwhile. It writes
//! nothing itself.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;

/// How many bytes the log has ahead, at most.
const AHEAD: u64 = 8 << 20;

/// The part of the free disk that the log may take ahead.
const PART: u64 = 8;

/// A disk with fewer free bytes than this is full.
const LEAST: u64 = 256 << 10;

/// The room of one log.
#[derive(Debug)]
pub(super) struct Room {
    log: File,
    /// Up to where the log has blocks, as far as they were taken here, in bytes.
    taken: u64,
}

impl Room {
    /// Opens the log, which must exist.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn of(log: &Path) -> io::Result<Self> {
        Ok(Self { log: File::options().write(true).open(log)?, taken: 0 })
    }

    /// Whether the disk is full, but for what the log has ahead. While it is not, the log takes more where it has less than
    /// half of that. A disk that can't be asked is not full: writing will tell.
    pub fn is_short(&mut self) -> bool {
        let Ok(free) = self.free() else { return false };
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
        // A disk that can't do it has no room ahead: it is tried again once the log has grown.
        let _ = fallocate(&self.log, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, wanted.try_into().unwrap_or(0));
        self.taken = wanted;
    }

    /// Returns how many bytes of the disk the user may fill.
    fn free(&self) -> nix::Result<u64> {
        let disk = fstatvfs(&self.log)?;
        let blocks = if geteuid().is_root() { disk.blocks_free() } else { disk.blocks_available() };
        Ok(blocks.saturating_mul(disk.fragment_size()))
    }
}
