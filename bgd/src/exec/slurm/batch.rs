//! Determines which runs are submitted together: runs with the same requests to the cluster become one job array.
//! Submissions keep the order in which their runs were started, unless that would take many more submissions. Pure.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::resources::Resources;

use super::run::{Job, Run};

/// How long to wait for more runs after the last one: the runs of a large batch arrive in several steps.
const GATHER: Duration = Duration::from_millis(50);

/// The longest time for which runs are gathered.
const GATHER_MOST: Duration = Duration::from_millis(500);

/// The delay before a submission whose answer was lost is searched for, and the delay before the search is repeated.
const LOOK_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The maximum number of runs in one submission, whatever the cluster allows: their files are written in one go.
const ELEMENTS: usize = 10_000;

/// The maximum number of submissions that may be spent on keeping the order of the waiting runs. If more were needed,
/// runs with the same requests are submitted together, regardless of the runs started between them.
const IN_ORDER: usize = 20;

/// The requests of a run to the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobRequest {
    pub resources: Resources,
    /// The time limit, in milliseconds.
    pub time_limit_ms: Option<u64>,
    /// The runs to follow, in Slurm's syntax.
    pub dependency: Option<Arc<str>>,
    /// Whether it must not start until it is released.
    pub is_held: bool,
    /// How far its priority is lowered.
    pub nice: u32,
}

impl JobRequest {
    /// Returns the requests of a run with this dependency; `defaults` supplies the resources that the run does not
    /// specify.
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
    pub key: Arc<str>,
    pub wish: JobRequest,
    /// The tasks with their runs, in the order of their indexes.
    pub tasks: Vec<(TaskId, u32)>,
}

/// Runs to be submitted.
#[derive(Debug, Default)]
pub struct Gathering {
    /// By their turns, which determine the order of submission.
    waiting: BTreeMap<u64, (JobRequest, TaskId, u32)>,
    /// When the first of them was added.
    first: Option<Instant>,
    due: Option<Instant>,
}

impl Gathering {
    /// Adds a run. Runs with lower turns are submitted before it; each turn must be unique.
    pub fn add(&mut self, now: Instant, wish: JobRequest, (task, run): (TaskId, u32), turn: u64) {
        self.waiting.insert(turn, (wish, task, run));
        let first = *self.first.get_or_insert(now);
        self.due = Some((now + GATHER).min(first + GATHER_MOST));
    }

    /// Removes the run with this turn. Returns whether it was there.
    pub fn withdraw(&mut self, turn: u64) -> bool {
        self.waiting.remove(&turn).is_some()
    }

    /// Removes all runs with these requests. Returns their tasks, in the order of their turns.
    pub fn withdraw_equal(&mut self, wish: &JobRequest) -> Vec<TaskId> {
        let equal = self.waiting.extract_if(.., |_, (other, ..)| *other == *wish);
        equal.map(|(_, (_, task, _))| task).collect()
    }

    /// Returns the tasks of all runs.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.waiting.values().map(|(_, task, _)| *task)
    }

    /// Returns when the next submission is due.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.waiting.is_empty())
    }

    /// Takes the runs that are submitted together with the first one, at most `max_elements`; one if the cluster has no
    /// arrays.
    pub fn take(&mut self, max_elements: Option<u32>) -> Option<Batch> {
        let wish = self.waiting.first_key_value().map(|(_, (wish, ..))| wish.clone())?;
        let most = max_elements.map_or(1, |most| most.max(1) as usize).min(ELEMENTS);
        let is_in_order = self.changes(IN_ORDER) < IN_ORDER;
        let (mut count, mut is_past) = (0, false);
        let taken = self.waiting.extract_if(.., |_, (other, ..)| {
            let is_same = *other == wish;
            is_past |= is_in_order && !is_same;
            count += usize::from(is_same);
            is_same && !is_past && count <= most
        });
        let tasks = taken.map(|(_, (_, task, run))| (task, run)).collect();
        if self.waiting.is_empty() {
            (self.first, self.due) = (None, None);
        }
        let key = uuid::Uuid::new_v4().simple().to_string().into();
        Some(Batch { key, wish, tasks })
    }

    /// Returns how often a run has other requests than the previous one, counting up to `at_most`.
    fn changes(&self, at_most: usize) -> usize {
        let wishes = self.waiting.values().map(|(wish, ..)| wish);
        wishes.clone().zip(wishes.skip(1)).filter(|(one, next)| one != next).take(at_most).count()
    }
}

