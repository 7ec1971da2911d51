//! Params of the methods that change what pending tasks wait for.

use serde::{Deserialize, Serialize};

use crate::id::{TaskId, TaskRef};
use crate::order::After;
use crate::task::Status;
use crate::time::Timestamp;

/// Which tasks a call is about, in place of ids: those for which all that is named holds. At least one thing is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Matching {
    /// Tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Tasks of this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Tasks of this batch: its id, or a unique prefix of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskRef>,
    /// Tasks that have every one of these labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Tasks in one of these statuses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<Status>,
}

impl Matching {
    /// Whether it names nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Params of a method on tasks: `ids` or `matching`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SelectParams {
    /// The tasks. If the method does not go with one of them, that is the answer, and nothing is done to the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// The tasks for which this holds; those that the method does not go with are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
}

/// Params of `task.rerun`: `ids` or `matching`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RerunParams {
    /// The tasks, which must have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// The tasks for which this holds; those that have not ended are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Only those of them that have failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Those too that were cancelled because a condition on one of them did not come true, and so on. They come after
    /// the new ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_dependents: bool,
}

/// A task that was submitted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rerun {
    /// The new task.
    pub id: TaskId,
    /// The old one.
    pub rerun_of: TaskId,
}

/// Result of `task.rerun`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RerunResult {
    /// The new tasks: as the old ones were named, or from the oldest on; dependents behind them.
    pub tasks: Vec<Rerun>,
}

/// Params of `task.edit`. What is left out stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EditParams {
    /// The task; it must be pending.
    pub id: TaskRef,
    /// What people shall read in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its priority, -100 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// How many slots it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The tasks that it starts after, in place of those before. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<After>>,
    /// How long it waits from now on, in milliseconds; in place of `start_at`, too. 0: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// When it may start; in place of `delay_ms`, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
}
