//! Calls that wait for tasks, and what happens when the wait ends.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::limits::WAITED_TASKS;
use bgd_shared::request::{BlockMode, BlockUntil};

use super::{Core, Phase, Timer, commands};
use crate::caller::ReplyTo;
use crate::effect::{CoreError, OrderError, Reply};
use crate::input::Selection;
use crate::limits::CoreLimits;
use crate::portions::PORTION;
use crate::queue::Standing;
use crate::task::{Ordinal, Snapshot, Task};
use crate::time::Now;
use crate::waiters::{Block, Postponed, Until, WaitAction, Waiter, WaiterId};

impl Core {
    /// Waits for the tasks that are selected now. If some of them are still to be added, the wait begins once they are:
    /// until then, those that are there may all have ended.
    pub(super) fn block(&mut self, now: Now, which: &Selection, mut block: Block) -> Result<(), CoreError> {
        block.tasks = self.select(which)?;
        block.batch = self.batch_waited_for(which)?;
        let is_meant = self.means_entering(which)?;
        let entering = self.batches.entering.iter().filter(|entering| is_meant(entering));
        let batches: Vec<TaskId> = entering.map(|entering| entering.batch).collect();
        if batches.is_empty() {
            return self.begin_block(now, block);
        }
        self.may_wait(block.to, block.tasks.len())?;
        self.postponed.push(Postponed { block, after: self.registry.last(), batches });
        Ok(())
    }

    /// Returns the batch whose tasks a selection means, unless it means only those with some status: then the tasks that
    /// are gone may not be among them.
    fn batch_waited_for(&self, which: &Selection) -> Result<Option<TaskId>, CoreError> {
        match which {
            Selection::Matching(filter) if filter.status.is_empty() => self.resolve(filter),
            Selection::Matching(_) | Selection::Ids(_) | Selection::All { .. } => Ok(None),
        }
    }

    /// Begins the waits whose tasks have all been added meanwhile. A batch that came later holds up none.
    pub(super) fn begin_postponed(&mut self, now: Now) {
        let is_entering = |one: &Postponed| {
            self.batches.entering.iter().any(|entering| one.batches.contains(&entering.batch))
        };
        let postponed = std::mem::take(&mut self.postponed);
        let (waiting, ready): (Vec<_>, Vec<_>) = postponed.into_iter().partition(is_entering);
        self.postponed = waiting;
        for Postponed { mut block, after, batches } in ready {
            let is_member = |task: &Task| task.plan().batch.is_some_and(|batch| batches.contains(&batch));
            let added = self.registry.iter().filter(|(ordinal, task)| *ordinal > after && is_member(task));
            block.tasks.extend(added.map(|(ordinal, _)| ordinal));
            block.tasks.retain(|ordinal| self.registry.get(*ordinal).is_some());
            let to = block.to;
            if let Err(error) = self.begin_block(now, block) {
                self.reply(Some(to), Reply::Error(error));
            }
        }
    }

    fn begin_block(&mut self, now: Now, block: Block) -> Result<(), CoreError> {
        let Block { to, tasks, batch, deadline, mode, until } = block;
        let until = match until {
            BlockUntil::Ended => Until::Finished,
            BlockUntil::Ready => Until::Ready,
        };
        if until == Until::Ready {
            self.check_ready(&tasks)?;
        }
        let mut waiter = self.waiter(to, &tasks, until, WaitAction::Block);
        waiter.deadline = deadline;
        waiter.gone = batch.and_then(|batch| self.cleared_of(batch));
        match mode {
            BlockMode::All | BlockMode::AllOrAsks => {}
            BlockMode::Any | BlockMode::AnyOrAsks if waiter.missing < waiter.tasks.len() => {
                waiter.missing = 0;
            }
            BlockMode::Any | BlockMode::AnyOrAsks => waiter.missing = waiter.missing.min(1),
        }
        waiter.ends_on_question = mode.ends_on_question();
        if waiter.ends_on_question && waiter.open.iter().any(|ordinal| self.asks(*ordinal)) {
            waiter.missing = 0;
        }
        if waiter.missing > 0 {
            self.may_wait(to, waiter.tasks.len())?;
        }
        self.wait(now, waiter);
        Ok(())
    }

