//! How long a durable daemon keeps finished tasks and their outputs (R129): those that ended longest ago go first.
//! Their age is measured by the wall clock, because that clock advances while no daemon runs.

use std::collections::{BTreeMap, BTreeSet};

use bgd_shared::id::TaskId;
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

/// The tasks that exist.
type Tasks = BTreeMap<Ordinal, Box<Task>>;

/// What a task is to the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// `None` if it is not part of the history.
    part: Option<Part>,
    /// `None` if it is in no batch.
    member: Option<Member>,
}

/// A task of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    batch: TaskId,
    is_active: bool,
}

impl Member {
    fn of(task: &Task) -> Option<Self> {
        task.plan().batch.map(|batch| Self { batch, is_active: !task.is_finished() })
    }
}

/// The tasks of a batch.
#[derive(Clone, Debug, Default)]
struct Members {
    all: BTreeSet<Ordinal>,
    /// How many of them have not ended.
    active: usize,
}

/// The finished tasks by their age; none while there are no limits. Not part of it are those whose outputs other tasks
/// still need (R104), and those of a batch that has not ended: whoever waits for the batch then has to learn how each
/// of them ended (R112).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    limits: Option<HistoryLimits>,
    /// How many unfinished tasks and batches come after each task.
    #[serde(default)]
    needed: BTreeMap<Ordinal, usize>,
    /// The batches some of whose tasks are still to be added.
    #[serde(default)]
    entering: BTreeSet<TaskId>,
    /// The tasks of the batches.
    #[serde(skip)]
    members: BTreeMap<TaskId, Members>,
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
        let (needed, entering) = (std::mem::take(&mut self.needed), std::mem::take(&mut self.entering));
        *self = Self { limits, needed, entering, ..Self::default() };
    }

    pub fn limits(&self) -> Option<HistoryLimits> {
        self.limits
    }

    /// Returns what a task is to the history; nothing without limits.
    pub fn entry(&self, ordinal: Ordinal, task: &Task) -> Entry {
        if self.limits.is_none() {
            return Entry::default();
        }
        Entry { part: self.part(ordinal, task), member: Member::of(task) }
    }

    /// Returns a task's part of the history; `None` without limits, and while the task or its batch is unfinished, or
    /// the task has processes left or is needed by others.
    pub fn part(&self, ordinal: Ordinal, task: &Task) -> Option<Part> {
        self.limits?;
        match &task.state {
            State::Finished(finished)
                if finished.lingering == Lingering::No
                    && !self.needed.contains_key(&ordinal)
                    && !task.plan().batch.is_some_and(|batch| self.is_open(batch)) =>
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
        self.replace(ordinal, before, None);
    }

    /// Notes that one of the unfinished tasks and batches that come after a task has ended.
    pub fn release(&mut self, ordinal: Ordinal, task: Option<&Task>) {
        let Some(count) = self.needed.get_mut(&ordinal) else { return };
        *count -= 1;
        if *count == 0 {
            self.needed.remove(&ordinal);
            self.replace(ordinal, None, task.and_then(|task| self.part(ordinal, task)));
        }
    }

    /// Notes that a task was added, changed or removed. `before` is what it was to the history; `tasks` are those that
    /// exist, of which this one is ignored. When the last active task of a batch ends, its tasks become part of the
    /// history; when one of them runs again, they cease to be: only then does the cost depend on their number.
    pub fn change(&mut self, ordinal: Ordinal, before: Entry, after: Option<&Task>, tasks: &Tasks) {
        if self.limits.is_none() {
            return;
        }
        let member = after.and_then(Member::of);
        let mut part = before.part;
        if before.member != member {
            self.replace(ordinal, part.take(), None);
            if let Some(member) = before.member {
                self.leave(ordinal, member, tasks);
            }
            if let Some(member) = member {
                self.join(ordinal, member, tasks);
            }
        }
        self.replace(ordinal, part, after.and_then(|task| self.part(ordinal, task)));
    }

    /// Notes that tasks of a batch are still to be added.
    pub fn enter_batch(&mut self, batch: TaskId, tasks: &Tasks) {
        self.take_out_members(batch, tasks);
        self.entering.insert(batch);
    }

    /// Notes that no task of a batch is still to be added.
    pub fn note_entered(&mut self, batch: TaskId, tasks: &Tasks) {
        if self.entering.remove(&batch) {
            self.put_in_members(batch, tasks);
        }
    }

    /// Reports whether a batch has not ended.
    fn is_open(&self, batch: TaskId) -> bool {
        self.entering.contains(&batch) || self.members.get(&batch).is_some_and(|members| members.active > 0)
    }

    fn leave(&mut self, ordinal: Ordinal, member: Member, tasks: &Tasks) {
        let Some(members) = self.members.get_mut(&member.batch) else { return };
        members.all.remove(&ordinal);
        if member.is_active {
            members.active = members.active.saturating_sub(1);
        }
        if members.all.is_empty() {
            self.members.remove(&member.batch);
        } else if member.is_active {
            self.put_in_members(member.batch, tasks);
        }
    }

    fn join(&mut self, ordinal: Ordinal, member: Member, tasks: &Tasks) {
        if member.is_active {
            self.take_out_members(member.batch, tasks);
        }
        let members = self.members.entry(member.batch).or_default();
        members.all.insert(ordinal);
        members.active += usize::from(member.is_active);
    }

    /// Makes the tasks of a batch part of the history if it has ended.
    fn put_in_members(&mut self, batch: TaskId, tasks: &Tasks) {
        if !self.is_open(batch) {
            for (ordinal, part) in self.parts_of(batch, tasks) {
                self.replace(ordinal, None, Some(part));
            }
        }
    }

    /// Takes the tasks of a batch that is about to be unfinished out of the history, if they are part of it.
    fn take_out_members(&mut self, batch: TaskId, tasks: &Tasks) {
        if !self.is_open(batch) {
            for (ordinal, part) in self.parts_of(batch, tasks) {
                self.replace(ordinal, Some(part), None);
            }
        }
    }

    fn parts_of(&self, batch: TaskId, tasks: &Tasks) -> Vec<(Ordinal, Part)> {
        let members = self.members.get(&batch).into_iter().flat_map(|members| &members.all);
        members.filter_map(|ordinal| Some((*ordinal, self.part(*ordinal, tasks.get(ordinal)?)?))).collect()
    }

    fn replace(&mut self, ordinal: Ordinal, before: Option<Part>, after: Option<Part>) {
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

    /// Returns the finished tasks, those that ended first first.
    pub fn tasks(&self) -> impl Iterator<Item = Ordinal> {
        self.ended.iter().map(|(_, ordinal)| *ordinal)
    }

    pub fn len(&self) -> usize {
        self.ended.len()
    }

    /// Returns the memory of the finished tasks, in bytes. Others may hold a part of it, too.
    pub fn held(&self) -> usize {
        self.memory.saturating_add(self.shared.total())
    }

    /// Reports whether a limit other than the age is exceeded.
    pub fn is_too_large(&self) -> bool {
        self.limits.is_some_and(|limits| self.exceeds(limits))
    }

    fn exceeds(&self, limits: HistoryLimits) -> bool {
        let (count, memory) = (self.ended.len(), self.held());
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
        let mut rest = Self {
            limits: Some(limits),
            ended: self.ended.clone(),
            bytes: self.bytes,
            memory: self.memory,
            shared: self.shared.clone(),
            ..Self::default()
        };
        let mut excess = 0;
        while let Some(ordinal) = rest.next(now)
            && let Some(part) = part(ordinal)
        {
            rest.replace(ordinal, Some(part), None);
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
