//! Pausing the processes of tasks, and continuing them (R106).

use bgd_shared::event::EventKind;

use super::{Core, commands};
use crate::caller::ReplyTo;
use crate::control::Control;
use crate::effect::{CoreError, Reply, Unpausable};
use crate::input::Selection;
use crate::task::{Ordinal, State, Task};
use crate::time::Now;
use crate::undelivered::Order;

impl Core {
    /// Pauses tasks, or continues them. If a task named by id can't be paused, this is an error and no task changes;
    /// other selections skip such tasks. A repeated pause also covers processes that were started meanwhile.
    pub(super) fn set_paused(
        &mut self,
        now: Now,
        to: ReplyTo,
        which: &Selection,
        paused: bool,
    ) -> Result<(), CoreError> {
        let mut tasks = self.select(which)?;
        if let Selection::Ids(_) = which {
            let mut named = tasks.iter().filter_map(|ordinal| self.registry.get(*ordinal));
            named.try_for_each(pausable)?;
        }
        tasks.retain(|ordinal| self.registry.get(*ordinal).is_some_and(|task| pausable(task).is_ok()));
        for ordinal in &tasks {
            self.set_one_paused(now, *ordinal, paused);
        }
        let snapshots = tasks.iter().filter_map(|ordinal| self.snapshot(*ordinal)).collect();
        self.reply(Some(to), Reply::Tasks(snapshots));
        Ok(())
    }

    fn set_one_paused(&mut self, now: Now, ordinal: Ordinal, paused: bool) {
        let changed = self.registry.change(ordinal, |task| {
            let before = std::mem::replace(&mut task.paused, paused);
            before != paused
        });
        let Some(task) = self.registry.get(ordinal) else { return };
        // A task that is still starting is paused as soon as it runs.
        if matches!(task.state, State::Running { .. }) {
            let order = commands::control(task, if paused { Control::Pause } else { Control::Continue });
            self.effects.push(order);
            if !paused {
                // A task that was not paused is continued once, as far as anything else has stopped its processes.
                self.note_order(ordinal, changed.and_then(|changed| changed.then_some(Order::Continue)));
            }
        }
        if changed == Some(true) {
            self.event(now, if paused { EventKind::Paused } else { EventKind::Continued }, ordinal);
        }
    }

    /// Pauses a process that has just started, if that was requested during its start.
    pub(super) fn pause_started(&mut self, ordinal: Ordinal) {
        let paused = self.registry.get(ordinal).filter(|task| task.paused);
        if let Some(order) = paused.map(|task| commands::control(task, Control::Pause)) {
            self.effects.push(order);
        }
    }

    /// Clears the pause of a task that is ending or has ended.
    pub(super) fn end_pause(&mut self, ordinal: Ordinal) {
        if self.registry.get(ordinal).is_some_and(|task| task.paused) {
            self.registry.change(ordinal, |task| task.paused = false);
        }
    }
}

/// Checks that the processes of a task can be paused and continued.
fn pausable(task: &Task) -> Result<(), CoreError> {
    let why = match &task.state {
        State::Finished(_) | State::Resuming(_) => {
            return Err(CoreError::NotRunning(task.id, task.status()));
        }
        State::Queued { .. } => Unpausable::Pending,
        State::Starting { .. } | State::Running { .. } | State::Stopping { .. } if task.agent.is_some() => {
            Unpausable::Agent
        }
        State::Starting { .. } if task.waits_elsewhere() => Unpausable::Pending,
        State::Starting { stop: Some(_), .. } | State::Stopping { .. } => Unpausable::Ending,
        State::Starting { stop: None, .. } | State::Running { .. } => return Ok(()),
    };
    Err(CoreError::NotPausable(task.id, why))
}
