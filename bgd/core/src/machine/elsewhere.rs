//! Facts about runs on other machines and clusters (R145 to R151). A run counts as starting until that place runs it,
//! however long it waits there, and may be requeued.

use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::request::Stream;
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;

use super::stop::{verdict, verdict_of_stop};
use super::{Core, commands};
use crate::control::Control;
use crate::elsewhere::{Cause, Conclusion, Elsewhere, Verdict};
use crate::input::PlaceFact;
use crate::task::{Failure, Finished, Lingering, Ordinal, Outcome, Spec, State, StopReason, Task};
use crate::time::Now;

impl Core {
    /// Handles a place's report about a run.
    pub(super) fn elsewhere(&mut self, now: Now, ordinal: Ordinal, fact: PlaceFact) {
        match fact {
            PlaceFact::Submitting { key, index } => self.submitting(ordinal, key, index),
            PlaceFact::Accepted { id } => self.change_elsewhere(now, ordinal, |known| {
                (known.id, known.awaits) = (Some(id), None);
            }),
            PlaceFact::Waiting { reason } => self.change_elsewhere(now, ordinal, |known| {
                (known.reason, known.awaits) = (Some(reason), None);
            }),
            PlaceFact::Unsent { awaits, reason } => self.change_elsewhere(now, ordinal, |known| {
                (known.reason, known.awaits) = (Some(reason), Some(awaits));
            }),
            PlaceFact::Unknown { why } => self.change_elsewhere(now, ordinal, |known| {
                let since = known.unknown.as_ref().map_or(now.wall, |(since, _)| *since);
                known.unknown = Some((since, why));
            }),
            PlaceFact::Known => self.change_elsewhere(now, ordinal, |known| known.unknown = None),
            PlaceFact::Refused { control, why } => {
                self.change_elsewhere(now, ordinal, |known| known.refused = Some(why));
                match control {
                    // A repeated one has changed nothing here.
                    Some(Control::Hold { held, is_again: false }) => self.revert_hold(now, ordinal, held),
                    Some(Control::Priority { priority, before }) => {
                        self.revert_priority(now, ordinal, priority, before);
                    }
                    Some(Control::Pause) => self.paused_elsewhere(now, ordinal, false),
                    Some(Control::Continue) => self.paused_elsewhere(now, ordinal, true),
                    Some(
                        Control::Hold { is_again: true, .. }
                        | Control::Signal { .. }
                        | Control::Answer { .. }
                        | Control::Detach { .. },
                    )
                    | None => {}
                }
            }
            PlaceFact::Paused { paused } => self.paused_elsewhere(now, ordinal, paused),
            PlaceFact::Started { at } => self.started_elsewhere(now, ordinal, at),
            PlaceFact::Requeued { reason } => self.requeued(now, ordinal, reason),
            PlaceFact::GivenBack { env } => self.reclaim(now, ordinal, env),
            PlaceFact::Lost { stream, bytes, why } => self.lost_elsewhere(now, ordinal, stream, bytes, why),
            PlaceFact::Concluded(conclusion) => self.concluded(now, ordinal, conclusion),
        }
    }

    /// Changes the data of an unfinished run, and publishes an event if that makes a difference.
    fn change_elsewhere(&mut self, now: Now, ordinal: Ordinal, change: impl FnOnce(&mut Elsewhere)) {
        let changed = self.registry.change(ordinal, |task| {
            let has_run = match &task.state {
                State::Starting { .. } | State::Running { .. } | State::Stopping { .. } => true,
                State::Queued { .. } | State::Finished(_) | State::Resuming { .. } => false,
            };
            if !has_run || !task.spec.is_elsewhere() {
                return false;
            }
            let before = task.elsewhere.clone();
            change(task.elsewhere.get_or_insert_default());
            task.elsewhere != before
        });
        if changed == Some(true) {
            self.event(now, EventKind::Progress, ordinal);
        }
    }

    /// Notes that part of the output is missing here.
    fn lost_elsewhere(&mut self, now: Now, ordinal: Ordinal, stream: Stream, bytes: u64, why: Box<str>) {
        self.registry.change(ordinal, |task| {
            let missing = &mut task.elsewhere.get_or_insert_default().missing[stream.index()];
            *missing = missing.saturating_add(bytes);
        });
        self.lost(now, ordinal, bytes, why);
        self.report_persisted(ordinal);
    }

    /// Notes how to find a run that is about to be submitted.
    fn submitting(&mut self, ordinal: Ordinal, key: Arc<str>, index: u32) {
        self.registry.change(ordinal, |task| {
            task.elsewhere.get_or_insert_default().submission = Some((key, index));
        });
        self.report_persisted(ordinal);
    }

