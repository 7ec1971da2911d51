//! Notices: what whoever asked for a task is told of it, by a channel or by the inbox of its parent session.
//!
//! A hook of the type `exec` gets a [`Notice`] as one JSON object on standard input, a `webhook` as the body
//! of a POST, and `inbox.read` returns them.

use serde::{Deserialize, Serialize};

use crate::task::Task;
use crate::time::Timestamp;

/// What a notice tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// The task's first run has begun.
    Started,
    /// An agent asks for a decision; `bgctl answer` gives it.
    NeedsInput,
    /// A run ended well.
    Completed,
    /// A run ended badly.
    Failed,
    /// A run was ended by request.
    Cancelled,
}

impl NoticeKind {
    /// Whether it is the end of a run. There is exactly one such notice for each run that is told at all.
    pub const fn is_end(self) -> bool {
        match self {
            Self::Started | Self::NeedsInput => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::NeedsInput => "needs_input",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One piece of news about a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Notice {
    /// The same for every copy of this notice, and for no other one: the task's id and its run, as in
    /// `3f2a…/1`; with a word behind it if it is no end, as in `3f2a…/1/started`. For consumers that must
    /// not act twice.
    pub key: String,
    /// What is told.
    pub kind: NoticeKind,
    /// When it happened.
    pub at: Timestamp,
    /// Whether it is about a resume, not about the task's first run.
    #[serde(default)]
    pub resume: bool,
    /// The first line of `text`, as in `[BACKGROUND TASK FAILED] 3f2a9c1e exited with code 2, after 3m 10s: "build"`.
    /// A long description is shortened in its middle.
    pub title: String,
    /// All of it, for people.
    pub text: String,
    /// How many other tasks of the parent session are `pending`, `running` or `resumed`. Left out if the
    /// task has no parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<u64>,
    /// How long the run took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// An agent's answer, or what a command wrote; the end of the output of a command that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<NoticeResult>,
    /// The task as it was then.
    pub task: Task,
}

/// The result in a notice, as far as it fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoticeResult {
    /// The result as text: what is no UTF-8 in it is replaced by U+FFFD.
    pub text: String,
    /// How many bytes all of it has.
    pub bytes: u64,
    /// Which part of it this is.
    pub part: Part,
}

/// Which part of a result a notice has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All of it.
    All,
    /// Its beginning: an agent's answer is read from there.
    Beginning,
    /// Its end: that is where a command says how it went.
    End,
    /// Nothing: it can't be read any more, as the task was cleared.
    Gone,
}

/// A notice in an inbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxItem {
    /// Its number, to be acknowledged with. The numbers of an inbox grow, with holes; none is given twice.
    pub number: u64,
    /// What is told.
    #[serde(flatten)]
    pub notice: Notice,
}
