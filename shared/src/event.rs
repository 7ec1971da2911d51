//! Events: what a subscriber is told, in the order in which it happened.

use serde::{Deserialize, Serialize};

use crate::task::Task;
use crate::time::Timestamp;

/// What happened to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// It was taken; it is `pending`.
    Submitted,
    /// Its process runs, or its prompt is with the agent.
    Started,
    /// It was moved from the foreground to the background.
    Backgrounded,
    /// Its output grew. Sent at most a few times a second for each task.
    Output,
    /// An agent called a tool, fell silent for long or spoke again, or asks nothing any more.
    Progress,
    /// An agent asks for a decision: a new one, or the next of several.
    NeedsInput,
    /// It ended well.
    Completed,
    /// It ended badly.
    Failed,
    /// It was ended by request.
    Cancelled,
    /// A follow-up prompt is with the agent.
    Resumed,
    /// Its process is ready, as its `ready` says.
    Ready,
    /// Its processes were paused.
    Paused,
    /// They go on.
    Continued,
    /// It was held while it was pending.
    Held,
    /// It is held no more.
    Released,
    /// What it waits for was changed, or its description.
    Edited,
    /// It failed, or ended, and is pending again until its next attempt.
    Retrying,
    /// It was removed from the daemon.
    Cleared,
}

impl EventKind {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Started => "started",
            Self::Backgrounded => "backgrounded",
            Self::Output => "output",
            Self::Progress => "progress",
            Self::NeedsInput => "needs_input",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Resumed => "resumed",
            Self::Ready => "ready",
            Self::Paused => "paused",
            Self::Continued => "continued",
            Self::Held => "held",
            Self::Released => "released",
            Self::Edited => "edited",
            Self::Retrying => "retrying",
            Self::Cleared => "cleared",
        }
    }

    /// Whether it is the end of a run.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// One thing that happened. An event is sent only after its effect can be seen by every other call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Its number. Numbers have no holes within a daemon's life.
    pub seq: u64,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
    /// The task as it was then.
    pub task: Task,
}

/// Events that a subscriber can't have any more: its `since` is older than the history, or it read
/// too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gap {
    /// Always `gap`.
    pub kind: GapKind,
    /// The first number that is lost.
    pub from: u64,
    /// The last number that is lost, as far as it is known.
    pub to: u64,
    /// Whether the subscription ended with it, because its reader was too slow. Subscribe again with
    /// `since` to go on.
    #[serde(default)]
    pub ended: bool,
}

/// The word `gap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GapKind {
    /// Events are missing here.
    Gap,
}

/// What an `event` notification carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum News {
    /// Something happened.
    Event(Box<Event>),
    /// Something is missing.
    Gap(Gap),
}

/// The params of an `event` notification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventParams {
    /// Which subscription of this connection it belongs to.
    pub subscription: u64,
    /// What is told.
    #[serde(flatten)]
    pub news: News,
}
