//! Further attempts of a task: after a failure (R108), or to keep it alive until it is told to end (R109). Between
//! attempts the task is pending and has no slot.

use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::limits::ATTEMPTS;
use bgd_shared::order::Restart;
use bgd_shared::task::Exit;
use bgd_shared::text::Env;
use bgd_shared::usage::Usage;

use super::{Core, Phase, commands};
use crate::elsewhere::Cause;
use crate::plan::{Attempt, AttemptError, NotBefore, Repetition, Rule, draw};
use crate::task::{Failure, Finished, Ordinal, Outcome, SIGTERM, State, StopReason, Task};
use crate::time::{Mono, Now};

/// The first delay before a restart of a kept-alive task, in milliseconds. Doubles with each early end.
const RESTART_DELAY_MS: u64 = 1000;

/// Upper bound of that delay, in milliseconds.
const RESTART_MAX_DELAY_MS: u64 = 60_000;

/// An attempt that ends within this time has ended early, in milliseconds.
const EARLY_MS: u64 = 60_000;

/// After this many early ends in a row, the task is given up.
const EARLY_ENDS: u32 = 10;

/// The step after an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Another attempt, after this many milliseconds.
    Attempt(u64),
    /// No further attempt.
    End,
    /// No further attempt: this many attempts in a row ended early.
    GiveUp(u32),
}

impl Repetition {
    /// Creates the state before the first attempt.
    pub fn new(rule: Rule) -> Self {
        let env = Arc::<Env>::default();
        Self {
            rule,
            env,
            attempt: 1,
            began: None,
            ended_early: None,
            early_ends: 0,
            offset: [0; 2],
            attempts: Vec::new(),
        }
    }

    /// Reports whether the task is kept alive until it is asked to end.
    fn is_kept_alive(&self) -> bool {
        matches!(self.rule, Rule::Restart(_))
    }

    /// Reports whether the rule asks for another attempt after this end.
    fn covers(&self, outcome: &Outcome, exit: Option<&Exit>) -> bool {
        // After the first attempt, a kept-alive task also survives a failed start, for example while its program is
        // being replaced, and a start that hangs until the readiness timeout.
        let is_kept_alive = self.is_kept_alive();
        let has_begun = self.began.is_some() || is_kept_alive && self.attempt > 1;
        let has_failed = match outcome {
            _ if !has_begun => return false,
            Outcome::Failed(Failure::Elsewhere { cause: Cause::Timeout, .. }) => return false,
            Outcome::Failed(
                Failure::Exit
                | Failure::Agent(_)
                | Failure::Interrupted(_)
                | Failure::Spawn(_)
                | Failure::Unstartable(_)
                | Failure::Elsewhere { .. },
            ) => true,
            Outcome::Failed(Failure::NotReady { .. }) if is_kept_alive => true,
            Outcome::Completed => false,
            Outcome::Failed(
                Failure::NotReady { .. } | Failure::TimedOut { .. } | Failure::CrashLoop { .. },
            )
            | Outcome::Cancelled(_) => return false,
        };
        match &self.rule {
            Rule::Retry { times, codes, signal, .. } => {
                let is_any = codes.is_empty() && !signal;
                let is_named = match exit {
                    Some(Exit::Code(code)) => codes.contains(code),
                    Some(Exit::Signal(_)) => *signal,
                    Some(Exit::Unknown(_)) | None => false,
                };
                has_failed && self.attempt <= *times && (is_any || is_named)
            }
            Rule::Restart(Restart::OnFailure) => has_failed,
            Rule::Restart(Restart::Always) => true,
        }
    }

    /// Returns what follows this end. The delay of a retry is drawn from `seed`.
    fn next(&self, now: Now, finished: &Finished, seed: u128) -> Next {
        if !self.covers(&finished.outcome, finished.exit.as_ref()) {
            return Next::End;
        }
        match &self.rule {
            Rule::Retry { delay_ms, max_delay_ms, .. } => {
                let longest = doubled(*delay_ms, self.attempt - 1).min(*max_delay_ms);
                Next::Attempt(draw(seed, self.attempt, longest))
            }
            Rule::Restart(_) => {
                let early_ends = self.early_ends_by(now, finished);
                if early_ends >= EARLY_ENDS {
                    return Next::GiveUp(early_ends);
                }
                let doublings = early_ends.saturating_sub(1);
                Next::Attempt(doubled(RESTART_DELAY_MS, doublings).min(RESTART_MAX_DELAY_MS))
            }
        }
    }

