//! Handles information about runs: their notes, the cluster's answers, and the accounting's records.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::ready::Ready;

use super::Cluster;
use crate::core::{Cause, Fact, PlaceFact, Verdict};
use crate::exec::ready;
use crate::exec::slurm::actions::Action;
use crate::exec::slurm::error::CommandError;
use crate::exec::slurm::folder::Note;
use crate::exec::slurm::job::JobId;
use crate::exec::slurm::parse::{self, Record, ScriptExit};
use crate::exec::slurm::script::Noted;
use crate::exec::slurm::work::{self, Files, Settling};

impl Cluster {
    pub(super) fn noted(&mut self, now: Instant, note: &Note) {
        let Some(noted) = Noted::parse(&note.name) else { return };
        let place = (Arc::from(noted.batch), noted.index);
        let Some(task) = self.by_place.get(&place).copied() else { return };
        let Some(run) = self.runs.get_mut(&task) else { return };
        let facts = run.noted(now, (noted.kind, noted.restarts), &note.text, note.at);
        let is_ending = run.is_ending();
        self.parked.changed(task);
        self.report(now, task, facts);
        if is_ending {
            self.conclude(now, task);
            // The cluster may know the reason.
            if self.runs.get(&task).is_some_and(|run| !run.is_concluded) {
                self.pace.ask_now(now);
            }
        }
    }

    /// Reports facts about a run, and starts or stops the work that depends on whether it runs.
    fn report(&mut self, now: Instant, task: TaskId, facts: Vec<Fact>) {
        // The next attempt has the files of an earlier one.
        let Some(run) = self.runs.get(&task).filter(|run| !run.is_aside) else { return };
        let (number, is_concluded) = (run.number, run.is_concluded);
        for fact in facts {
            let has_started = matches!(fact, Fact::Elsewhere(PlaceFact::Started { .. }));
            let is_requeued = matches!(fact, Fact::Elsewhere(PlaceFact::Requeued { .. }));
            self.send(task, number, fact);
            if has_started && !is_concluded {
                self.started(task);
            }
            if is_requeued {
                self.readiness.remove(&task);
                self.look_at_base(task);
            }
            self.pace.note_activity(now);
            self.expect_more(now);
        }
    }