    /// Informs the executor once this step is persisted.
    fn report_persisted(&mut self, ordinal: Ordinal) {
        if let Some(task) = self.registry.get(ordinal).filter(|_| self.registry.is_tracked()) {
            self.effects.push(commands::written(task));
        }
    }

    /// Reverts the hold or release of a waiting task, as its place has not carried it out.
    fn revert_hold(&mut self, now: Now, ordinal: Ordinal, held: bool) {
        let is_wrong = |task: &Task| task.waits_elsewhere() && task.plan().held == held;
        if self.registry.get(ordinal).is_some_and(is_wrong) {
            self.replan(ordinal, |plan| plan.held = !held);
            self.event(now, if held { EventKind::Released } else { EventKind::Held }, ordinal);
        }
    }

    /// Reverts the priority of a waiting task, as its place has not changed it. If another one was ordered meanwhile,
    /// notes what the place kept: it may refuse that one, too.
    fn revert_priority(&mut self, now: Now, ordinal: Ordinal, refused: i32, before: i32) {
        let task = self.registry.get(ordinal).filter(|task| task.waits_elsewhere());
        let Some(task) = task.filter(|_| refused != before) else { return };
        let kept = task.elsewhere.as_ref().map_or(before, |known| known.kept_priority(before));
        if refused == kept {
            return;
        }
        if task.plan().priority == refused {
            self.replan(ordinal, |plan| plan.priority = kept);
            self.event(now, EventKind::Edited, ordinal);
        } else {
            self.registry.change(ordinal, |task| {
                task.elsewhere.get_or_insert_default().refused_priority = Some((refused, kept));
            });
        }
    }

    /// Notes whether the processes of a running task are paused in its place.
    fn paused_elsewhere(&mut self, now: Now, ordinal: Ordinal, paused: bool) {
        let is_wrong = |task: &Task| {
            let is_running = matches!(task.state, State::Running { .. });
            is_running && task.spec.is_elsewhere() && task.paused != paused
        };
        if self.registry.get(ordinal).is_some_and(is_wrong) {
            self.registry.change(ordinal, |task| task.paused = paused);
            self.event(now, if paused { EventKind::Paused } else { EventKind::Continued }, ordinal);
        }
    }

    fn started_elsewhere(&mut self, now: Now, ordinal: Ordinal, at: Option<Timestamp>) {
        let is_starting = |task: &Task| matches!(task.state, State::Starting { .. });
        if self.registry.get(ordinal).is_some_and(is_starting) {
            self.registry.change(ordinal, |task| {
                let known = task.elsewhere.get_or_insert_default();
                (known.reason, known.unknown) = (None, None);
                known.started = at;
            });
            // The task may have been released there.
            self.note_met_by_cluster(ordinal);
            if self.registry.get(ordinal).is_some_and(|task| task.plan().held) {
                self.replan(ordinal, |plan| plan.held = false);
            }
        }
        // The place may have noticed the start before it knows the time, from which its clock's end is counted.
        let lacks_time = |task: &Task| {
            let has_started = matches!(task.state, State::Running { .. } | State::Stopping { .. });
            has_started && task.elsewhere.as_ref().is_some_and(|known| known.started.is_none())
        };
        if at.is_some() && self.registry.get(ordinal).is_some_and(lacks_time) {
            self.registry.change(ordinal, |task| task.elsewhere.get_or_insert_default().started = at);
        }
        self.started_at(now, ordinal, None, at);
    }

    /// Makes a running task pending again. A task that is being ended stays as it is: it also ends there.
    fn requeued(&mut self, now: Now, ordinal: Ordinal, reason: Box<str>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let started_at = match &task.state {
            State::Running { started_at, .. } => *started_at,
            State::Queued { .. }
            | State::Starting { .. }
            | State::Stopping { .. }
            | State::Finished(_)
            | State::Resuming(_) => return,
        };
        self.end_pause(ordinal);
        self.change_task(ordinal, |task| {
            task.state = State::Starting { stop: None, env: None, give_up_at: None };
            task.ready_at = None;
            task.run_time = task.run_time.ended(now, Some(started_at), now.wall);
            let known = task.elsewhere.get_or_insert_default();
            known.requeued = known.requeued.saturating_add(1);
            known.reason = Some(reason);
            known.started = Some(started_at);
        });
        self.event(now, EventKind::Retrying, ordinal);
    }

