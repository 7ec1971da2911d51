//! The state of a group of tasks at one moment.

use std::sync::Arc;

/// A group with its slots and its task counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    pub name: Arc<str>,
    /// How many slots it has.
    pub slots: u32,
    /// How many slots are taken. More than `slots` if the limit was lowered, or if some tasks did not wait for one.
    pub used: u32,
    /// Whether it is paused, so that none of its tasks start.
    pub is_paused: bool,
    /// How many of its tasks wait.
    pub pending: u64,
    /// How many of its tasks have slots.
    pub running: u64,
    /// How many of its tasks have ended.
    pub finished: u64,
}
