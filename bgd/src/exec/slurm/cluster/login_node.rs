//! A cluster behind a login node: a few sessions for all jobs look for notes and copy outputs, soon after a change and
//! more rarely while nothing changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::request::Stream;

use super::{Cluster, TICK};
use crate::core::{Conclusion, Fact, PlaceFact};
use crate::exec::slurm::copy::Copy;
use crate::exec::slurm::error::CommandError;
use crate::exec::slurm::folder::{Note, Scan};
use crate::exec::slurm::folder_scan::{FolderScan, Looked};
use crate::exec::slurm::remote_files::{Copied, Piece};
use crate::exec::slurm::remote_scripts;
use crate::exec::slurm::run::Run;
use crate::exec::slurm::script::{NoteKind, Noted};
use crate::exec::slurm::work::{self, Files, Settling};

/// The longest time between two looks while there are jobs.
const LATEST_LOOK: Duration = Duration::from_secs(10);

/// The shortest time between two looks.
const LOOK_SPACING: Duration = Duration::from_millis(250);

impl Cluster {
    /// Returns whether the cluster is behind a login node.
    pub(super) fn is_far(&self) -> bool {
        self.tools.programs.login().is_some()
    }

    /// Returns the time to the next look while nothing changes, which grows with each call.
    pub(super) fn next_tick(&mut self) -> Duration {
        if !self.is_far() {
            return TICK;
        }
        let tick = self.login_work.quiet;
        self.login_work.quiet = (tick * 3 / 2).min(LATEST_LOOK);
        tick
    }

    /// Notes that more changes are to be expected soon.
    pub(super) fn expect_more(&mut self, now: Instant) {
        self.login_work.quiet = TICK;
        if self.is_far() && !self.by_id.is_empty() {
            let soon = now + TICK;
            self.tick_at = Some(self.tick_at.map_or(soon, |at| at.min(soon)));
        }
    }

    /// Begins a look. It also removes the notes that were handled.
    pub(super) fn look(&mut self) {
        let Some(login) = self.tools.programs.login().cloned() else { return };
        let seen = self.seen.take().unwrap_or_default();
        let mut look = std::mem::take(&mut self.login_work.next_scan);
        // The notes of a job's end stay for the next daemon until the end is recorded.
        let needed: HashSet<&(Arc<str>, u32)> =
            self.by_place.keys().chain(self.ended.values().map(|files| &files.place)).collect();
        let is_needed = |name: &String| {
            let noted = Noted::parse(name).filter(|noted| noted.kind != NoteKind::Start);
            noted.is_some_and(|noted| needed.contains(&(Arc::from(noted.batch), noted.index)))
        };
        let (kept, removed): (Vec<String>, Vec<String>) = seen.into_iter().partition(is_needed);
        look.removed.extend(removed.into_iter().map(|name| format!("notes/{name}")));
        self.login_work.kept.retain(is_needed);
        self.login_work.kept.extend(kept);
        look.kept = self.login_work.kept.iter().cloned().collect();
        look.outputs = self.login_work.copies.values().flat_map(Copy::names).collect();
        self.works.push(Box::pin(work::look(self.tools.clone(), login, look)));
    }

    pub(super) const fn look_spacing() -> Duration {
        LOOK_SPACING
    }

    /// Handles the result of a look that began at `began`.
    pub(super) fn looked(
        &mut self,
        now: Instant,
        began: Instant,
        mut look: FolderScan,
        result: Result<Looked, CommandError>,
    ) {
        let looked = match result {
            Ok(looked) => looked,
            Err(trouble) => {
                // It is not known which files were removed, and removing them again does no harm.
                self.login_work.next_scan.removed.append(&mut look.removed);
                self.login_work.next_scan.keys.append(&mut look.keys);
                self.seen = Some(HashSet::new());
                return self.not_reached(now, &trouble);
            }
        };
        let Looked { notes, sizes, missing, unread, has_more } = looked;
        let has_grown =
            self.has_sizes(began, &sizes.into_iter().collect(), &missing.into_iter().collect(), &unread);
        self.seen = Some(notes.iter().map(|note| note.name.clone()).collect());
        let is_new = |note: &Note| !self.login_work.kept.contains(&note.name);
        let notes: Vec<Note> = notes.into_iter().filter(is_new).collect();
        if has_grown || !notes.is_empty() {
            self.expect_more(now);
        }
        let because = || format!("{} can't read it", self.login_name());
        let unread = unread.into_iter().map(|name| (name, because())).collect();
        self.has_read(now, Scan { notes, unread, has_more });
        self.copy_more(now);
    }

    /// Handles the sizes of outputs from a look that began at `began`. Returns whether an output has grown.
    fn has_sizes(
        &mut self,
        began: Instant,
        sizes: &HashMap<String, u64>,
        missing: &HashSet<String>,
        unread: &[String],
    ) -> bool {
        let unread: HashSet<&String> = unread.iter().collect();
        let mut has_grown = false;
        let mut not_read = Vec::new();
        for (task, copy) in &mut self.login_work.copies {
            let names: Vec<_> = Stream::of(copy.split).zip(copy.names()).collect();
            for (stream, name) in &names {
                has_grown |= sizes.get(name).is_some_and(|size| copy.has_size(*stream, *size));
                if missing.contains(name) {
                    copy.is_not_there(*stream);
                }
            }
            match names.into_iter().find(|(_, name)| unread.contains(name)) {
                Some((_, name)) => {
                    copy.is_not_read();
                    not_read.push((*task, name));
                }
                None => copy.was_looked_at(began),
            }
        }
        for (task, name) in not_read {
            self.output_unread(task, &name);
        }
        has_grown
    }

