//! Events, which subscribers receive in the order of occurrence.

use serde::{Deserialize, Serialize};

use crate::task::Task;
use crate::time::Timestamp;

/// Kind of an event about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The task was submitted and is `pending`.
    Submitted,
    /// Its process was started, or the agent got its prompt.
    Started,
    /// It was moved from the foreground to the background.
    Backgrounded,
    /// Its output grew. Sent at most a few times per second and task.
    Output,
    /// The agent called a tool, reported its plan or its consumption, became silent for a long time or active again, or
    /// has no open question any more. A task elsewhere got its id there, waits for another reason, or became
    /// unreachable or reachable again. After the end of a task: the last of its processes is gone, or is no longer
    /// waited for; or, some seconds later, a cluster reports the resources it used.
    Progress,
    /// The agent asks a question: a new one, or the next of several.
    NeedsInput,
    /// The task completed.
    Completed,
    /// The task failed.
    Failed,
    /// The task was cancelled.
    Cancelled,
    /// The agent is working on a follow-up prompt.
    Resumed,
    /// Its process is ready, as defined by its `ready`.
    Ready,
    /// Its processes were paused.
    Paused,
    /// Its processes were continued.
    Continued,
    /// The pending task was held.
    Held,
    /// The task was released.
    Released,
    /// The task's start conditions or its description were changed.
    Edited,
    /// The task failed or ended, and is pending until its next attempt; or a cluster has put it back into its queue.
    Retrying,
    /// The task was deleted.
    Cleared,
}

impl EventKind {
    /// Returns the name on the wire.
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

    /// Reports whether this event ends a run.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// An event. It is sent only after its effect is visible to every other call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Number of the event. Numbers have no gaps during a run of the daemon.
    pub seq: u64,
    /// Time of the event.
    pub at: Timestamp,
    /// Kind of the event.
    pub kind: EventKind,
    /// The task at that time.
    pub task: Task,
}

/// Events that are no longer available: `since` is older than the history, or the subscriber read too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gap {
    /// Always `gap`.
    pub kind: GapKind,
    /// First missing number.
    pub from: u64,
    /// Last missing number, as far as it is known.
    pub to: u64,
    /// Whether the subscription ended because its reader was too slow. Subscribe again with `since` to continue.
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

/// Content of an `event` notification.
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
    /// Id of the subscription on this connection.
    pub subscription: u64,
    /// The event, or the gap.
    #[serde(flatten)]
    pub news: News,
}
