//! Which tasks a request is about that names none: those for which something holds.

use std::sync::Arc;

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::task::Status;

use super::task::Task;

/// Tasks for which all of this holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The parent session.
    pub session: Option<Arc<str>>,
    /// The group.
    pub group: Option<Arc<str>>,
    /// The batch: its id, or the beginning of it.
    pub batch: Option<TaskRef>,
    /// Labels, all of which it has.
    pub tags: Box<[String]>,
    /// Statuses, one of which it is in; empty for any.
    pub status: Box<[Status]>,
}

impl Filter {
    /// Whether a task passes, its parent session apart; `batch` is the one that this names.
    pub(super) fn holds(&self, task: &Task, batch: Option<TaskId>) -> bool {
        let has = |tag: &String| task.spec.tags.iter().any(|known| **known == **tag);
        (self.status.is_empty() || self.status.contains(&task.status()))
            && self.group.as_deref().is_none_or(|group| task.plan().group() == group)
            && (batch.is_none() || task.plan().batch == batch)
            && self.tags.iter().all(has)
    }

    /// Whether no index but that of a parent session finds the tasks.
    pub(super) fn needs_look(&self) -> bool {
        self.group.is_some() || self.batch.is_some() || !self.tags.is_empty()
    }
}
