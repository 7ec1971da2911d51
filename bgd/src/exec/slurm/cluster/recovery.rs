//! Jobs from before an upgrade or of an earlier daemon: known runs are resumed, and jobs of no known run are ended.
//! Also holds back files so that the next daemon can do the same.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use bgd_shared::id::TaskId;

use super::Cluster;
use crate::exec::slurm::batch::{Batch, JobRequest, UnconfirmedSubmission};
use crate::exec::slurm::job::{self, JobId};
use crate::exec::slurm::parse;
use crate::exec::slurm::run::Run;
use crate::exec::slurm::states::{self, Standing};
use crate::exec::slurm::work::{self, Files};

impl Cluster {
    /// Resumes a run that was left by an earlier daemon.
    pub(super) fn take_up(&mut self, now: Instant, task: TaskId, mut run: Run) {
        let (number, place, id, has_started) = (run.number, run.place.clone(), run.id, !run.is_waiting());
        let stop = run.stop.take();
        // A run that was never submitted has no job to be compared with.
        run.is_to_compare = place.is_some();
        if place.is_some() {
            self.uses_place();
        }
        self.runs.insert(task, run);
        match place {
            None => self.gather(now, task),
            Some(place) => {
                self.by_place.insert(place.clone(), task);
                match id {
                    Some(id) => _ = self.by_id.insert(id, task),
                    None => self.doubt(now, place, (task, number)),
                }
            }
        }
        if has_started {
            self.started(task);
        }
        if let Some(signal) = stop {
            self.end(now, task, number, signal);
        }
        self.pace.note_activity(now);
        self.scan_by(now);
    }

    /// Notes that a run may have been submitted.
    fn doubt(&mut self, now: Instant, (key, index): (Arc<str>, u32), run: (TaskId, u32)) {
        let unsure = self.unsure.entry(Arc::clone(&key)).or_insert_with(|| {
            let wish = JobRequest::default();
            UnconfirmedSubmission::new(now, Batch { key, wish, tasks: Vec::new() })
        });
        // The runs of the same submission that are unknown here have no owner.
        let nobody = (TaskId::from_u128(0), 0);
        let (index, tasks) = (index as usize, &mut unsure.batch.tasks);
        tasks.resize(tasks.len().max(index.saturating_add(1)), nobody);
        if let Some(place) = tasks.get_mut(index) {
            *place = run;
        }
    }

    /// Notes that a search found no job of a submission. Returns whether some of its jobs are known to have existed:
    /// then all of them did, and the cluster has forgotten them.
    pub(super) fn has_existed(&mut self, now: Instant, batch: &Batch) -> bool {
        let tasks: Vec<TaskId> = self.of_batch(batch).into_iter().map(|(_, task)| task).collect();
        let was_there = |task: &TaskId| self.runs.get(task).is_some_and(Run::is_there);
        if !tasks.iter().any(was_there) {
            return false;
        }
        for task in tasks {
            if let Some(run) = self.runs.get_mut(&task) {
                run.is_forgotten(now);
                self.parked.changed(task);
            }
            self.conclude(now, task);
        }
        // The jobs may have noted their ends.
        self.scan_by(now);
        true
    }

    /// Handles an answer of the cluster: ends the jobs in it that have this daemon's name but belong to no known run.
    /// Only done until it has succeeded, as all other jobs were submitted by this daemon.
    pub(super) fn end_unknown(&mut self, text: &str) {
        if !self.may_have_left || self.is_ending_unknown {
            return;
        }
        let keys: HashSet<&str> = self.by_place.keys().map(|(key, _)| &**key).collect();
        let places = |line: &parse::Listed<'_>| {
            let place = (Arc::from(line.key), line.id.index.unwrap_or(0));
            self.by_place.contains_key(&place)
        };
        let is_unknown = |line: &parse::Listed<'_>| {
            let is_over = matches!(states::standing(line.state), Standing::Ended(_));
            let is_known = self.by_id.contains_key(&line.id)
                || places(line)
                // The job's comment was changed.
                || !job::is_key(line.key) && !keys.is_empty();
            !is_over && !is_known
        };
        let unknown: Vec<JobId> = parse::queue(text).filter(is_unknown).map(|line| line.id).collect();
        self.may_have_left = !unknown.is_empty();
        if self.may_have_left {
            self.is_ending_unknown = true;
            self.works.push(Box::pin(work::end_unknown(self.tools.clone(), unknown)));
        }
    }

    /// Notes whether all jobs of no known run were ended. If not, the cluster's next answer shows those that are left.
    pub(super) fn ended_unknown(&mut self, now: Instant, are_all_ended: bool) {
        (self.is_ending_unknown, self.may_have_left) = (false, !are_all_ended);
        if !are_all_ended {
            self.pace.answered(now, false, true);
        }
    }

    /// Notes that a run has ended, so that its files can be removed once its end is recorded.
    pub(super) fn has_ended(&mut self, task: TaskId, run: u32, files: Files) {
        let is_known = self.runs.get(&task).is_some_and(|known| known.number == run && !known.is_given_up);
        if self.tools.is_durable && is_known {
            self.ended.insert((task, run), files);
        } else {
            self.clean(files);
        }
    }

    /// Removes the files of these runs of a task; their ends are recorded.
    pub(super) fn remove_concluded(&mut self, task: TaskId, runs: RangeInclusive<u32>) {
        let (first, last) = runs.into_inner();
        let range = (task, first)..=(task, last);
        let over: Vec<Files> = self.ended.extract_if(range, |_, _| true).map(|(_, files)| files).collect();
        for files in over {
            self.clean(files);
        }
    }

    pub(super) fn clean(&mut self, files: Files) {
        if self.is_far() {
            self.leave(&files.place, files.split, files.restarts);
        } else {
            self.works.push(Box::pin(work::clean(self.tools.clone(), files)));
        }
    }

    /// Continues work that waited until a fact about this run was recorded.
    pub(super) fn written(&mut self, now: Instant, task: TaskId, run: u32) {
        let copy = self.login_work.copies.get_mut(&task).filter(|copy| copy.run == run && copy.unwritten > 0);
        if let Some(copy) = copy {
            copy.unwritten -= 1;
            return self.copy_more(now);
        }
        self.written_down(now, task);
    }
}
