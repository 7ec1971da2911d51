//! Ending tasks: the first signal, the grace, SIGKILL, and the end itself.

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use bgd_shared::task::Exit;

use super::{Core, Timer, commands};
use crate::task::{
    Failure, Finished, GIVE_UP_MS, Lingering, Ordinal, Outcome, Resuming, SIGKILL, SIGTERM, State, StopOrder,
    StopReason, Task,
};
use crate::time::Now;
use crate::waiters::Until;

impl Core {
    /// Asks a task to end. If asked again, the first reason is kept, and SIGKILL can only come sooner.
    pub(super) fn stop(&mut self, now: Now, ordinal: Ordinal, order: StopOrder) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let kill_at = (order.signal != SIGKILL).then(|| now.mono.plus_ms(order.grace_ms));
        let end = commands::end(task, order.signal, order.grace_ms);
        let next = match &task.state {
            State::Queued { .. } => {
                return self.finish_unstarted(now, ordinal, Outcome::Cancelled(order.reason));
            }
            State::Starting { stop, env, give_up_at } => {
                let env = env.clone();
                let stop = Some(stop.map_or(order, |first| first.then(order)));
                // A process usually starts in a moment and is then ended, but its start may hang with its disk. An
                // agent or a cluster may legitimately take long to start.
                let give_up_at = task.spec.is_here().then(|| {
                    let at = kill_at.unwrap_or(now.mono).plus_ms(GIVE_UP_MS);
                    give_up_at.map_or(at, |before| before.min(at))
                });
                if give_up_at.is_none() {
                    self.effects.push(end);
                }
                self.end_pause(ordinal);
                return self.set_state(ordinal, State::Starting { stop, env, give_up_at });
            }
            State::Resuming(resuming) => {
                let stop = Some(resuming.stop.map_or(order, |first| first.then(order)));
                State::Resuming(Box::new(Resuming { stop, ..(**resuming).clone() }))
            }
            State::Running { pid, started_at, .. } => State::Stopping {
                pid: *pid,
                started_at: *started_at,
                reason: order.reason,
                kill_at,
                exit: None,
            },
            // SIGKILL was sent, and nothing is stronger. But no further attempt may follow now.
            State::Stopping { pid, started_at, reason, kill_at: None, exit }
                if Self::is_for_next_attempt(task, *reason) =>
            {
                let (pid, started_at, reason, exit) = (*pid, *started_at, order.reason, exit.clone());
                let state = State::Stopping { pid, started_at, reason, kill_at: None, exit };
                return self.set_state(ordinal, state);
            }
            State::Stopping { kill_at: None, .. } => return,
            State::Stopping { pid, started_at, reason, kill_at: Some(before), exit } => State::Stopping {
                pid: *pid,
                started_at: *started_at,
                reason: if Self::is_for_next_attempt(task, *reason) { order.reason } else { *reason },
                kill_at: kill_at.map(|at| at.min(*before)),
                exit: exit.clone(),
            },
            State::Finished(finished) => {
                let lingering = match finished.lingering {
                    Lingering::No | Lingering::Ending(None) | Lingering::Stuck => return,
                    Lingering::Yes => Lingering::Ending(kill_at),
                    Lingering::Ending(Some(before)) => Lingering::Ending(kill_at.map(|at| at.min(before))),
                };
                State::Finished(Finished { lingering, ..finished.clone() })
            }
        };
        if let Some(kill_at) = next.kill_at() {
            self.note_end(now, ordinal, order.signal, kill_at);
        }
        // `End` must precede the denials: an agent may end its turn by itself when it is denied something.
        self.effects.push(end);
        self.deny_all(now, ordinal);
        self.end_pause(ordinal);
        self.set_state(ordinal, next);
    }

    /// Ends a task whose process is still being started long after it was asked to end. If the process starts after
    /// all, the executor ends it, even if the task is removed by then.
    fn give_up_start(&mut self, now: Now, ordinal: Ordinal, reason: StopReason) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let kill = commands::kill(task);
        self.effects.push(kill);
        let unstarted = self.unstarted(now, ordinal, verdict_of_stop(reason));
        self.end(now, ordinal, Finished { lingering: Lingering::Stuck, ..unstarted });
    }

    /// Handles a task's deadline: its earliest start, the end of the wait for its start, its time limit, the end of its
    /// grace, or a deadline of its agent.
    pub(super) fn task_deadline(&mut self, now: Now, ordinal: Ordinal) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let kill = commands::kill(task);
        let next = match &task.state {
            State::Queued { .. } => return self.clear_not_before(ordinal),
            State::Starting { stop: Some(order), .. } => {
                return self.give_up_start(now, ordinal, order.reason);
            }
            State::Starting { stop: None, .. }
            | State::Resuming(_)
            | State::Stopping { kill_at: None, .. } => return,
            State::Running { time_limit, .. } if time_limit.is_none_or(|limit| limit > now.mono) => {
                return self.agent_deadline(now, ordinal);
            }
            // It may have ended there long ago: only its place can tell, which enforces the limit itself.
            State::Running { pid, started_at, .. } if is_limit_left_to_place(task) => {
                let (pid, started_at) = (*pid, *started_at);
                return self.set_state(ordinal, State::Running { pid, started_at, time_limit: None });
            }
            State::Running { .. } => {
                let limit = task.spec.time_limit_ms.unwrap_or_default();
                let order = StopOrder {
                    reason: StopReason::TimedOut(limit),
                    signal: SIGTERM,
                    grace_ms: self.limits.grace_ms,
                };
                return self.stop(now, ordinal, order);
            }
            State::Stopping { pid, started_at, reason, kill_at: Some(_), exit } => State::Stopping {
                pid: *pid,
                started_at: *started_at,
                reason: *reason,
                kill_at: None,
                exit: exit.clone(),
            },
            State::Finished(finished) => match finished.lingering {
                Lingering::No | Lingering::Yes | Lingering::Ending(None) | Lingering::Stuck => return,
                Lingering::Ending(Some(_)) => {
                    State::Finished(Finished { lingering: Lingering::Ending(None), ..finished.clone() })
                }
            },
        };
        self.effects.push(kill);
        self.set_state(ordinal, next);
    }

    /// Returns the tasks on this machine whose time limits have passed. The end of such a run may not be known yet.
    pub fn past_time_limits(&self, now: Now) -> Vec<TaskId> {
        let due = self.timers.iter().take_while(|(at, _)| *at <= now.mono);
        let due = due.filter_map(|(_, timer)| match timer {
            Timer::Task(ordinal) => self.registry.get(*ordinal),
            Timer::Waiter(_) | Timer::Inbox(_) => None,
        });
        due.filter(|task| task.spec.is_here() && has_passed_limit(task, now)).map(|task| task.id).collect()
    }

    /// Puts off the time limits that have passed of runs with other executors: the core comes so late that they may have
    /// ended in time, and their executors have yet to find out.
    pub fn put_off_passed_limits(&mut self, now: Now, by_ms: u64) {
        let due = self.timers.iter().take_while(|(at, _)| *at <= now.mono);
        let due = due.filter_map(|(_, timer)| match timer {
            Timer::Task(ordinal) => Some(*ordinal),
            Timer::Waiter(_) | Timer::Inbox(_) => None,
        });
        let is_passed = |task: &Task| {
            !task.spec.is_here() && !is_limit_left_to_place(task) && has_passed_limit(task, now)
        };
        let passed: Vec<Ordinal> =
            due.filter(|ordinal| self.registry.get(*ordinal).is_some_and(is_passed)).collect();
        for ordinal in passed {
            if let Some(State::Running { pid, started_at, .. }) =
                self.registry.get(ordinal).map(|task| &task.state)
            {
                let (pid, started_at) = (*pid, *started_at);
                let time_limit = Some(now.mono.plus_ms(by_ms));
                self.set_state(ordinal, State::Running { pid, started_at, time_limit });
            }
        }
    }

    /// Lifts the time limit of a run that has ended, although its end is not known yet.
    pub fn lift_time_limit(&mut self, id: TaskId) {
        let Some(ordinal) = self.registry.ordinal(id) else { return };
        if let Some(State::Running { pid, started_at, time_limit: Some(_) }) =
            self.registry.get(ordinal).map(|task| &task.state)
        {
            let (pid, started_at) = (*pid, *started_at);
            self.set_state(ordinal, State::Running { pid, started_at, time_limit: None });
        }
    }

    /// Leaves a time limit that passed while no daemon looked after the run to the place that has it: the run may have
    /// ended in time there, and the place enforces the limit itself.
    pub fn leave_passed_limit_to_place(&mut self, now: Now, id: TaskId) {
        let task = self.registry.ordinal(id).and_then(|ordinal| self.registry.get(ordinal));
        if task.is_some_and(|task| task.spec.is_elsewhere() && has_passed_limit(task, now)) {
            self.lift_time_limit(id);
        }
    }

    /// Ends a run, and with it the task unless it starts again.
    pub(super) fn finish(&mut self, now: Now, ordinal: Ordinal, finished: Finished) {
        let (started_at, ended_at) = (finished.started_at, finished.completed_at);
        self.registry.change(ordinal, |task| {
            task.run_time = task.run_time.ended(now, started_at, ended_at);
        });
        if let Some(finished) = self.end_or_retry(now, ordinal, finished) {
            // If this attempt has not started, an earlier one may have.
            let before = self.last_start(ordinal);
            self.end(now, ordinal, Finished { started_at: finished.started_at.or(before), ..finished });
        }
    }

    /// Ends a task: publishes its only terminal event, sends a notice unless its client is watching, and replies to all
    /// waiters.
    pub(super) fn end(&mut self, now: Now, ordinal: Ordinal, finished: Finished) {
        self.end_with(now, ordinal, finished, true);
    }

    /// Like [`Self::end`], but without a notice.
    pub(super) fn end_without_notice(&mut self, now: Now, ordinal: Ordinal, finished: Finished) {
        self.end_with(now, ordinal, finished, false);
    }

    fn end_with(&mut self, now: Now, ordinal: Ordinal, finished: Finished, notifies: bool) {
        let (kind, notice) = match finished.outcome {
            Outcome::Completed => (EventKind::Completed, NoticeKind::Completed),
            Outcome::Failed(_) => (EventKind::Failed, NoticeKind::Failed),
            Outcome::Cancelled(_) => (EventKind::Cancelled, NoticeKind::Cancelled),
        };
        let (settled, resumable) = (finished.lingering.is_settled(), finished.outcome.is_resumable());
        let run = self.registry.get(ordinal).map_or(1, |task| task.run);
        self.change_agent(ordinal, |agent| {
            agent.end();
            if kind == EventKind::Completed {
                agent.answered = run;
            }
            if !resumable {
                agent.drop_env();
            }
        });
        let is_looked_at = self.leave_foreground(ordinal);
        self.unwatch_dependencies(ordinal);
        self.end_pause(ordinal);
        self.set_state(ordinal, State::Finished(Finished { in_foreground: is_looked_at, ..finished }));
        self.drop_plan_env(ordinal);
        self.became(ordinal);
        // A task that ends without notice does not count for its batch either.
        if kind == EventKind::Failed && notifies {
            self.count_failure(ordinal);
        }
        self.event(now, kind, ordinal);
        if notifies && !is_looked_at {
            self.notice(now, notice, ordinal);
        }
        self.wake(now, ordinal, Until::Finished);
        if settled {
            self.wake(now, ordinal, Until::Settled);
        }
    }
}

