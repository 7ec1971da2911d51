//! Params and result of the method that measures the resource usage of tasks.

use serde::{Deserialize, Serialize};

use crate::id::TaskRef;
use crate::usage::LiveUsage;

/// Params of `task.usage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UsageParams {
    /// The tasks, at most 256.
    pub ids: Vec<TaskRef>,
}

/// Result of `task.usage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageResult {
    /// Current usage of each task, in the order of `ids`, without tasks that have no process on this machine.
    pub usages: Vec<LiveUsage>,
}
