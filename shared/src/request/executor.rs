//! Params and results of the methods on executors.

use serde::{Deserialize, Serialize};

/// Params of `executor.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExecutorListParams {
    /// Only these executors. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Whether to check that each of them works. This can take up to 10 s longer than its
    /// `connect_timeout`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
}

/// Result of `executor.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecutorListResult {
    /// This machine first, then the others by name.
    pub executors: Vec<ExecutorInfo>,
}

/// The name of the executor for the daemon's own machine.
pub const LOCAL_EXECUTOR: &str = "local";

/// An executor: where tasks can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecutorInfo {
    /// Name, for `on` of `task.submit`; `local` for this machine.
    pub name: String,
    /// Its type: `local`, `ssh` or `slurm`.
    pub kind: String,
    /// The machine through which it is reached, if that is not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Number of its tasks that have not started.
    pub pending: u64,
    /// Number of its running tasks.
    pub running: u64,
    /// With `check`: the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<ExecutorCheck>,
}

/// Result of checking an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecutorCheck {
    /// Whether tasks can run on it now.
    pub ok: bool,
    /// Version of the program that runs the tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its properties and limits: names and values, in an order for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<(String, String)>,
    /// Description of the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// How to solve the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
