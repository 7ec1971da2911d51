//! Facts from executors.

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;
use bgd_shared::usage::Usage;

use super::Core;
use super::elsewhere::within;
use super::stop::{verdict, verdict_of_stop};
use crate::effect::Effect;
use crate::input::{Fact, PlaceFact};
use crate::task::{
    ExecutorName, Failure, Finished, Lingering, Lost, Ordinal, Outcome, SpawnFailure, State, StopReason, Task,
};
use crate::time::{Now, RunTime};
use crate::waiters::Until;

impl Core {
    pub(super) fn fact(&mut self, now: Now, task: TaskId, run: u32, fact: Fact) {
        let ordinal = self.registry.ordinal(task);
        let known = ordinal.and_then(|ordinal| self.registry.get(ordinal));
        let ends = matches!(
            fact,
            Fact::StartFailed { .. }
                | Fact::Exited { others: false, .. }
                | Fact::TreeEmpty
                | Fact::Elsewhere(PlaceFact::Concluded(_))
        );
        // Build it now: handling the fact may remove the task. Of a removed task, only processes of this machine can be
        // left: those whose start or end was no longer waited for.
        let executor = known.map_or(ExecutorName::LOCAL, |task| task.spec.executor());
        let over = Effect::Over { executor, task, run };
        let is_current = known.is_some_and(|task| task.run == run);
        if let Some(ordinal) = ordinal.filter(|_| is_current) {
            if ends {
                self.drop_undelivered(ordinal);
            }
            self.of_run(now, ordinal, fact);
        }
        if ends && self.registry.is_tracked() {
            self.effects.push(over);
        }
    }

    fn of_run(&mut self, now: Now, ordinal: Ordinal, fact: Fact) {
        match fact {
            Fact::Started { pid } => self.started(now, ordinal, pid),
            Fact::StartFailed { failure } => self.start_failed(now, ordinal, failure),
            Fact::Refused(refusal) => self.refused(now, ordinal, refusal),
            Fact::Limits { stalled_after_ms, ask_timeout_ms } => {
                self.limited(ordinal, stalled_after_ms, ask_timeout_ms);
            }
            Fact::Session { id } => self.session_named(ordinal, id),
            Fact::Tools { calls, latest } => self.tools_called(now, ordinal, calls, latest),
            Fact::Consumed(report) => self.consumed(now, ordinal, &report),
            Fact::Planned { steps } => self.planned(now, ordinal, steps),
            Fact::Denied { times, what } => self.denied(now, ordinal, times, what),
            Fact::Noted { note, text } => self.noted(now, ordinal, note, text),
            Fact::Activity => self.note_activity(now, ordinal),
            Fact::Asked { key, question, options } => self.asked(now, ordinal, key, question, options),
            Fact::Withdrawn { key } => self.withdrawn(now, ordinal, key),
            Fact::TurnEnded { result } => self.turn_ended(now, ordinal, result),
            Fact::Used(usage) => self.used(now, ordinal, usage),
            Fact::Delivered => self.delivered(ordinal),
            Fact::Exited { exit, others, at } => self.exited(now, ordinal, exit, others, at),
            Fact::TreeEmpty => self.tree_empty(now, ordinal),
            Fact::GaveUp { why } => self.gave_up(now, ordinal, why),
            Fact::Ready => self.ready(now, ordinal),
            Fact::NotReady => self.not_ready(now, ordinal),
            Fact::Output { bytes, dropped, publish } => self.output(now, ordinal, bytes, dropped, publish),
            Fact::Lost { bytes, why } => self.lost(now, ordinal, bytes, why),
            Fact::Erased { bytes, why } => self.erased(now, ordinal, bytes, why),
            Fact::Elsewhere(fact) => self.elsewhere(now, ordinal, fact),
        }
    }

    fn started(&mut self, now: Now, ordinal: Ordinal, pid: Option<i32>) {
        self.started_at(now, ordinal, pid, None);
    }

    /// Notes that a run has started, at this time if another clock provides it.
    pub(super) fn started_at(&mut self, now: Now, ordinal: Ordinal, pid: Option<i32>, at: Option<Timestamp>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let stop = match &task.state {
            State::Starting { stop, .. } => *stop,
            State::Resuming(_) => return self.resumed(now, ordinal, pid),
            State::Queued { .. } | State::Running { .. } | State::Stopping { .. } | State::Finished(_) => {
                return;
            }
        };
        let time_limit = task.spec.time_limit_ms.map(|limit| now.mono.plus_ms(limit));
        let started_at = at.map_or(now.wall, |at| within(at, Some(task.created_at), now));
        self.set_state(ordinal, State::Running { pid, started_at, time_limit });
        // Another clock's start is compared with its end.
        let run_time = if at.is_none() { RunTime::Since(now.mono) } else { RunTime::Unknown };
        self.registry.change(ordinal, |task| task.run_time = run_time);
        self.change_agent(ordinal, |agent| agent.begin_run(now));
        self.note_attempt(now, ordinal);
        self.became(ordinal);
        self.event(now, EventKind::Started, ordinal);
        if self.registry.get(ordinal).is_some_and(Task::is_first_attempt) {
            self.notice(now, NoticeKind::Started, ordinal);
        }
        self.pause_started(ordinal);
        if let Some(order) = stop {
            self.stop(now, ordinal, order);
        }
    }