    /// Determines where the output of a run's next attempt begins.
    fn look_at_base(&mut self, task: TaskId) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        run.is_ready = false;
        if let Some(sizes) = self.tools.context.folder.sizes_unless_linked(task, run.job.spec.split) {
            return run.job.set_base(sizes);
        }
        run.base_looks += 1;
        let (number, job) = (run.number, Arc::clone(&run.job));
        self.works.push(Box::pin(work::base(self.tools.clone(), (task, number), job)));
    }

    /// Notes that the beginning of the output was determined.
    pub(super) fn based(&mut self, task: TaskId, number: u32) {
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number) else { return };
        run.base_looks = run.base_looks.saturating_sub(1);
        if run.base_looks == 0 && !run.is_waiting() && !run.is_concluded {
            self.started(task);
        }
    }

    pub(super) fn started(&mut self, task: TaskId) {
        let Some(run) = self.runs.get(&task) else { return };
        let (number, spec) = (run.number, Arc::clone(&run.job.spec));
        let context = self.tools.context.clone();
        self.follow(task);
        let Some(run) = self.runs.get(&task) else { return };
        if self.tracked.insert(task) {
            context.outputs.track(task, number, spec.split);
        }
        // The time of a start may be reported later than the start.
        let is_to_watch = !run.is_ready && run.base_looks == 0 && !self.readiness.contains_key(&task);
        if let Some(Ready::Line(pattern)) = spec.ready.as_deref().filter(|_| is_to_watch) {
            let files = context.folder.files(task, spec.split);
            let timeout = spec.ready_timeout_ms.map(Duration::from_millis);
            // The output of earlier attempts does not count.
            let sizes = run.job.base();
            let watching = ready::watch_line(pattern, (files, sizes), timeout, (task, number), context);
            self.readiness.insert(task, watching);
        }
    }

    /// Handles an answer to a query that began at `asked`.
    pub(super) fn answered(&mut self, now: Instant, asked: Instant, text: &str) {
        let mut has_activity = false;
        let mut listed: HashSet<JobId> = HashSet::with_capacity(self.by_id.len());
        for line in parse::queue(text) {
            let Some(task) = self.by_id.get(&line.id).copied() else { continue };
            let run = self.runs.get_mut(&task).filter(|run| run.may_have_key(line.key));
            // After a reset of the controller, an id may belong to another submission.
            let Some(run) = run else { continue };
            listed.insert(line.id);
            let actions = run.compare(line.state, line.reason);
            if actions.iter().any(|action| matches!(action, Action::Pause(_))) {
                run.distrust_answers(now);
            }
            let facts = run.listed(now, asked, line.state, line.reason);
            let is_ending = run.is_ending();
            has_activity |= !facts.is_empty() || is_ending;
            self.report(now, task, facts);
            for action in actions {
                self.order_action(now, action, task, None);
            }
            if is_ending {
                self.conclude(now, task);
            }
        }
        self.end_unknown(text);
        let has_accounting = self.known.as_ref().is_some_and(|known| known.has_accounting);
        let mut missing = Vec::new();
        let unlisted: Vec<(JobId, TaskId)> =
            self.by_id.iter().filter(|(id, _)| !listed.contains(id)).map(|(id, task)| (*id, *task)).collect();
        for (id, task) in unlisted {
            let Some(run) = self.runs.get_mut(&task).filter(|run| !run.is_concluded) else { continue };
            // While the accounting service does not answer, nothing changes.
            has_activity |= !run.awaits_record();
            if run.unlisted(asked, has_accounting) {
                missing.push(id);
                self.conclude(now, task);
            }
        }
        if !missing.is_empty() && has_accounting && !std::mem::replace(&mut self.is_recording, true) {
            missing.extend(self.costs.take(now));
            self.works.push(Box::pin(work::record(self.tools.clone(), missing)));
        }
        self.parked.all_changed();
        self.pace.answered(now, has_activity, !self.by_id.is_empty());
        if self.actions.has_doubts() {
            self.pace.ask_now(now);
        }
    }

    /// Handles the accounting's records of jobs that the queue no longer lists. Missing answers decide nothing.
    pub(super) fn recorded(
        &mut self,
        now: Instant,
        answered: &[(Vec<JobId>, String)],
        trouble: Option<(Vec<JobId>, CommandError)>,
    ) {
        for (asked, text) in answered {
            let known: HashMap<JobId, Record<'_>> =
                parse::records(text).into_iter().map(|record| (record.id, record)).collect();
            for id in asked {
                let record = known.get(id);
                let run = self.by_id.get(id).and_then(|task| self.runs.get_mut(task));
                if let Some(run) = run {
                    run.recorded(now, record.map(|record| (record.state, record.exit)));
                } else {
                    self.costs_known(now, *id, record);
                }
            }
        }
        if let Some((asked, trouble)) = trouble {
            tracing::warn!(?trouble, "the accounting service does not answer");
            let why: Arc<str> = format!("the accounting service can't be queried: {trouble}").into();
            for id in asked {
                self.costs_known(now, id, None);
                let Some(task) = self.by_id.get(&id).copied() else { continue };
                let run = self.runs.get_mut(&task).filter(|run| run.awaits_record() && !run.is_concluded);
                let Some(run) = run else { continue };
                let (number, is_news) = (run.number, run.note_unknown(&why));
                if is_news {
                    let fact = PlaceFact::Unknown { why: Box::from(&*why) };
                    self.send(task, number, Fact::Elsewhere(fact));
                }
            }
        }
        self.tick_at = Some(now);
    }

    /// Queries the exits of jobs that failed without an explanation, all with one query.
    pub(super) fn ask_exits(&mut self, now: Instant) {
        let wants = self.runs.values().any(|run| !run.is_concluded && run.wants_exit(now));
        if wants && self.reach.is_open(now) && !std::mem::replace(&mut self.is_asking_exits, true) {
            self.works.push(Box::pin(work::exits(self.tools.clone())));
        }
    }

    pub(super) fn exits(&mut self, now: Instant, result: &Result<String, CommandError>) {
        self.is_asking_exits = false;
        let known: HashMap<JobId, ScriptExit> = match result {
            Ok(text) => parse::exits(text).collect(),
            Err(
                trouble @ (CommandError::Unreachable(_)
                | CommandError::Unanswered(_)
                | CommandError::NoAccess(_)),
            ) => {
                return self.failed(now, trouble);
            }
            // This version of Slurm does not report exits.
            Err(CommandError::Refused(_) | CommandError::Full(_) | CommandError::Gone) => HashMap::new(),
        };
        for run in self.runs.values_mut().filter(|run| run.wants_exit(now)) {
            run.script_ended(run.id.and_then(|id| known.get(&id).copied()));
        }
        self.tick_at = Some(now);
    }

    /// Ends a run if its end can be decided.
    pub(super) fn conclude(&mut self, now: Instant, task: TaskId) {
        let Some(run) = self.runs.get(&task).filter(|run| !run.is_concluded) else { return };
        let (Some(conclusion), Some(place)) = (run.conclusion(now, self.looked), run.place.clone()) else {
            return;
        };
        if self.has_nothing_to_follow(task, &conclusion) {
            return self.give_back(task);
        }
        // If the cluster has the job after all, it must not run beside another attempt.
        if matches!(conclusion.verdict, Verdict::Failed(Cause::Lost, _)) {
            self.order_action(now, Action::Cancel, task, None);
        }
        let Some(run) = self.runs.get_mut(&task) else { return };
        run.is_concluded = true;
        self.parked.changed(task);
        let number = run.number;
        let files = Files { place, restarts: run.restarts(), split: run.job.spec.split };
        if run.is_aside {
            self.clean(files);
            return self.remove(task);
        }
        if let Some(watch) = self.readiness.get(&task) {
            watch.stop_clock();
        }
        if self.is_far() {
            return self.conclude_there(now, task, conclusion);
        }
        let is_tracked = self.tracked.contains(&task);
        let watch = self.readiness.remove(&task);
        let settling = Settling { files, is_tracked, missing: None, watch, conclusion };
        self.works.push(Box::pin(work::settle(self.tools.clone(), task, number, settling)));
    }

    /// Reports to the core that the end of a run can't be confirmed. The cluster is still asked to end it.
    pub(super) fn report_unconfirmed_end(&mut self, task: TaskId, number: u32) {
        let why = match (self.reach.why(), self.reading.why()) {
            (Some(why), _) => format!("the cluster can't be queried: {why}"),
            (None, Some(why)) => why.to_owned(),
            (None, None) => "the cluster has not ended it yet".to_owned(),
        };
        let why = format!("{why}; it may still run there, and will be ended as soon as possible");
        if self.login_work.copies.get(&task).is_some_and(|copy| copy.run == number && copy.has_ended()) {
            return self.settle_there(task);
        }
        let is_wanted = |run: &&mut super::Run| {
            run.number == number && run.has_no_grace() && !run.is_given_up && !run.is_concluded
        };
        let Some(run) = self.runs.get_mut(&task).filter(is_wanted) else { return };
        run.is_given_up = true;
        self.parked.changed(task);
        let fact = Fact::GaveUp { why: why.into() };
        self.send(task, number, fact);
    }
}
