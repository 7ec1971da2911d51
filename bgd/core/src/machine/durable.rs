//! Persistence of a durable daemon's core: the changes to write after each step, the reconstruction of a core, and the
//! handling of tasks that were running meanwhile (R125 to R128).

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroI32;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;

use super::{Core, commands, wall_time};
use crate::batch::{Batch, Entering};
use crate::caller::ReplyTo;
use crate::control::Control;
use crate::durable::{Changes, Counters, ItemRow, Kept, LossRow, TaskRow};
use crate::effect::Effect;
use crate::elsewhere::Cause;
use crate::group::GroupSettings;
use crate::known::{KnownRun, KnownStop, UsagePending};
use crate::limits::CoreLimits;
use crate::plan::{Need, Plan};
use crate::queue::Standing;
use crate::registry::SeenValues;
use crate::room::GivesWay;
use crate::sharing::KeptEnv;
use crate::task::{
    Failure, Finished, Lingering, Ordinal, Outcome, SIGKILL, SIGTERM, Snapshot, State, StopOrder, StopReason,
    Task,
};
use crate::time::Now;
use crate::waiters::{Until, WaitAction};

use super::facts::verdict_of_tree;
use super::stop::verdict_of_stop;

/// Stands for a client that is gone.
const NOBODY: ReplyTo = ReplyTo { client: 0, call: 0 };

/// Returns the last of the tasks that a plan names: a new task must not take the place of a lost one.
fn last_named(plan: &Plan) -> Ordinal {
    plan.after.iter().map(|one| one.ordinal).max().unwrap_or_default()
}

/// Reports whether a plan has a wait that [`Kept::rebase`] converts.
fn is_delayed(plan: &Plan) -> bool {
    plan.not_before.is_some_and(|at| at.mono().is_some())
}

/// Reports whether a task has something that [`Kept::rebase`] converts: a wait, or the begin of a run, which may go on
/// elsewhere.
fn is_timed(task: &Task) -> bool {
    is_delayed(task.plan()) || matches!(task.state, State::Running { .. } | State::Stopping { .. })
}

impl Core {
    /// Starts recording changes for [`Self::take_changes`]. What differs from the persisted state that this core was
    /// built from is among the first.
    pub fn track(&mut self) {
        self.registry.track(std::mem::take(&mut self.unwritten));
        self.inboxes.track();
        // A program without this limit may have handed over the state.
        self.limit_inboxes();
    }

    /// Returns the changes since the last call; `None` if there is nothing to write. Requires [`Self::track`].
    pub fn take_changes(&mut self, now: Now) -> Option<Changes> {
        let (touched, inboxes) = (self.registry.take_touched(), self.inboxes.take_touched());
        let (groups, entering) = (self.queue.take_groups(), self.changed_entering());
        let is_same = touched.is_none() && inboxes.is_empty() && groups.is_none() && entering.is_empty();
        // An event may report something that is not persisted, but its number must not be reused.
        if is_same && self.seq == self.written_seq {
            return None;
        }
        self.written_seq = self.seq;
        let touched = touched.unwrap_or_default();
        let tasks = touched.tasks.iter().map(|ordinal| (*ordinal, self.row(*ordinal))).collect();
        let items = inboxes.items.into_iter().map(|number| {
            let item = self.inboxes.item(number);
            (number, item.map(|(session, notice)| ItemRow { session, notice }))
        });
        let losses = inboxes.losses.into_iter().map(|number| {
            let loss = self.inboxes.loss(number);
            (number, loss.map(|(session, lost)| LossRow { session, lost }))
        });
        let mut batches: BTreeMap<_, _> = touched.batches.iter().map(|id| (*id, None)).collect();
        batches.extend(entering.iter().map(|(id, _)| (*id, None)));
        for (id, batch) in &mut batches {
            *batch = self.batches.known.get(id).cloned();
        }
        Some(Changes {
            tasks,
            items: items.collect(),
            losses: losses.collect(),
            notices: Vec::new(),
            batches: batches.into_iter().collect(),
            entering,
            groups,
            counters: self.counters(now),
            added: touched.added,
        })
    }

