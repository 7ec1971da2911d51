//! Params and results of the other methods on tasks.

use serde::{Deserialize, Serialize};

use super::block::ClearedTasks;
use super::order::Matching;
use crate::encoding::Encoding;
use crate::id::TaskRef;
use crate::task::{Status, Summary, Task};
use crate::time::Timestamp;

/// Params of a method on one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IdParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
}

/// Result of a method that returns one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskResult {
    /// The task.
    pub task: Task,
}

/// Params of `task.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// Only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only tasks with one of these statuses. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<Status>,
    /// Only tasks of this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Only tasks of this batch: its id, or a unique prefix of the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TaskRef>,
    /// Only tasks with all of these tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Only tasks that have not ended before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Only tasks with this text in their description, command line, prompt or tags, ignoring case. 1 to 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Maximum number of tasks, 1 to 1000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Cursor: `next` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

impl From<Matching> for ListParams {
    fn from(matching: Matching) -> Self {
        let Matching { session, group, batch, tags, status } = matching;
        Self { session, status, group, batch, tags, ..Self::default() }
    }
}

/// Result of `task.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListResult {
    /// The tasks, newest first.
    pub tasks: Vec<Task>,
    /// Cursor of the next page, if there is one. New tasks do not shift it. When searching for `text`, a page may have
    /// fewer tasks than `limit`, or none, and still be followed by another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// Number of tasks by status in this session (or in all), ignoring `status`.
    pub summary: Summary,
    /// Only with `batch`: the tasks of the batch that are gone, whatever else was selected. Missing if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<ClearedTasks>,
}

/// One of the two outputs of a task submitted with `split`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output; without `split`, both.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Returns the streams of a task that have their own file: both if they are split.
    pub fn of(split: bool) -> impl Iterator<Item = Self> {
        [Self::Stdout].into_iter().chain(split.then_some(Self::Stderr))
    }

    /// Returns its index in a pair of values for both streams: 0 or 1.
    pub const fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }

    /// Returns the suffix of the names of its files.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Stdout => "out",
            Self::Stderr => "err",
        }
    }
}

/// Params of `task.output`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OutputParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Start in bytes; negative: from the end. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// Maximum number of bytes, 0 to 262144. Default 65536. A part of a text ends with a whole character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// With `split`: which stream. Default: stdout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<Stream>,
}

/// Result of `task.output`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputResult {
    /// The task, with its progress.
    pub task: Task,
    /// The bytes.
    pub data: String,
    /// Encoding of `data`.
    pub encoding: Encoding,
    /// Start of `data`: the requested offset, the end of a dropped part that it is in, or the end of the output if that is
    /// before it.
    pub offset: u64,
    /// Offset to continue from. If a dropped part follows `data`, this is after that part, beyond the end of `data`.
    pub next: u64,
    /// Whether the output is complete: the task has ended, none of its processes is left, and `next` is the end. A
    /// resumed agent task can write more.
    pub eof: bool,
    /// Start of the output of the task's latest attempt, in bytes, if there can be several. Those of earlier ones are in
    /// `attempts` of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_offset: Option<u64>,
}

/// Result of `task.result`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResultResult {
    /// The task.
    pub task: Task,
    /// Final answer of an agent, at most its last 1 MiB; output of a process, at most its last 256 KiB.
    pub result: String,
    /// Encoding of `result`.
    pub encoding: Encoding,
    /// Number of bytes omitted before `result`.
    pub truncated_bytes: u64,
}

/// Params of `task.cancel`: `ids`, `matching` or `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelParams {
    /// Ids of the tasks. An ended task is returned unchanged; its remaining processes are ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskRef>,
    /// Cancel every active task that matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Cancel every active task, or those of `session`.
    #[serde(default)]
    pub all: bool,
    /// With `all`: only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// First signal: a number, or a name with or without `SIG`. Default `TERM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Grace period before SIGKILL, in milliseconds. Default `grace.cancel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Result of a method that returns several tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TasksResult {
    /// The tasks.
    pub tasks: Vec<Task>,
}

/// Params of `task.clear`. Without `ids`, `matching` and `all`: every finished task (of `session`, if given)
/// without remaining processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClearParams {
    /// Ids of the finished tasks to delete; their remaining processes are ended. An active task or an empty list is an
    /// error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<TaskRef>>,
    /// Instead of `ids`: the finished tasks that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<Matching>,
    /// Only tasks of this parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Include active tasks, cancelling them first.
    #[serde(default)]
    pub all: bool,
}

/// Result of `task.clear`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClearResult {
    /// Number of deleted tasks.
    pub cleared: u64,
    /// Why the journal of a durable daemon does not have this yet: it can't be written. If the daemon dies before it can
    /// be, the tasks are back, without their outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<String>,
}

/// Params of `task.signal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Signal: a number, or a name with or without `SIG`.
    pub signal: String,
    /// Whether to signal the whole process tree, not only its main process.
    #[serde(default)]
    pub tree: bool,
}

/// Params of `task.write`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WriteParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Bytes to write, at most 256 KiB.
    #[serde(default)]
    pub data: String,
    /// Encoding of `data`.
    #[serde(default)]
    pub encoding: Encoding,
    /// Whether to close the input afterwards.
    #[serde(default)]
    pub eof: bool,
}

/// Result of `task.write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteResult {
    /// Number of bytes that were written.
    pub written: u64,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;
    use crate::request::{BlockParams, SubmitParams};

    fn sent<T: DeserializeOwned + Serialize>(said: &serde_json::Value) -> serde_json::Value {
        serde_json::to_value(T::deserialize(said).unwrap()).unwrap()
    }

    #[test]
    fn unset_fields_are_not_sent() {
        let submit = json!({"argv": ["make"], "cwd": "/", "env": {}});
        assert_eq!(sent::<SubmitParams>(&submit), submit);
        let block = json!({"ids": ["3f2a"], "timeout_ms": 1000, "mode": "all"});
        assert_eq!(sent::<BlockParams>(&block), block);
        let cancel = json!({"ids": ["3f2a"], "all": false});
        assert_eq!(sent::<CancelParams>(&cancel), cancel);
        assert_eq!(sent::<ClearParams>(&cancel), cancel);
        assert_eq!(sent::<ListParams>(&json!({})), json!({}));
    }
}
