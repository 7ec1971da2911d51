//! Params and results of the method that submits many tasks at once.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::submit::SubmitParams;
use crate::error::RpcError;
use crate::id::TaskId;
use crate::text::OsText;

/// Params of `task.submit_many`: a part of a batch. The first part has `task`; further parts have the `batch` from
/// the result of the first. Nothing is submitted before the last part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubmitManyParams {
    /// Properties common to the tasks: params of `task.submit` without command, prompt, `foreground`, `pty` and
    /// streams. `key` identifies the batch: if the parent session has a batch with this key, its ids are returned and
    /// nothing is submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<SubmitParams>>,
    /// The batch that this part continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskId>,
    /// Command of each task, at most 10000 per part.
    pub argvs: Vec<Vec<OsText>>,
    /// With `task`: maximum number of tasks of the batch that run at once, 1 to 100000. Default: limited only by slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    /// With `task`: number of failures, at least 1, after which the rest of the batch is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_fails: Option<u32>,
    /// Whether further parts follow on this connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

impl SubmitManyParams {
    /// Moves an environment that would make the line too long into a memory file.
    pub(super) fn out_of_line(&self) -> Result<Option<(Self, OwnedFd)>, RpcError> {
        let Some(task) = &self.task else { return Ok(None) };
        let moved = task.out_of_line()?;
        Ok(moved.map(|(task, file)| (Self { task: Some(Box::new(task)), ..self.clone() }, file)))
    }
}

/// Result of `task.submit_many`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubmitManyResult {
    /// Id of the batch, in the form of a task id.
    pub batch: TaskId,
    /// Ids of the tasks of this part, in the order of their commands. They exist once the last part has been answered.
    pub ids: Vec<TaskId>,
    /// With `task`: whether a batch with its `key` existed before this call. Also true for a repeated call if the first
    /// one has arrived.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
}
