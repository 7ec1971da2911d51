//! Runs that were given up before their jobs had ended, and whose tasks have started another attempt since: they have
//! another name here, so that their jobs are still ended.

use bgd_shared::id::TaskId;

use super::Cluster;

impl Cluster {
    /// Gives the run of a task that starts another attempt a name of its own, if its job may still run.
    pub(super) fn set_aside(&mut self, task: TaskId) {
        let is_left = |run: &super::Run| run.is_given_up && !run.is_concluded && run.place.is_some();
        if !self.runs.get(&task).is_some_and(is_left) {
            return;
        }
        let Some(mut run) = self.runs.remove(&task) else { return };
        let name = TaskId::random();
        run.is_aside = true;
        self.aside.insert((task, run.number), name);
        self.by_id.extend(run.id.map(|id| (id, name)));
        self.by_place.extend(run.place.clone().map(|place| (place, name)));
        self.readiness.remove(&task);
        self.tracked.remove(&task);
        // The rest of its output would follow that of the next attempt.
        self.login_work.copies.remove(&task);
        self.runs.insert(name, run);
        // A refused order would be repeated under the name of the task.
        self.order_end(name);
    }

    /// Returns the name of a run in `runs`: that of its task, unless the task has started another attempt since.
    pub(super) fn name_of(&self, task: TaskId, number: u32) -> TaskId {
        self.aside.get(&(task, number)).copied().unwrap_or(task)
    }
}