    /// Refuses a wait that would give a client's waits too many tasks: each wait keeps its tasks, all replies may come
    /// at once, and the client may not read them. A single wait may have any number of tasks.
    fn may_wait(&self, to: ReplyTo, tasks: usize) -> Result<(), CoreError> {
        let postponed = self.postponed.iter().filter(|one| one.block.to.client == to.client);
        let postponed: usize = postponed.map(|one| one.block.tasks.len()).sum();
        let removed = self.portions.removed_for(to.client);
        let waited = self.waiters.waited_for_by(to.client) + postponed + removed;
        let fits = waited == 0 || waited + tasks <= WAITED_TASKS;
        if fits { Ok(()) } else { Err(CoreError::TooManyWaits(WAITED_TASKS)) }
    }

    /// Like [`Self::may_wait`], for a request that ends these tasks: it need not wait if all have ended.
    pub(super) fn may_wait_for_end(&self, to: ReplyTo, tasks: &[Ordinal]) -> Result<(), CoreError> {
        if !tasks.iter().all(|ordinal| self.holds(*ordinal, Until::Settled)) {
            return self.may_wait(to, tasks.len());
        }
        // Removing many takes several steps, and removing few none.
        if tasks.len() <= PORTION {
            return Ok(());
        }
        let removed = self.portions.removed_for(to.client);
        let fits = removed == 0 || removed + tasks.len() <= WAITED_TASKS;
        if fits { Ok(()) } else { Err(CoreError::TooManyWaits(WAITED_TASKS)) }
    }

    /// Reports whether this call waits for tasks, for an inbox item, or until all tasks of its batch are added.
    pub fn waits(&self, to: ReplyTo) -> bool {
        self.waiters.waits(to)
            || self.portions.is_awaited_by(to)
            || self.inboxes.waits(to)
            || self.batches.is_awaited_by(to)
            || self.postponed.iter().any(|one| one.block.to == to)
    }

    /// Refuses a wait for readiness on a task that defines none.
    fn check_ready(&self, tasks: &[Ordinal]) -> Result<(), CoreError> {
        let mut tasks = tasks.iter().filter_map(|ordinal| self.registry.get(*ordinal));
        match tasks.find(|task| task.spec.ready.is_none() && !task.is_finished()) {
            Some(task) => Err(CoreError::Order(OrderError::NeverReady(task.id))),
            None => Ok(()),
        }
    }

    /// Builds a wait without a deadline for all of these tasks to reach the state.
    pub(super) fn waiter(
        &self,
        to: impl Into<Option<ReplyTo>>,
        tasks: &[Ordinal],
        until: Until,
        then: WaitAction,
    ) -> Waiter {
        let open: BTreeSet<Ordinal> =
            tasks.iter().copied().filter(|ordinal| !self.holds(*ordinal, until)).collect();
        let (missing, tasks) = (open.len(), self.with_ids(tasks));
        Waiter {
            to: to.into(),
            tasks,
            until,
            open,
            missing,
            ends_on_question: false,
            deadline: None,
            then,
            cleared: Vec::new(),
            gone: None,
        }
    }

    /// Starts a wait, or completes it at once if nothing is missing.
    pub(super) fn wait(&mut self, now: Now, waiter: Waiter) {
        if waiter.missing == 0 {
            return self.over(now, waiter);
        }
        if waiter.to.is_none() && waiter.then.removes() {
            return self.remove_unawaited(now, waiter);
        }
        let deadline = waiter.deadline;
        let id = self.waiters.insert(waiter);
        if let Some(at) = deadline {
            self.timers.insert((at, Timer::Waiter(id)));
        }
    }

    /// Reports whether the task's agent is waiting for an answer.
    pub(super) fn asks(&self, ordinal: Ordinal) -> bool {
        let agent = self.registry.get(ordinal).and_then(|task| task.agent.as_ref());
        agent.is_some_and(|agent| !agent.questions.is_empty())
    }

    pub(super) fn holds(&self, ordinal: Ordinal, until: Until) -> bool {
        self.registry.get(ordinal).is_none_or(|task| until.holds(task))
    }

    /// Completes the waits that end because a task reached a state. Waits that only read tasks come before those that
    /// remove them, so that they still see the tasks; the one that ends the daemon comes last.
    pub(super) fn wake(&mut self, now: Now, ordinal: Ordinal, what: Until) {
        // Before the waits end: one of them may order the removal of many tasks, this one among them.
        let is_removed = what == Until::Settled && self.waiters.is_removed_unawaited(ordinal);
        let over = self.waiters.note_change(ordinal, what);
        self.end_waits(now, ordinal, &over);
        if is_removed {
            self.remove(now, ordinal);
        }
    }