fn has_passed_limit(task: &Task, now: Now) -> bool {
    matches!(task.state, State::Running { time_limit: Some(limit), .. } if limit <= now.mono)
}

/// Reports whether the place of a task enforces its time limit, because it always does, or because it can't be asked.
fn is_limit_left_to_place(task: &Task) -> bool {
    let is_unknown = || task.elsewhere.as_ref().is_some_and(|known| known.unknown.is_some());
    task.spec.is_limited_elsewhere() || task.spec.is_elsewhere() && is_unknown()
}

/// Returns the outcome of a task that was not ended on request, from its leader's exit.
pub(super) fn verdict(exit: &Exit) -> Outcome {
    match exit {
        Exit::Code(0) => Outcome::Completed,
        Exit::Code(_) | Exit::Signal(_) | Exit::Unknown(_) => Outcome::Failed(Failure::Exit),
    }
}

/// Returns the outcome of a task that was ended for this reason, regardless of its leader's exit.
pub(super) fn verdict_of_stop(reason: StopReason) -> Outcome {
    match reason {
        StopReason::Cancelled
        | StopReason::SessionEnded
        | StopReason::Abandoned
        | StopReason::Shutdown
        | StopReason::Dependency(..)
        | StopReason::MaxFails(_)
        | StopReason::Elsewhere => Outcome::Cancelled(reason),
        StopReason::NextAttempt => Outcome::Failed(Failure::Exit),
        StopReason::NotReady(limit_ms) => Outcome::Failed(Failure::NotReady { limit_ms }),
        StopReason::TimedOut(limit_ms) => Outcome::Failed(Failure::TimedOut { limit_ms, last_words: None }),
    }
}
