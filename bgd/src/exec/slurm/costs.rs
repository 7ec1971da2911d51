//! Schedules the queries to the accounting for the usage of ended jobs (R164). The controller notifies the accounting
//! of ends with a delay, so no task waits for it: costs are added to tasks afterwards. Pure.

use std::collections::BTreeMap;
use std::iter;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;

use super::commands::RECORDS;
use super::job::JobId;
use crate::exec::elsewhere::due::Due;

/// The time from the end of a job to the first query. The time to each further query is twice as long.
const FIRST: Duration = Duration::from_secs(2);

/// The maximum number of queries for a job; the last one is a minute after the job's end.
const TRIES: u32 = 5;

/// The maximum number of jobs whose costs are awaited. Jobs that end beyond that have no costs.
const MOST: usize = 20_000;

/// A job whose costs are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    pub task: TaskId,
    pub run: u32,
    /// How often the accounting was queried for the job.
    tries: u32,
}

/// The jobs whose costs are awaited.
#[derive(Debug, Default)]
pub struct Costs {
    jobs: BTreeMap<JobId, Open>,
    /// When the accounting is queried for each job. Jobs with a query in progress are not included.
    due: Due<JobId>,
}

impl Costs {
    /// Notes that a job has ended.
    pub fn ended(&mut self, now: Instant, job: JobId, task: TaskId, run: u32) {
        if self.jobs.len() < MOST && self.jobs.insert(job, Open { task, run, tries: 0 }).is_none() {
            self.due.add(now + FIRST, job);
        }
    }

    /// Returns when the accounting is to be queried next; `None` if no query is scheduled.
    pub fn due(&self) -> Option<Instant> {
        self.due.next_at()
    }

    /// Takes the jobs that the accounting is queried for now, at most [`RECORDS`]. [`Self::answered`] must follow for
    /// each of them.
    pub fn take(&mut self, now: Instant) -> Vec<JobId> {
        iter::from_fn(|| self.due.take_due(now)).take(RECORDS).collect()
    }

    /// Notes that the accounting was queried for a job. Returns the job's task if its costs are now known
    /// (`is_complete`), or if this was the last query.
    pub fn answered(&mut self, now: Instant, job: JobId, is_complete: bool) -> Option<Open> {
        let open = self.jobs.get_mut(&job)?;
        open.tries += 1;
        if is_complete || open.tries >= TRIES {
            return self.jobs.remove(&job);
        }
        self.due.add(now + FIRST * 2_u32.pow(open.tries), job);
        None
    }

    /// Forgets a job whose id now belongs to another job.
    pub fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
        self.due.forget(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(job: u64) -> JobId {
        JobId { job, index: None }
    }

    #[test]
    fn r164_late_costs_are_queried_again_up_to_a_limit() {
        let start = Instant::now();
        let mut costs = Costs::default();
        assert_eq!(costs.due(), None);
        costs.ended(start, id(1), TaskId::from_u128(7), 3);
        assert!(costs.take(start).is_empty());
        let mut waits = Vec::new();
        let open = loop {
            let now = costs.due().unwrap();
            waits.push((now - start).as_secs());
            assert_eq!(costs.take(now), [id(1)]);
            assert_eq!(costs.due(), None, "one question at a time");
            if let Some(open) = costs.answered(now, id(1), false) {
                break open;
            }
        };
        assert_eq!((open.task, open.run), (TaskId::from_u128(7), 3));
        assert_eq!(waits, [2, 6, 14, 30, 62]);
        assert_eq!(costs.due(), None);
        assert_eq!(costs.answered(start, id(1), true), None);
    }

    #[test]
    fn r149_costs_are_queried_for_many_jobs_at_once() {
        let start = Instant::now();
        let mut costs = Costs::default();
        for job in 0..MOST as u64 + 5 {
            costs.ended(start, id(job), TaskId::from_u128(job.into()), 1);
        }
        let mut questions = 0;
        while let Some(now) = costs.due() {
            let jobs = costs.take(now);
            assert_eq!(jobs.len(), RECORDS);
            questions += 1;
            for job in jobs {
                assert!(costs.answered(now, job, true).is_some());
            }
        }
        assert_eq!(questions, MOST / RECORDS);
    }

    #[test]
    fn r164_reused_job_id_gets_no_costs_of_the_previous_job() {
        let start = Instant::now();
        let mut costs = Costs::default();
        for job in [1, 2] {
            costs.ended(start, id(job), TaskId::from_u128(job.into()), 1);
        }
        costs.forget(id(1));
        let now = costs.due().unwrap();
        assert_eq!(costs.take(now), [id(2)]);
        costs.forget(id(2));
        assert_eq!(costs.answered(now, id(2), true), None);
    }
}
