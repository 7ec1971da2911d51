//! What the core has to tell about a task to whoever asked for it.

use std::sync::Arc;

use bgd_shared::notice::NoticeKind;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::task::Snapshot;

/// One piece of news, as it was decided; how it reads is not the core's matter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Notice {
    /// What is told.
    pub kind: NoticeKind,
    /// When it happened.
    pub at: Timestamp,
    /// How many other tasks of its parent session were active then; `None` without a parent session.
    pub active: Option<u64>,
    /// Whether the task is removed as soon as it has ended, so that nobody can ask for it any more.
    pub is_removed: bool,
    /// The task as it was then, without its environment and with the beginning of its prompt.
    pub task: Snapshot,
}

impl Notice {
    /// The bytes of its texts, which are what it costs to keep beside a fixed part.
    pub fn text_bytes(&self) -> usize {
        let label = |label: &Option<Arc<str>>| label.as_deref().map_or(0, str::len);
        self.task.text_bytes() + label(&self.task.spec.session) + label(&self.task.spec.channel)
    }
}

/// A notice in an inbox, with its number there.
pub type Item = (u64, Arc<Notice>);
