//! The data that the live view keeps of a task: no more than its line, the filters and the order need, as there may be
//! 100,000 tasks. Texts shared by many tasks are stored once.

use std::collections::HashSet;
use std::hash::Hash;
use std::rc::Rc;

use bgd_shared::consumption::AgentUsage;
use bgd_shared::id::TaskId;
use bgd_shared::order::WaitingFor;
use bgd_shared::question::NeedsInput;
use bgd_shared::task::{Kind, Status, Task};
use bgd_shared::time::Timestamp;

use super::task_key::{HostNo, TaskKey};
use crate::render::table::status;
use crate::render::wall::Clock;
use crate::render::{clean, shortened};

/// Maximum number of characters kept of a description, more than fit on a line.
const DESCRIPTION_CHARS: usize = 256;

/// The relevance of a task to its user right now, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// The task's agent waits for an answer.
    Asks,
    /// The task has failed, and the user has not looked at it yet.
    Failed,
    Running,
    /// The task has not started.
    Pending,
    /// The task has ended.
    Done,
}

impl Section {
    /// All sections, in the order of the list.
    pub const ALL: [Self; 5] = [Self::Asks, Self::Failed, Self::Running, Self::Pending, Self::Done];

    /// Returns the name in headings and filters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asks => "asks",
            Self::Failed => "failed",
            Self::Running => "running",
            Self::Pending => "pending",
            Self::Done => "done",
        }
    }
}

/// Properties that tasks of the same session, group or batch have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Labels {
    /// The key of the parent session.
    pub session: Option<Rc<str>>,
    pub group: Rc<str>,
    pub batch: Option<TaskId>,
    pub tags: Box<[Rc<str>]>,
}

/// Texts and labels that are stored once, regardless of the number of tasks that have them.
#[derive(Debug, Default)]
pub struct Texts {
    texts: HashSet<Rc<str>>,
    labels: HashSet<Rc<Labels>>,
}

/// Number of texts kept before unused ones are dropped; the same applies to labels.
const TEXTS: usize = 4096;

impl Texts {
    /// Returns the stored copy of a text.
    pub fn share(&mut self, text: &str) -> Rc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        drop_unused(&mut self.texts);
        let text: Rc<str> = text.into();
        self.texts.insert(text.clone());
        text
    }

    /// Returns the stored copy of a task's labels.
    fn labels(&mut self, task: &Task) -> Rc<Labels> {
        let labels = Labels {
            session: task.session.as_deref().map(|key| self.share(&clean(key))),
            group: self.share(&clean(&task.group)),
            batch: task.batch,
            tags: task.tags.iter().map(|tag| self.share(&clean(tag))).collect(),
        };
        if let Some(known) = self.labels.get(&labels) {
            return known.clone();
        }
        drop_unused(&mut self.labels);
        let labels = Rc::new(labels);
        self.labels.insert(labels.clone());
        labels
    }
}

/// Drops entries that no task uses any longer. Does so only when the number of entries reaches a power of two.
fn drop_unused<T: ?Sized + Eq + Hash>(all: &mut HashSet<Rc<T>>) {
    if all.len() >= TEXTS && all.len().is_power_of_two() {
        all.retain(|one| Rc::strong_count(one) > 1);
    }
}

/// The latest event of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Not started, or unknown.
    Nothing,
    /// Running, with the time of the last activity.
    Active(Timestamp),
    /// Ended at this time.
    Ended(Timestamp),
}

/// A task in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Row {
    /// The host whose daemon has the task.
    pub host: HostNo,
    pub id: TaskId,
    pub status: Status,
    pub is_agent: bool,
    /// Whether it has a terminal that can be attached to.
    pub has_terminal: bool,
    pub is_held: bool,
    /// Whether it has ended, but not all of its processes.
    pub is_lingering: bool,
    /// The status with its details, as in `bgctl list`.
    pub state: Rc<str>,
    /// The description, cleaned for display on one line.
    pub description: Box<str>,
    /// Time of submission.
    pub created_at: Timestamp,
    last: Last,
    pub labels: Rc<Labels>,
    /// The tasks that it starts after.
    pub after: Box<[TaskId]>,
    pub question: Option<Box<NeedsInput>>,
    /// The usage of the latest run, once it has ended.
    pub used: Option<Used>,
    /// The total consumption of its agent.
    pub consumed: Option<Box<AgentUsage>>,
}

/// The resources that a run has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// CPU time, in milliseconds.
    pub cpu_ms: u64,
    /// Peak memory use, in bytes; `None` if unknown.
    pub peak_memory_bytes: Option<u64>,
}

