//! Naive model of batches.

use bgd_core::{
    BatchItem, BatchLimits, Command, CoreError, Now, OrderError, Part, ReplyTo, Spec, Work, env_bytes,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};

use super::super::expected::Answer;
use super::super::support::TERM;
use super::{Known, Model, Phase, TEXT_BYTES, Why, number, order};

/// A batch whose last part has not arrived.
#[derive(Clone, Debug)]
pub struct Staged {
    pub batch: TaskId,
    common: Command,
    limits: BatchLimits,
    items: Vec<BatchItem>,
    /// Memory of each task besides its command, and of the whole batch so far, in bytes.
    each: usize,
    bytes: usize,
}

/// A batch that has tasks.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub limits: BatchLimits,
    pub failed: u32,
    stopped: bool,
}

impl Staged {
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn session(&self) -> Option<&str> {
        self.common.spec.session.as_deref()
    }
}

fn bytes(item: &BatchItem) -> usize {
    item.argv.iter().map(|word| TEXT_BYTES + word.as_bytes().len()).sum()
}

impl Model {
    pub(super) fn submit_many(&mut self, now: Now, to: ReplyTo, part: &Part) -> Result<(), CoreError> {
        let before = self.staged.remove(&to.client);
        self.held -= before.as_ref().map_or(0, |staged| staged.bytes);
        let mut staged = match (before, &part.first) {
            (Some(staged), None) if staged.batch == part.batch => staged,
            (Some(staged), Some(_)) => {
                return Err(CoreError::Order(OrderError::AlreadyStaged(staged.batch)));
            }
            (_, None) => return Err(CoreError::Order(OrderError::NotStaged(part.batch))),
            (None, Some((common, limits))) => {
                let dependencies = self.order_of(now, &common.plan)?.after.len();
                Staged {
                    batch: part.batch,
                    common: Command::clone(common),
                    limits: *limits,
                    items: Vec::new(),
                    each: common.spec.own_bytes() + order::plan_bytes(&common.plan, dependencies),
                    bytes: common.spec.shared_bytes() + env_bytes(&common.env),
                }
            }
        };
        if self.closing {
            return Err(CoreError::ShuttingDown);
        }
        staged.bytes += part.items.iter().map(|item| staged.each + bytes(item)).sum::<usize>();
        staged.items.extend(part.items.iter().cloned());
        let after = self.order_of(now, &staged.common.plan).map(|order| order.after).unwrap_or_default();
        let (wanted, room) = (staged.items.len(), self.room(&after));
        if wanted > room {
            return Err(CoreError::Order(OrderError::LargeBatch { wanted, room }));
        }
        self.memory_for(staged.bytes)?;
        if part.more {
            self.staged.insert(to.client, staged);
        } else {
            self.add_batch(now, &staged)?;
        }
        let ids = part.items.iter().map(|item| item.id).collect();
        self.reply(Some(to), Answer::Many(part.batch, ids));
        Ok(())
    }

    fn add_batch(&mut self, now: Now, staged: &Staged) -> Result<(), CoreError> {
        let mut order = self.order_of(now, &staged.common.plan)?;
        order.batch = Some(staged.batch);
        self.gives_way = true;
        let batch = Batch { limits: staged.limits, failed: 0, stopped: false };
        self.batches.insert(staged.batch, batch);
        for BatchItem { id, argv } in &staged.items {
            let spec = Spec { work: Work::Argv(argv.clone()), ..staged.common.spec.clone() };
            let command = Command { id: *id, spec, ..staged.common.clone() };
            let task = Known { order: order.clone(), ..Known::new(now, &command, None) };
            self.live.insert(number(*id), task);
            self.expected.events.push((*id, EventKind::Submitted));
            self.judge(now, number(*id));
        }
        Ok(())
    }

    /// Counts a task that has failed for good.
    pub(super) fn count_failure(&mut self, number: u64) {
        let id = self.live.get(&number).and_then(|task| task.order.batch);
        let Some(batch) = id.and_then(|id| self.batches.get_mut(&id)) else { return };
        batch.failed += 1;
        if batch.limits.max_fails.is_some_and(|most| batch.failed >= most) && !batch.stopped {
            batch.stopped = true;
            self.overdue.extend(id);
        }
    }

    /// Applies the consequences of state changes of tasks.
    pub(super) fn settle(&mut self, now: Now) {
        self.judge_all(now);
        while !self.overdue.is_empty() {
            for id in std::mem::take(&mut self.overdue) {
                let failed = self.batches.get(&id).map_or(0, |batch| batch.failed);
                let rest = self.of(None, |task| task.order.batch == Some(id) && task.phase != Phase::Done);
                self.stop_all(now, &rest, Why::MaxFails(failed), TERM, self.limits.grace_ms);
            }
            self.judge_all(now);
        }
        self.forget_batches();
    }

    /// Forgets batches without tasks.
    pub(super) fn forget_batches(&mut self) {
        let live = &self.live;
        self.batches.retain(|id, _| live.values().any(|task| task.order.batch == Some(*id)));
    }

    /// Lets tasks compete for slots where their batches have room.
    pub(super) fn admit(&mut self) {
        for task in self.live.values_mut() {
            task.order.admitted &= task.phase == Phase::Pending && task.order.is_open();
        }
        for (id, batch) in &self.batches {
            let Some(jobs) = batch.limits.jobs else { continue };
            let is_in = |task: &Known| task.has_slot() || task.order.admitted;
            let of_batch = |task: &Known| task.order.batch == Some(*id);
            loop {
                let members = self.live.values().filter(|task| of_batch(task) && is_in(task)).count();
                let waits = |task: &Known| task.phase == Phase::Pending && task.order.is_open();
                let waiting =
                    self.live.iter_mut().filter(|(_, task)| of_batch(task) && waits(task) && !is_in(task));
                let first = waiting.min_by_key(|(number, task)| (-task.order.priority(), **number));
                let Some((_, task)) = first.filter(|_| members < jobs as usize) else { break };
                task.order.admitted = true;
            }
        }
    }

    /// Reports whether other tasks of its batch keep a task from competing for slots.
    pub fn is_parked(&self, task: &Known) -> bool {
        let batch = task.order.batch.and_then(|id| self.batches.get(&id));
        let is_open = task.phase == Phase::Pending && task.order.is_open();
        batch.is_some_and(|batch| batch.limits.jobs.is_some()) && is_open && !task.order.admitted
    }

    /// Finds a batch. The histories name batches by whole ids only.
    pub(super) fn batch_named(&self, reference: &TaskRef) -> Result<TaskId, CoreError> {
        let known = reference.exact().filter(|id| self.batches.contains_key(id));
        known.ok_or_else(|| CoreError::Order(OrderError::NoBatch(reference.as_str().into())))
    }

    /// Returns the number of running tasks of each batch with a `jobs` limit, and that limit.
    pub fn running_of_batches(&self) -> impl Iterator<Item = (usize, u32)> {
        let jobs = self.batches.iter().filter_map(|(id, batch)| Some((*id, batch.limits.jobs?)));
        jobs.map(|(id, jobs)| {
            let running = self.live.values().filter(|task| task.has_slot() && task.order.batch == Some(id));
            (running.count(), jobs)
        })
    }
}
