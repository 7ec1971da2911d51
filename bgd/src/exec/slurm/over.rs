//! What is under way over a login node. It decides nothing.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;

use super::copy::Copy;
use super::look::Look;

/// The time to the next look after something has moved.
pub const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What is under way over a login node.
#[derive(Debug)]
pub struct Over {
    /// Outputs that are copied.
    pub copies: HashMap<TaskId, Copy>,
    /// Whether parts of them are under way.
    pub is_copying: bool,
    /// The names of the notes that were taken in and are not removed yet.
    pub kept: HashSet<String>,
    /// What the next look removes.
    pub leavings: Look,
    /// The time to the next look while nothing moves.
    pub quiet: Duration,
    /// When the connection is closed.
    pub idle_at: Option<Instant>,
}

impl Default for Over {
    fn default() -> Self {
        Self {
            copies: HashMap::new(),
            is_copying: false,
            kept: HashSet::new(),
            leavings: Look::default(),
            quiet: FIRST_LOOK,
            idle_at: None,
        }
    }
}