    fn start_failed(&mut self, now: Now, ordinal: Ordinal, failure: SpawnFailure) {
        let Some(task) = self.registry.get(ordinal) else { return };
        match &task.state {
            State::Starting { stop: None, .. } => {
                let outcome = Outcome::Failed(Failure::Spawn(Box::new(failure)));
                self.finish(now, ordinal, self.failed_start(now, ordinal, outcome));
            }
            State::Starting { stop: Some(order), .. } => {
                let outcome = verdict_of_stop(order.reason);
                self.finish_unstarted(now, ordinal, outcome);
            }
            // The daemon had stopped waiting for this process.
            State::Finished(finished) if finished.lingering == Lingering::Stuck => {
                self.settle(now, ordinal, Lingering::No);
            }
            State::Queued { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Finished(_)
            | State::Resuming(_) => {}
        }
    }

    /// Records what a run has used. A cluster reports it long after the end, when subscribers already know of the end.
    fn used(&mut self, now: Now, ordinal: Ordinal, usage: Usage) {
        let is_late = self.registry.change(ordinal, |task| match task.state {
            State::Running { .. } | State::Stopping { .. } => {
                task.usage = Some(usage);
                false
            }
            State::Finished(_) => task.usage.replace(usage) != Some(usage),
            State::Queued { .. } | State::Starting { .. } | State::Resuming(_) => false,
        });
        if is_late == Some(true) {
            self.event(now, EventKind::Progress, ordinal);
        }
    }

    fn exited(&mut self, now: Now, ordinal: Ordinal, exit: Exit, others: bool, at: Option<Timestamp>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let lingering = if others { Lingering::Yes } else { Lingering::No };
        let ended_at = |began: Timestamp| at.map_or(now.wall, |at| within(at, Some(began), now));
        match &task.state {
            State::Running { pid, started_at, .. } => {
                let finished = Finished {
                    outcome: verdict(&exit),
                    pid: *pid,
                    started_at: Some(*started_at),
                    completed_at: ended_at(*started_at),
                    exit: Some(exit),
                    lingering,
                    in_foreground: false,
                };
                if others && self.starts_again(now, task, &finished) {
                    return self.end_before_attempt(now, ordinal, finished);
                }
                self.finish(now, ordinal, finished);
            }
            State::Stopping { pid, started_at, reason, kill_at, exit: None } => {
                let (pid, started_at, reason, kill_at) = (*pid, *started_at, *reason, *kill_at);
                if others {
                    let exit = Some(exit);
                    self.set_state(ordinal, State::Stopping { pid, started_at, reason, kill_at, exit });
                } else {
                    let finished = Finished {
                        outcome: verdict_of_stop(reason),
                        pid,
                        started_at: Some(started_at),
                        completed_at: ended_at(started_at),
                        exit: Some(exit),
                        lingering: Lingering::No,
                        in_foreground: false,
                    };
                    self.finish(now, ordinal, finished);
                }
            }
            State::Finished(finished) if finished.lingering == Lingering::Stuck && !others => {
                self.settle(now, ordinal, Lingering::No);
            }
            State::Stopping { exit: Some(_), .. }
            | State::Queued { .. }
            | State::Starting { .. }
            | State::Finished(_)
            | State::Resuming(_) => {}
        }
    }

    fn tree_empty(&mut self, now: Now, ordinal: Ordinal) {
        let Some(task) = self.registry.get(ordinal) else { return };
        match &task.state {
            State::Stopping { pid, started_at, reason, exit: Some(exit), .. } => {
                let finished = Finished {
                    outcome: verdict_of_tree(*reason, exit),
                    pid: *pid,
                    started_at: Some(*started_at),
                    completed_at: now.wall,
                    exit: Some(exit.clone()),
                    lingering: Lingering::No,
                    in_foreground: false,
                };
                self.finish(now, ordinal, finished);
            }
            State::Finished(finished) => match finished.lingering {
                Lingering::No => {}
                Lingering::Yes | Lingering::Ending(_) | Lingering::Stuck => {
                    self.settle(now, ordinal, Lingering::No);
                }
            },
            State::Stopping { exit: None, .. }
            | State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Resuming(_) => {}
        }
    }

    /// Gives up on a tree that SIGKILL does not end. Waiters for the tree get their replies, and the task shows that
    /// processes are left.
    fn gave_up(&mut self, now: Now, ordinal: Ordinal, why: Box<str>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        match &task.state {
            State::Stopping { pid, started_at, reason, kill_at: None, exit } => {
                let outcome = match exit {
                    Some(exit) => verdict_of_tree(*reason, exit),
                    None => verdict_of_stop(*reason),
                };
                let finished = Finished {
                    outcome,
                    pid: *pid,
                    started_at: Some(*started_at),
                    completed_at: now.wall,
                    exit: Some(exit.clone().unwrap_or(Exit::Unknown(why))),
                    lingering: Lingering::Stuck,
                    in_foreground: false,
                };
                self.finish(now, ordinal, finished);
            }
            // It was handed to another machine, and may have started there meanwhile.
            State::Starting { stop: Some(order), .. } if !task.spec.is_here() => {
                let outcome = verdict_of_stop(order.reason);
                let exit = Some(Exit::Unknown(why));
                let unstarted = self.unstarted(now, ordinal, outcome);
                self.end(now, ordinal, Finished { exit, lingering: Lingering::Stuck, ..unstarted });
            }
            State::Finished(finished) => match finished.lingering {
                Lingering::No | Lingering::Yes | Lingering::Ending(Some(_)) | Lingering::Stuck => {}
                Lingering::Ending(None) => self.settle(now, ordinal, Lingering::Stuck),
            },
            State::Stopping { kill_at: Some(_), .. }
            | State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Resuming(_) => {}
        }
    }

    /// Notes that nothing is left to wait for of a task that had ended. Publishes an event, as its output may have grown
    /// since its end, and is complete now or is no longer waited for.
    pub(super) fn settle(&mut self, now: Now, ordinal: Ordinal, lingering: Lingering) {
        let Some(State::Finished(finished)) = self.registry.get(ordinal).map(|task| &task.state) else {
            return;
        };
        let settled = Finished { lingering, ..finished.clone() };
        self.set_state(ordinal, State::Finished(settled));
        // First, as a waiting request may clear the task.
        self.event(now, EventKind::Progress, ordinal);
        self.wake(now, ordinal, Until::Settled);
    }

    fn output(&mut self, now: Now, ordinal: Ordinal, bytes: [u64; 2], dropped: [u64; 2], publish: bool) {
        let update = |task: &mut Task| {
            let grew = bytes.iter().zip(task.output_bytes).any(|(bytes, before)| *bytes > before);
            if grew {
                task.updated_at = Some(now.wall);
            }
            // Only `erased` resets a count, and a later run may not know how much an earlier one dropped.
            task.output_bytes = [0, 1].map(|stream| task.output_bytes[stream].max(bytes[stream]));
            task.dropped = [0, 1].map(|stream| task.dropped[stream].max(dropped[stream]));
            grew
        };
        // A file shows its size to the next daemon, but not how much of it was dropped.
        let task = self.registry.get(ordinal);
        let is_noted = task.is_some_and(|task| dropped.iter().zip(task.dropped).any(|(new, old)| *new > old));
        let grew = if is_noted {
            self.registry.change(ordinal, update)
        } else {
            self.registry.change_unnoted(ordinal, update)
        };
        if grew == Some(true) {
            self.note_activity(now, ordinal);
        }
        // No event may precede the start event, which includes the size.
        let has_started =
            |task: &Task| task.status().is_active() && !matches!(task.state, State::Starting { .. });
        if publish && self.registry.get(ordinal).is_some_and(has_started) {
            self.event(now, EventKind::Output, ordinal);
        }
    }

    /// Records that output files were truncated: what was in them is lost, dropped or not.
    fn erased(&mut self, now: Now, ordinal: Ordinal, bytes: [u64; 2], why: Box<str>) {
        self.registry.change_unnoted(ordinal, |task| {
            for stream in (0..2).filter(|stream| bytes[*stream] > 0) {
                task.output_bytes[stream] = 0;
                task.dropped[stream] = 0;
            }
        });
        self.lost(now, ordinal, bytes[0].saturating_add(bytes[1]), why);
    }

    /// Records lost output. The loss changes nothing else: the job continues, and its outcome is judged as usual.
    pub(super) fn lost(&mut self, now: Now, ordinal: Ordinal, bytes: u64, why: Box<str>) {
        self.registry.change(ordinal, |task| {
            let before = task.lost.as_ref().map_or(0, |lost| lost.bytes);
            task.lost = Some(Box::new(Lost { bytes: before.saturating_add(bytes), why }));
        });
        if self.registry.get(ordinal).is_some_and(|task| task.status().is_active()) {
            self.event(now, EventKind::Output, ordinal);
        }
    }
}

/// Returns the outcome of a task whose tree has ended after its leader exited like this.
pub(super) fn verdict_of_tree(reason: StopReason, exit: &Exit) -> Outcome {
    match reason {
        StopReason::NextAttempt => verdict(exit),
        StopReason::Cancelled
        | StopReason::TimedOut(_)
        | StopReason::NotReady(_)
        | StopReason::SessionEnded
        | StopReason::Abandoned
        | StopReason::Shutdown
        | StopReason::Dependency(..)
        | StopReason::MaxFails(_)
        | StopReason::Elsewhere => verdict_of_stop(reason),
    }
}
