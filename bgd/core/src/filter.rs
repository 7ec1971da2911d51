//! Filters: how a request selects tasks without naming them.

use std::sync::Arc;

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::task::Status;

use super::plan::Plan;
use super::task::{Spec, Task};

/// Selects the tasks that meet every condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub session: Option<Arc<str>>,
    pub group: Option<Arc<str>>,
    /// The batch: its id, or a prefix of it.
    pub batch: Option<TaskRef>,
    /// Labels; a task must have all of them.
    pub tags: Box<[String]>,
    /// Statuses; a task must be in one of them. Empty allows any.
    pub status: Box<[Status]>,
}

impl Filter {
    /// Reports whether a task passes, ignoring the parent session. `batch` is the resolved [`Self::batch`].
    pub(super) fn holds(&self, task: &Task, batch: Option<TaskId>) -> bool {
        self.holds_for(task.status(), task.plan(), &task.spec, batch)
    }

    /// Like [`Self::holds`], for a task of which only these parts are known.
    pub(super) fn holds_for(&self, status: Status, plan: &Plan, spec: &Spec, batch: Option<TaskId>) -> bool {
        let has = |tag: &String| spec.tags.iter().any(|known| **known == **tag);
        (self.status.is_empty() || self.status.contains(&status))
            && self.group.as_deref().is_none_or(|group| plan.group() == group)
            && (batch.is_none() || plan.batch == batch)
            && self.tags.iter().all(has)
    }

    /// Reports whether the filter uses a field without an index: group, batch or labels.
    pub(super) fn needs_look(&self) -> bool {
        self.group.is_some() || self.batch.is_some() || !self.tags.is_empty()
    }
}
