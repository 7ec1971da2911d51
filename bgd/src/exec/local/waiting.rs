//! The local executor's part of the descriptors that pending tasks are to start with (R127): the keeper holds copies, so
//! that a task keeps the input sent with it however the daemon ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use bgd_shared::id::TaskId;

use super::Local;
use super::kept::ended;
use crate::exec::left::pending_text;
use crate::exec::messages::Inherited;
use crate::keeper::Key;
use crate::keeper::client::Keeper;

/// The descriptors that the keeper holds for pending tasks.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<TaskId, Weak<Inherited>>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Local {
    /// Has the keeper hold copies of the descriptors of a pending task.
    pub(super) fn keep_waiting(&mut self, task: TaskId, inherited: &Arc<Inherited>) {
        if let Some(keeper) = &self.keeper {
            self.waiting.0.insert(task, Arc::downgrade(inherited));
            keep(keeper, task, inherited);
        }
    }

    /// Has a keeper that has replaced another one hold everything for pending tasks, too.
    pub(super) fn keep_all_waiting(&self) {
        let Some(keeper) = &self.keeper else { return };
        for (task, inherited) in &self.waiting.0 {
            // Otherwise, its process is being started with them.
            if let Some(inherited) = inherited.upgrade() {
                keep(keeper, *task, &inherited);
            }
        }
    }

    /// Has the keeper close its copies of the descriptors of a task that was pending: the writer to a standard input would
    /// not notice that nobody reads it any more.
    pub(super) fn close_waiting(&mut self, task: TaskId) {
        if self.waiting.0.remove(&task).is_some()
            && let Some(keeper) = &self.keeper
        {
            keeper.close(Key::of_pending(task));
        }
    }
}

fn keep(keeper: &Keeper, task: TaskId, inherited: &Inherited) {
    let kept = pending_text(inherited).and_then(|(text, copies)| {
        // In place of a process, which comes first.
        let descriptors = [ended()?].into_iter().chain(copies).collect();
        keeper.keep(Key::of_pending(task), 0, &text, descriptors)
    });
    if let Err(error) = kept {
        tracing::warn!(%task, %error, "it loses the descriptors sent with it if the daemon ends before it starts");
    }
}