    /// Completes the waits that end because a task asks a question.
    pub(super) fn wake_by_question(&mut self, now: Now, ordinal: Ordinal) {
        let over = self.waiters.asked(ordinal);
        self.end_waits(now, ordinal, &over);
    }

    fn end_waits(&mut self, now: Now, ordinal: Ordinal, over: &[WaiterId]) {
        let mut waiters = self.waiters.take_all(ordinal, over);
        waiters.sort_by_key(|(_, waiter)| waiter.then.turn());
        for (id, waiter) in waiters {
            if let Some(at) = waiter.deadline {
                self.timers.remove(&(at, Timer::Waiter(id)));
            }
            self.over(now, waiter);
        }
    }

    pub(super) fn waiter_deadline(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.remove(id) {
            let tasks = self.summary_of(&waiter);
            self.reply(waiter.to, Reply::Blocked { tasks, timed_out: true, cleared: waiter.gone });
        }
    }

    /// Ends the waits of a client that is gone, and removes their timers. The tasks that it has asked to remove still
    /// are.
    pub(super) fn disconnect(&mut self, now: Now, client: u64) {
        self.postponed.retain(|one| one.block.to.client != client);
        for (id, waiter) in self.waiters.disconnect(client) {
            if let Some(at) = waiter.deadline {
                self.timers.remove(&(at, Timer::Waiter(id)));
            }
            if waiter.then.removes() {
                self.remove_unawaited(now, waiter);
            }
        }
        self.portions.disconnect(client);
    }

    /// Removes the tasks of a wait that nobody waits for, each as soon as it has settled.
    fn remove_unawaited(&mut self, now: Now, waiter: Waiter) {
        let settled = self.waiters.remove_unawaited(&waiter);
        let tasks = self.with_ids(&settled);
        self.remove_all(now, Waiter { to: None, tasks, ..waiter });
    }

    /// Returns all named tasks, with those cleared meanwhile in their last state.
    fn summary_of(&self, waiter: &Waiter) -> Vec<Snapshot> {
        let cleared: HashMap<TaskId, &Arc<Task>> =
            waiter.cleared.iter().map(|task| (task.id, task)).collect();
        let last = |id: &TaskId| cleared.get(id).map(|task| Box::new(Task::clone(task)));
        let named = waiter.tasks.iter();
        named.filter_map(|(ordinal, id)| self.snapshot(*ordinal).or_else(|| last(id))).collect()
    }

    pub(super) fn over(&mut self, now: Now, waiter: Waiter) {
        match waiter.then {
            WaitAction::Block => {
                let tasks = self.summary_of(&waiter);
                self.reply(waiter.to, Reply::Blocked { tasks, timed_out: false, cleared: waiter.gone });
            }
            WaitAction::Cancel => {
                let tasks = self.summary_of(&waiter);
                self.reply(waiter.to, Reply::Tasks(tasks));
            }
            WaitAction::Clear | WaitAction::EndSession { .. } => self.remove_all(now, waiter),
            // What was requested before is done by then.
            WaitAction::Shutdown { .. } if !self.portions.is_empty() => self.portions.shutdowns.push(waiter),
            WaitAction::Shutdown { cancelled, left } => {
                self.reply(waiter.to, Reply::ShutDown { cancelled, left });
                self.exits |= self.phase != Phase::Closed;
                self.phase = Phase::Closed;
            }
        }
    }

    /// Removes a task. Returns whether it was still there.
    pub(super) fn remove(&mut self, now: Now, ordinal: Ordinal) -> bool {
        let Some(mut snapshot) = self.snapshot(ordinal) else { return false };
        // Waiters that keep the snapshot must not keep its environment.
        snapshot.drop_env();
        self.waiters.remember_cleared(ordinal, &snapshot);
        self.queue.change(ordinal, &Standing::from(&*snapshot), &Standing::Out);
        self.registry.remove(ordinal);
        self.leave_batch(&snapshot);
        self.effects.push(commands::forget(&snapshot));
        self.event_of(now, EventKind::Cleared, snapshot);
        true
    }

    /// Counts the finished tasks that these limits of the history remove from now on. None without limits.
    pub fn history_excess(&self, now: Now, limits: &CoreLimits) -> usize {
        limits.history.map_or(0, |limits| self.registry.history_excess(limits, now.wall))
    }
}
