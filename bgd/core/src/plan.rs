//! How a task is ordered among others: its submitter's requests, and how far they are fulfilled. Which task is next for
//! a free slot is decided in `queue`, not here.

use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::order::{Condition, DEFAULT_GROUP, Restart};
use bgd_shared::splitmix::{STEP, mix};
use bgd_shared::task::{Exit, Status};
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use bgd_shared::usage::Usage;
use serde::{Deserialize, Serialize};

use super::elsewhere::Cause;
use super::ordinal::Ordinal;
use super::time::{Mono, Now};

/// The plan of a task. Most tasks have none of their own, and use [`PLAIN`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its group; `None` means the default group.
    pub group: Option<Arc<str>>,
    /// The batch that it was submitted with.
    pub batch: Option<TaskId>,
    /// Priority within its group, -100 to 100; higher starts first.
    pub priority: i32,
    /// How many slots it occupies.
    pub slots: u32,
    /// Whether it is held until it is released.
    pub held: bool,
    /// Its earliest start, if that is still ahead.
    pub not_before: Option<NotBefore>,
    /// Conditions on other tasks.
    pub after: Vec<Dependency>,
    /// Replaces the description that it was submitted with.
    pub description: Option<Box<str>>,
    /// Whether and when it starts again after ending by itself.
    pub again: Option<Box<Repetition>>,
    /// The task of which this is a rerun.
    pub rerun_of: Option<TaskId>,
}

/// The plan of a task that asks for nothing special.
pub static PLAIN: Plan = Plan {
    group: None,
    batch: None,
    priority: 0,
    slots: 1,
    held: false,
    not_before: None,
    after: Vec::new(),
    description: None,
    again: None,
    rerun_of: None,
};

impl Plan {
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(DEFAULT_GROUP)
    }

    /// Reports whether it waits for nothing but slots.
    pub fn is_open(&self) -> bool {
        !self.held && self.not_before.is_none() && self.after.iter().all(Dependency::is_no_hindrance)
    }

    /// Reports whether it waits in a place that also has the tasks it comes after.
    pub fn is_held_by_place(&self) -> bool {
        self.after.iter().any(|one| !one.met && one.held_by == HeldBy::Place)
    }

    /// Returns the tasks that it comes after, one for each condition.
    pub fn needed(&self) -> impl Iterator<Item = Ordinal> {
        self.after.iter().map(|dependency| dependency.ordinal)
    }

    /// Returns what `became` means for the open conditions on the task `other`.
    pub fn outlook(&self, other: Ordinal, became: DependencyStatus) -> ConditionChange {
        let mut outlook = ConditionChange::default();
        for dependency in self.after.iter().filter(|one| one.ordinal == other && !one.met) {
            match judge(dependency.condition, became) {
                Verdict::Met => outlook.is_met = true,
                Verdict::Open => outlook.is_open = true,
                Verdict::Never(ended) => outlook.never = Some((dependency.condition, ended)),
            }
        }
        outlook
    }

    /// Marks the conditions on the task `other` that `became` meets.
    pub fn meet(&mut self, other: Ordinal, became: DependencyStatus) {
        for dependency in self.after.iter_mut().filter(|one| one.ordinal == other) {
            dependency.met |= judge(dependency.condition, became) == Verdict::Met;
        }
    }

    /// Returns the size of its texts in lists.
    pub fn text_bytes(&self) -> usize {
        let attempts = self.again.iter().flat_map(|again| &again.attempts);
        self.group().len()
            + self.description.as_deref().map_or(0, str::len)
            + self.after.len() * DEPENDENCY_TEXT
            + self.again.as_ref().map_or(0, |again| again.rule.text_bytes())
            + attempts.map(|attempt| ATTEMPT_TEXT + attempt.text_bytes()).sum::<usize>()
    }
}

/// Upper bound for a condition in a task object, in bytes; it appears there both as a condition and among the reasons
/// for waiting.
const DEPENDENCY_TEXT: usize = 130;

/// Upper bound for a rule in a task object, besides its exit codes, in bytes.
const RULE_TEXT: usize = 140;

/// Upper bound for an exit code and its comma, in bytes.
const CODE_TEXT: usize = 4;

/// Approximate size of an attempt in a task object, in bytes.
const ATTEMPT_TEXT: usize = 200;

