//! Params and results of the methods that select, rerun and edit tasks.

use serde::{Deserialize, Serialize};

use crate::id::{TaskId, TaskRef};
use crate::order::After;
use crate::task::Status;
use crate::time::Timestamp;

/// Selects the tasks that meet all given criteria. At least one is required.
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
    /// Tasks of this batch: its id, or a unique prefix of the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskRef>,
    /// Only tasks with all of these tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Tasks with one of these statuses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<Status>,
}

impl Matching {
    /// Reports whether no criterion is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Params of a method on tasks: `ids` or `matching`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SelectParams {
    /// Ids of the tasks. If the method can't be applied to one of them, the call fails and changes nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// The tasks that match; those to which the method can't be applied are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
}

/// Params of `task.rerun`: `ids` or `matching`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RerunParams {
    /// Ids of the tasks, which must have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// The tasks that match; those that have not ended are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Only tasks that have failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Include tasks that were cancelled because of a condition on one of these tasks, and so on. They depend on the
    /// new tasks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_dependents: bool,
    /// Idempotency key: a call with the key of an earlier one returns the tasks of that call, as far as they exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A task that was submitted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rerun {
    /// Id of the new task.
    pub id: TaskId,
    /// Id of the old task.
    pub rerun_of: TaskId,
}

/// Result of `task.rerun`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RerunResult {
    /// The new tasks in the order given, or oldest first, followed by dependents.
    pub tasks: Vec<Rerun>,
}

/// Params of `task.edit`. Omitted fields stay unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EditParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Description for lists. Empty: they show the command, or, for a prompt, the description given on submit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Group to run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Priority, -100 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Slots it occupies in its group, 0 to 100000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Tasks to start after, replacing all previous ones. An empty list removes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<After>>,
    /// Delay from now, in milliseconds; replaces `start_at`. 0 removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Earliest start time; replaces `delay_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
}
