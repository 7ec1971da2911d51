//! The data that the live view keeps for each task.

use crate::top::row::{Row, Section};

/// A task in the list.
#[derive(Debug)]
pub struct Known {
    pub row: Row,
    /// Whether the user has looked at it since it failed.
    pub is_seen: bool,
    /// Whether it has been on the screen since it failed.
    pub was_shown: bool,
    /// The latest listing of its host that included it.
    pub round: u32,
    /// Its rank among tasks created at the same time.
    pub arrival: i32,
}

impl Known {
    /// Returns its current section.
    pub fn section(&self) -> Section {
        self.row.section(self.is_seen)
    }
}
