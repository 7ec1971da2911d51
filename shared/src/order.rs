//! How tasks are ordered among each other: groups, conditions on other tasks, and why a task still waits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{TaskId, TaskRef};
use crate::limits::GROUP_BYTES;
use crate::time::Timestamp;

/// The group of a task whose submitter names none. It always exists, and its slots are `max_concurrent_tasks`.
pub const DEFAULT_GROUP: &str = "default";

/// The lowest and the highest priority. 0 is the default; higher starts first.
pub const PRIORITIES: std::ops::RangeInclusive<i32> = -100..=100;

/// Whether a group can have this name: 1 to 64 letters, digits, `.`, `_` and `-`.
pub fn is_group_name(name: &str) -> bool {
    let is_taken = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=GROUP_BYTES).contains(&name.len()) && name.bytes().all(is_taken)
}

/// What must have become of a task before another one starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It completed.
    #[default]
    Ok,
    /// It had started, and has ended in any way.
    Any,
    /// It had started, and failed.
    Fail,
    /// It has started.
    Start,
    /// It is ready, as its `ready` says.
    Ready,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Any, Self::Fail, Self::Start, Self::Ready];

    /// The word on the wire and behind an id, as in `--after 3f2a9c1e:fail`.
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

/// A condition on another task, as a submitter names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct After {
    /// The other task.
    pub id: TaskRef,
    /// What must have become of it.
    #[serde(default)]
    pub condition: Condition,
}

/// A condition on another task, as a task object shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dependency {
    /// The other task. It may have been cleared.
    pub id: TaskId,
    /// What must have become of it.
    pub condition: Condition,
    /// Whether that has come true.
    pub met: bool,
}

/// What a pending task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// Somebody to release it.
    Held,
    /// Other tasks.
    After,
    /// A time.
    Until,
    /// The time of its next attempt.
    Retry,
    /// Other tasks of its batch, of which only so many run at once.
    Batch,
    /// Its group to be continued.
    Paused,
    /// Free slots of its group.
    Slot,
    /// Something that a newer daemon knows.
    #[serde(other)]
    Unknown,
}

/// Why a task has not started yet. If there are several reasons, the first in the order of [`WaitingFor`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Waiting {
    /// What it waits for.
    pub reason: WaitingFor,
    /// With `after`: the tasks whose conditions are not met yet.
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
    /// Somebody asked for it.
    User,
    /// Its parent session ended.
    Session,
    /// It was a foreground job, and its client went away.
    Client,
    /// The daemon ended.
    Shutdown,
    /// A condition in its `after` can't come true any more.
    Dependency,
    /// Too many tasks of its batch failed.
    MaxFails,
    /// Something that a newer daemon knows.
    #[serde(other)]
    Unknown,
}

/// When a failed task is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// How many times, 1 to 1000.
    pub times: u32,
    /// The longest delay before the second attempt, in milliseconds. It doubles with each further attempt; the
    /// delay is drawn between 0 and that. Default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// What the delay does not grow beyond, in milliseconds. Default 300000, or `delay_ms` if that is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_delay_ms: Option<u64>,
    /// Only after these exit codes. Left out: after every failure that is no spawn error and no time limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<i32>,
    /// After the end by a signal; on top of `codes`, or alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub signal: bool,
}

/// When a task that ends is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// When it failed.
    OnFailure,
    /// However it ended by itself.
    Always,
}

/// How a group is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Group {
    /// Its name.
    pub name: String,
    /// How many slots it has.
    pub slots: u32,
    /// How many of them are taken; more than there are if the limit was lowered, or if foreground jobs and resumes,
    /// which do not wait, came on top.
    pub used: u32,
    /// Whether none of its pending tasks starts.
    pub paused: bool,
    /// Its pending tasks.
    pub pending: u64,
    /// Its tasks that have started and not ended.
    pub running: u64,
    /// Its tasks that have ended.
    pub finished: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_condition_is_named_with_the_known_ones() {
        for condition in Condition::ALL {
            assert_eq!(condition.to_string().parse(), Ok(condition));
        }
        let error = "done".parse::<Condition>().unwrap_err();
        assert_eq!(error, "unknown condition \"done\": one of ok, any, fail, start, ready");
    }

    #[test]
    fn a_reason_of_a_newer_daemon_is_unknown() {
        let waiting: Waiting = serde_json::from_str(r#"{"reason":"moon"}"#).unwrap();
        assert_eq!(waiting.reason, WaitingFor::Unknown);
        assert_eq!(serde_json::from_str::<CancelReason>(r#""moon""#).unwrap(), CancelReason::Unknown);
    }
}
