//! Batches (R112): parts are staged until the last one has arrived, then each step adds some of the tasks. If too many
//! tasks of a batch fail, the rest are cancelled.

use std::collections::{BTreeSet, VecDeque};

use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::ClearedTasks;
use bgd_shared::task::Status;

use super::dependencies::became;
use super::requests::NewTask;
use super::{Core, Phase};
use crate::batch::{Batch, BatchKey, Entering, Repeated, Staged};
use crate::caller::ReplyTo;
use crate::effect::{CoreError, OrderError, Reply};
use crate::held::{argv_bytes, env_bytes};
use crate::input::{BatchItem, BatchLimits, Command, Part, PlanRequest, Selection};
use crate::plan::{DependencyStatus, PLAIN, Plan};
use crate::registry::CANDIDATES;
use crate::room::{GivesWay, Stays};
use crate::task::{Ordinal, Outcome, SIGTERM, Spec, StopReason, Task, Work};
use crate::time::Now;

/// How many tasks are added in one step.
const SLICE: usize = 256;

/// How many repeated submissions may wait for a batch.
const REPEATS: usize = 64;

impl Core {
    /// Stages a part of a batch; the last part commits it. If a part is refused, the whole batch is dropped. A batch
    /// with a known key is not submitted again: its client gets the same replies as the first time.
    pub(super) fn submit_many(&mut self, now: Now, to: ReplyTo, part: Part) -> Result<(), CoreError> {
        let Part { batch, first, items, more } = part;
        let (staged, repeated) =
            (self.batches.staged.remove(&to.client), self.batches.repeated.remove(&to.client));
        let repeated = match (&staged, &first) {
            (None, Some((common, _))) => self.known_batch(common),
            (None, None) => repeated.filter(|known| known.batch == batch),
            (Some(_), _) => None,
        };
        if let Some(known) = repeated {
            return self.repeat(to, known, items.len(), more);
        }
        let before = match (staged, first) {
            (Some(staged), None) if staged.batch == batch => Ok(staged),
            (Some(staged), Some(_)) => Err(OrderError::AlreadyStaged(staged.batch)),
            (_, None) => Err(OrderError::NotStaged(batch)),
            (None, Some((common, limits))) => Ok(self.staged(now, batch, common, limits)?),
        };
        self.stage(now, to, before.map_err(CoreError::Order)?, items, more)
    }

    /// Returns the batch that was submitted with the same key. An incomplete one is dropped, as its client has lost the
    /// connection.
    fn known_batch(&mut self, common: &Command) -> Option<Repeated> {
        let (session, key) = (common.spec.session.as_deref(), common.key.as_deref()?);
        let is_same =
            |other: &Command| other.key.as_deref() == Some(key) && other.spec.session.as_deref() == session;
        self.batches.staged.retain(|_, staged| !is_same(&staged.common));
        self.batches.by_key(session, key).map(|batch| Repeated { batch, tasks: 0 })
    }

    /// Replies to a part of a known batch; to the last part once all of the batch's tasks are added.
    fn repeat(&mut self, to: ReplyTo, known: Repeated, count: usize, more: bool) -> Result<(), CoreError> {
        if self.phase != Phase::Open {
            return Err(CoreError::ShuttingDown);
        }
        let Repeated { batch, tasks } = known;
        let key = self.batches.known.get(&batch).and_then(|batch| batch.key.as_ref());
        if key.is_some_and(|key| key.is_torn) {
            return Err(CoreError::Order(OrderError::Torn(batch)));
        }
        let total = key.map_or(0, |key| key.tasks);
        let next = tasks.saturating_add(count as u64);
        let ids: Vec<TaskId> = (tasks..next.min(total)).map(|index| batch.member(index)).collect();
        if more {
            self.batches.repeated.insert(to.client, Repeated { batch, tasks: next });
        } else if let Some(entering) =
            self.batches.entering.iter_mut().find(|entering| entering.batch == batch)
        {
            entering.again.push((to, ids));
            if entering.again.len() > REPEATS {
                // The batch is already accepted, so the longest wait can end early.
                let (to, ids) = entering.again.remove(0);
                self.reply(Some(to), Reply::Many { batch, ids });
            }
            return Ok(());
        }
        self.reply(Some(to), Reply::Many { batch, ids });
        Ok(())
    }

