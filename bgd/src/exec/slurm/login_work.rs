//! The work in progress over a login node. This module makes no decisions.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;

use super::copy::Copy;
use super::folder_scan::FolderScan;
use super::part::PARTS_BYTES;

/// The time to the next look after a change.
pub const FIRST_LOOK: Duration = Duration::from_secs(1);

/// The least number of bytes that are copied at once, over a connection that is slow.
const LEAST_BYTES: u64 = 64 << 10;

/// The work in progress over a login node.
#[derive(Debug)]
pub struct LoginWork {
    /// Outputs that are being copied.
    pub copies: HashMap<TaskId, Copy>,
    /// Whether parts of them are being copied now.
    pub is_copying: bool,
    /// The maximum number of bytes copied at once.
    pub at_once: u64,
    /// The names of the notes that were handled but are not removed yet.
    pub kept: HashSet<String>,
    /// The files that the next look removes.
    pub next_scan: FolderScan,
    /// The time to the next look while nothing changes.
    pub quiet: Duration,
    /// When the connection is closed.
    pub idle_at: Option<Instant>,
}

impl Default for LoginWork {
    fn default() -> Self {
        Self {
            copies: HashMap::new(),
            is_copying: false,
            at_once: PARTS_BYTES,
            kept: HashSet::new(),
            next_scan: FolderScan::default(),
            quiet: FIRST_LOOK,
            idle_at: None,
        }
    }
}

impl LoginWork {
    /// Notes whether the last parts arrived: if they did not, the connection may be too slow for so many bytes.
    pub fn adapt(&mut self, has_arrived: bool) {
        let bytes = if has_arrived { self.at_once * 2 } else { self.at_once / 2 };
        self.at_once = bytes.clamp(LEAST_BYTES, PARTS_BYTES);
    }
}
