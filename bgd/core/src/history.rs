//! How long a durable daemon keeps finished tasks and their outputs (R129): those that ended longest ago go first.
//! Their age is measured by the wall clock, as it is the clock that advances while no daemon runs.

use std::collections::BTreeSet;

use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::ordinal::Ordinal;
use super::task::{Lingering, State, Task};

/// The most tasks that one step removes.
const AT_ONCE: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLimits {
    /// How long after its end a task is kept, in milliseconds.
    pub age_ms: u64,
    /// Bytes of output of all finished tasks. The task that ended last is kept, regardless of its size.
    pub bytes: u64,
    /// How many finished tasks are kept, at least 1.
    #[serde(default = "unlimited")]
    pub tasks: usize,
    /// Bytes of memory of all finished tasks. The task that ended last is kept, regardless of its size.
    #[serde(default = "unlimited")]
    pub memory: usize,
}

/// The default for records of a daemon without this limit.
const fn unlimited() -> usize {
    usize::MAX
}

/// A finished task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    ended: Timestamp,
    /// How many bytes of its output are kept.
    output: u64,
    /// Its memory, in bytes, without values shared with other tasks.
    memory: usize,
}

/// The finished tasks by their age; none while there are no limits.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct History {
    limits: Option<HistoryLimits>,
    #[serde(skip)]
    ended: BTreeSet<(Timestamp, Ordinal)>,
    #[serde(skip)]
    bytes: u64,
    #[serde(skip)]
    memory: usize,
}

impl History {
    pub fn new(limits: Option<HistoryLimits>) -> Self {
        Self { limits, ..Self::default() }
    }

    pub fn limits(&self) -> Option<HistoryLimits> {
        self.limits
    }

    /// Returns a task's entry; `None` without limits, and while the task is unfinished or has processes left.
    pub fn part(&self, task: &Task) -> Option<Part> {
        self.limits?;
        match &task.state {
            State::Finished(finished) if finished.lingering == Lingering::No => {
                let (ended, output) = (finished.completed_at, kept_bytes(task));
                Some(Part { ended, output, memory: task.own_bytes() })
            }
            State::Finished(_)
            | State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Resuming(_) => None,
        }
    }

    /// Notes that a task was added, changed or removed.
    pub fn change(&mut self, ordinal: Ordinal, before: Option<Part>, after: Option<Part>) {
        if before == after {
            return;
        }
        if let Some(part) = before {
            self.ended.remove(&(part.ended, ordinal));
            self.bytes = self.bytes.saturating_sub(part.output);
            self.memory = self.memory.saturating_sub(part.memory);
        }
        if let Some(part) = after {
            self.ended.insert((part.ended, ordinal));
            self.bytes = self.bytes.saturating_add(part.output);
            self.memory = self.memory.saturating_add(part.memory);
        }
    }

    /// Returns when the next task becomes too old.
    pub fn due(&self) -> Option<Timestamp> {
        Some(self.ended.first()?.0.plus_ms(self.limits?.age_ms))
    }

    /// Reports whether a limit other than the age is exceeded.
    pub fn is_too_large(&self) -> bool {
        let count = self.ended.len();
        count > 1
            && self.limits.is_some_and(|limits| {
                self.bytes > limits.bytes || count > limits.tasks || self.memory > limits.memory
            })
    }

    /// Returns the task to remove next; `None` if all may stay.
    pub fn next(&self, now: Timestamp) -> Option<Ordinal> {
        let is_due = self.due().is_some_and(|due| due <= now);
        (is_due || self.is_too_large()).then(|| self.ended.first().map(|(_, ordinal)| *ordinal)).flatten()
    }

    pub fn at_once() -> usize {
        AT_ONCE
    }
}

/// Returns how many bytes of a task's output the daemon keeps.
fn kept_bytes(task: &Task) -> u64 {
    if task.spec.output_file.is_some() {
        return 0;
    }
    let kept = [0, 1].map(|stream| task.output_bytes[stream].saturating_sub(task.dropped[stream]));
    kept[0].saturating_add(kept[1])
}
