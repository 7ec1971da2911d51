//! The dispatcher's part in the descriptors that submitters send for the standard streams of their tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::id::TaskId;

use super::Dispatcher;
use crate::core::ExecutorName;
use crate::exec::messages::Inherited;

impl Dispatcher {
    /// Keeps the descriptors of a task until it starts; a durable daemon keeps them for the next one, too, unless the task
    /// is a foreground job, which ends with this daemon.
    pub(super) fn keep_inherited(&mut self, task: TaskId, inherited: Inherited, is_foreground: bool) {
        let inherited = Arc::new(inherited);
        if !is_foreground {
            // Precedes the journal: a task that is written is to be there with its descriptors.
            self.with(ExecutorName::LOCAL, |executor| executor.keep_inherited(task, &inherited));
        }
        self.inherited.insert(task, inherited);
    }

    /// Continues to keep the descriptors that an earlier daemon had for pending tasks.
    pub(super) fn continue_inherited(&mut self, pending: BTreeMap<TaskId, Inherited>) {
        for (task, inherited) in pending {
            let inherited = Arc::new(inherited);
            self.with(ExecutorName::LOCAL, |executor| executor.continue_inherited(task, &inherited));
            self.inherited.insert(task, inherited);
        }
    }

    /// Has the descriptors that came from the program before kept for the next daemon, unless they are.
    pub(super) fn keep_all_inherited(&mut self) {
        let Self { core, executors, inherited, .. } = self;
        let Some(executor) = executors.of(ExecutorName::LOCAL) else { return };
        let outlives = |task: &TaskId| core.get(&(*task).into()).is_ok_and(|task| task.outlives_daemon());
        for (task, inherited) in inherited.iter().filter(|(task, _)| outlives(task)) {
            executor.keep_inherited(*task, inherited);
        }
    }

    /// Closes the descriptors of a task that needs them no longer.
    pub(super) fn release_inherited(&mut self, task: TaskId) {
        self.inherited.remove(&task);
        self.with(ExecutorName::LOCAL, |executor| executor.release_inherited(task));
    }

    /// Requeues a task whose process was about to be started, but certainly was not. Returns false if it can't start.
    pub(super) fn take_back_start(&mut self, task: TaskId) -> bool {
        self.core.take_back_start(task, self.inherited.contains_key(&task))
    }
}
