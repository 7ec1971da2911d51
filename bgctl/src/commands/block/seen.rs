//! The known state of the tasks of a wait. It continues without those that are cleared while it has no connection, or
//! before it begins.

use std::collections::HashMap;

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{BlockMode, BlockParams, BlockResult, BlockUntil, ClearedTasks, TaskBlock};
use bgd_shared::task::Task;

use super::remaining::remaining;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::listed;

/// The tasks as last seen, in the order given; none if the wait names one by its whole id.
#[derive(Default)]
pub struct Seen {
    all: Vec<Task>,
    /// Those that had ended, or were ready if the wait is for that.
    met: Vec<TaskId>,
    /// Those that were cleared meanwhile.
    cleared: Vec<TaskId>,
    /// The tasks of the given batches that were gone already. Only a look at the batches themselves tells.
    before: Option<ClearedTasks>,
}

impl Seen {
    /// Records the result of a look at all tasks of the wait.
    pub fn new(result: BlockResult, until: BlockUntil) -> Self {
        let before = result.cleared;
        let mut seen = Self { all: result.tasks, met: Vec::new(), cleared: Vec::new(), before };
        seen.note(result.finished, until);
        seen
    }

    /// Records the tasks that were gone before.
    pub fn note_cleared(&mut self, before: Option<ClearedTasks>) {
        self.before = before.or(self.before);
    }

    fn note(&mut self, finished: Vec<TaskId>, until: BlockUntil) {
        let is_ready = |task: &&Task| until == BlockUntil::Ready && task.ready_at.is_some();
        self.met = finished;
        self.met.extend(self.all.iter().filter(is_ready).map(|task| task.id));
    }

    /// After this failure of a wait, drops the tasks that were cleared from its params.
    ///
    /// # Errors
    /// The failure itself, if that is not why the wait has failed, or no task is left; or the tasks can't be looked at.
    pub fn drop_cleared(
        &mut self,
        failure: Failure,
        params: &mut BlockParams,
        context: &mut Context,
    ) -> Result<(), Failure> {
        if !failure.is_of_missing_task() || self.all.is_empty() {
            return Err(failure);
        }
        let left =
            remaining(&params.ids, &mut |ids| context.call::<TaskBlock>(&BlockParams::look(ids.to_vec())))?;
        if left.tasks.is_empty() || left.tasks.len() == params.ids.len() {
            return Err(failure);
        }
        params.ids = left.tasks.iter().map(|task| TaskRef::from(task.id)).collect();
        self.update(left, params.until);
        Ok(())
    }

    /// Notes the current state of the tasks that are left.
    fn update(&mut self, left: BlockResult, until: BlockUntil) {
        let met = std::mem::take(&mut self.met);
        let mut now: HashMap<TaskId, Task> = left.tasks.into_iter().map(|task| (task.id, task)).collect();
        self.cleared = self.all.iter().map(|task| task.id).filter(|id| !now.contains_key(id)).collect();
        for task in &mut self.all {
            if let Some(now) = now.remove(&task.id) {
                *task = now;
            }
        }
        self.note(left.finished, until);
        self.met.extend(met.into_iter().filter(|id| self.cleared.contains(id)));
    }

    /// Reports whether a wait for any of the tasks is over: only a task that has ended can be cleared.
    pub fn is_over(&self, mode: BlockMode) -> bool {
        mode == BlockMode::Any && !self.cleared.is_empty()
    }

    /// Adds the cleared tasks, as last seen, to the result of the wait for the others. Returns those separately of which
    /// the end is not known.
    pub fn complete(self, result: BlockResult, mode: BlockMode) -> (BlockResult, Vec<TaskId>) {
        let cleared = result.cleared.or(self.before);
        let result = BlockResult { cleared, ..result };
        if self.cleared.is_empty() {
            return (result, Vec::new());
        }
        let is_over = self.is_over(mode);
        let BlockResult { tasks, timed_out, mut finished, active, cleared } = result;
        let mut now: HashMap<TaskId, Task> = tasks.into_iter().map(|task| (task.id, task)).collect();
        let (known, unknown) = self.cleared.iter().partition::<Vec<TaskId>, _>(|id| self.met.contains(id));
        finished.extend(&known);
        let last = |task: Task| now.remove(&task.id).or_else(|| known.contains(&task.id).then_some(task));
        let tasks = self.all.into_iter().filter_map(last).collect();
        (BlockResult { tasks, timed_out: timed_out && !is_over, finished, active, cleared }, unknown)
    }
}

