//! Looks at the files of jobs in the work folder, here or over a login node. Files that could not be read decide
//! nothing, and are looked at again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;

use super::Cluster;
use crate::core::{Fact, PlaceFact};
use crate::exec::slurm::copy::Copy;
use crate::exec::slurm::error::CommandError;
use crate::exec::slurm::folder::Scan;
use crate::exec::slurm::run::Run;
use crate::exec::slurm::script::Noted;
use crate::exec::slurm::work;

/// The shortest time between two looks at the notes.
const SCAN_SPACING: Duration = Duration::from_millis(20);

impl Cluster {
    /// Returns when the notes are looked at next.
    pub(super) fn next_scan(&self) -> Option<Instant> {
        let at = self.scan_at.filter(|_| self.seen.is_some())?;
        Some(self.reading.until().map_or(at, |until| at.max(until)))
    }

    /// Begins a look at the notes, if one is due.
    pub(super) fn scan(&mut self, now: Instant) {
        let is_due = self.next_scan().is_some_and(|at| at <= now);
        if !is_due || self.is_far() && !self.reach.is_open(now) {
            return;
        }
        (self.scan_at, self.last_scan) = (None, Some(now));
        self.scan_is_after_answer = self.answer.is_some();
        if self.is_far() {
            return self.look();
        }
        let seen = self.seen.take().unwrap_or_default();
        self.works.push(Box::pin(work::scan(self.tools.clone(), seen)));
    }

    pub(super) fn scan_by(&mut self, now: Instant) {
        let spacing = if self.is_far() { Self::look_spacing() } else { SCAN_SPACING };
        let earliest = self.last_scan.map_or(now, |last| now.max(last + spacing));
        self.scan_at = Some(self.scan_at.map_or(earliest, |at| at.min(earliest)));
    }

    /// Looks at the files that grow on other machines, if that is due.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.by_id.is_empty() && !self.has_unread() {
            self.tick_at = None;
        } else if self.tick_at.is_none_or(|at| at <= now) {
            self.tick_at = Some(now + self.next_tick());
            self.scan_by(now);
            if !self.tracked.is_empty() {
                self.tools.context.outputs.look_soon();
            }
            self.conclude_ending(now);
            self.ask_exits(now);
        }
    }

    /// Returns whether a note or an output could not be read, including those of runs that the cluster has forgotten.
    fn has_unread(&self) -> bool {
        self.has_unread_notes || self.login_work.copies.values().any(Copy::is_unread)
    }

    /// Ends the runs whose end can now be decided.
    fn conclude_ending(&mut self, now: Instant) {
        let is_ending = |run: &Run| run.is_ending() && !run.is_concluded;
        let ending: Vec<TaskId> =
            self.runs.iter().filter(|(_, run)| is_ending(run)).map(|(task, _)| *task).collect();
        for task in ending {
            self.conclude(now, task);
        }
    }

    /// Handles a look at the notes on this machine. `None`: the daemon is ending.
    pub(super) fn scanned(
        &mut self,
        now: Instant,
        seen: HashSet<String>,
        result: Option<Result<Scan, CommandError>>,
    ) {
        self.seen = Some(seen);
        match result {
            Some(Ok(scan)) => self.has_read(now, scan),
            Some(Err(trouble)) => self.has_not_read(now, &trouble.to_string()),
            None => {}
        }
    }

    /// Handles the result of a look, and, if it found all notes, the cluster's answer that came before the look.
    pub(super) fn has_read(&mut self, now: Instant, scan: Scan) {
        let Scan { notes, unread, has_more } = scan;
        for note in &notes {
            self.noted(now, note);
        }
        self.reading.answered();
        let is_all_read = self.mark_unread(&unread, has_more);
        self.are_known();
        if has_more {
            self.scan_is_after_answer = false;
            return self.scan_by(now);
        }
        self.has_scanned |= is_all_read;
        self.looked = self.last_scan;
        if std::mem::take(&mut self.scan_is_after_answer)
            && let Some((asked, text)) = self.answer.take()
        {
            self.answered(now, asked, &text);
        }
        self.conclude_ending(now);
        if self.answer.is_some() {
            self.scan_by(now);
        }
    }

    /// Notes that nothing could be read. This decides nothing, and the cluster's answer waits.
    pub(super) fn has_not_read(&mut self, now: Instant, why: &str) {
        self.scan_is_after_answer = false;
        if self.reading.failed(now, why) {
            tracing::warn!(why, folder = %self.tools.folder.path().display(), "files of jobs not read");
        }
        self.are_unknown(why);
        self.scan_by(now);
    }

    /// Marks the runs with unreadable notes, given by the names of these notes with the reasons. Returns whether there
    /// are none. An incomplete look (`has_more`) does not clear the marks of other runs.
    fn mark_unread(&mut self, notes: &[(String, String)], has_more: bool) -> bool {
        let task_of = |name: &str| {
            let parsed = Noted::parse(name)?;
            self.by_place.get(&(Arc::from(parsed.batch), parsed.index)).copied()
        };
        let unread: Vec<(TaskId, &str, &str)> =
            notes.iter().filter_map(|(name, why)| Some((task_of(name)?, &**name, &**why))).collect();
        for run in self.runs.values_mut() {
            run.is_unread &= has_more;
        }
        self.has_unread_notes = self.has_unread_notes && has_more || !unread.is_empty();
        for (task, name, why) in &unread {
            self.runs.entry(*task).and_modify(|run| run.is_unread = true);
            self.is_unknown(*task, &format!("its note {name} can't be read: {why}"));
        }
        unread.is_empty()
    }

    /// Reports that the state of a run is unknown at the moment, unless that was already reported.
    pub(super) fn is_unknown(&mut self, task: TaskId, why: &str) {
        let is_news = |run: &&mut Run| run.unknown.is_none() && !run.is_given_up;
        let Some(run) = self.runs.get_mut(&task).filter(is_news) else { return };
        tracing::warn!(%task, why, "a file of a job not read");
        run.unknown = Some(why.into());
        let fact = PlaceFact::Unknown { why: why.into() };
        self.tools.context.facts.send(task, run.number, Fact::Elsewhere(fact));
    }

    /// Reports runs as known again if everything about them can be asked and read.
    pub(super) fn are_known(&mut self) {
        if self.reach.why().is_some() || self.reading.why().is_some() {
            return;
        }
        let Self { runs, login_work, tools, .. } = self;
        let is_read = |task: &TaskId, run: &Run| {
            !run.is_unread && !login_work.copies.get(task).is_some_and(Copy::is_unread)
        };
        let is_known =
            |task: &TaskId, run: &Run| run.unknown.is_some() && !run.awaits_record() && is_read(task, run);
        for (task, run) in runs.iter_mut().filter(|(task, run)| is_known(task, run)) {
            run.unknown = None;
            tools.context.facts.send(*task, run.number, Fact::Elsewhere(PlaceFact::Known));
        }
    }

    /// Reports that the state of all runs is unknown at the moment, unless that was already reported for this reason.
    pub(super) fn are_unknown(&mut self, why: &str) {
        let why: Arc<str> = why.into();
        for (task, run) in self.runs.iter_mut().filter(|(_, run)| !run.is_given_up && !run.is_concluded) {
            if run.note_unknown(&why) {
                let fact = PlaceFact::Unknown { why: Box::from(&*why) };
                self.tools.context.facts.send(*task, run.number, Fact::Elsewhere(fact));
            }
        }
    }
}
