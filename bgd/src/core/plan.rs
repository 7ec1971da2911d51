//! How a task is ordered among others: what its submitter asked for, and what has come of it so far.

use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::order::{Condition, DEFAULT_GROUP, Restart};
use bgd_shared::task::{Exit, Status};
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::ordinal::Ordinal;
use super::time::Mono;

/// The plan of a task. Most tasks have the plain one, and share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its group; `None` stands for the default one.
    pub group: Option<Arc<str>>,
    /// The batch that it was submitted with.
    pub batch: Option<TaskId>,
    /// Higher starts first in its group, -100 to 100.
    pub priority: i32,
    /// How many slots it takes.
    pub slots: u32,
    /// Whether it waits to be released.
    pub held: bool,
    /// When it may start at the earliest, if that is yet to come.
    pub not_before: Option<NotBefore>,
    /// What must become of other tasks first.
    pub after: Vec<Dependency>,
    /// In place of the description that it was submitted with.
    pub description: Option<Box<str>>,
    /// What happens when it fails or ends by itself.
    pub again: Option<Box<Again>>,
    /// The task that it is the same as, submitted again.
    pub rerun_of: Option<TaskId>,
}

/// The plan of a task that asks for nothing.
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
    /// The name of its group.
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(DEFAULT_GROUP)
    }

    /// Whether nothing but slots keeps it from starting.
    pub fn is_open(&self) -> bool {
        !self.held && self.not_before.is_none() && self.after.iter().all(|dependency| dependency.met)
    }

    /// What this means for its conditions on the task that it has become of, as far as they were open.
    pub fn outlook(&self, other: Ordinal, became: Became) -> Outlook {
        let mut outlook = Outlook::default();
        for dependency in self.after.iter().filter(|one| one.ordinal == other && !one.met) {
            match judge(dependency.condition, became) {
                Verdict::Met => outlook.is_met = true,
                Verdict::Open => outlook.is_open = true,
                Verdict::Never(ended) => outlook.never = Some((dependency.condition, ended)),
            }
        }
        outlook
    }

    /// Notes which of its conditions have come true by this.
    pub fn meet(&mut self, other: Ordinal, became: Became) {
        for dependency in self.after.iter_mut().filter(|one| one.ordinal == other) {
            dependency.met |= judge(dependency.condition, became) == Verdict::Met;
        }
    }

    /// The bytes of its texts as lists show them.
    pub fn text_bytes(&self) -> usize {
        let attempts = self.again.iter().flat_map(|again| &again.attempts);
        self.group().len()
            + self.description.as_deref().map_or(0, str::len)
            + self.after.len() * DEPENDENCY_TEXT
            + attempts.map(|attempt| ATTEMPT_TEXT + attempt.text_bytes()).sum::<usize>()
    }
}

/// The bytes of a condition in a task object, at most: once as such, once in what is waited for.
const DEPENDENCY_TEXT: usize = 130;

/// The bytes of an attempt in a task object, about.
const ATTEMPT_TEXT: usize = 200;

/// The earliest start of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotBefore {
    /// So long after it was submitted or edited.
    Delay {
        /// By the clock that decides.
        at: Mono,
        /// For people.
        wall: Timestamp,
    },
    /// A time of the wall clock, which may be set.
    Wall(Timestamp),
    /// Its next attempt.
    Attempt {
        /// By the clock that decides.
        at: Mono,
        /// For people.
        wall: Timestamp,
    },
}

impl NotBefore {
    /// When that is by the clock that can't be set.
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
    /// The other task.
    pub task: TaskId,
    /// Its number.
    pub ordinal: Ordinal,
    /// What must become of it.
    pub condition: Condition,
    /// Whether that has come true.
    pub met: bool,
}

/// What a task has become, as far as conditions on it are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// It runs.
    Started,
    /// It runs, and is ready.
    Ready,
    /// It has ended.
    Ended(EndedTask),
}

/// How a task ended that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedTask {
    /// The task.
    pub task: TaskId,
    /// Its status.
    pub status: Status,
    /// Whether it had started.
    pub has_begun: bool,
    /// Whether it was ready in its last attempt.
    pub was_ready: bool,
    /// How, as far as that is known and short.
    pub how: Option<HowEnded>,
}

/// How a task ended, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HowEnded {
    /// Its process exited with this code.
    Code(i32),
    /// A signal of this number ended its process.
    Signal(i32),
    /// Its time limit ended it.
    TimedOut,
    /// It was not ready in time.
    NotReady,
}