/// How far the clocks must have moved apart to correct a time for people, in milliseconds.
const APART_MS: u64 = 1000;

/// The earliest start of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotBefore {
    /// A delay after it was submitted or edited.
    Delay {
        /// The end of the delay on the monotonic clock, which decides.
        at: Mono,
        /// The end of the delay on the wall clock, for people.
        wall: Timestamp,
    },
    /// A wall-clock time. The wall clock may be set.
    Wall(Timestamp),
    /// The start of its next attempt.
    Attempt {
        /// The start on the monotonic clock, which decides.
        at: Mono,
        /// The start on the wall clock, for people.
        wall: Timestamp,
    },
}

impl NotBefore {
    /// Converts it to another monotonic clock, on which the time is `mono` now: the wall clock provides the remaining
    /// time. The wait never becomes longer than it was at `written` on the previous clock.
    pub fn rebase(&mut self, written: Mono, mono: Mono, now: Timestamp) {
        match self {
            Self::Delay { at, wall } | Self::Attempt { at, wall } => {
                let left = wall.millis_since(now).min(at.0.saturating_sub(written.0));
                (*at, *wall) = (mono.plus_ms(left), now.plus_ms(left));
            }
            Self::Wall(_) => {}
        }
    }

    /// Corrects the time for people if the clocks have moved apart: the machine has slept, or the wall clock was set.
    pub fn correct(&mut self, now: Now) {
        match self {
            Self::Delay { at, wall } | Self::Attempt { at, wall } => {
                let due = now.wall.plus_ms(at.0.saturating_sub(now.mono.0));
                // Not by so little that one time is shown in several ways.
                if due.millis_since(*wall).max(wall.millis_since(due)) >= APART_MS {
                    *wall = due;
                }
            }
            Self::Wall(_) => {}
        }
    }

    /// Returns the time on the monotonic clock; `None` for a wall-clock time.
    pub const fn mono(self) -> Option<Mono> {
        match self {
            Self::Delay { at, .. } | Self::Attempt { at, .. } => Some(at),
            Self::Wall(_) => None,
        }
    }
}

/// A condition on another task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    pub task: TaskId,
    pub ordinal: Ordinal,
    /// The state that the other task must reach.
    pub condition: Condition,
    pub met: bool,
    /// Who checks the condition until it is met.
    #[serde(default)]
    pub held_by: HeldBy,
}

/// Who keeps a task from starting before a condition is met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldBy {
    /// The core: the task stays in its queue.
    #[default]
    Core,
    /// The cluster that has both tasks, by a dependency of its own.
    Place,
    /// The core again, as the cluster gave the task back.
    CoreAgain,
}

impl Dependency {
    /// Reports whether the core need not wait for the condition.
    pub fn is_no_hindrance(&self) -> bool {
        self.met || self.held_by == HeldBy::Place
    }
}

/// The state of a task, as far as conditions on it are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependencyStatus {
    Started,
    /// It has started and is ready.
    Ready,
    Ended(EndedTask),
}

/// How a task ended, for the tasks that depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedTask {
    pub task: TaskId,
    pub status: Status,
    /// Whether it had ever started.
    pub has_begun: bool,
    /// Whether it was ready in its last attempt.
    pub was_ready: bool,
    /// A short reason for its end, if there is one.
    pub how: Option<EndReason>,
}

/// A short reason for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// Its process exited with this code.
    Code(i32),
    /// This signal ended its process.
    Signal(i32),
    /// It exceeded its time limit.
    TimedOut,
    /// It was not ready in time.
    NotReady,
}

/// The effect of one task's state change on another task's conditions on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConditionChange {
    /// Some condition is now met.
    pub is_met: bool,
    /// Some condition is still open.
    pub is_open: bool,
    /// A condition that can no longer be met, and why.
    pub never: Option<(Condition, EndedTask)>,
}

/// The verdict on a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It may still be met.
    Open,
    Met,
    /// It can no longer be met.
    Never(EndedTask),
}

