//! The usage of ended jobs according to the accounting (R164): one query covers all of them, in turn with the other
//! queries, and the usage is added to tasks that have already ended.

use std::time::Instant;

use bgd_shared::id::TaskId;

use super::Cluster;
use crate::core::Fact;
use crate::exec::slurm::costs::Costs;
use crate::exec::slurm::job::JobId;
use crate::exec::slurm::parse::{Record, Settings};
use crate::exec::slurm::work;

impl Cluster {
    /// Notes that a run has ended, so that its costs are queried if the cluster keeps any.
    pub(super) fn want_costs(&mut self, now: Instant, task: TaskId) {
        let Some(run) = self.runs.get(&task).filter(|run| !run.is_waiting()) else { return };
        if let Some(id) = run.id
            && self.known.as_ref().is_none_or(Settings::keeps_costs)
        {
            self.costs.ended(now, id, task, run.number);
        }
    }

    /// Schedules a query for the costs of a run that ended before an upgrade or under an earlier daemon.
    pub(super) fn count(&mut self, now: Instant, task: TaskId, run: u32, id: &str) {
        if let Some(id) = JobId::parse(id) {
            self.costs.ended(now, id, task, run);
        }
    }

    /// Returns when costs are to be queried.
    pub(super) fn costs_due(&self) -> Option<Instant> {
        let due = self.costs.due().filter(|_| !self.is_recording && !self.is_learning)?;
        Some(self.pace.free_at().map_or(due, |at| at.max(due)))
    }

    /// Queries costs, if that is due.
    pub(super) fn ask_costs(&mut self, now: Instant) {
        if self.costs_due().is_none_or(|at| at > now) {
            return;
        }
        match self.known.as_ref().map(Settings::keeps_costs) {
            Some(true) => {}
            Some(false) => return self.costs = Costs::default(),
            None => {
                // Counts as a query, so that an unreachable cluster is not asked forever.
                for job in self.costs.take(now) {
                    self.costs_known(now, job, None);
                }
                return self.learn();
            }
        }
        let jobs = self.costs.take(now);
        self.is_recording = true;
        self.pace.asks_more(now);
        self.works.push(Box::pin(work::record(self.tools.clone(), jobs)));
    }

    /// Handles the accounting's record of an ended job; `None` if there is none, or the accounting did not answer.
    pub(super) fn costs_known(&mut self, now: Instant, job: JobId, record: Option<&Record<'_>>) {
        let used = record.and_then(|record| record.used);
        let is_complete = used.is_some() && record.is_some_and(|record| record.is_final);
        if let Some(open) = self.costs.answered(now, job, is_complete)
            && let Some(used) = used
        {
            self.send(open.task, open.run, Fact::Used(used));
        }
    }
}
