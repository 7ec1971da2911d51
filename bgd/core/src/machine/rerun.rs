//! Reruns: submitting ended tasks again (R116). The old tasks stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::limits::RERUNS;
use bgd_shared::order::{After, Condition};
use bgd_shared::task::{Origin, Status};

use super::requests::NewTask;
use super::{Core, Phase};
use crate::batch::Batch;
use crate::caller::ReplyTo;
use crate::effect::{CoreError, OrderError, Reply, Unrepeatable};
use crate::held::conditions_bytes;
use crate::input::{Rerun, Selection};
use crate::plan::{Dependency, Plan, Repetition};
use crate::room::{GivesWay, Stays};
use crate::task::{Ordinal, Outcome, Spec, StopReason, Task, Work};
use crate::time::Now;

/// A task about to be submitted again.
struct PendingRerun {
    old: Ordinal,
    new: Task,
    /// Its conditions, in the order of the old task's, as that numbers what the task sees of them (R104).
    after: Vec<Tie>,
}

/// A condition of a task about to be submitted again.
enum Tie {
    /// To be waited for. A condition on a task of the same rerun refers to the new task.
    Awaited(After),
    /// Already met by a task that is not submitted again.
    Met(Dependency),
}

impl Tie {
    /// Returns the task that it is awaited from.
    fn awaited(&self) -> Option<TaskId> {
        match self {
            Self::Awaited(after) => after.id.exact(),
            Self::Met(_) => None,
        }
    }
}

impl Core {
    /// Submits tasks again, all or none.
    pub(super) fn rerun(&mut self, now: Now, to: ReplyTo, rerun: &Rerun) -> Result<(), CoreError> {
        if self.phase != Phase::Open {
            return Err(CoreError::ShuttingDown);
        }
        if let Some(key) = rerun.key.as_deref() {
            let pairs = self.rerun_by(key);
            // A request that selects none of these tasks has the same key by coincidence.
            let selected: BTreeSet<TaskId> =
                self.with_ids(&self.select(&rerun.which)?).into_iter().map(|(_, id)| id).collect();
            if pairs.iter().any(|(_, old)| selected.contains(old)) {
                self.reply(Some(to), Reply::Rerun(pairs));
                return Ok(());
            }
        }
        let tasks = self.tasks_to_rerun(rerun)?;
        if tasks.len() > RERUNS {
            return Err(CoreError::Order(OrderError::TooManyReruns(tasks.len())));
        }
        let mut stays = Stays::default();
        if tasks.len() > self.room(&stays) {
            return Err(CoreError::Full(self.limits.tasks));
        }
        let mut ids = Ids { seed: TaskId::from_u128(rerun.seed), last: 0 };
        let new_ids: BTreeMap<TaskId, TaskId> = tasks.iter().map(|(_, id)| (*id, ids.next())).collect();
        let mut batches = BTreeMap::new();
        let mut repeated = Vec::with_capacity(tasks.len());
        for (ordinal, _) in &tasks {
            let Some(task) = self.registry.get(*ordinal) else { continue };
            let batch = task.plan().batch.map(|old| *batches.entry(old).or_insert_with(|| ids.next()));
            let (mut new, after) = self.repeated(*ordinal, task, &new_ids, batch)?;
            new.key = rerun.key.as_deref().map(|key| own_key(key, task.id));
            repeated.push(PendingRerun { old: *ordinal, new: self.new_task(now, new), after });
        }
        if let Some((id, other)) = find_cycle(&repeated) {
            return Err(CoreError::Order(OrderError::Cycle(other, id)));
        }
        // The tasks get their conditions only when all of them exist.
        let conditions = repeated.iter().map(|one| conditions_bytes(one.after.len()));
        let more = self.registry.held_more_with(repeated.iter().map(|one| &one.new));
        for one in &repeated {
            stays.extend_with(&one.new);
            stays.extend(one.after.iter().filter_map(|tie| self.needed_for(tie)));
        }
        if repeated.len() > self.room(&stays) {
            return Err(CoreError::Full(self.limits.tasks));
        }
        self.check_memory(more + conditions.sum::<usize>(), &stays)?;
        self.give_way(GivesWay::TO_TASKS);
        for (old, new) in batches {
            self.repeat_batch(old, new);
        }
        let pairs = self.add_repeated(now, repeated);
        self.reply(Some(to), Reply::Rerun(pairs));
        Ok(())
    }

    /// Returns the task that a condition refers to, if it exists already.
    fn needed_for(&self, tie: &Tie) -> Option<Ordinal> {
        match tie {
            Tie::Awaited(after) => self.registry.find(&after.id).ok(),
            Tie::Met(dependency) => Some(dependency.ordinal),
        }
    }