/// Judges a condition that was not met before.
const fn judge(condition: Condition, became: DependencyStatus) -> Verdict {
    match (condition, became) {
        (Condition::Start, DependencyStatus::Started | DependencyStatus::Ready)
        | (Condition::Ready, DependencyStatus::Ready) => Verdict::Met,
        (Condition::Ready, DependencyStatus::Started)
        | (
            Condition::Ok | Condition::Any | Condition::Fail,
            DependencyStatus::Started | DependencyStatus::Ready,
        ) => Verdict::Open,
        (condition, DependencyStatus::Ended(ended)) => {
            let is_met = match condition {
                Condition::Ok => matches!(ended.status, Status::Completed),
                Condition::Fail => matches!(ended.status, Status::Failed),
                // A task that could not be started has failed; one cancelled while it was pending has done nothing.
                Condition::Any => ended.has_begun || matches!(ended.status, Status::Failed),
                Condition::Start => ended.has_begun,
                Condition::Ready => ended.was_ready,
            };
            if is_met { Verdict::Met } else { Verdict::Never(ended) }
        }
    }
}

/// Whether and when a task starts again after ending by itself, and its attempts so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetition {
    pub rule: Rule,
    /// The environment of every attempt.
    #[serde(with = "super::sharing::env")]
    pub env: Arc<Env>,
    /// The number of the current or next attempt, from 1.
    pub attempt: u32,
    /// When the current attempt started; `None` before that.
    pub began: Option<Mono>,
    /// With [`Rule::Restart`]: whether the current attempt has ended early; `None` until its leader has exited and only
    /// the rest of its tree is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<bool>,
    /// With [`Rule::Restart`]: how many attempts in a row ended early.
    pub early_ends: u32,
    /// Where this attempt begins in the output and, if separate, in standard error, in bytes.
    pub offset: [u64; 2],
    /// The most recent attempts that have ended.
    pub attempts: Vec<Attempt>,
}

impl Repetition {
    /// Returns the latest ended attempt that has started. The first one always has, even if nothing shows it.
    pub fn last_started(&self) -> Option<&Attempt> {
        self.attempts.iter().rfind(|attempt| attempt.has_started()).or(self.attempts.first())
    }
}

/// The rule for another attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// R108: try again after a failure, a limited number of times.
    Retry {
        /// How many attempts may follow the first one.
        times: u32,
        /// Upper bound of the delay before the second attempt, in milliseconds. It doubles with each attempt.
        delay_ms: u64,
        /// Upper bound of that bound, in milliseconds.
        max_delay_ms: u64,
        /// The exit codes to retry after. Empty without `signal` means any failure.
        codes: Box<[i32]>,
        /// Whether to retry after an end by a signal.
        signal: bool,
    },
    /// R109: keep the task alive until it is asked to end.
    Restart(Restart),
}

impl Rule {
    /// Returns the size of its text.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Retry { codes, .. } => RULE_TEXT + CODE_TEXT * codes.len(),
            Self::Restart(_) => RULE_TEXT,
        }
    }
}

/// An attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// From 1.
    pub attempt: u32,
    /// The leader's process id; `None` without a process.
    pub pid: Option<i32>,
    pub started_at: Timestamp,
    pub completed_at: Timestamp,
    pub exit: Option<Exit>,
    /// Why it failed, if its exit does not explain it.
    pub error: Option<AttemptError>,
    /// Its use of the machine, if known.
    pub usage: Option<Usage>,
    /// Where it begins in the output and, if separate, in standard error, in bytes.
    pub offset: [u64; 2],
}

impl Attempt {
    /// Reports whether it has started. One that could not start has neither process nor exit, and its end as its start.
    pub fn has_started(&self) -> bool {
        self.pid.is_some() || self.exit.is_some() || self.started_at != self.completed_at
    }

    /// Returns the size of its texts.
    pub fn text_bytes(&self) -> usize {
        let error = self.error.as_ref().map_or(0, AttemptError::text_bytes);
        let exit = if let Some(Exit::Unknown(why)) = &self.exit { why.len() } else { 0 };
        error + exit
    }
}

/// Upper bound for the fixed wording of an attempt's error, in bytes.
const WORDING_BYTES: usize = 64;

impl AttemptError {
    /// Returns the size of its text.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Agent(text) | Self::Spawn(text) => text.len(),
            Self::Interrupted(text) => WORDING_BYTES + text.len(),
            Self::Unstartable(_) => WORDING_BYTES,
            Self::NotReady { .. } => 0,
            Self::Elsewhere { message, .. } => message.len(),
        }
    }
}