    fn staged(
        &self,
        now: Now,
        batch: TaskId,
        common: Box<Command>,
        limits: BatchLimits,
    ) -> Result<Staged, CoreError> {
        let plan = self.batch_plan(now, batch, &common.plan)?;
        let each = common.spec.own_bytes() + plan.own_bytes();
        let key = common.key.as_ref().map_or(0, |key| key.len());
        let bytes = common.spec.shared_bytes() + env_bytes(&common.env) + key;
        Ok(Staged { batch, common, limits, items: VecDeque::new(), each, bytes })
    }

    fn stage(
        &mut self,
        now: Now,
        to: ReplyTo,
        mut staged: Staged,
        mut items: Vec<BatchItem>,
        more: bool,
    ) -> Result<(), CoreError> {
        if self.phase != Phase::Open {
            return Err(CoreError::ShuttingDown);
        }
        if staged.common.key.is_some() {
            for (index, item) in (staged.items.len() as u64..).zip(&mut items) {
                item.id = staged.batch.member(index);
            }
        }
        staged.bytes += items.iter().map(|item| staged.each + argv_bytes(&item.argv)).sum::<usize>();
        let ids: Vec<TaskId> = items.iter().map(|item| item.id).collect();
        staged.items.extend(items);
        // If there is no such plan any more, the last part reports why.
        let plan = self.batch_plan(now, staged.batch, &staged.common.plan).ok();
        let stays = Stays::of(plan.iter().flat_map(|plan| plan.needed()));
        let (wanted, room) = (staged.items.len(), self.room(&stays));
        if wanted > room {
            return Err(CoreError::Order(OrderError::LargeBatch { wanted, room }));
        }
        self.check_memory(staged.bytes, &stays)?;
        if more {
            self.reply(Some(to), Reply::Many { batch: staged.batch, ids });
            self.batches.staged.insert(to.client, staged);
            return Ok(());
        }
        self.commit(now, to, staged, ids)
    }

    /// Commits a complete batch: its tasks are added from now on.
    fn commit(&mut self, now: Now, to: ReplyTo, staged: Staged, last: Vec<TaskId>) -> Result<(), CoreError> {
        let Staged { batch, common, limits, items, each, bytes } = staged;
        let plan = self.batch_plan(now, batch, &common.plan)?;
        let Command { spec, env, key, .. } = *common;
        let env = self.registry.share_env(env);
        let (session, tasks) = (spec.session.clone(), items.len() as u64);
        let key = key.map(|key| Box::new(BatchKey { session, key, tasks, is_torn: false }));
        let (again, never, is_changed) = (Vec::new(), None, false);
        let mut entering =
            Entering { batch, to, last, again, spec, env, plan, never, items, each, bytes, is_changed };
        for ordinal in entering.plan.after.iter().map(|one| one.ordinal).collect::<BTreeSet<_>>() {
            if let Some(became) =
                self.registry.get(ordinal).and_then(became).filter(|_| entering.never.is_none())
            {
                entering.judge(ordinal, became);
            }
        }
        self.batches.insert(batch, Batch { key, limits, ..Batch::default() });
        if let Some(jobs) = limits.jobs {
            self.queue.limit_batch(batch, jobs);
        }
        self.give_way(GivesWay::TO_TASKS);
        self.await_entry(entering);
        Ok(())
    }

    /// Lets the tasks of a committed batch be added from now on. The history keeps the tasks that they come after
    /// meanwhile, and those that have been added.
    pub(super) fn await_entry(&mut self, entering: Entering) {
        self.registry.need(&entering.plan.needed().collect::<Vec<_>>());
        self.registry.enter_batch(entering.batch);
        self.batches.entering.push_back(entering);
    }

    /// Returns the plan of each task of a batch.
    fn batch_plan(&self, now: Now, batch: TaskId, request: &PlanRequest) -> Result<Box<Plan>, CoreError> {
        let plan = self.plan_of(now, request.clone())?.unwrap_or_else(|| Box::new(PLAIN.clone()));
        Ok(Box::new(Plan { batch: Some(batch), ..*plan }))
    }

    /// Adds the next tasks of the first committed batch.
    pub(super) fn add_next_members(&mut self, now: Now) {
        if self.phase != Phase::Open && !self.registry.is_tracked() {
            // The remaining tasks end with the daemon, like all others.
            return self.drop_entering(|_| true);
        }
        let Some(mut entering) = self.batches.entering.pop_front() else { return };
        let batch = entering.batch;
        entering.env = self.registry.share_kept_env(&entering.env);
        for _ in 0..SLICE {
            let Some(item) = entering.items.pop_front() else { break };
            entering.bytes = entering.bytes.saturating_sub(entering.each + argv_bytes(&item.argv));
            self.add_member(now, &entering, item);
        }
        let left = entering.items.len();
        if let Some(known) = self.batches.known.get_mut(&batch) {
            known.left = (left > 0).then_some(left);
        }
        if left > 0 {
            return self.batches.entering.push_front(entering);
        }
        self.drop_batch_without_tasks(batch);
        self.entered(entering);
    }