impl Row {
    /// Extracts the data to keep from a task of this host.
    pub fn of(host: HostNo, task: &Task, texts: &mut Texts, clock: &Clock) -> Self {
        let is_active = task.status.is_active();
        let is_held = task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingFor::Held);
        let has_run = task.started_at.filter(|_| is_active && task.status != Status::Pending);
        Self {
            host,
            id: task.id,
            status: task.status,
            is_agent: task.kind == Kind::Agent,
            has_terminal: task.pty,
            is_held,
            is_lingering: task.lingering && !is_active,
            state: texts.share(&status(task, clock)),
            description: shortened(&clean(&task.description), DESCRIPTION_CHARS).into(),
            created_at: task.created_at,
            last: match (has_run, task.completed_at.filter(|_| !is_active)) {
                (_, Some(ended)) => Last::Ended(ended),
                (Some(started), None) => {
                    Last::Active(task.progress.updated_at.unwrap_or(started).max(started))
                }
                (None, None) => Last::Nothing,
            },
            labels: texts.labels(task),
            after: task.after.iter().map(|after| after.id).collect(),
            question: task.progress.needs_input.clone().filter(|_| is_active).map(Box::new),
            used: task
                .usage
                .as_ref()
                .filter(|_| !is_active)
                .map(|usage| Used { cpu_ms: usage.cpu_ms(), peak_memory_bytes: usage.peak_memory_bytes }),
            consumed: task.agent_usage.clone().map(Box::new),
        }
    }

    /// Returns the key of the task.
    pub const fn key(&self) -> TaskKey {
        self.host.task(self.id)
    }

    /// Returns the time of its last activity, while it is running.
    pub const fn active_at(&self) -> Option<Timestamp> {
        match self.last {
            Last::Active(at) => Some(at),
            Last::Nothing | Last::Ended(_) => None,
        }
    }

    /// Returns the time of its end.
    pub const fn ended_at(&self) -> Option<Timestamp> {
        match self.last {
            Last::Ended(at) => Some(at),
            Last::Nothing | Last::Active(_) => None,
        }
    }

    /// Reports whether there is something to cancel: the task, or what is left of its processes.
    pub const fn can_be_cancelled(&self) -> bool {
        self.status.is_active() || self.is_lingering
    }

    /// Returns the first task that it starts after.
    pub fn starts_after(&self) -> Option<TaskKey> {
        self.after.first().map(|first| self.host.task(*first))
    }

    /// Returns the section of the task. `is_seen`: the user has looked at it since it failed.
    pub fn section(&self, is_seen: bool) -> Section {
        match self.status {
            _ if self.question.is_some() => Section::Asks,
            Status::Pending => Section::Pending,
            Status::Running | Status::Resumed => Section::Running,
            Status::Failed if !is_seen => Section::Failed,
            Status::Completed | Status::Failed | Status::Cancelled => Section::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;
    use bgd_shared::order::Waiting;

    fn row(task: &Task) -> Row {
        Row::of(HostNo::default(), task, &mut Texts::default(), &Clock::of_tests())
    }

    #[test]
    fn r160_section_follows_status_question_and_seen_state() {
        let section = |status, asks: bool, seen| {
            let mut task = Task { status, ..samples::task() };
            task.progress.needs_input = asks.then(samples::question);
            row(&task).section(seen)
        };
        assert_eq!(section(Status::Running, true, false), Section::Asks);
        assert_eq!(section(Status::Completed, true, false), Section::Done, "nobody waits for the answer");
        assert_eq!(section(Status::Failed, false, false), Section::Failed);
        assert_eq!(section(Status::Failed, false, true), Section::Done);
        assert_eq!(section(Status::Resumed, false, false), Section::Running);
        assert_eq!(section(Status::Pending, false, false), Section::Pending);
        assert_eq!(section(Status::Cancelled, false, false), Section::Done);
    }

    #[test]
    fn r160_pending_row_shows_what_it_waits_for() {
        let state = |reason, group: &str, slots| {
            let waiting = Waiting { reason, ids: vec![TaskId::from_u128(0x3f2a_9c1e << 96)], until: None };
            let (waiting, group) = (Some(waiting), group.to_owned());
            row(&Task { status: Status::Pending, waiting, group, slots, ..samples::task() }).state.to_string()
        };
        assert_eq!(state(WaitingFor::Slot, "default", 1), "pending (slot)");
        assert_eq!(state(WaitingFor::Slot, "gpu", 2), "pending (2 slots of gpu)");
        assert_eq!(state(WaitingFor::After, "gpu", 1), "pending (after 3f2a9c1e)");
        assert_eq!(state(WaitingFor::Paused, "gpu", 1), "pending (gpu paused)");
    }

    #[test]
    fn task_texts_are_stripped_of_control_characters() {
        let odd = "a\x1b[2J\u{202e}b\n";
        let task = Task {
            description: odd.into(),
            session: Some(odd.into()),
            tags: vec![odd.into()],
            ..samples::task()
        };
        let row = row(&task);
        for text in [&*row.description, row.labels.session.as_deref().unwrap(), &*row.labels.tags[0]] {
            assert_eq!(text, "a\u{fffd}[2J\u{fffd}b ");
        }
    }

    #[test]
    fn r163_row_is_small_and_shares_labels() {
        // There are 100,000 of these.
        assert!(size_of::<Row>() <= 144, "{}", size_of::<Row>());
        let mut texts = Texts::default();
        let batch = |number: u128| Some(TaskId::from_u128(number));
        let mut row = |number| {
            let task = Task { batch: batch(number), tags: vec!["x".into()], ..samples::task() };
            Row::of(HostNo::default(), &task, &mut texts, &Clock::of_tests())
        };
        let (one, same, other) = (row(1), row(1), row(2));
        assert!(Rc::ptr_eq(&one.labels, &same.labels) && !Rc::ptr_eq(&one.labels, &other.labels));
        drop((one, same));
        for number in 3..4 * TEXTS as u128 {
            row(number);
        }
        assert!(texts.labels.len() < 2 * TEXTS && texts.labels.contains(&other.labels));
    }

    #[test]
    fn shared_text_is_stored_once_and_dropped_when_unused() {
        let mut texts = Texts::default();
        assert!(Rc::ptr_eq(&texts.share("gpu"), &texts.share("gpu")));
        let kept = texts.share("kept");
        for number in 0..4 * TEXTS {
            texts.share(&number.to_string());
        }
        assert!(texts.texts.len() < 2 * TEXTS);
        assert!(Rc::ptr_eq(&kept, &texts.share("kept")));
    }
}
