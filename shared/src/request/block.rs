//! Params and result of `task.block`.

use serde::{Deserialize, Serialize};

use super::order::Matching;
use crate::id::{TaskId, TaskRef};
use crate::limits::BLOCK_TIMEOUT_MS;
use crate::task::Task;

/// When `task.block` returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlockMode {
    /// All tasks have ended.
    #[default]
    All,
    /// One task has ended.
    Any,
    /// All tasks have ended, or a task that has not ended asks a question.
    AllOrAsks,
    /// One task has ended or asks a question.
    AnyOrAsks,
}

impl BlockMode {
    /// Reports whether one ended task is enough.
    pub const fn is_any(self) -> bool {
        matches!(self, Self::Any | Self::AnyOrAsks)
    }

    /// Reports whether a question ends the wait.
    pub const fn ends_on_question(self) -> bool {
        matches!(self, Self::AllOrAsks | Self::AnyOrAsks)
    }
}

/// State that `task.block` waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlockUntil {
    /// The task has ended.
    #[default]
    Ended,
    /// The task is ready, as defined by its `ready`, or has ended.
    Ready,
}

impl BlockUntil {
    /// Reports whether this is the default, which is not serialized. Serde passes a reference.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's own signature")]
    const fn is_ended(&self) -> bool {
        matches!(self, Self::Ended)
    }
}

#[allow(clippy::unnecessary_wraps, reason = "serde wants the field's own type")]
fn default_block_timeout() -> Option<u64> {
    Some(BLOCK_TIMEOUT_MS)
}

/// Params of `task.block`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BlockParams {
    /// Ids of the tasks. If empty, the call returns at once.
    #[serde(default)]
    pub ids: Vec<TaskRef>,
    /// Instead of `ids`: the tasks that match at the time of the call. If none match, the call returns at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Maximum wait in milliseconds; null for no limit. Default 60000.
    #[serde(default = "default_block_timeout")]
    pub timeout_ms: Option<u64>,
    /// When to return. Default: `all`.
    #[serde(default)]
    pub mode: BlockMode,
    /// State to wait for, in place of the end that `mode` refers to. Default: `ended`.
    #[serde(default, skip_serializing_if = "BlockUntil::is_ended")]
    pub until: BlockUntil,
}

impl BlockParams {
    /// Returns params that wait for the end of one task, without a timeout.
    pub fn until_ended(task: TaskId) -> Self {
        Self { ids: vec![task.into()], timeout_ms: None, mode: BlockMode::All, ..Self::default() }
    }

    /// Returns params that get the current state of these tasks, without waiting.
    pub fn look(ids: Vec<TaskRef>) -> Self {
        Self { ids, timeout_ms: Some(0), ..Self::default() }
    }
}

impl Default for BlockParams {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            matching: None,
            timeout_ms: default_block_timeout(),
            mode: BlockMode::default(),
            until: BlockUntil::default(),
        }
    }
}

/// Tasks of a batch that are gone: cleared by a call or by the limits of the history, or lost with a damaged journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClearedTasks {
    /// How many tasks are gone.
    pub tasks: u64,
    /// How many of them had not completed: they failed, were cancelled, or were lost.
    pub not_completed: u64,
}

impl ClearedTasks {
    /// Counts one more task.
    pub fn count(&mut self, has_completed: bool) {
        self.add(Self { tasks: 1, not_completed: u64::from(!has_completed) });
    }

    /// Counts tasks that had not completed.
    pub fn count_lost(&mut self, tasks: u64) {
        self.add(Self { tasks, not_completed: tasks });
    }

    /// Adds the tasks of another batch.
    pub fn add(&mut self, other: Self) {
        self.tasks = self.tasks.saturating_add(other.tasks);
        self.not_completed = self.not_completed.saturating_add(other.not_completed);
    }

    /// Reports whether no task is gone.
    pub const fn is_empty(&self) -> bool {
        self.tasks == 0
    }
}

/// Result of `task.block`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlockResult {
    /// The tasks in the order given, without duplicates.
    pub tasks: Vec<Task>,
    /// Whether the call returned because of the timeout.
    pub timed_out: bool,
    /// Ids of the tasks that have ended.
    pub finished: Vec<TaskId>,
    /// Ids of the tasks that have not ended.
    pub active: Vec<TaskId>,
    /// Only if `matching` names a batch and no `status`: the tasks of the batch that were gone when the wait began, and
    /// are not among `tasks`. Missing if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<ClearedTasks>,
}