/// What a pending task needs to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Need {
    /// A task that it depends on, which was lost with a damaged journal.
    Dependency,
    /// The descriptors sent with it, which were lost with the previous daemon.
    Descriptors,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptError {
    /// The agent's error.
    Agent(Box<str>),
    /// Why its agent's turn was cut short.
    Interrupted(Box<str>),
    /// Why it could not be started.
    Spawn(Box<str>),
    /// It could not start without this.
    Unstartable(Need),
    /// It was not ready in time.
    NotReady {
        /// The time it had to become ready, in milliseconds.
        limit_ms: u64,
    },
    /// Why it failed in the place that ran it.
    Elsewhere {
        cause: Cause,
        /// The reason, for people.
        message: Box<str>,
    },
}

/// Returns a number from 0 to `longest` that looks random and is always the same for the same seed and attempt.
#[allow(clippy::cast_possible_truncation, reason = "the halves of a random number are random")]
pub const fn draw(seed: u128, attempt: u32, longest: u64) -> u64 {
    let bits = mix((seed as u64) ^ ((seed >> 64) as u64) ^ (attempt as u64).wrapping_mul(STEP));
    match longest.checked_add(1) {
        Some(span) => bits % span,
        None => bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r128_restored_delay_follows_wall_clock_but_never_grows() {
        const DAY: u64 = 86_400_000;
        let begin = Timestamp::default().plus_ms(20_000 * DAY);
        let end = begin.plus_ms(10_000);
        // It was persisted with six seconds left.
        for (now, left) in [
            (begin.plus_ms(4_000), 6_000),
            (begin.plus_ms(7_000), 3_000),
            (end, 0),
            (begin.plus_ms(DAY), 0),
            (Timestamp::default().plus_ms(19_999 * DAY), 6_000),
            (Timestamp::default(), 6_000),
        ] {
            let (at, wall) = (Mono(10_000), end);
            for mut moved in [NotBefore::Delay { at, wall }, NotBefore::Attempt { at, wall }] {
                moved.rebase(Mono(4_000), Mono(50), now);
                assert_eq!(moved.mono(), Some(Mono(50 + left)), "{now:?}");
                let (NotBefore::Delay { wall, .. } | NotBefore::Attempt { wall, .. } | NotBefore::Wall(wall)) =
                    moved;
                assert_eq!(wall, now.plus_ms(left), "as people are told");
            }
            let mut fixed = NotBefore::Wall(end);
            fixed.rebase(Mono(4_000), Mono(50), now);
            assert_eq!(fixed, NotBefore::Wall(end), "that clock decides alone");
        }
    }

    #[test]
    fn r105_shown_end_of_a_delay_follows_the_clock_that_decides() {
        let begin = Timestamp::from_unix_ms(1_800_000_000_000);
        let delay = NotBefore::Delay { at: Mono(10_000), wall: begin.plus_ms(10_000) };
        // The monotonic clock has advanced by four seconds, with six left, and the wall clock by this much.
        for (passed, shown) in [(4_000, 10_000), (4_900, 10_000), (3_604_000, 3_610_000), (0, 6_000)] {
            let mut corrected = delay;
            corrected.correct(Now { mono: Mono(4_000), wall: begin.plus_ms(passed) });
            let wall = begin.plus_ms(shown);
            assert_eq!(corrected, NotBefore::Delay { at: Mono(10_000), wall }, "{passed}");
        }
        let mut fixed = NotBefore::Wall(begin);
        fixed.correct(Now { mono: Mono(4_000), wall: begin.plus_ms(3_604_000) });
        assert_eq!(fixed, NotBefore::Wall(begin), "that clock decides alone");
    }

    #[test]
    fn drawn_jitter_is_spread_over_the_allowed_range() {
        let drawn: Vec<u64> = (0..1000).map(|seed| draw((seed << 64) | (seed * 7), 1, 999)).collect();
        assert!(drawn.iter().all(|ms| *ms <= 999));
        let low = drawn.iter().filter(|ms| **ms < 500).count();
        assert!((400..600).contains(&low), "{low} of 1000 in the lower half");
        assert_eq!(draw(1, 1, 0), 0);
        assert_ne!(draw(1, 1, u64::MAX), draw(1, 2, u64::MAX));
    }
}
