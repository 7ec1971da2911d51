//! Notices: notifications about a task, delivered through a channel or the inbox of its parent session.
//!
//! A hook of the type `exec` gets a [`Notice`] as one JSON object on standard input, a `webhook` as the body
//! of a POST, and `inbox.read` returns them.

use serde::{Deserialize, Serialize};

use crate::task::Task;
use crate::time::Timestamp;

/// Kind of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// The first run has started.
    Started,
    /// An agent asks a question; answer it with `bgctl answer`.
    NeedsInput,
    /// A run completed.
    Completed,
    /// A run failed.
    Failed,
    /// A run was cancelled.
    Cancelled,
    /// A kind added by a newer daemon.
    #[serde(other)]
    Unknown,
}

impl NoticeKind {
    /// Returns whether the notice is about the end of a run. A run with notices has exactly one of these.
    pub const fn is_end(self) -> bool {
        match self {
            Self::Started | Self::NeedsInput | Self::Unknown => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::NeedsInput => "needs_input",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

/// A notification about a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Notice {
    /// Unique key, the same for every copy of this notice, to detect duplicates: the task's id and run, as in
    /// `3f2a…/1`, followed by a word unless it is about an end, as in `3f2a…/1/started`.
    pub key: String,
    /// Kind of the notice.
    pub kind: NoticeKind,
    /// Time of the event.
    pub at: Timestamp,
    /// Whether it is about a follow-up, not the first run.
    #[serde(default)]
    pub resume: bool,
    /// First line of `text`, as in `[BACKGROUND TASK FAILED] 3f2a9c1e exited with code 2, after 3m 10s: "build"`. A
    /// long description is shortened in the middle.
    pub title: String,
    /// Full text, for people: control, direction-reversing and invisible characters are shown as U+FFFD. `result` has
    /// them unchanged.
    pub text: String,
    /// Number of other tasks of the parent session that are `pending`, `running` or `resumed`. Missing if the task
    /// has no parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<u64>,
    /// Run time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The agent's answer, or the command's output; for a failed command the end of its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<NoticeResult>,
    /// The task at that time.
    pub task: Task,
}

/// The result in a notice, truncated if necessary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoticeResult {
    /// The result as text; invalid UTF-8 is replaced by U+FFFD.
    pub text: String,
    /// Full size of the result in bytes.
    pub bytes: u64,
    /// Which part of the result `text` is.
    pub part: Part,
}

/// Part of a result in a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The whole result.
    All,
    /// The beginning, for an agent's answer. Never sent.
    Beginning,
    /// The end, for a command's output.
    End,
    /// Nothing: the task was cleared.
    Gone,
    /// A part added by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// A notice in an inbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxItem {
    /// Number for the acknowledgement. Numbers of an inbox increase, with gaps, and are never reused.
    pub number: u64,
    /// The notice.
    #[serde(flatten)]
    pub notice: Notice,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::json_of_tests;

    #[test]
    fn notice_of_a_newer_daemon_has_an_unknown_kind_and_part() {
        let task = json_of_tests(r#""tags":[]"#);
        let item = format!(
            r#"{{"number":7,"key":"k","kind":"dreamt","at":"2026-01-01T00:00:00Z","title":"t","text":"x",
                "result":{{"text":"y","bytes":9,"part":"middle"}},"task":{task}}}"#
        );
        let item: InboxItem = crate::strict::from_str(&item).unwrap();
        let (kind, part) = (item.notice.kind, item.notice.result.unwrap().part);
        assert_eq!((item.number, kind, part), (7, NoticeKind::Unknown, Part::Unknown));
        assert!(!kind.is_end());
    }
}