    /// Returns how many attempts in a row have ended early with this end. An attempt that never started or was not ready
    /// in time counts; a lost one does not, as it would have continued, and the clock may have stood still.
    fn early_ends_by(&self, now: Now, finished: &Finished) -> u32 {
        if let Outcome::Failed(Failure::Interrupted(_) | Failure::Elsewhere { cause: Cause::Lost, .. }) =
            &finished.outcome
        {
            return self.early_ends;
        }
        let was_ready = !matches!(finished.outcome, Outcome::Failed(Failure::NotReady { .. }));
        let is_early = !was_ready || self.ended_early.unwrap_or_else(|| self.is_early(now, finished));
        if is_early { self.early_ends + 1 } else { 0 }
    }

    /// Reports whether this end of the current attempt is early. An end that is learned of later, as it happened while
    /// there was no daemon or elsewhere, has only a wall-clock time: a clock that was set, before that or since, must not
    /// make it early, so the time since then and the attempt's duration on that clock must agree.
    fn is_early(&self, now: Now, finished: &Finished) -> bool {
        let Some(began) = self.began else { return true };
        let since_ms = now.wall.millis_since(finished.completed_at);
        let ended = Mono(now.mono.0.saturating_sub(since_ms));
        let lasted_ms = finished.started_at.map_or(0, |at| finished.completed_at.millis_since(at));
        ended < began.plus_ms(EARLY_MS) && (since_ms == 0 || lasted_ms < EARLY_MS)
    }

    /// Records an ended attempt and prepares the next one.
    fn add(&mut self, now: Now, finished: &Finished, usage: Option<Usage>, offset: [u64; 2]) {
        self.early_ends = self.early_ends_by(now, finished);
        (self.began, self.ended_early) = (None, None);
        if self.attempts.len() >= ATTEMPTS {
            self.attempts.remove(0);
        }
        self.attempts.push(Attempt {
            attempt: self.attempt,
            pid: finished.pid,
            started_at: finished.started_at.unwrap_or(finished.completed_at),
            completed_at: finished.completed_at,
            exit: finished.exit.clone(),
            error: error(&finished.outcome),
            usage,
            offset: self.offset,
        });
        self.attempt += 1;
        self.offset = offset;
    }
}

/// Returns why an attempt failed, if its exit does not explain it.
fn error(outcome: &Outcome) -> Option<AttemptError> {
    Some(match outcome {
        Outcome::Failed(Failure::Agent(text)) => AttemptError::Agent(text.clone()),
        Outcome::Failed(Failure::Interrupted(why)) => AttemptError::Interrupted(why.clone()),
        Outcome::Failed(Failure::Spawn(failure)) => AttemptError::Spawn(failure.message.clone()),
        Outcome::Failed(Failure::Unstartable(need)) => AttemptError::Unstartable(*need),
        Outcome::Failed(Failure::NotReady { limit_ms }) => AttemptError::NotReady { limit_ms: *limit_ms },
        Outcome::Failed(Failure::Elsewhere { cause, message }) => {
            AttemptError::Elsewhere { cause: *cause, message: message.clone() }
        }
        Outcome::Failed(Failure::Exit | Failure::TimedOut { .. } | Failure::CrashLoop { .. })
        | Outcome::Completed
        | Outcome::Cancelled(_) => return None,
    })
}

fn doubled(ms: u64, times: u32) -> u64 {
    ms.saturating_mul(1_u64.checked_shl(times).unwrap_or(u64::MAX))
}

impl Core {
    /// Reports whether further attempts can follow. They can even while a durable daemon ends, as the next daemon
    /// starts them; tasks that the daemon ends itself are cancelled, and no rule covers that.
    fn may_retry(&self) -> bool {
        self.phase == Phase::Open || self.registry.is_tracked()
    }

    /// Reports whether the task will start again after this end, so that the rest of its tree must end first.
    pub(super) fn starts_again(&self, now: Now, task: &Task, finished: &Finished) -> bool {
        self.may_retry() && matches!(next(now, task, finished), Next::Attempt(_))
    }

