//! Submits runs: together if their requests are equal, and only once each even if an answer is lost.

use std::sync::Arc;
use std::time::Instant;

use bgd_shared::id::TaskId;

use super::Cluster;
use crate::core::{Fact, PlaceFact};
use crate::exec::slurm::batch::{Batch, PendingSubmission, UnconfirmedSubmission};
use crate::exec::slurm::costs::Costs;
use crate::exec::slurm::error::{self, CommandError};
use crate::exec::slurm::job::JobId;
use crate::exec::slurm::parse::Settings;
use crate::exec::slurm::run::Job;
use crate::exec::slurm::tools::NotSubmitted;
use crate::exec::slurm::turn::SubmitTurn;
use crate::exec::slurm::work::{self, Accepted};
use crate::os::watch;

impl Cluster {
    /// Queries the cluster's settings, before anything is submitted.
    pub(super) fn learn(&mut self) {
        if !std::mem::replace(&mut self.is_learning, true) {
            self.works.push(Box::pin(work::learn(self.tools.clone())));
        }
    }

    pub(super) fn learned(&mut self, now: Instant, result: Result<Settings, CommandError>) {
        match result {
            Ok(settings) => {
                self.known = Some(settings);
                self.reached();
            }
            Err(trouble) => {
                // Slurm's commands are missing or can't be used.
                if let CommandError::Refused(why) | CommandError::NoAccess(why) = &trouble {
                    while let Some(batch) = self.gathering.take(Some(u32::MAX)) {
                        self.not_submitted(&batch, why);
                    }
                    self.costs = Costs::default();
                    if self.runs.is_empty() && !self.may_have_left {
                        return;
                    }
                }
                self.failed(now, &trouble);
            }
        }
    }

    /// Submits the next runs with equal requests, at most this many.
    pub(super) fn submit(&mut self, most: u32) {
        let Some(batch) = self.gathering.take(Some(most)) else { return };
        let mut jobs = Vec::with_capacity(batch.tasks.len());
        for (index, (task, _)) in (0..).zip(&batch.tasks) {
            if let Some(run) = self.runs.get_mut(task) {
                run.place = Some((Arc::clone(&batch.key), index));
                self.by_place.insert((Arc::clone(&batch.key), index), *task);
                jobs.push((*task, Arc::clone(&run.job)));
                let (number, key) = (run.number, Arc::clone(&batch.key));
                self.send(*task, number, Fact::Elsewhere(PlaceFact::Submitting { key, index }));
            }
        }
        self.under_way[0] += 1;
        if self.tools.is_durable && !jobs.is_empty() {
            let left = jobs.iter().map(|(task, _)| *task).collect();
            self.pending.push(PendingSubmission { batch, jobs, left });
        } else {
            self.submit_now(batch, jobs);
        }
    }

    fn submit_now(&mut self, batch: Batch, jobs: Vec<(TaskId, Arc<Job>)>) {
        let watches = self.watch.is_none();
        let (turn, next) = SubmitTurn::after(self.before.take());
        self.before = Some(next);
        self.works.push(Box::pin(work::submit(self.tools.clone(), (batch, turn), jobs, watches)));
    }

    /// Assigns the next turn, after all others.
    pub(super) fn next_turn(&mut self) -> u64 {
        self.last_turn += 1;
        self.last_turn
    }

    /// Sends the submissions that only waited until the core has recorded that this run may exist. If some of its runs
    /// were cancelled meanwhile, the others are submitted anew.
    pub(super) fn written_down(&mut self, now: Instant, task: TaskId) {
        for pending in &mut self.pending {
            pending.left.remove(&task);
        }
        let ready: Vec<PendingSubmission> = self.pending.extract_if(.., |one| one.left.is_empty()).collect();
        for PendingSubmission { batch, jobs, left: _ } in ready {
            let runs = self.of_batch(&batch);
            let is_wanted = |task: &TaskId| self.runs.get(task).is_some_and(|run| run.stop.is_none());
            if runs.len() == jobs.len() && runs.iter().all(|(_, task)| is_wanted(task)) {
                self.submit_now(batch, jobs);
            } else {
                self.under_way[0] -= 1;
                self.requeue(now, &batch);
            }
        }
    }

