//! What a group of tasks is at one moment.

use std::sync::Arc;

/// A group with its slots and its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// Its name.
    pub name: Arc<str>,
    /// How many slots it has.
    pub slots: u32,
    /// How many are taken; more than there are if the limit was lowered or if some did not wait.
    pub used: u32,
    /// Whether nothing in it starts.
    pub is_paused: bool,
    /// Its tasks that wait.
    pub pending: u64,
    /// Its tasks that have slots.
    pub running: u64,
    /// Its tasks that have ended.
    pub finished: u64,
}