/// What has come of the conditions of a task on another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// One has come true.
    pub is_met: bool,
    /// One is still open.
    pub is_open: bool,
    /// One that can't come true any more, and why.
    pub never: Option<(Condition, EndedTask)>,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Not yet.
    Open,
    /// It does.
    Met,
    /// It can't any more.
    Never(EndedTask),
}

/// What this means for a condition that was not met before.
const fn judge(condition: Condition, became: Became) -> Verdict {
    match (condition, became) {
        (Condition::Start, Became::Started | Became::Ready) | (Condition::Ready, Became::Ready) => {
            Verdict::Met
        }
        (Condition::Ready, Became::Started)
        | (Condition::Ok | Condition::Any | Condition::Fail, Became::Started | Became::Ready) => {
            Verdict::Open
        }
        (condition, Became::Ended(ended)) => {
            let is_met = match condition {
                Condition::Ok => matches!(ended.status, Status::Completed),
                Condition::Fail => ended.has_begun && matches!(ended.status, Status::Failed),
                Condition::Any | Condition::Start => ended.has_begun,
                Condition::Ready => ended.was_ready,
            };
            if is_met { Verdict::Met } else { Verdict::Never(ended) }
        }
    }
}

/// Whether and when a task starts again after an end of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Again {
    /// The rule.
    pub rule: Rule,
    /// The environment that every attempt begins with.
    pub env: Arc<Env>,
    /// The number of the attempt that is next or under way, from 1.
    pub attempt: u32,
    /// When the attempt that is under way began, by the clock that decides.
    pub began: Option<Mono>,
    /// With [`Rule::Restart`]: how many ends in a row came too soon.
    pub early_ends: u32,
    /// Where the output of this attempt begins, and its standard error if that is apart, in bytes.
    pub offset: [u64; 2],
    /// Those that have ended: the last few.
    pub attempts: Vec<Attempt>,
}

/// The rule for another attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// R108: after failures, so often.
    Retry {
        /// Attempts after the first one.
        times: u32,
        /// The longest delay before the second attempt, in milliseconds.
        delay_ms: u64,
        /// What the longest delay does not grow beyond.
        max_delay_ms: u64,
        /// After these codes, and after a signal if told so; without both, after every failure.
        codes: Box<[i32]>,
        /// See `codes`.
        signal: bool,
    },
    /// R109: for as long as nobody ends it.
    Restart(Restart),
}

/// An attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number, from 1.
    pub attempt: u32,
    /// The leader that it had.
    pub pid: Option<i32>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it was over.
    pub completed_at: Timestamp,
    /// How the leader ended.
    pub exit: Option<Exit>,
    /// Why it failed, where its exit does not tell.
    pub error: Option<AttemptError>,
    /// Where its output begins, and its standard error if that is apart, in bytes.
    pub offset: [u64; 2],
}

impl Attempt {
    /// The bytes of its texts.
    pub fn text_bytes(&self) -> usize {
        let error = self.error.as_ref().map_or(0, AttemptError::text_bytes);
        let exit = if let Some(Exit::Unknown(why)) = &self.exit { why.len() } else { 0 };
        error + exit
    }
}

impl AttemptError {
    /// The bytes of its text.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Agent(text) | Self::Spawn(text) => text.len(),
            Self::NotReady { .. } => 0,
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptError {
    /// As its agent said.
    Agent(Box<str>),
    /// As it could not be started.
    Spawn(Box<str>),
    /// It was not ready in time.
    NotReady {
        /// The time that it had, in milliseconds.
        limit_ms: u64,
    },
}

/// A number from 0 to `longest` that looks random and is the same for the same seed: `SplitMix64`'s mixer
/// (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[allow(clippy::cast_possible_truncation, reason = "the halves of a random number are random")]
pub const fn draw(seed: u128, attempt: u32, longest: u64) -> u64 {
    let mut bits =
        (seed as u64) ^ ((seed >> 64) as u64) ^ (attempt as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    match longest.checked_add(1) {
        Some(span) => bits % span,
        None => bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_spread_over_all_that_is_allowed() {
        let drawn: Vec<u64> = (0..1000).map(|seed| draw((seed << 64) | (seed * 7), 1, 999)).collect();
        assert!(drawn.iter().all(|ms| *ms <= 999));
        let low = drawn.iter().filter(|ms| **ms < 500).count();
        assert!((400..600).contains(&low), "{low} of 1000 in the lower half");
        assert_eq!(draw(1, 1, 0), 0);
        assert_ne!(draw(1, 1, u64::MAX), draw(1, 2, u64::MAX));
    }
}