    pub(super) fn submitted(&mut self, now: Instant, batch: Batch, result: Result<Accepted, NotSubmitted>) {
        match result {
            Ok(Accepted { job, watch: inotify }) => {
                self.watch =
                    inotify.and_then(|inotify| watch::changes(inotify).ok()).or_else(|| self.watch.take());
                self.reached();
                self.room.accepted();
                self.uses_place();
                let is_array = batch.tasks.len() > 1;
                self.accepted(now, &batch, job, is_array);
            }
            Err(NotSubmitted::Unwritten(why) | NotSubmitted::CommandError(CommandError::NoAccess(why))) => {
                self.not_submitted(&batch, &why);
            }
            Err(NotSubmitted::CommandError(CommandError::Refused(why)))
                if batch.wish.dependency.is_some() && error::is_about_dependency(&why) =>
            {
                self.give_back_all(&batch);
            }
            Err(NotSubmitted::CommandError(CommandError::Gone)) if batch.wish.dependency.is_some() => {
                self.give_back_all(&batch);
            }
            Err(NotSubmitted::CommandError(CommandError::Refused(why))) => {
                self.not_submitted(&batch, &format!("the cluster rejected it: {why}"));
            }
            Err(NotSubmitted::CommandError(CommandError::Gone)) => {
                self.not_submitted(&batch, "the cluster rejected it: it does not know a job");
            }
            Err(NotSubmitted::CommandError(CommandError::Unanswered(why))) => {
                tracing::warn!(why, "it is not known whether jobs were submitted");
                self.uses_place();
                self.unsure.insert(Arc::clone(&batch.key), UnconfirmedSubmission::new(now, batch));
                self.failed(now, &CommandError::Unanswered(why));
            }
            Err(NotSubmitted::CommandError(CommandError::Full(why))) => self.put_off(now, &batch, &why),
            Err(NotSubmitted::NotYet) => self.requeue(now, &batch),
            Err(NotSubmitted::CommandError(trouble @ CommandError::Unreachable(_))) => {
                // Only submissions already in progress are repeated because of this one.
                self.before = None;
                self.failed(now, &trouble);
                self.requeue(now, &batch);
            }
        }
    }

    /// Notes that the cluster accepts no more jobs. Other commands still work, also those that end jobs and so make room.
    fn put_off(&mut self, now: Instant, batch: &Batch, why: &str) {
        self.room.refused(now, why);
        // There may be room for runs with other requests. Those with the same ones keep their order.
        let equal = self.gathering.withdraw_equal(&batch.wish);
        let refused = self.of_batch(batch).into_iter().map(|(_, task)| task);
        for task in refused.chain(equal.iter().copied()) {
            let turn = self.next_turn();
            self.runs.entry(task).and_modify(|run| run.turn = turn);
        }
        self.requeue(now, batch);
        for task in equal {
            self.gather(now, task);
        }
        let waiting: Vec<TaskId> = self.gathering.tasks().collect();
        for task in waiting {
            self.report_full(task);
        }
    }

    /// Reports about a run that is to be submitted that the cluster accepts no more jobs, if that is so and is news.
    pub(super) fn report_full(&mut self, task: TaskId) {
        let Some(why) = self.room.availability().why() else { return };
        let reason = format!("it accepts no more jobs now: {why}");
        let Some(run) = self.runs.get_mut(&task) else { return };
        let number = run.number;
        if run.note_reason(&reason) {
            self.send(task, number, Fact::Elsewhere(PlaceFact::Waiting { reason: reason.into() }));
        }
    }