    /// Notes that no task of a batch is still to be added, and replies to the clients that wait for it.
    fn entered(&mut self, entering: Entering) {
        let Entering { batch, to, last, again, plan, .. } = entering;
        self.registry.release(&plan.needed().collect::<Vec<_>>());
        self.registry.note_entered(batch);
        for (to, ids) in std::iter::once((to, last)).chain(again) {
            self.reply(Some(to), Reply::Many { batch, ids });
        }
    }

    /// Drops the remaining tasks of these batches. The batches were accepted, so their clients get the same reply as if
    /// all tasks had been added and then removed: an error would make them submit the batches again.
    pub(super) fn drop_entering(&mut self, is_meant: impl Fn(&Entering) -> bool) {
        let entering = std::mem::take(&mut self.batches.entering);
        let (dropped, rest): (VecDeque<_>, VecDeque<_>) = entering.into_iter().partition(is_meant);
        self.batches.entering = rest;
        for entering in dropped {
            // Otherwise the dropped tasks would count as lost if the journal is damaged later.
            if let Some(known) = self.batches.known.get_mut(&entering.batch) {
                known.left = None;
                known.cleared.count_lost(entering.items.len() as u64);
            }
            self.drop_batch_without_tasks(entering.batch);
            self.entered(entering);
        }
    }

    /// Makes the selected tasks among those still to be added end as soon as they are added.
    pub(super) fn cancel_entering(&mut self, which: &Selection) -> Result<(), CoreError> {
        let is_meant = self.means_entering(which)?;
        for entering in self.batches.entering.iter_mut().filter(|entering| is_meant(entering)) {
            entering.is_changed |= entering.never.is_none();
            entering.never.get_or_insert(StopReason::Cancelled);
        }
        Ok(())
    }

    /// Holds or releases the selected tasks among those still to be added.
    pub(super) fn hold_entering(&mut self, which: &Selection, held: bool) -> Result<(), CoreError> {
        let is_meant = self.means_entering(which)?;
        for entering in self.batches.entering.iter_mut().filter(|entering| is_meant(entering)) {
            entering.is_changed |= entering.plan.held != held;
            entering.plan.held = held;
        }
        Ok(())
    }

