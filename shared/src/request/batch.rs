//! Params and results of the method that submits many tasks at once.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::task::SubmitParams;
use crate::error::RpcError;
use crate::id::TaskId;
use crate::text::OsText;

/// Params of `task.submit_many`: a part of a batch. The first part has `task`, each further one the `batch` that the
/// first was answered with. Nothing is submitted before the last part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubmitManyParams {
    /// What the tasks have in common: params of `task.submit` without a command or prompt, `key`, `foreground`, `pty`
    /// and streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<SubmitParams>>,
    /// The batch that this is a further part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskId>,
    /// The command of each task, at most 10000 in one part.
    pub argvs: Vec<Vec<OsText>>,
    /// With `task`: how many of the batch run at once, 1 to 100000. Default: as many as have slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    /// With `task`: when so many have failed, 1 or more, the rest is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_fails: Option<u32>,
    /// Whether further parts follow on this connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

impl SubmitManyParams {
    /// An environment that would make the line too long goes into a memory file.
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
    /// The batch. Its form is that of a task's id.
    pub batch: TaskId,
    /// The tasks of this part, in the order of their commands. They are there once the last part is answered.
    pub ids: Vec<TaskId>,
}
