//! States of tasks that the machine reports: as events, and as answers to calls.

use bgd_shared::id::TaskId;
use bgd_shared::task::Task;

use super::Machine;
use crate::core::Fact;

impl Machine {
    /// Handles an event of a run's task.
    pub(super) fn learn(&mut self, task: TaskId, known: &Task) {
        let facts = self.runs.get_mut(&task).map(|run| run.learn(known));
        self.learned(task, known.id, facts);
    }

    /// Handles the state of a run's task that the answer to its call contains.
    pub(super) fn learn_answer(&mut self, task: TaskId, known: &Task) {
        if self.runs.get(&task).is_some_and(|run| run.there.is_none()) {
            self.room.accepted();
        }
        let facts = self.runs.get_mut(&task).map(|run| run.learn_answer(known));
        self.learned(task, known.id, facts);
    }

    /// Reports these facts about a run, and does what follows from its state.
    fn learned(&mut self, task: TaskId, there: TaskId, facts: Option<Vec<Fact>>) {
        let (Some(run), Some(mut facts)) = (self.runs.get_mut(&task), facts) else { return };
        let number = run.number;
        if let Some(newer) = self.early.remove(&there) {
            facts.extend(run.learn(&newer));
        }
        self.reset_failures();
        self.by_id.insert(there, task);
        for fact in facts {
            self.context.facts.send(task, number, fact);
        }
        self.catch_up(task);
        if self.runs.get(&task).is_some_and(|run| run.stop.is_some()) {
            self.order_end(task);
        }
        self.ready.push_back(task);
    }
}