    /// Returns the result of an earlier rerun with this key, oldest first: pairs of new and old id.
    fn rerun_by(&self, key: &str) -> Vec<(TaskId, TaskId)> {
        let pair = |task: &Task| {
            let old = task.plan().rerun_of?;
            (task.key.as_deref()? == &*own_key(key, old)).then_some((task.id, old))
        };
        self.registry.iter().filter_map(|(_, task)| pair(task)).collect()
    }

    /// Returns the tasks to submit again: first the selected ones, then those that were cancelled because of them.
    fn tasks_to_rerun(&self, rerun: &Rerun) -> Result<Vec<(Ordinal, TaskId)>, CoreError> {
        let mut tasks = self.with_ids(&self.select(&rerun.which)?);
        let task = |ordinal: &Ordinal| self.registry.get(*ordinal);
        if let Selection::Ids(_) = rerun.which {
            let active =
                tasks.iter().filter_map(|(ordinal, _)| task(ordinal)).find(|task| !task.is_finished());
            if let Some(task) = active {
                return Err(CoreError::Order(OrderError::NotEnded(task.id, task.status())));
            }
        }
        let is_meant =
            |found: &Task| found.is_finished() && (!rerun.failed || found.status() == Status::Failed);
        tasks.retain(|(ordinal, _)| task(ordinal).is_some_and(is_meant));
        if !rerun.with_dependents {
            return Ok(tasks);
        }
        let mut dependents: BTreeMap<TaskId, Vec<(Ordinal, TaskId)>> = BTreeMap::new();
        for (ordinal, task) in self.registry.iter() {
            if let Some(Outcome::Cancelled(StopReason::Dependency(_, ended))) =
                task.finished().map(|end| &end.outcome)
            {
                dependents.entry(ended.task).or_default().push((ordinal, task.id));
            }
        }
        let mut seen: BTreeSet<Ordinal> = tasks.iter().map(|(ordinal, _)| *ordinal).collect();
        let mut place = 0;
        while let Some((_, id)) = tasks.get(place).copied() {
            let new = dependents.remove(&id).unwrap_or_default();
            tasks.extend(new.into_iter().filter(|(ordinal, _)| seen.insert(*ordinal)));
            place += 1;
        }
        Ok(tasks)
    }

    /// Returns the parts of the new task for an old one, with its conditions.
    fn repeated(
        &self,
        old: Ordinal,
        task: &Task,
        new_ids: &BTreeMap<TaskId, TaskId>,
        batch: Option<TaskId>,
    ) -> Result<(NewTask, Vec<Tie>), CoreError> {
        let refuse = |why| CoreError::Order(OrderError::NotRepeatable(task.id, why));
        let why = match task.spec.origin {
            Origin::Run | Origin::Handoff | Origin::Unknown => Some(Unrepeatable::Job),
            Origin::Submit if task.spec.uses_up_streams() => Some(Unrepeatable::Streams),
            Origin::Submit if task.resume_count > 0 => Some(Unrepeatable::Resumed),
            Origin::Submit => None,
        };
        if let Some(why) = why {
            return Err(refuse(why));
        }
        let env = self.registry.kept_env(old).ok_or_else(|| refuse(Unrepeatable::NoEnvironment))?.clone();
        let plan = task.plan();
        self.group_named(plan.group.as_deref())?;
        self.check_slots(Some(task.id), plan.group.as_deref(), plan.slots)?;
        let is_again = |one: &Dependency| new_ids.contains_key(&one.task);
        let is_tied = plan.after.iter().any(is_again);
        let mut after = Vec::new();
        for one in plan.after.iter().filter(|one| is_tied || one.met) {
            // It waits for none of these again, but refers to them, as in `{after.output}`.
            if one.met && !is_again(one) {
                after.push(Tie::Met(*one));
                continue;
            }
            let (new, condition) = (new_ids.get(&one.task), one.condition);
            // A condition on an ended task is not checked for this, but the new task has not ended.
            if new.is_some() && condition == Condition::Ready && !self.can_be_ready(one.task) {
                return Err(CoreError::Order(OrderError::NeverReady(one.task)));
            }
            let condition = After { id: new.copied().unwrap_or(one.task).into(), condition };
            if new.is_none() {
                self.conditions(std::slice::from_ref(&condition))?;
            }
            after.push(Tie::Awaited(condition));
        }
        let new_plan = Plan {
            group: plan.group.clone(),
            batch,
            priority: plan.priority,
            slots: plan.slots,
            held: false,
            not_before: None,
            after: Vec::new(),
            description: plan.description.clone(),
            again: plan.again.as_ref().map(|again| Box::new(Repetition::new(again.rule.clone()))),
            rerun_of: Some(task.id),
        };
        let mut spec = Spec::clone(&task.spec);
        if let Work::Agent(work) = &mut spec.work {
            // The configuration may have made it obsolete; otherwise, the new run reports it.
            work.warning = None;
        }
        let prompt = task.agent.as_deref().map(|agent| agent.prompt.clone());
        let id = new_ids.get(&task.id).copied().unwrap_or(task.id);
        let new = NewTask { id, spec, env, prompt, key: None, client: None, plan: Some(Box::new(new_plan)) };
        Ok((new, after))
    }

