//! Which runs are submitted together: those that ask the cluster for the same become one job array. Pure.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::resources::Resources;

use super::run::{Job, Run};

/// How long more runs are waited for after the last one: those of a large batch come in several turns.
const GATHER: Duration = Duration::from_millis(50);

/// How long runs are gathered at most.
const GATHER_MOST: Duration = Duration::from_millis(500);

/// When a submission whose answer was lost is looked for, and how long after that again.
const LOOK_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// How many runs one submission has at most, whatever the cluster allows: their files are written in one go.
const ELEMENTS: usize = 10_000;

/// What a run asks of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Resources.
    pub resources: Resources,
    /// The time limit, in milliseconds.
    pub time_limit_ms: Option<u64>,
    /// What it is to follow, as Slurm words it.
    pub dependency: Option<Arc<str>>,
    /// Whether it must not start until it is released.
    pub is_held: bool,
    /// How far its priority is lowered.
    pub nice: u32,
}

impl Wish {
    /// Returns what a run asks for that is to follow this; `defaults` is what it has not said.
    pub fn of(run: &Run, defaults: &Resources, dependency: Option<Arc<str>>) -> Self {
        let spec = &run.job.spec;
        let own = spec.on.as_ref().map(|on| on.resources.clone()).unwrap_or_default();
        Self {
            resources: own.over(defaults),
            time_limit_ms: spec.time_limit_ms,
            dependency,
            is_held: run.hold,
            nice: run.nice(),
        }
    }
}

/// A submission.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its key.
    pub key: Arc<str>,
    /// What it asks for.
    pub wish: Wish,
    /// The tasks with their runs, in the order of their indexes.
    pub tasks: Vec<(TaskId, u32)>,
}

/// Runs that are to be submitted.
#[derive(Debug, Default)]
pub struct Gathering {
    waiting: Vec<(Wish, TaskId, u32)>,
    /// When the first of them came.
    first: Option<Instant>,
    due: Option<Instant>,
}

impl Gathering {
    /// Adds a run.
    pub fn add(&mut self, now: Instant, wish: Wish, task: TaskId, run: u32) {
        self.waiting.push((wish, task, run));
        let first = *self.first.get_or_insert(now);
        self.due = Some((now + GATHER).min(first + GATHER_MOST));
    }

    /// Takes out a run. Returns whether it was there.
    pub fn withdraw(&mut self, task: TaskId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(_, waiting, _)| *waiting != task);
        self.waiting.len() < before
    }

    /// When the next submission is due.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.waiting.is_empty())
    }

    /// Takes the runs that are submitted together with the first one, at most as many as an array may have elements.
    pub fn take(&mut self, max_elements: Option<u32>) -> Option<Batch> {
        let wish = self.waiting.first().map(|(wish, ..)| wish.clone())?;
        let most = max_elements.map_or(1, |most| most.max(1) as usize).min(ELEMENTS);
        let mut count = 0;
        let taken = self.waiting.extract_if(.., |(other, ..)| {
            count += usize::from(*other == wish);
            *other == wish && count <= most
        });
        let tasks = taken.map(|(_, task, run)| (task, run)).collect();
        if self.waiting.is_empty() {
            (self.first, self.due) = (None, None);
        }
        let key = uuid::Uuid::new_v4().simple().to_string().into();
        Some(Batch { key, wish, tasks })
    }
}

/// A submission that waits until it is written down that it may be there.
#[derive(Debug)]
pub struct Unwritten {
    /// The submission.
    pub batch: Batch,
    /// What is submitted.
    pub jobs: Vec<(TaskId, Arc<Job>)>,
    /// The tasks of which that is not written down.
    pub left: HashSet<TaskId>,
}

/// A submission whose answer was lost: it may be there.
#[derive(Debug)]
pub struct Unsure {
    /// The submission.
    pub batch: Batch,
    /// When it is looked for.
    pub at: Instant,
    /// How often it was looked for in vain.
    pub misses: usize,
}

impl Unsure {
    /// Creates one that is looked for soon.
    pub fn new(now: Instant, batch: Batch) -> Self {
        Self { batch, at: now + LOOK_AFTER[0], misses: 0 }
    }

    /// Puts off the next look: it is not known yet what its jobs have noted.
    pub fn put_off(&mut self, now: Instant) {
        self.at = now + LOOK_AFTER[0];
    }

    /// Notes that it was not found. Returns whether that is believed: it is not there.
    pub fn missed(&mut self, now: Instant) -> bool {
        self.misses += 1;
        self.at = now + LOOK_AFTER[1];
        self.misses >= LOOK_AFTER.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::slurm::job;

    #[test]
    fn r150_equal_runs_become_arrays_of_bounded_size() {
        let (mut gathering, now) = (Gathering::default(), Instant::now());
        let wish = |cpus| Wish {
            resources: Resources { cpus: Some(cpus), ..Resources::default() },
            time_limit_ms: None,
            dependency: None,
            is_held: false,
            nice: 0,
        };
        for number in 0..25 {
            gathering.add(now, wish(1 + u32::from(number % 5 == 0)), TaskId::from_u128(number), 1);
        }
        assert!(gathering.withdraw(TaskId::from_u128(24)) && !gathering.withdraw(TaskId::from_u128(24)));
        let mut sizes = Vec::new();
        while let Some(batch) = gathering.take(Some(15)) {
            assert!(job::is_key(&batch.key) && !job::is_key("(null)") && !job::is_key(&batch.key[1..]));
            sizes.push((batch.wish.resources.cpus, batch.tasks.len()));
        }
        assert_eq!(sizes, [(Some(2), 5), (Some(1), 15), (Some(1), 4)]);
        assert_eq!(gathering.due(), None);
        gathering.add(now, wish(1), TaskId::from_u128(1), 1);
        gathering.add(now, wish(1), TaskId::from_u128(2), 1);
        assert_eq!(gathering.take(None).map(|batch| batch.tasks.len()), Some(1));
    }
}