    /// Ends a run with the end that its place reports.
    fn concluded(&mut self, now: Now, ordinal: Ordinal, conclusion: Conclusion) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let spec = Arc::clone(&task.spec);
        let (pid, started_at, stop) = match &task.state {
            State::Starting { stop, .. } => (None, None, stop.map(|order| order.reason)),
            State::Running { pid, started_at, .. } => (*pid, Some(*started_at), None),
            State::Stopping { pid, started_at, reason, .. } => (*pid, Some(*started_at), Some(*reason)),
            State::Finished(finished) if finished.lingering == Lingering::Stuck => {
                return self.ended_after_all(now, ordinal);
            }
            State::Queued { .. } | State::Finished(_) | State::Resuming(_) => return,
        };
        let began = task.elsewhere.as_ref().and_then(|known| known.started).zip(started_at);
        self.registry.change(ordinal, |task| {
            if let Some(known) = &mut task.elsewhere {
                (known.reason, known.unknown) = (None, None);
            }
        });
        let Conclusion { exit, verdict, at } = conclusion;
        let outcome = match stop {
            Some(reason) => verdict_of_stop(reason),
            None => outcome(&verdict, exit.as_ref(), &spec),
        };
        let completed_at = at.map_or(now.wall, |at| within(by_clock_here(at, began), started_at, now));
        let finished = if started_at.is_some() {
            let (lingering, in_foreground) = (Lingering::No, false);
            Finished { outcome, pid, started_at, completed_at, exit, lingering, in_foreground }
        } else if stop.is_some() {
            Finished { completed_at, ..self.unstarted(now, ordinal, outcome) }
        } else {
            // Only an attempt that has begun is followed by another.
            if may_have_begun(&verdict, exit.as_ref()) {
                self.note_attempt(now, ordinal);
            }
            Finished { completed_at, exit, ..self.failed_start(now, ordinal, outcome) }
        };
        self.finish(now, ordinal, finished);
    }

    /// Notes that a run has ended whose end was no longer waited for. Its outcome stays as it was reported.
    fn ended_after_all(&mut self, now: Now, ordinal: Ordinal) {
        self.registry.change(ordinal, |task| {
            if let Some(known) = &mut task.elsewhere {
                (known.reason, known.unknown) = (None, None);
            }
        });
        self.settle(now, ordinal, Lingering::No);
    }
}

/// Reports whether a run that is not known to have started may have begun: its place noticed the start too late to
/// report it, or never. Otherwise, it could not be started.
fn may_have_begun(verdict: &Verdict, exit: Option<&Exit>) -> bool {
    match verdict {
        Verdict::ByExit | Verdict::Failed(Cause::Memory | Cause::Node | Cause::Lost, _) => true,
        Verdict::Failed(Cause::Timeout | Cause::Other, _) | Verdict::NotReady(_) | Verdict::Cancelled => {
            exit.is_some()
        }
    }
}

/// Returns the outcome of a run that was not ended from here.
fn outcome(concluded: &Verdict, exit: Option<&Exit>, spec: &Spec) -> Outcome {
    match (concluded, exit) {
        // That place also enforces the task's own limit, and may do so first.
        (Verdict::Failed(Cause::Timeout, _), _) if let Some(limit_ms) = spec.time_limit_ms => {
            Outcome::Failed(Failure::TimedOut { limit_ms, last_words: None })
        }
        (Verdict::ByExit, Some(exit)) => verdict(exit),
        (Verdict::ByExit, None) => Outcome::Failed(Failure::Exit),
        (Verdict::NotReady(_), _) if let Some(limit_ms) = spec.ready_timeout_ms => {
            Outcome::Failed(Failure::NotReady { limit_ms })
        }
        (Verdict::NotReady(message), _) => {
            Outcome::Failed(Failure::Elsewhere { cause: Cause::Other, message: message.clone() })
        }
        (Verdict::Failed(cause, message), _) => {
            Outcome::Failed(Failure::Elsewhere { cause: *cause, message: message.clone() })
        }
        (Verdict::Cancelled, _) => Outcome::Cancelled(StopReason::Elsewhere),
    }
}

/// Converts a time of another machine's clock to the clock here, from a common moment on both clocks: the time since
/// then is the same.
fn by_clock_here(at: Timestamp, began: Option<(Timestamp, Timestamp)>) -> Timestamp {
    let Some((there, here)) = began else { return at };
    let lasted = at.unix_ms().saturating_sub(there.unix_ms());
    here.plus_ms(u64::try_from(lasted).unwrap_or(0))
}

/// Clamps a time of another machine's clock, which may be wrong, between an earlier time and now.
pub(super) fn within(at: Timestamp, earliest: Option<Timestamp>, now: Now) -> Timestamp {
    earliest.map_or(at, |earliest| at.max(earliest)).min(now.wall)
}