    /// Creates the batch for reruns of an old batch's tasks, with the same limits.
    fn repeat_batch(&mut self, old: TaskId, new: TaskId) {
        let limits = self.batches.known.get(&old).map(|batch| batch.limits).unwrap_or_default();
        self.batches.insert(new, Batch { limits, ..Batch::default() });
        if let Some(jobs) = limits.jobs {
            self.queue.limit_batch(new, jobs);
        }
    }

    /// Adds the tasks, and registers their conditions once all of them exist. Returns pairs of new and old id.
    fn add_repeated(&mut self, now: Now, repeated: Vec<PendingRerun>) -> Vec<(TaskId, TaskId)> {
        let mut pairs = Vec::with_capacity(repeated.len());
        let mut ties = Vec::new();
        for PendingRerun { old, new, after } in repeated {
            let (id, batch) = (new.id, new.plan().batch);
            let ordinal = self.add(new);
            if let Some(batch) = batch.and_then(|batch| self.batches.known.get_mut(&batch)) {
                batch.members += 1;
            }
            pairs.extend(self.registry.get(old).map(|old| (id, old.id)));
            ties.push((ordinal, after));
        }
        for (ordinal, after) in ties {
            let after = self.tied(after);
            if !after.is_empty() {
                self.replan(ordinal, |plan| plan.after = after);
            }
            self.event(now, EventKind::Submitted, ordinal);
            self.watch_dependencies(now, ordinal);
        }
        pairs
    }

    /// Returns the conditions of a new task, once all tasks of the rerun exist.
    fn tied(&self, ties: Vec<Tie>) -> Vec<Dependency> {
        let mut after: Vec<Dependency> = Vec::with_capacity(ties.len());
        for tie in ties {
            match tie {
                Tie::Met(dependency) => after.push(dependency),
                // Can't fail: each condition was checked before, or names one of the new tasks.
                Tie::Awaited(condition) => {
                    after.extend(self.conditions(std::slice::from_ref(&condition)).unwrap_or_default());
                }
            }
        }
        after
    }
}

/// Returns the key of an old task's copy in a rerun with this key.
fn own_key(key: &str, old: TaskId) -> Arc<str> {
    format!("{key} {old}").into()
}

/// Returns two of these tasks that would wait for each other. That can happen if their old conditions were met at
/// different times. Visits each condition once: a chain may be as long as there are tasks.
fn find_cycle(repeated: &[PendingRerun]) -> Option<(TaskId, TaskId)> {
    let all: BTreeSet<TaskId> = repeated.iter().map(|one| one.new.id).collect();
    let others = |one: &PendingRerun| {
        let ids = one.after.iter().filter_map(Tie::awaited);
        ids.filter(|id| all.contains(id)).collect::<Vec<_>>()
    };
    let mut waits_for = BTreeMap::new();
    let mut dependents: BTreeMap<TaskId, Vec<TaskId>> = BTreeMap::new();
    for one in repeated {
        let others = others(one);
        waits_for.insert(one.new.id, others.len());
        for other in others {
            dependents.entry(other).or_default().push(one.new.id);
        }
    }
    let mut free: Vec<TaskId> = all.iter().copied().filter(|id| waits_for.get(id) == Some(&0)).collect();
    while let Some(id) = free.pop() {
        waits_for.remove(&id);
        for dependent in dependents.remove(&id).unwrap_or_default() {
            let Some(count) = waits_for.get_mut(&dependent) else { continue };
            *count -= 1;
            if *count == 0 {
                free.push(dependent);
            }
        }
    }
    let left = repeated.iter().find(|one| waits_for.contains_key(&one.new.id))?;
    let other = others(left).into_iter().find(|other| waits_for.contains_key(other))?;
    Some((left.new.id, other))
}

/// Generates new ids from one random id.
struct Ids {
    seed: TaskId,
    last: u64,
}

impl Ids {
    fn next(&mut self) -> TaskId {
        self.last += 1;
        self.seed.member(self.last)
    }
}
