//! How long a durable daemon keeps finished tasks and their outputs (R129): those that ended longest ago go first.
//! Their age is measured by the wall clock, because that clock advances while no daemon runs.

use std::collections::{BTreeMap, BTreeSet};

use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::held::{Shared, SharedBytes};
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
    /// How many finished tasks are kept.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    ended: Timestamp,
    /// How many bytes of its output are kept.
    output: u64,
    /// Its memory, in bytes, without `shared`.
    memory: usize,
    /// The values that other tasks may hold, too, such as the environment for another turn of an agent.
    shared: Vec<Shared>,
}

/// The finished tasks by their age; none while there are no limits. Those whose outputs other tasks still need (R104)
/// are not part of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    limits: Option<HistoryLimits>,
    /// How many unfinished tasks and batches come after each task.
    #[serde(default)]
    needed: BTreeMap<Ordinal, usize>,
    #[serde(skip)]
    ended: BTreeSet<(Timestamp, Ordinal)>,
    #[serde(skip)]
    bytes: u64,
    #[serde(skip)]
    memory: usize,
    #[serde(skip)]
    shared: SharedBytes,
}

impl History {
    /// Replaces the limits, and forgets the finished tasks.
    pub fn limit(&mut self, limits: Option<HistoryLimits>) {
        let needed = std::mem::take(&mut self.needed);
        *self = Self { limits, needed, ..Self::default() };
    }

    pub fn limits(&self) -> Option<HistoryLimits> {
        self.limits
    }

    /// Returns a task's entry; `None` without limits, and while the task is unfinished, has processes left, or is
    /// needed by others.
    pub fn part(&self, ordinal: Ordinal, task: &Task) -> Option<Part> {
        self.limits?;
        match &task.state {
            State::Finished(finished)
                if finished.lingering == Lingering::No && !self.needed.contains_key(&ordinal) =>
            {
                let (ended, output) = (finished.completed_at, kept_bytes(task));
                Some(Part { ended, output, memory: task.own_bytes(), shared: task.shared().collect() })
            }
            State::Finished(_)
            | State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Resuming(_) => None,
        }
    }

    pub fn needs_nothing(&self) -> bool {
        self.needed.is_empty()
    }

    /// Notes that one more unfinished task or batch comes after a task.
    pub fn need(&mut self, ordinal: Ordinal, task: Option<&Task>) {
        let before = task.and_then(|task| self.part(ordinal, task));
        *self.needed.entry(ordinal).or_default() += 1;
        self.change(ordinal, before, None);
    }

    /// Notes that one of the unfinished tasks and batches that come after a task has ended.
    pub fn release(&mut self, ordinal: Ordinal, task: Option<&Task>) {
        let Some(count) = self.needed.get_mut(&ordinal) else { return };
        *count -= 1;
        if *count == 0 {
            self.needed.remove(&ordinal);
            self.change(ordinal, None, task.and_then(|task| self.part(ordinal, task)));
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
            part.shared.into_iter().for_each(|shared| self.shared.release(shared));
        }
        if let Some(part) = after {
            part.shared.into_iter().for_each(|shared| self.shared.hold(shared));
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
        self.limits.is_some_and(|limits| self.exceeds(limits))
    }

    fn exceeds(&self, limits: HistoryLimits) -> bool {
        let (count, memory) = (self.ended.len(), self.memory.saturating_add(self.shared.total()));
        count > limits.tasks || count > 1 && (self.bytes > limits.bytes || memory > limits.memory)
    }

    /// Returns the task to remove next; `None` if all may stay.
    pub fn next(&self, now: Timestamp) -> Option<Ordinal> {
        let is_due = self.due().is_some_and(|due| due <= now);
        (is_due || self.is_too_large()).then(|| self.ended.first().map(|(_, ordinal)| *ordinal)).flatten()
    }

    /// Counts the tasks that these limits remove at this time. `part` returns a task's entry.
    pub fn excess(
        &self,
        limits: HistoryLimits,
        now: Timestamp,
        part: impl Fn(Ordinal) -> Option<Part>,
    ) -> usize {
        let is_due = self.ended.first().is_some_and(|(ended, _)| ended.plus_ms(limits.age_ms) <= now);
        if !is_due && !self.exceeds(limits) {
            return 0;
        }
        // Removes them from a copy: which ones exceed the memory depends on what they share with those that stay.
        let mut rest = Self { limits: Some(limits), ..self.clone() };
        let mut excess = 0;
        while let Some(ordinal) = rest.next(now)
            && let Some(part) = part(ordinal)
        {
            rest.change(ordinal, Some(part), None);
            excess += 1;
        }
        excess
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
