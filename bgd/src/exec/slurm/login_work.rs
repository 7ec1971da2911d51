//! The work in progress over a login node. This module makes no decisions.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;

use super::copy::Copy;
use super::folder_scan::FolderScan;

/// The time to the next look after a change.
pub const FIRST_LOOK: Duration = Duration::from_secs(1);

/// The work in progress over a login node.
#[derive(Debug)]
pub struct LoginWork {
    /// Outputs that are being copied.
    pub copies: HashMap<TaskId, Copy>,
    /// Whether parts of them are being copied now.
    pub is_copying: bool,
    /// The names of the notes that were handled but are not removed yet.
    pub kept: HashSet<String>,
    /// The files that the next look removes.
    pub leavings: FolderScan,
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
            kept: HashSet::new(),
            leavings: FolderScan::default(),
            quiet: FIRST_LOOK,
            idle_at: None,
        }
    }
}
