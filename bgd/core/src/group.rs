//! The state of a group of tasks at one moment.

use std::sync::Arc;

/// A group with its slots and its task counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    pub name: Arc<str>,
    pub slots: u32,
    /// Taken slots. More than `slots` if the limit was lowered, or if some tasks did not wait for one.
    pub used: u32,
    /// Whether the group is paused, so that none of its tasks start.
    pub is_paused: bool,
    pub pending: u64,
    /// How many of its tasks have slots.
    pub running: u64,
    pub finished: u64,
}
