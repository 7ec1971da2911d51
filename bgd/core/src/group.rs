//! The settings of a group of tasks, and its state at one moment.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The settings of a group that users choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub struct GroupSettings {
    /// How many of its tasks may run at once, at least 1.
    pub slots: u32,
}

/// The recorded form, which other releases read, is the number of slots. Another setting needs a form that can be told
/// from a number.
impl From<u32> for GroupSettings {
    fn from(slots: u32) -> Self {
        Self { slots }
    }
}

impl From<GroupSettings> for u32 {
    fn from(settings: GroupSettings) -> Self {
        let GroupSettings { slots } = settings;
        slots
    }
}

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
    /// How many of the pending tasks take more slots than the group has, because the limit was lowered later.
    pub oversized: u64,
    /// How many of its tasks have slots.
    pub running: u64,
    pub finished: u64,
}
