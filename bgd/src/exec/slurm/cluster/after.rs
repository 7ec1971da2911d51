//! Runs that depend on others of the same cluster (R150): once the cluster has the others, it keeps the dependent runs
//! from starting itself. Runs whose dependencies can no longer be followed are given back to the core, which judges
//! their end.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use bgd_shared::id::TaskId;

use super::Cluster;
use super::actions::ONLY_LOWER;
use crate::core::{Conclusion, Fact, PlaceFact, Verdict};
use crate::exec::slurm::batch::{Batch, JobRequest};
use crate::exec::slurm::work;

/// What to do with a run that may depend on others.
enum Following {
    /// Submit it with this dependency, if any.
    By(Option<Arc<str>>),
    /// Wait until the others have ids that can be followed.
    Later,
    /// Give it back: one of the others has ended, or is about to.
    Never,
}

impl Cluster {
    /// Queues a run for submission as soon as the runs that it depends on have ids.
    pub(super) fn gather(&mut self, now: Instant, task: TaskId) {
        let Some(run) = self.runs.get(&task) else { return };
        let dependency = match self.following(&run.awaits) {
            Following::By(dependency) => dependency,
            Following::Later => {
                let number = run.number;
                if self.parked.add(task, &run.awaits) {
                    // The cluster's own name for the reason.
                    let fact = PlaceFact::Waiting { reason: "Dependency".into() };
                    self.send(task, number, Fact::Elsewhere(fact));
                }
                return;
            }
            Following::Never => return self.give_back(task),
        };
        let (wish, number, turn) =
            (JobRequest::of(run, &self.settings.resources, dependency), run.number, run.turn);
        if run.priority > 0 {
            self.refused(task, number, None, ONLY_LOWER);
        }
        self.gathering.add(now, wish, (task, number), turn);
        self.report_full(task);
    }

    fn following(&self, awaits: &[TaskId]) -> Following {
        let mut text = String::new();
        for task in awaits {
            let Some(run) = self.runs.get(task).filter(|run| run.can_be_followed()) else {
                return Following::Never;
            };
            match run.id {
                // A cluster forgets an array element that is cancelled before it starts, and treats forgotten jobs as
                // completed.
                Some(id) if id.index.is_none() || !run.is_waiting() => {
                    // Writing to a string can't fail.
                    let _ = write!(text, ":{id}");
                }
                Some(_) | None => return Following::Later,
            }
        }
        Following::By((!text.is_empty()).then(|| format!("afterok{text}").into()))
    }

    /// Checks again the runs that wait for the ids of others, if any of those has changed.
    pub(super) fn unpark(&mut self, now: Instant) {
        // A run that is given back changes those that follow it.
        while let Some(task) = self.parked.take_due() {
            let follows = self.runs.get(&task).map(|run| self.following(&run.awaits));
            if !matches!(follows, Some(Following::Later)) {
                self.parked.remove(task);
                self.gather(now, task);
            }
        }
    }

    /// Gives back to the core a run that the cluster does not have and will not start.
    pub(super) fn give_back(&mut self, task: TaskId) {
        let Some(run) = self.runs.get(&task) else { return };
        let (number, env) = (run.number, Arc::clone(&run.job.env));
        if let Some((key, index)) = run.place.clone() {
            self.works.push(Box::pin(work::discard(self.tools.clone(), Arc::clone(&key), index)));
            self.leave(&(key, index), run.job.spec.split, run.restarts());
        }
        self.send(task, number, Fact::Elsewhere(PlaceFact::GivenBack { env }));
        self.remove(task);
    }

    /// Gives back all runs of a submission.
    pub(super) fn give_back_all(&mut self, batch: &Batch) {
        for (_, task) in self.of_batch(batch) {
            self.give_back(task);
        }
    }

    /// Returns whether a run has this conclusion because it can't follow another run, rather than on request.
    pub(super) fn has_nothing_to_follow(&self, task: TaskId, conclusion: &Conclusion) -> bool {
        let Some(run) = self.runs.get(&task).filter(|run| run.is_waiting() && run.stop.is_none()) else {
            return false;
        };
        let has_failed = |other: &TaskId| self.runs.get(other).is_none_or(|other| !other.can_be_followed());
        let is_left = run.follows_nothing() || !run.is_reported_ended() && run.awaits.iter().any(has_failed);
        let is_unstarted = match conclusion.verdict {
            Verdict::Cancelled | Verdict::Failed(..) | Verdict::NotReady(_) => true,
            Verdict::ByExit => false,
        };
        !run.awaits.is_empty() && is_left && is_unstarted
    }
}
