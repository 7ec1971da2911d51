//! How long finished tasks are kept.

use bgd_core::{HistoryLimits, Now};
use bgd_shared::id::TaskId;

use super::batch::Staged;
use super::order::Wait;
use super::{Known, Model, Phase, number};

impl Model {
    /// Returns the finished tasks in the order of their ends.
    fn finished(&self) -> Vec<TaskId> {
        let is_over = |task: &&Known| {
            task.phase == Phase::Done
                && !task.left
                && !task.stuck
                && !self.is_needed(number(task.id))
                && !self.is_batch_active(task.order.batch)
        };
        let mut finished: Vec<&Known> = self.live.values().filter(is_over).collect();
        finished.sort_by_key(|task| (task.completed_at, number(task.id)));
        finished.iter().map(|task| task.id).collect()
    }

    /// Reports whether a task of this batch has not ended.
    fn is_batch_active(&self, batch: Option<TaskId>) -> bool {
        let is_member = |task: &Known| batch.is_some() && task.order.batch == batch;
        self.live.values().any(|task| is_member(task) && task.phase != Phase::Done)
    }

    /// Reports whether a task that has not ended comes after this one.
    fn is_needed(&self, number: u64) -> bool {
        let is_active =
            |task: &&Known| matches!(task.phase, Phase::Pending | Phase::Starting | Phase::Running);
        self.live
            .values()
            .filter(is_active)
            .any(|task| task.order.after.iter().any(|one| one.other == number))
    }

    fn is_too_old(&self, id: TaskId, limits: HistoryLimits, now: Now) -> bool {
        self.get(id).is_some_and(|task| task.completed_at.plus_ms(limits.age_ms) <= now.wall)
    }

    /// Removes tasks that are too old, and then the oldest until the rest fits. A single task always fits.
    pub(super) fn forget_old(&mut self, now: Now) {
        let gives_way = std::mem::take(&mut self.gives_way);
        let Some(limits) = self.limits.history.filter(|_| !self.closing) else { return };
        let finished = self.finished();
        let (old, young): (Vec<TaskId>, Vec<TaskId>) =
            finished.into_iter().partition(|id| self.is_too_old(*id, limits, now));
        let size = |tasks: &[TaskId]| -> u64 {
            tasks.iter().filter_map(|id| self.get(*id)).map(|task| task.bytes).sum()
        };
        let fits = |kept: &[TaskId]| kept.len() <= limits.tasks && size(kept) <= limits.bytes;
        let first = (0..young.len()).find(|first| fits(&young[*first..]));
        let first = first.unwrap_or_else(|| young.len().saturating_sub(1));
        let gone = [&old[..], &young[..first]].concat();
        if !old.is_empty() {
            self.forgot = Some("too old to be kept");
        } else if first > 0 {
            self.forgot = Some("too large to be kept");
        }
        self.remove(&gone);
        if gives_way {
            self.give_way();
        }
        self.forget_batches();
    }

    /// Removes the oldest finished tasks until all others fit.
    fn give_way(&mut self) {
        let excess = self.live.len().saturating_sub(self.limits.tasks);
        if excess > 0 {
            let finished = self.finished();
            self.remove(&finished[..excess.min(finished.len())]);
            self.forgot = Some("too large to be kept");
        }
    }

    /// Returns how many tasks that come after these fit once the history has given way.
    pub(super) fn room(&self, after: &[Wait]) -> usize {
        let is_free = |id: &TaskId| after.iter().all(|one| one.other != number(*id));
        let gives_way = self.limits.history.is_some() && !self.closing;
        let cleared = if gives_way { self.finished().into_iter().filter(is_free).count() } else { 0 };
        let staged: usize = self.staged.values().map(Staged::len).sum();
        (self.limits.tasks + cleared).saturating_sub(self.live.len() + staged)
    }

    /// Returns when the next task becomes too old.
    pub(super) fn next_old(&self) -> Option<i64> {
        let limits = self.limits.history.filter(|_| !self.closing)?;
        let ends = self.finished().into_iter().filter_map(|id| self.get(id)).map(|task| task.completed_at);
        ends.map(|at| at.plus_ms(limits.age_ms).unix_ms()).min()
    }
}