    /// Continues with numbers that the previous daemon has not sent. It has sent events up to number `sent_seq`; `None`
    /// if that is unknown. Returns whether it did more than it wrote to the journal: it may then have sent items and
    /// notices, too, and have paused tasks.
    #[must_use]
    pub fn number_after(&mut self, now: Now, sent_seq: Option<u64>) -> bool {
        if sent_seq.is_some_and(|sent_seq| sent_seq <= self.seq) {
            return false;
        }
        let mut counters = self.counters(now);
        counters.skip_published(now.wall);
        self.seq = sent_seq.unwrap_or(counters.seq);
        self.inboxes.number_after(counters.inboxes.last);
        self.last_notice = counters.notices;
        true
    }

    /// Returns the current values of the numbers that only grow.
    pub fn counters(&self, now: Now) -> Counters {
        let (seq, last, inboxes) = (self.seq, self.registry.last(), self.inboxes.counts());
        Counters { seq, last, inboxes, notices: self.last_notice, mono: now.mono, wall: now.wall }
    }

    fn row(&self, ordinal: Ordinal) -> Option<TaskRow> {
        let task: Snapshot = self.registry.get(ordinal).cloned().map(Box::new)?;
        let slots = self.queue.numbers(ordinal).into();
        let kept = self.registry.kept_env(ordinal).cloned().map(KeptEnv);
        Some(TaskRow { task, slots, kept })
    }

    /// Returns the new batches with tasks to add, those whose remaining tasks are to be added differently, and those
    /// whose tasks are all added (`None`).
    fn changed_entering(&mut self) -> Vec<(TaskId, Option<Box<Entering>>)> {
        let mut changed = Vec::new();
        for entering in &mut self.batches.entering {
            let is_new = self.written_entering.insert(entering.batch);
            if std::mem::take(&mut entering.is_changed) || is_new {
                changed.push((entering.batch, Some(Box::new(entering.clone()))));
            }
        }
        if self.written_entering.len() > self.batches.entering.len() {
            let still = |id: &TaskId| self.batches.entering.iter().any(|entering| entering.batch == *id);
            let (left, done): (Vec<_>, Vec<_>) = self.written_entering.iter().copied().partition(still);
            self.written_entering = left.into_iter().collect();
            changed.extend(done.into_iter().map(|id| (id, None)));
        }
        changed
    }

    /// Builds a core from its persisted state. Tasks that were running still appear to run: the caller has to report
    /// what happened to them.
    pub fn restore(limits: CoreLimits, groups: BTreeMap<Arc<str>, GroupSettings>, kept: Kept) -> Self {
        let Kept { tasks, items, losses, notices, batches, entering, groups: before, counters, is_rebased } =
            kept;
        let mut core = Self::new(limits, BTreeMap::new());
        core.queue.set_groups(before);
        core.configure(limits, groups);
        (core.seq, core.written_seq) = (counters.seq, counters.seq);
        // If the journal was damaged, some rows may be missing.
        let last_notice = notices.last().map(|(number, _)| *number);
        core.last_notice = counters.notices.max(last_notice.unwrap_or_default());
        for (id, batch) in batches {
            if let Some(jobs) = batch.limits.jobs {
                core.queue.limit_batch(id, jobs);
            }
            core.batches.insert(id, batch);
        }
        let mut seen = SeenValues::default();
        for (ordinal, row) in tasks {
            core.registry.continue_numbering_after(last_named(row.task.plan()));
            let is_changed = is_rebased && is_timed(&row.task);
            core.unwritten.extend(is_changed.then_some(ordinal));
            core.add_restored(ordinal, row, &mut seen);
        }
        core.registry.continue_numbering_after(counters.last);
        let items = items.into_iter().map(|(number, row)| (number, row.session, row.notice));
        let losses = losses.into_iter().map(|(number, row)| (number, row.session, row.lost));
        core.inboxes.fill(&counters.inboxes, items, losses);
        let is_entering = |id| entering.iter().any(|left| left.batch == id);
        let has_none =
            |(id, batch): (&TaskId, &Batch)| (batch.members == 0 && !is_entering(*id)).then_some(*id);
        for id in core.batches.known.iter().filter_map(has_none).collect::<Vec<_>>() {
            core.batches.remove(id);
        }
        for mut left in entering {
            core.registry.continue_numbering_after(last_named(&left.plan));
            let is_known = |item: &crate::input::BatchItem| core.registry.ordinal(item.id).is_some();
            // If the batch knows how many are left, it may have added others that were cleared since.
            let rest = core.batches.known.get(&left.batch).and_then(|batch| batch.left);
            let added = rest.map_or(0, |rest| left.items.len().saturating_sub(rest));
            let added = left.items.iter().rposition(is_known).map_or(added, |last| added.max(last + 1));
            left.items.drain(..added);
            left.bytes = left.items.iter().map(|item| left.each + crate::held::argv_bytes(&item.argv)).sum();
            (left.to, left.again) = (NOBODY, Vec::new());
            left.is_changed |= is_rebased && is_delayed(&left.plan);
            core.written_entering.insert(left.batch);
            core.batches.known.entry(left.batch).or_default();
            core.await_entry(left);
            core.give_way(GivesWay::TO_TASKS);
        }
        core.drop_former_groups();
        core
    }