/// Maximum number of ids to list in a failure; the rest are counted.
const IDS: usize = 3;

/// Creates the failure of a wait that can't report how these tasks ended. `code` is the exit code for the others.
pub fn unknown(ids: &[TaskId], code: Code) -> Failure {
    let names = listed(ids.iter().map(ToString::to_string), IDS);
    let (tasks, they, were) = if ids.len() == 1 { ("task", "it", "was") } else { ("tasks", "they", "were") };
    let message = format!("{tasks} {names} {were} cleared before this wait saw how {they} ended");
    let code = if code == Code::OK { Code::NO_TASK } else { code };
    Failure::new(code, "task_not_found", message)
        .hint("`bgctl events --since 0` shows the end, if the daemon's history still has it")
}

#[cfg(test)]
mod tests {
    use bgd_shared::task::Status;

    use super::*;
    use crate::render::samples;

    fn id(number: u128) -> TaskId {
        TaskId::from_u128(number)
    }

    fn result(tasks: &[(u128, Status)], timed_out: bool) -> BlockResult {
        let of =
            |(number, status): &(u128, Status)| Task { id: id(*number), status: *status, ..samples::task() };
        let tasks: Vec<Task> = tasks.iter().map(of).collect();
        let ids = |is_active: bool| {
            let some = tasks.iter().filter(move |task| task.status.is_active() == is_active);
            some.map(|task| task.id).collect()
        };
        let (finished, active) = (ids(false), ids(true));
        BlockResult { tasks, timed_out, finished, active, cleared: None }
    }

    #[test]
    fn r126_wait_reports_cleared_tasks_as_last_seen() {
        use Status::{Completed, Failed, Running};
        let begin = || {
            let look = result(&[(1, Failed), (2, Running), (3, Running), (4, Running)], true);
            Seen::new(look, BlockUntil::Ended)
        };
        let ids = |result: &BlockResult| result.tasks.iter().map(|task| task.id).collect::<Vec<_>>();
        let (whole, unknown) = begin().complete(result(&[(1, Failed)], false), BlockMode::All);
        assert_eq!((ids(&whole), unknown), (vec![id(1)], vec![]));

        let mut seen = begin();
        seen.update(result(&[(2, Completed), (4, Running)], true), BlockUntil::Ended);
        assert!(seen.is_over(BlockMode::Any) && !seen.is_over(BlockMode::All));
        seen.update(result(&[(4, Running)], true), BlockUntil::Ended);
        let (all, unknown) = seen.complete(result(&[(4, Running)], true), BlockMode::All);
        assert_eq!((ids(&all), all.timed_out), (vec![id(1), id(2), id(4)], true));
        assert_eq!(
            (&all.tasks[1].status, all.finished, all.active),
            (&Completed, vec![id(1), id(2)], vec![id(4)])
        );
        assert_eq!(unknown, [id(3)]);

        let mut seen = begin();
        seen.update(result(&[(1, Failed), (2, Running)], true), BlockUntil::Ended);
        let (any, unknown) = seen.complete(result(&[(1, Failed), (2, Running)], true), BlockMode::Any);
        assert_eq!((ids(&any), any.timed_out, unknown), (vec![id(1), id(2)], false, vec![id(3), id(4)]));
    }

    #[test]
    fn r112_wait_for_a_batch_remembers_which_tasks_were_gone_before_it() {
        let gone = Some(ClearedTasks { tasks: 3, not_completed: 1 });
        let look =
            BlockResult { cleared: gone, ..result(&[(1, Status::Running), (2, Status::Running)], true) };
        let mut seen = Seen::new(look, BlockUntil::Ended);
        seen.note_cleared(None);
        seen.update(result(&[(2, Status::Running)], true), BlockUntil::Ended);
        // From here on, the wait names the tasks one by one.
        let (whole, _) = seen.complete(result(&[(2, Status::Completed)], false), BlockMode::All);
        assert_eq!(whole.cleared, gone);
    }

    #[test]
    fn r126_wait_with_an_unknown_end_does_not_succeed() {
        assert_eq!(unknown(&[id(1)], Code::OK).code, Code::NO_TASK);
        let failure = unknown(&[id(1), id(2)], Code::TASK_FAILED);
        assert_eq!(failure.code, Code::TASK_FAILED);
        assert!(failure.message.contains("were cleared before this wait saw how they ended"), "{failure}");
        let ids: Vec<TaskId> = (1..=1000).map(id).collect();
        assert!(unknown(&ids, Code::OK).message.contains(" and 997 more were cleared"));
    }
}