    /// Returns the runs of a submission that are still wanted, with their indexes.
    pub(super) fn of_batch(&self, batch: &Batch) -> Vec<(u32, TaskId)> {
        let run = |(task, number): (TaskId, u32)| {
            let name = self.name_of(task, number);
            self.runs.get(&name).filter(|run| run.number == number && !run.is_concluded).map(|_| name)
        };
        (0..).zip(&batch.tasks).filter_map(|(index, known)| Some((index, run(*known)?))).collect()
    }

    pub(super) fn accepted(&mut self, now: Instant, batch: &Batch, job: u64, is_array: bool) {
        for (index, task) in self.of_batch(batch) {
            let Some(run) = self.runs.get_mut(&task) else { continue };
            let is_taken_up = run.is_to_compare;
            let id = JobId { job, index: is_array.then_some(index) };
            let (number, fact) = (run.number, run.accepted(now, id));
            if let Some(other) = self.by_id.insert(id, task).filter(|other| *other != task) {
                self.replaced(now, other);
            }
            self.costs.forget(id);
            self.parked.changed(task);
            self.send(task, number, fact);
            if !is_taken_up {
                self.order_late(now, task, &batch.wish);
            }
            self.order_end(task);
        }
        self.pace.note_activity(now);
        self.scan_by(now);
    }

    /// Notes that the id of a run now belongs to another job: the controller counts from the beginning again, and has
    /// forgotten the run.
    fn replaced(&mut self, now: Instant, task: TaskId) {
        if let Some(run) = self.runs.get_mut(&task) {
            run.is_forgotten(now);
            self.parked.changed(task);
        }
        // The run may have noted its end.
        self.scan_by(now);
        self.conclude(now, task);
    }

    fn not_submitted(&mut self, batch: &Batch, why: &str) {
        for (_, task) in self.of_batch(batch) {
            let number = self.runs.get(&task).map_or(0, |run| run.number);
            self.send(task, number, Fact::StartFailed { failure: why.into() });
            self.remove(task);
        }
    }

    /// Queues the runs of a submission again that the cluster does not have.
    fn requeue(&mut self, now: Instant, batch: &Batch) {
        for (_, task) in self.of_batch(batch) {
            let Some(run) = self.runs.get_mut(&task) else { continue };
            let (number, is_stopped) = (run.number, run.stop.is_some());
            if let Some(place) = run.place.take() {
                self.by_place.remove(&place);
            }
            if is_stopped {
                let failure = "it was cancelled before it was submitted".into();
                self.send(task, number, Fact::StartFailed { failure });
                self.remove(task);
            } else {
                self.gather(now, task);
            }
        }
    }

    pub(super) fn found(
        &mut self,
        now: Instant,
        key: &Arc<str>,
        result: Result<Option<JobId>, CommandError>,
    ) {
        match result {
            Ok(Some(JobId { job, index })) => {
                self.reached();
                if let Some(unsure) = self.unsure.remove(key) {
                    self.accepted(now, &unsure.batch, job, index.is_some());
                }
            }
            // Unreadable notes may show that the submission existed.
            Ok(None) if !self.has_scanned || self.reading.why().is_some() => {
                self.reached();
                if let Some(unsure) = self.unsure.get_mut(key) {
                    unsure.put_off(now);
                }
                self.scan_by(now);
            }
            Ok(None) => {
                self.reached();
                let is_missing = self.unsure.get_mut(key).is_some_and(|unsure| unsure.missed(now));
                if is_missing && let Some(unsure) = self.unsure.remove(key) {
                    if self.has_existed(now, &unsure.batch) {
                        return;
                    }
                    // If the submission arrives after all, its jobs find no files and end before they begin.
                    self.works.push(Box::pin(work::abandon(self.tools.clone(), Arc::clone(key))));
                    self.requeue(now, &unsure.batch);
                }
            }
            Err(trouble) => self.failed(now, &trouble),
        }
    }
}
