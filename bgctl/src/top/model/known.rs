//! What the live view keeps of each task.

use crate::top::row::{Row, Section};

/// A task with what is known of it.
#[derive(Debug)]
pub struct Known {
    pub row: Row,
    /// Whether the user has looked at it since it failed.
    pub is_seen: bool,
    /// Whether it was on the screen since it failed.
    pub was_shown: bool,
    /// The listing of its host that it was last in.
    pub round: u32,
    /// Its place among those that were created at the same time.
    pub arrival: i32,
}

impl Known {
    /// What it is for its user now.
    pub fn section(&self) -> Section {
        self.row.section(self.is_seen)
    }
}
