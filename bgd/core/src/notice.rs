//! What the core reports about a task to whoever requested it.

use std::sync::Arc;

use bgd_shared::notice::NoticeKind;
use bgd_shared::request::ChannelRetry;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::task::Snapshot;

/// One piece of news about a task. How it is worded is not the core's concern.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Notice {
    /// Its number among all notices, in the order in which they came up.
    #[serde(default)]
    pub number: u64,
    /// What happened.
    pub kind: NoticeKind,
    /// When it happened.
    pub at: Timestamp,
    /// How many other tasks of the parent session were active at that time; `None` without a parent session.
    pub active: Option<u64>,
    /// Whether the task is removed as soon as it has ended, so that nobody can query it afterwards.
    pub is_removed: bool,
    /// The task at that time, without its environment and with only the beginning of its prompt.
    pub task: Snapshot,
}

impl Notice {
    /// Bytes of its texts: its cost besides a fixed part.
    pub fn text_bytes(&self) -> usize {
        let label = |label: &Option<Arc<str>>| label.as_deref().map_or(0, str::len);
        self.task.text_bytes() + label(&self.task.spec.session) + label(&self.task.spec.channel)
    }
}

/// What was tried so far to deliver a notice to its channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// The last failure, and when the next try is due.
    pub retry: ChannelRetry,
    /// From the beginning of the first try to the last failure, in milliseconds. No time counts in which no daemon ran.
    pub spent_ms: u64,
}

/// What has become of a notice that was given to its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The channel holds it, which delays no other one.
    Held,
    /// A try has failed; another one follows.
    Tried(Box<Tried>),
    /// It was delivered or given up.
    Over,
    /// It was given up, but its channel has something of it that it shows later.
    Missed,
    /// What its channel had of a missed one was shown, or is not kept any more.
    Seen,
}

/// An item of an inbox: a number that is unique across all inboxes, and the notice.
pub type Item = (u64, Arc<Notice>);