    /// Reports that the output of a run can't be read on the login node.
    fn output_unread(&mut self, task: TaskId, name: &str) {
        let why = format!("{} can't read its output {name}", self.login_name());
        self.is_unknown(task, &why);
    }

    fn login_name(&self) -> String {
        self.tools.programs.login().map_or_else(String::new, |login| login.host().to_owned())
    }

    /// Notes that the login node could not be reached, or could not read anything.
    fn not_reached(&mut self, now: Instant, trouble: &CommandError) {
        if let CommandError::Refused(why) = trouble {
            return self.has_not_read(now, why);
        }
        self.scan_is_after_answer = false;
        self.scan_by(now);
        self.failed(now, trouble);
        // The answer to this query shows when the node can be reached again.
        self.pace.ask_now(now);
    }

    /// Starts copying the output of a run that has started.
    pub(super) fn follow(&mut self, task: TaskId) {
        let Some(run) = self.runs.get(&task) else { return };
        let Some(place) = run.place.clone().filter(|_| self.is_far()) else { return };
        let (split, missing) = (run.job.spec.split, run.missing_output);
        let sizes = self.tools.context.folder.sizes(task, split);
        let copy = || Copy::new(run.number, place, split, run.job.base(), (sizes, missing));
        self.login_work.copies.entry(task).or_insert_with(copy);
    }

    /// Copies the next parts of outputs, and reports the ends of runs whose output is complete here.
    pub(super) fn copy_more(&mut self, now: Instant) {
        let Some(login) = self.tools.programs.login().cloned() else { return };
        let over: Vec<TaskId> =
            self.login_work.copies.iter().filter(|(_, copy)| copy.is_over()).map(|(task, _)| *task).collect();
        for task in over {
            self.settle_there(task);
        }
        // Unreadable files are looked at again with the next tick.
        let is_awaited = |copy: &Copy| copy.has_ended() && !copy.is_over() && !copy.is_unread();
        if self.login_work.copies.values().any(is_awaited) && !self.login_work.is_copying {
            self.scan_by(now);
        }
        if self.login_work.is_copying {
            return;
        }
        let mut size = 0;
        let mut pieces = Vec::new();
        for (task, copy) in &self.login_work.copies {
            let room = self.login_work.at_once.saturating_sub(size);
            if room == 0 {
                break;
            }
            if let Some((stream, mut wanted)) = copy.wanted() {
                wanted.count = wanted.count.min(room);
                size += wanted.count;
                let here = copy.here(stream, wanted.offset);
                pieces.push(Piece { task: *task, run: copy.run, stream, wanted, here });
            }
        }
        if !pieces.is_empty() {
            self.login_work.is_copying = true;
            self.works.push(Box::pin(work::copy(self.tools.clone(), login, pieces)));
        }
    }

    pub(super) fn copied(
        &mut self,
        now: Instant,
        pieces: Vec<Piece>,
        result: Result<Vec<Copied>, CommandError>,
    ) {
        self.login_work.is_copying = false;
        self.login_work.adapt(!matches!(result, Err(CommandError::Unanswered(_))));
        let parts = match result {
            Ok(parts) => parts,
            Err(trouble) => return self.not_reached(now, &trouble),
        };
        for (Piece { task, run, stream, wanted, here: _ }, copied) in pieces.into_iter().zip(parts) {
            let Some(copy) = self.login_work.copies.get_mut(&task).filter(|copy| copy.run == run) else {
                continue;
            };
            match copied {
                Copied::Here { count, lost } => {
                    let missing = if let Some(Fact::Lost { bytes, .. }) = &lost { *bytes } else { 0 };
                    copy.copied(stream, &wanted, count, missing);
                    if let Some(Fact::Lost { bytes, why }) = lost {
                        copy.unwritten += usize::from(self.tools.is_durable);
                        self.send(task, run, Fact::Elsewhere(PlaceFact::Lost { stream, bytes, why }));
                    }
                }
                Copied::Gone => copy.is_not_there(stream),
                Copied::Unread => {
                    copy.is_not_read();
                    self.output_unread(task, &wanted.name);
                }
            }
        }
        self.are_known();
        self.copy_more(now);
    }

    /// Notes how a run has ended. Its end is reported once its output is here.
    pub(super) fn conclude_there(&mut self, now: Instant, task: TaskId, conclusion: Conclusion) {
        self.follow(task);
        if let Some(copy) = self.login_work.copies.get_mut(&task) {
            copy.ends(now, conclusion);
        }
        self.scan_by(now);
    }

    /// Reports the end of a run with the output that is here.
    pub(super) fn settle_there(&mut self, task: TaskId) {
        let Some(copy) = self.login_work.copies.remove(&task) else { return };
        let (run, is_tracked) = (copy.run, self.tracked.contains(&task));
        let restarts = self.runs.get(&task).map_or(0, Run::restarts);
        let files = Files { place: copy.place.clone(), restarts, split: copy.split };
        let (missing, Some(conclusion)) = copy.into_end() else { return };
        let watch = self.readiness.remove(&task);
        let settling = Settling { files, is_tracked, missing: Some(missing), watch, conclusion };
        self.works.push(Box::pin(work::settle(self.tools.clone(), task, run, settling)));
    }

    /// Schedules the removal of a job's files, including the notes of its end; those of its starts were removed once
    /// they were read.
    pub(super) fn leave(&mut self, place: &(Arc<str>, u32), split: bool, restarts: u32) {
        if self.is_far() {
            self.login_work
                .next_scan
                .removed
                .extend(remote_scripts::files_of(&place.0, place.1, split, restarts));
            let key = place.0.to_string();
            if !self.login_work.next_scan.keys.contains(&key) {
                self.login_work.next_scan.keys.push(key);
            }
        }
    }
}