    fn add_restored(&mut self, ordinal: Ordinal, row: TaskRow, seen: &mut SeenValues) {
        let TaskRow { task, slots, kept } = row;
        let (standing, deadline, time) = (Standing::from(&*task), task.deadline(), wall_time(&task));
        let watches = matches!(task.state, State::Queued { .. }) || task.waits_elsewhere();
        let unmet = task.plan().after.iter().filter(|one| watches && !one.met).map(|one| one.ordinal);
        for other in unmet {
            self.dependents.entry(other).or_default().insert(ordinal);
        }
        if let Some(client) = task.foreground {
            self.foreground.insert((client, ordinal));
        }
        self.registry.insert_again(ordinal, *task, kept.map(|kept| kept.0), seen);
        match &standing {
            Standing::HasSlots(demand) => self.queue.resume(ordinal, demand, &slots),
            Standing::Waits(_) | Standing::Out => {
                self.queue.change(ordinal, &Standing::Out, &standing);
            }
        }
        self.retime_to(ordinal, None, deadline);
        self.wall_timers.extend(time.map(|at| (at, ordinal)));
    }

    /// Returns the tasks that have a run, or processes that outlived their run.
    pub fn with_runs(&self) -> Vec<Snapshot> {
        let tasks = self.registry.iter().filter(|(_, task)| task.has_run());
        tasks.map(|(_, task)| Box::new(task.clone())).collect()
    }

    /// Returns the clients that had foreground jobs.
    pub fn clients_before(&self) -> Vec<u64> {
        let mut clients: Vec<u64> = self.foreground.iter().map(|(client, _)| *client).collect();
        clients.dedup();
        clients
    }