    /// Returns a predicate for whether a selection includes a batch's tasks that are still to be added, which will be
    /// pending.
    pub(super) fn means_entering<'a>(
        &self,
        which: &'a Selection,
    ) -> Result<impl Fn(&Entering) -> bool + use<'a>, CoreError> {
        let (session, filter) = match which {
            Selection::Ids(_) => (None, None),
            Selection::All { session } => (session.as_ref(), None),
            Selection::Matching(filter) => (filter.session.as_ref(), Some(&**filter)),
        };
        let batch = filter.map(|filter| self.resolve(filter)).transpose()?.flatten();
        let names_tasks = matches!(which, Selection::Ids(_));
        Ok(move |entering: &Entering| {
            let Entering { spec, plan, .. } = entering;
            !names_tasks
                && session.is_none_or(|session| spec.session.as_ref() == Some(session))
                && filter.is_none_or(|filter| filter.holds_for(Status::Pending, plan, spec, batch))
        })
    }

    fn add_member(&mut self, now: Now, entering: &Entering, item: BatchItem) {
        let mut plan = entering.plan.clone();
        if let Some(again) = plan.again.as_deref_mut() {
            again.env = entering.env.clone();
        }
        let spec = Spec { work: Work::Argv(item.argv), ..entering.spec.clone() };
        let env = entering.env.clone();
        let new = NewTask { id: item.id, spec, env, prompt: None, key: None, client: None, plan: Some(plan) };
        let task = self.new_task(now, new);
        let ordinal = self.add(task);
        let Some(batch) = self.batches.known.get_mut(&entering.batch) else { return };
        batch.members += 1;
        let failed = batch.is_stopped.then_some(StopReason::MaxFails(batch.failed));
        self.event(now, EventKind::Submitted, ordinal);
        match failed.or(entering.never) {
            Some(reason) => self.finish_unstarted(now, ordinal, Outcome::Cancelled(reason)),
            None => self.watch_dependencies(now, ordinal),
        }
    }

    /// Judges the conditions of the tasks that are still to be added.
    pub(super) fn judge_entering(&mut self, ordinal: Ordinal, became: DependencyStatus) {
        for entering in self.batches.entering.iter_mut().filter(|entering| entering.never.is_none()) {
            entering.judge(ordinal, became);
        }
    }

    /// Reports whether tasks that are still to be added come after this one.
    pub(super) fn entering_watches(&self, ordinal: Ordinal) -> bool {
        self.batches
            .entering
            .iter()
            .any(|entering| entering.plan.after.iter().any(|one| one.ordinal == ordinal))
    }

    /// Counts the final failure of a task against its batch's limit.
    pub(super) fn count_failure(&mut self, ordinal: Ordinal) {
        let Some(id) = self.registry.get(ordinal).and_then(|task| task.plan().batch) else { return };
        let Some(batch) = self.batches.known.get_mut(&id) else { return };
        batch.failed = batch.failed.saturating_add(1);
        if batch.limits.max_fails.is_some_and(|most| batch.failed >= most) && !batch.is_stopped {
            batch.is_stopped = true;
            self.failed_batches.push(id);
        }
    }

    /// Cancels the rest of the batches in which too many tasks have failed. Returns whether there were any.
    pub(super) fn stop_failed_batches(&mut self, now: Now) -> bool {
        let batches = std::mem::take(&mut self.failed_batches);
        for id in &batches {
            let failed = self.batches.known.get(id).map_or(0, |batch| batch.failed);
            let is_left = |task: &Task| task.plan().batch == Some(*id) && !task.is_finished();
            let tasks = self.registry.iter().filter(|(_, task)| is_left(task)).map(|(ordinal, _)| ordinal);
            let tasks: Vec<Ordinal> = tasks.collect();
            self.stop_all(now, &tasks, StopReason::MaxFails(failed), SIGTERM, self.limits.grace_ms);
        }
        !batches.is_empty()
    }

    /// Removes a task from its batch.
    pub(super) fn leave_batch(&mut self, task: &Task) {
        let Some(id) = task.plan().batch else { return };
        if let Some(batch) = self.batches.known.get_mut(&id) {
            batch.members = batch.members.saturating_sub(1);
            batch.cleared.count(task.status() == Status::Completed);
        }
        if self.batches.entering.iter().all(|entering| entering.batch != id) {
            self.drop_batch_without_tasks(id);
        }
    }

    /// Returns the tasks of a batch that are gone; `None` if there are none.
    pub(super) fn cleared_of(&self, batch: TaskId) -> Option<ClearedTasks> {
        self.batches.known.get(&batch).map(|batch| batch.cleared).filter(|cleared| !cleared.is_empty())
    }

    fn drop_batch_without_tasks(&mut self, id: TaskId) {
        if self.batches.known.get(&id).is_some_and(|batch| batch.members == 0) {
            self.batches.remove(id);
            self.queue.forget_batch(id);
        }
    }

    /// Resolves a reference to the only matching task. Fails if no task or several match.
    pub(super) fn find(&self, reference: &TaskRef) -> Result<Ordinal, CoreError> {
        self.registry.find(reference).map_err(|error| match (error, self.batch_named(reference)) {
            (CoreError::NotFound(_), Ok(batch)) => CoreError::IsBatch(batch),
            (error, _) => error,
        })
    }

    /// Resolves a reference to a batch. Fails if no batch or several match.
    pub(super) fn batch_named(&self, reference: &TaskRef) -> Result<TaskId, CoreError> {
        let mut found = self.batches.known.range(reference.range()).map(|(id, _)| *id).take(CANDIDATES);
        match (found.next(), found.next()) {
            (None, _) => Err(CoreError::Order(OrderError::NoBatch(reference.as_str().into()))),
            (Some(id), None) => Ok(id),
            (Some(first), Some(second)) => {
                let candidates = [first, second].into_iter().chain(found).collect();
                Err(CoreError::Ambiguous(reference.as_str().to_owned(), candidates))
            }
        }
    }
}

impl Entering {
    /// Applies the other task's state to the plan shared by the remaining tasks.
    fn judge(&mut self, ordinal: Ordinal, became: DependencyStatus) {
        match self.plan.outlook(ordinal, became).never {
            Some((condition, ended)) => self.never = Some(StopReason::Dependency(condition, ended)),
            None => self.plan.meet(ordinal, became),
        }
        // Persist this now: the other task may be cleared before the next daemon can look at it.
        self.is_changed |= self.plan.after.iter().any(|one| one.ordinal == ordinal);
    }
}