    /// Returns the end to report, or `None` if another attempt follows.
    pub(super) fn end_or_retry(
        &mut self,
        now: Now,
        ordinal: Ordinal,
        finished: Finished,
    ) -> Option<Finished> {
        if !self.may_retry() {
            return Some(finished);
        }
        let Some(task) = self.registry.get(ordinal) else { return Some(finished) };
        match next(now, task, &finished) {
            Next::End => Some(finished),
            Next::GiveUp(ends) => {
                let error = error(&finished.outcome).map(Box::new);
                Some(Finished { outcome: Outcome::Failed(Failure::CrashLoop { ends, error }), ..finished })
            }
            Next::Attempt(delay_ms) => {
                self.wait_for_attempt(now, ordinal, &finished, delay_ms);
                None
            }
        }
    }

    /// Reports whether another attempt may follow an end for this reason, so that a later request to end the task for
    /// good must replace the reason.
    pub(super) fn is_for_next_attempt(task: &Task, reason: StopReason) -> bool {
        let again = task.plan().again.as_deref();
        let is_kept_alive = again.is_some_and(Repetition::is_kept_alive);
        reason == StopReason::NextAttempt || is_kept_alive && matches!(reason, StopReason::NotReady(_))
    }

    /// Ends the rest of the tree after its leader's exit, before the next attempt starts.
    pub(super) fn end_before_attempt(&mut self, now: Now, ordinal: Ordinal, finished: Finished) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let end = commands::end(task, SIGTERM, self.limits.grace_ms);
        self.effects.push(end);
        // The attempt ends now, however long the rest of its tree takes.
        self.change_again(ordinal, |again| again.ended_early = Some(again.is_early(now, &finished)));
        let Finished { pid, started_at, completed_at, exit, .. } = finished;
        let (started_at, kill_at) =
            (started_at.unwrap_or(completed_at), now.mono.plus_ms(self.limits.grace_ms));
        let reason = StopReason::NextAttempt;
        self.end_pause(ordinal);
        self.note_end(now, ordinal, SIGTERM, kill_at);
        self.set_state(ordinal, State::Stopping { pid, started_at, reason, kill_at: Some(kill_at), exit });
    }

    /// Notes that an attempt has started.
    pub(super) fn note_attempt(&mut self, now: Now, ordinal: Ordinal) {
        self.change_again(ordinal, |again| again.began = Some(now.mono));
    }

    /// Drops the environment for attempts, as none can follow.
    pub(super) fn drop_plan_env(&mut self, ordinal: Ordinal) {
        self.change_again(ordinal, |again| again.env = Arc::default());
    }

    /// Changes a task's record of attempts, if it has one; most tasks do not.
    fn change_again(&mut self, ordinal: Ordinal, change: impl FnOnce(&mut Repetition)) {
        if self.registry.get(ordinal).is_none_or(|task| task.plan().again.is_none()) {
            return;
        }
        self.registry.change(ordinal, |task| {
            if let Some(again) = task.plan.as_deref_mut().and_then(|plan| plan.again.as_deref_mut()) {
                change(again);
            }
        });
    }

    fn wait_for_attempt(&mut self, now: Now, ordinal: Ordinal, finished: &Finished, delay_ms: u64) {
        self.change_agent(ordinal, |agent| {
            agent.end();
            // The next attempt begins a new conversation.
            agent.session = None;
        });
        self.change_task(ordinal, |task| {
            let (usage, offset) = (task.usage.take(), task.output_bytes);
            let Some(plan) = task.plan.as_deref_mut() else { return };
            let Some(again) = plan.again.as_deref_mut() else { return };
            again.add(now, finished, usage, offset);
            let (at, wall) = (now.mono.plus_ms(delay_ms), now.wall.plus_ms(delay_ms));
            plan.not_before = (delay_ms > 0).then_some(NotBefore::Attempt { at, wall });
            task.state = State::Queued { env: again.env.clone() };
            task.run += 1;
            (task.ready_at, task.paused, task.elsewhere, task.undelivered) = (None, false, None, None);
        });
        self.event(now, EventKind::Retrying, ordinal);
    }
}

fn next(now: Now, task: &Task, finished: &Finished) -> Next {
    // A follow-up prompt is given only once: the rule applies to the first prompt.
    let again = task.plan().again.as_deref().filter(|_| task.resume_count == 0);
    again.map_or(Next::End, |again| again.next(now, finished, task.id.as_u128()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubled_delay_saturates_at_maximum() {
        assert_eq!([0, 1, 5].map(|times| doubled(1000, times)), [1000, 2000, 32_000]);
        assert_eq!([63, 64, 1000].map(|times| doubled(1000, times)), [u64::MAX; 3]);
        assert_eq!(doubled(0, 1000), 0);
    }
}