/// A submission that waits until the core has recorded that it may exist.
#[derive(Debug)]
pub struct PendingSubmission {
    pub batch: Batch,
    /// The jobs to submit.
    pub jobs: Vec<(TaskId, Arc<Job>)>,
    /// The tasks for which this is not recorded yet.
    pub left: HashSet<TaskId>,
}

/// A submission whose answer was lost, so that it may or may not exist.
#[derive(Debug)]
pub struct UnconfirmedSubmission {
    pub batch: Batch,
    /// When the submission is searched for.
    pub at: Instant,
    /// The number of failed searches.
    pub misses: usize,
}

impl UnconfirmedSubmission {
    /// Creates one with a search soon.
    pub fn new(now: Instant, batch: Batch) -> Self {
        Self { batch, at: now + LOOK_AFTER[0], misses: 0 }
    }

    /// Postpones the next search: the notes of its jobs are not known yet.
    pub fn put_off(&mut self, now: Instant) {
        self.at = now + LOOK_AFTER[0];
    }

    /// Notes that a search failed. Returns whether the submission is now presumed not to exist.
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

    fn wish(cpus: u32) -> JobRequest {
        JobRequest {
            resources: Resources { cpus: Some(cpus), ..Resources::default() },
            ..JobRequest::default()
        }
    }

    fn add(gathering: &mut Gathering, turn: u64, cpus: u32) {
        gathering.add(Instant::now(), wish(cpus), (TaskId::from_u128(turn.into()), 1), turn);
    }

    /// Takes all submissions, and returns the processors and the tasks of each.
    fn take_all(gathering: &mut Gathering, most: u32) -> Vec<(u32, Vec<u128>)> {
        let mut all = Vec::new();
        while let Some(batch) = gathering.take(Some(most)) {
            assert!(job::is_key(&batch.key) && !job::is_key("(null)") && !job::is_key(&batch.key[1..]));
            let tasks = batch.tasks.iter().map(|(task, _)| task.as_u128()).collect();
            all.push((batch.wish.resources.cpus.unwrap_or(0), tasks));
        }
        assert_eq!(gathering.due(), None);
        all
    }

    #[test]
    fn r150_equal_runs_become_job_arrays_of_bounded_size() {
        let mut gathering = Gathering::default();
        for turn in 0..125 {
            add(&mut gathering, turn, 1 + u32::from(turn % 5 == 0));
        }
        assert!(gathering.withdraw(124) && !gathering.withdraw(124));
        let sizes = take_all(&mut gathering, 60).into_iter().map(|(cpus, tasks)| (cpus, tasks.len()));
        assert!(sizes.eq([(2, 25), (1, 60), (1, 39)]));
        add(&mut gathering, 1, 1);
        add(&mut gathering, 2, 1);
        assert_eq!(gathering.take(None).map(|batch| batch.tasks.len()), Some(1));
    }

    #[test]
    fn r146_withdrawn_run_is_the_only_one_that_is_not_submitted() {
        let mut gathering = Gathering::default();
        assert!(!gathering.withdraw(1));
        for turn in 1..=4 {
            add(&mut gathering, turn, 1);
        }
        assert!(gathering.withdraw(3) && !gathering.withdraw(9));
        assert_eq!(take_all(&mut gathering, 60), [(1, vec![1, 2, 4])]);
        add(&mut gathering, 5, 1);
        assert!(gathering.withdraw(5));
        assert_eq!(gathering.due(), None, "nothing is left to be submitted");
    }

    #[test]
    fn r146_equal_runs_are_withdrawn_together_in_their_order() {
        let mut gathering = Gathering::default();
        for (turn, cpus) in [(2, 1), (5, 1), (3, 2), (4, 1)] {
            add(&mut gathering, turn, cpus);
        }
        let numbers = |tasks: Vec<TaskId>| tasks.iter().map(|task| task.as_u128()).collect::<Vec<_>>();
        assert_eq!(numbers(gathering.withdraw_equal(&wish(1))), [2, 4, 5]);
        assert_eq!(numbers(gathering.tasks().collect()), [3]);
    }

    #[test]
    fn r146_submissions_follow_the_order_of_runs() {
        let mut gathering = Gathering::default();
        // A run that was withdrawn and added again keeps its turn.
        for (turn, cpus) in [(2, 1), (3, 1), (5, 1), (4, 2), (6, 3), (1, 2)] {
            add(&mut gathering, turn, cpus);
        }
        let all = take_all(&mut gathering, 60);
        assert_eq!(all, [(2, vec![1]), (1, vec![2, 3]), (2, vec![4]), (1, vec![5]), (3, vec![6])]);
    }
}
