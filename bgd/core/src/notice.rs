//! The core's reports about a task to its requester.

use std::sync::Arc;

use bgd_shared::notice::NoticeKind;
use bgd_shared::request::ChannelRetry;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::task::Snapshot;

/// One piece of news about a task. The core does not decide how it is worded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Notice {
    /// Its number among all notices, in chronological order.
    #[serde(default)]
    pub number: u64,
    pub kind: NoticeKind,
    pub at: Timestamp,
    /// How many other tasks of the parent session were active at that time; `None` without a parent session.
    pub active: Option<u64>,
    /// Whether the task is removed as soon as it has ended, so that nobody can query it afterwards.
    pub is_removed: bool,
    /// The task at that time, without its environment and with only the beginning of its prompt.
    pub task: Snapshot,
}

impl Notice {
    /// Returns the size of its texts, its only variable cost.
    pub fn text_bytes(&self) -> usize {
        let label = |label: &Option<Arc<str>>| label.as_deref().map_or(0, str::len);
        self.task.text_bytes() + label(&self.task.spec.session) + label(&self.task.spec.channel)
    }
}

/// The attempts so far to deliver a notice to its channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// The last failure, and when the next attempt is due.
    pub retry: ChannelRetry,
    /// From the beginning of the first attempt to the last failure, in milliseconds. Time in which no daemon ran does
    /// not count.
    pub spent_ms: u64,
}

/// The delivery state of a notice that was given to its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The channel is holding it back, without delaying other notices.
    Held,
    /// An attempt has failed; another one follows.
    Tried(Box<Tried>),
    /// It was delivered, or given up.
    Over,
    /// It was given up, but its channel keeps a trace of it to show later.
    Missed,
    /// The trace of a missed notice was shown, or is no longer kept.
    Seen,
}

/// An item of an inbox: a number that is unique across all inboxes, and the notice.
pub type Item = (u64, Arc<Notice>);
