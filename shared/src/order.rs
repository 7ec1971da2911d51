//! Order among tasks: groups, conditions on other tasks, and why a task still waits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{TaskId, TaskRef};
use crate::limits::GROUP_BYTES;
use crate::time::Timestamp;

/// The group of tasks that name none. It always exists, and has `max_concurrent_tasks` slots.
pub const DEFAULT_GROUP: &str = "default";

/// The allowed priorities. The default is 0; higher starts first.
pub const PRIORITIES: std::ops::RangeInclusive<i32> = -100..=100;

/// Reports whether the name is valid for a group: 1 to 64 letters, digits, `.`, `_` and `-`.
pub fn is_group_name(name: &str) -> bool {
    let is_taken = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=GROUP_BYTES).contains(&name.len()) && name.bytes().all(is_taken)
}

/// Required state of a task before another one starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The task has completed.
    #[default]
    Ok,
    /// The task has ended, but was not cancelled before it started.
    Any,
    /// The task has failed, or could not be started.
    Fail,
    /// The task has started.
    Start,
    /// The task is ready, as defined by its `ready`.
    Ready,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Any, Self::Fail, Self::Start, Self::Ready];

    /// Returns the name on the wire and after an id, as in `--after 3f2a9c1e:fail`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Any => "any",
            Self::Fail => "fail",
            Self::Start => "start",
            Self::Ready => "ready",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|condition| condition.as_str() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            format!("unknown condition {text:?}: one of {known}")
        })
    }
}

/// A condition on another task, as given in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct After {
    /// Id of the other task.
    pub id: TaskRef,
    /// Required state of the other task.
    #[serde(default)]
    pub condition: Condition,
}

/// A condition on another task, as shown in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dependency {
    /// Id of the other task. It may have been cleared.
    pub id: TaskId,
    /// Required state of the other task.
    pub condition: Condition,
    /// Whether the condition is met.
    pub met: bool,
}

/// What a pending task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// Release of the task.
    Held,
    /// Other tasks.
    After,
    /// Its start time.
    Until,
    /// The time of its next attempt.
    Retry,
    /// Other tasks of its batch (`jobs`).
    Batch,
    /// Continuation of its paused group.
    Paused,
    /// Room for the journal of a durable daemon, which could not record the start of the task.
    Journal,
    /// Free slots in its group.
    Slot,
    /// The place that runs it; the task's `elsewhere` gives the reason.
    Elsewhere,
    /// A reason added by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// Why a task has not started yet. With several reasons, the first in the order of `WaitingFor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Waiting {
    /// What it waits for.
    pub reason: WaitingFor,
    /// With `after`: ids of the tasks whose conditions are not met yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<TaskId>,
    /// With `until` and `retry`: the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// Why a task was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// Cancelled by a request.
    User,
    /// Its parent session ended.
    Session,
    /// It was a foreground job, and its client disconnected.
    Client,
    /// The daemon was shut down.
    Shutdown,
    /// A condition in its `after` can no longer be met.
    Dependency,
    /// Too many tasks of its batch failed.
    MaxFails,
    /// Somebody else cancelled it in the place that ran it.
    Elsewhere,
    /// A reason added by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// When to retry a failed task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Maximum number of retries, 1 to 1000.
    pub times: u32,
    /// Maximum delay before the second attempt, in milliseconds; doubles with each attempt. The actual delay is random,
    /// from 0 up to that maximum. Default 1000, or `max_delay_ms` if that is lower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Upper limit of the delay, in milliseconds. Default 300000, or `delay_ms` if that is higher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_delay_ms: Option<u64>,
    /// Retry only after these exit codes. Default: after every failure except spawn errors and exceeded time limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<i32>,
    /// Retry after termination by a signal, in addition to `codes` or alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub signal: bool,
}

/// When to restart a task that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// After a failure.
    OnFailure,
    /// Whenever it ends by itself.
    Always,
}

/// A group of tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// Number of slots.
    pub slots: u32,
    /// Number of slots in use. Can exceed `slots` after it was lowered, or because of foreground jobs and resumes,
    /// which do not wait.
    pub used: u32,
    /// Whether the group is paused: its pending tasks do not start.
    pub paused: bool,
    /// Number of pending tasks.
    pub pending: u64,
    /// Number of pending tasks that take more slots than the group has, as `slots` was lowered after they were
    /// submitted. Each starts once no other task of the group has slots, and then has all its slots.
    #[serde(default, skip_serializing_if = "crate::task::is_zero")]
    pub oversized: u64,
    /// Number of tasks that have started and not ended.
    pub running: u64,
    /// Number of tasks that have ended.
    pub finished: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_condition_error_lists_the_known_ones() {
        for condition in Condition::ALL {
            assert_eq!(condition.to_string().parse(), Ok(condition));
        }
        let error = "done".parse::<Condition>().unwrap_err();
        assert_eq!(error, "unknown condition \"done\": one of ok, any, fail, start, ready");
    }

    #[test]
    fn reason_of_a_newer_daemon_is_unknown() {
        let waiting: Waiting = serde_json::from_str(r#"{"reason":"moon"}"#).unwrap();
        assert_eq!(waiting.reason, WaitingFor::Unknown);
        assert_eq!(serde_json::from_str::<CancelReason>(r#""moon""#).unwrap(), CancelReason::Unknown);
    }
}