    /// Requeues a task whose process was about to be started, but certainly was not. `has_descriptors` says whether the
    /// descriptors sent with it are still there. Returns false if the task is to end, its environment was not kept, or it
    /// needs descriptors that are gone.
    #[must_use]
    pub fn take_back_start(&mut self, id: TaskId, has_descriptors: bool) -> bool {
        let Some(ordinal) = self.registry.ordinal(id) else { return false };
        let env = self.registry.get(ordinal).and_then(|task| match &task.state {
            State::Starting { stop: None, env, .. } if has_descriptors || !task.spec.takes_descriptors() => {
                let kept = || self.registry.kept_env(ordinal).cloned();
                env.as_ref().map(|KeptEnv(env)| env.clone()).or_else(kept)
            }
            State::Starting { .. }
            | State::Queued { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Finished(_)
            | State::Resuming(_) => None,
        });
        let Some(env) = env else { return false };
        self.set_state(ordinal, State::Queued { env });
        true
    }

    /// Returns a task's run on another machine or a cluster that continues after the previous daemon; `None` if it has
    /// none.
    pub fn run_elsewhere(&self, now: Now, id: TaskId) -> Option<KnownRun> {
        let ordinal = self.registry.ordinal(id)?;
        let task = self.registry.get(ordinal).filter(|task| task.spec.is_elsewhere())?;
        let (has_started, stop) = match &task.state {
            State::Starting { stop, .. } => {
                let known = |StopOrder { signal, grace_ms, .. }| KnownStop { signal, grace_ms };
                (false, stop.map(known))
            }
            State::Running { .. } => (true, None),
            State::Stopping { kill_at: Some(kill_at), .. } => {
                let signal =
                    task.elsewhere.as_ref().and_then(|known| known.signal).map_or(SIGTERM, NonZeroI32::get);
                (true, Some(KnownStop { signal, grace_ms: kill_at.0.saturating_sub(now.mono.0) }))
            }
            State::Stopping { kill_at: None, .. } => (true, Some(KnownStop { signal: SIGKILL, grace_ms: 0 })),
            State::Queued { .. } | State::Finished(_) | State::Resuming(_) => return None,
        };
        let again = task.plan().again.as_deref();
        let env = task.state.env().or_else(|| again.map(|again| &again.env));
        Some(KnownRun {
            task: id,
            run: task.run,
            spec: task.spec.clone(),
            env: env.or_else(|| self.registry.kept_env(ordinal)).cloned(),
            place: Box::new(self.run_place(ordinal, task)),
            elsewhere: task.elsewhere.as_deref().cloned().unwrap_or_default(),
            has_started,
            is_held: task.plan().held,
            is_paused: task.paused,
            is_ready: task.ready_at.is_some(),
            stop,
            base: again.map_or([0; 2], |again| again.offset),
        })
    }

    /// Returns the runs elsewhere that have ended since this time and whose usage is still unknown.
    pub fn uncounted(&self, since: Timestamp) -> Vec<UsagePending> {
        let uncounted = |task: &Task| {
            let ended =
                task.finished().filter(|end| end.started_at.is_some() && end.completed_at >= since)?;
            let id = task.elsewhere.as_ref().filter(|_| task.spec.is_elsewhere())?.id.clone()?;
            let is_counted = task.usage.is_some() || ended.lingering != Lingering::No;
            (!is_counted).then_some(UsagePending {
                task: task.id,
                run: task.run,
                spec: task.spec.clone(),
                id,
            })
        };
        self.registry.iter().filter_map(|(_, task)| uncounted(task)).collect()
    }

    /// Returns the effects to repeat for a run that outlived the previous daemon: its pause, its SIGKILL, or an order
    /// that its processes may not have received. A delivered signal is not sent twice.
    #[must_use]
    pub fn orders_again(&mut self, now: Now, id: TaskId) -> Vec<Effect> {
        let Some(ordinal) = self.registry.ordinal(id) else { return Vec::new() };
        let order = self.take_order(ordinal);
        let again = self.registry.get(ordinal).and_then(|task| match &task.state {
            State::Running { .. } if task.paused => Some(commands::control(task, Control::Pause)),
            State::Stopping { kill_at: None, .. } => Some(commands::kill(task)),
            // A run whose start was given up may have begun since.
            State::Finished(finished)
                if matches!(finished.lingering, Lingering::Ending(None) | Lingering::Stuck) =>
            {
                Some(commands::kill(task))
            }
            State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Finished(_)
            | State::Resuming(_) => None,
        });
        let repeat = || order.and_then(|order| self.order_again(now, ordinal, order));
        again.or_else(repeat).into_iter().collect()
    }

    /// Ends the runs of these tasks, whose fate is unknown, each for its reason. `has_descriptors` says of which tasks
    /// the descriptors sent with them are still there.
    #[must_use]
    pub fn lose(
        &mut self,
        now: Now,
        tasks: &[(TaskId, &str)],
        has_descriptors: impl Fn(TaskId) -> bool,
    ) -> Vec<Effect> {
        for (id, why) in tasks {
            if let Some(ordinal) = self.registry.ordinal(*id) {
                self.lose_one(now, ordinal, why);
            }
        }
        // Some of the tasks may be retried.
        self.end_without_descriptors(now, has_descriptors);
        self.propagate(now);
        self.take_effects()
    }

    /// Ends the pending tasks that can never start: those that need descriptors sent with them, which were lost with
    /// the previous daemon, and those that wait for a task lost from a damaged journal. `has_descriptors` says of which
    /// tasks the descriptors are still there. Must be called before anything can start.
    #[must_use]
    pub fn end_unstartable(&mut self, now: Now, has_descriptors: impl Fn(TaskId) -> bool) -> Vec<Effect> {
        self.end_without_descriptors(now, has_descriptors);
        self.end_rest_of_failed_batches(now);
        let lost = self.dependents.iter().filter(|(other, _)| self.registry.get(**other).is_none());
        let waiting: BTreeSet<Ordinal> = lost.flat_map(|(_, waiting)| waiting.iter().copied()).collect();
        for ordinal in waiting {
            if self.registry.get(ordinal).is_some_and(|task| matches!(task.state, State::Queued { .. })) {
                self.end_after_lost(now, ordinal);
            }
        }
        self.propagate(now);
        self.take_effects()
    }

    /// Ends a pending task that waits for a task lost from a damaged journal.
    pub(super) fn end_after_lost(&mut self, now: Now, ordinal: Ordinal) {
        let failed = Failure::Unstartable(Need::Dependency);
        self.end(now, ordinal, self.unstarted(now, ordinal, Outcome::Failed(failed)));
    }

    /// Ends what is pending of batches in which too many tasks have failed: the previous daemon was killed before it had
    /// ended all of it.
    fn end_rest_of_failed_batches(&mut self, now: Now) {
        let failed_of = |task: &Task| {
            let batch = self.batches.known.get(&task.plan().batch?)?;
            (batch.is_stopped && matches!(task.state, State::Queued { .. })).then_some(batch.failed)
        };
        let rest = self.registry.iter().filter_map(|(ordinal, task)| Some((ordinal, failed_of(task)?)));
        for (ordinal, failed) in rest.collect::<Vec<_>>() {
            self.finish_unstarted(now, ordinal, Outcome::Cancelled(StopReason::MaxFails(failed)));
        }
    }

    fn end_without_descriptors(&mut self, now: Now, has_descriptors: impl Fn(TaskId) -> bool) {
        let needs = |task: &Task| {
            let is_pending = matches!(task.state, State::Queued { .. });
            is_pending && task.spec.takes_descriptors() && !has_descriptors(task.id)
        };
        let tasks = self.registry.iter().filter(|(_, task)| needs(task));
        for ordinal in tasks.map(|(ordinal, _)| ordinal).collect::<Vec<_>>() {
            let failed = Failure::Unstartable(Need::Descriptors);
            self.end(now, ordinal, self.unstarted(now, ordinal, Outcome::Failed(failed)));
        }
    }

    fn lose_one(&mut self, now: Now, ordinal: Ordinal, why: &str) {
        self.drop_undelivered(ordinal);
        let Some(task) = self.registry.get(ordinal) else { return };
        let failed = match &task.agent {
            Some(_) => Failure::Interrupted(why.into()),
            None => Failure::Elsewhere { cause: Cause::Lost, message: why.into() },
        };
        let mut exit = task.agent.is_none().then(|| Exit::Unknown(why.into()));
        let (pid, started_at, outcome) = match &task.state {
            State::Queued { .. } => return,
            State::Starting { stop, .. } => {
                let outcome = stop.map_or(Outcome::Failed(failed), |order| verdict_of_stop(order.reason));
                if stop.is_some() {
                    // This attempt may have begun: the exit of the one before is not its own.
                    let unstarted = self.unstarted(now, ordinal, outcome);
                    return self.end(now, ordinal, Finished { pid: None, exit: None, ..unstarted });
                }
                // Only an attempt that has begun is followed by another.
                self.note_attempt(now, ordinal);
                return self.finish(now, ordinal, self.failed_start(now, ordinal, outcome));
            }
            State::Running { pid, started_at, .. } => (*pid, *started_at, Outcome::Failed(failed)),
            State::Stopping { pid, started_at, reason, exit: Some(known), .. } => {
                exit = Some(known.clone());
                (*pid, *started_at, verdict_of_tree(*reason, known))
            }
            State::Stopping { pid, started_at, reason, .. } => (*pid, *started_at, verdict_of_stop(*reason)),
            // As if the agent had not accepted the prompt.
            State::Resuming(resuming) => {
                let finished = resuming.finished.clone();
                return self.set_state(ordinal, State::Finished(finished));
            }
            State::Finished(_) => return self.settle(now, ordinal, Lingering::No),
        };
        let completed_at = now.wall;
        let started_at = Some(started_at);
        let finished = Finished {
            outcome,
            pid,
            started_at,
            completed_at,
            exit,
            lingering: Lingering::No,
            in_foreground: false,
        };
        self.finish(now, ordinal, finished);
    }

    /// Notes that a batch lacks a task: a client that submits the batch again with its key gets an error.
    fn tear_batch(&mut self, ordinal: Ordinal) {
        let batch = self.registry.get(ordinal).and_then(|task| task.plan().batch);
        if let Some(key) =
            batch.and_then(|id| self.batches.known.get_mut(&id)).and_then(|batch| batch.key.as_mut())
        {
            key.is_torn = true;
        }
    }

    /// Returns the batches whose tasks are still being added.
    pub fn entering_batches(&self) -> impl Iterator<Item = TaskId> {
        self.batches.entering.iter().map(|entering| entering.batch)
    }

    /// Returns the batch of a task; `None` if it has none or the task is unknown.
    pub fn batch_of(&self, task: TaskId) -> Option<TaskId> {
        self.registry.get(self.registry.ordinal(task)?)?.plan().batch
    }

    /// Returns the tasks of these batches.
    pub fn batch_members(&self, batches: &[TaskId]) -> Vec<TaskId> {
        if batches.is_empty() {
            return Vec::new();
        }
        let is_member = |task: &Task| task.plan().batch.is_some_and(|batch| batches.contains(&batch));
        self.registry.iter().filter(|(_, task)| is_member(task)).map(|(_, task)| task.id).collect()
    }

    /// Ends and removes tasks whose submission could not be persisted: they have not started, and may already have
    /// ended. Also drops the tasks of these batches that are still to be added; the effects include the replies to the
    /// clients that wait for the batches.
    #[must_use]
    pub fn withdraw(&mut self, now: Now, tasks: &[TaskId], batches: &[TaskId], why: &str) -> Vec<Effect> {
        self.drop_entering(|entering| batches.contains(&entering.batch));
        for id in tasks {
            if let Some(ordinal) = self.registry.ordinal(*id) {
                self.withdraw_one(now, ordinal, why);
            }
        }
        self.propagate(now);
        self.begin_postponed(now);
        self.fill_slots();
        self.take_effects()
    }

    fn withdraw_one(&mut self, now: Now, ordinal: Ordinal, why: &str) {
        match self.registry.get(ordinal).map(|task| &task.state) {
            Some(State::Queued { .. } | State::Starting { .. }) => {
                let failed = Failure::Spawn(Box::new(why.into()));
                let unstarted = self.unstarted(now, ordinal, Outcome::Failed(failed));
                // The refusal informs the submitter.
                self.end_without_notice(now, ordinal, unstarted);
            }
            Some(State::Finished(_)) => {}
            Some(State::Running { .. } | State::Stopping { .. } | State::Resuming(_)) | None => return,
        }
        self.tear_batch(ordinal);
        self.wait(now, self.waiter(None, &[ordinal], Until::Settled, WaitAction::Clear));
    }
}
