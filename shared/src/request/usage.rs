//! Params and result of the method that measures what tasks use.

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
    /// What each of them uses now, in the order of `ids`, without those of which no process runs on this machine.
    pub usages: Vec<LiveUsage>,
}
