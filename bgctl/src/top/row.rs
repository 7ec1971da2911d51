//! What the live view keeps of a task: as little as its lines, filters and order need, as there may be 100,000. Texts
//! that many tasks share are stored once.

use std::collections::HashSet;
use std::rc::Rc;

use bgd_shared::consumption::AgentUsage;
use bgd_shared::id::TaskId;
use bgd_shared::order::{DEFAULT_GROUP, WaitingFor};
use bgd_shared::question::NeedsInput;
use bgd_shared::show;
use bgd_shared::task::{Kind, Status, Task};
use bgd_shared::time::Timestamp;

use super::task_key::{HostNo, TaskKey};
use crate::render::clean;
use crate::render::table::status;
use crate::render::wall::Clock;

/// The most characters of a description to keep: more than a line has room for.
const DESCRIPTION_CHARS: usize = 256;

/// What a task is for its user right now, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// Its agent waits for an answer.
    Asks,
    /// It has failed, and the user has not looked at it yet.
    Failed,
    /// It is running.
    Running,
    /// It has not started.
    Pending,
    /// It has ended.
    Done,
}

impl Section {
    /// All of them, in the order of the list.
    pub const ALL: [Self; 5] = [Self::Asks, Self::Failed, Self::Running, Self::Pending, Self::Done];

    /// Its name in headings and filters.
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

/// Texts that are stored once, however many tasks have them.
#[derive(Debug, Default)]
pub struct Texts(HashSet<Rc<str>>);

/// How many texts are kept before those that no task has any more are dropped.
const TEXTS: usize = 4096;

impl Texts {
    /// Returns the stored copy of a text.
    pub fn share(&mut self, text: &str) -> Rc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        if self.0.len() >= TEXTS && self.0.len().is_power_of_two() {
            self.0.retain(|text| Rc::strong_count(text) > 1);
        }
        let text: Rc<str> = text.into();
        self.0.insert(text.clone());
        text
    }
}

/// A task in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The host whose daemon has it.
    pub host: HostNo,
    /// Its id.
    pub id: TaskId,
    /// Its status.
    pub status: Status,
    /// Whether it is an agent's.
    pub is_agent: bool,
    /// Whether it has a terminal to attach to.
    pub has_terminal: bool,
    /// Whether it is held.
    pub is_held: bool,
    /// The status with its details, as in `bgctl list`.
    pub state: Rc<str>,
    /// Its description, safe to show on a line.
    pub description: Box<str>,
    /// Time of submission.
    pub created_at: Timestamp,
    /// Time of its last activity, while it is running.
    pub active_at: Option<Timestamp>,
    /// Time of its end.
    pub ended_at: Option<Timestamp>,
    /// Its parent session.
    pub session: Option<Rc<str>>,
    /// Its group.
    pub group: Rc<str>,
    /// Its batch.
    pub batch: Option<TaskId>,
    /// The tasks that it starts after.
    pub after: Box<[TaskId]>,
    /// Its tags.
    pub tags: Box<[Rc<str>]>,
    /// Its agent's open question.
    pub question: Option<Box<NeedsInput>>,
    /// What its latest run has used, once it has ended.
    pub used: Option<Used>,
    /// What its agent has consumed.
    pub consumed: Option<Box<AgentUsage>>,
}

/// What a run has used of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// CPU time, in milliseconds.
    pub cpu_ms: u64,
    /// The most memory, in bytes.
    pub peak_memory_bytes: Option<u64>,
}

impl Row {
    /// Takes from a task of this host what is kept.
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
            state: texts.share(&state(task, clock)),
            description: show::shortened(&clean(&task.description), DESCRIPTION_CHARS).into(),
            created_at: task.created_at,
            active_at: has_run.map(|started| task.progress.updated_at.unwrap_or(started).max(started)),
            ended_at: task.completed_at.filter(|_| !is_active),
            session: task.session.as_deref().map(|key| texts.share(&clean(key))),
            group: texts.share(&clean(&task.group)),
            batch: task.batch,
            after: task.after.iter().map(|after| after.id).collect(),
            tags: task.tags.iter().map(|tag| texts.share(&clean(tag))).collect(),
            question: task.progress.needs_input.clone().filter(|_| is_active).map(Box::new),
            used: task
                .usage
                .as_ref()
                .filter(|_| !is_active)
                .map(|usage| Used { cpu_ms: usage.cpu_ms(), peak_memory_bytes: usage.peak_memory_bytes }),
            consumed: task.agent_usage.clone().map(Box::new),
        }
    }

    /// Which task it is.
    pub const fn key(&self) -> TaskKey {
        self.host.task(self.id)
    }

    /// The first task that it starts after.
    pub fn starts_after(&self) -> Option<TaskKey> {
        self.after.first().map(|first| self.host.task(*first))
    }

    /// Where it belongs. `is_seen`: the user has looked at it since it failed.
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

/// The status with its details. Unlike in `bgctl list`, a pending task says too that it waits for a slot.
fn state(task: &Task, clock: &Clock) -> String {
    let text = status(task, clock);
    let waits_for_slot = task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingFor::Slot);
    if task.status != Status::Pending || !waits_for_slot {
        return text;
    }
    let slots = if task.slots == 1 { "slot".to_owned() } else { format!("{} slots", task.slots) };
    let group =
        if task.group == DEFAULT_GROUP { String::new() } else { format!(" of {}", clean(&task.group)) };
    format!("{text} ({slots}{group})")
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
    fn r160_a_task_is_where_its_user_looks_for_it() {
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
    fn r160_a_pending_task_says_what_it_waits_for() {
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
    fn no_text_of_a_task_can_control_the_terminal() {
        let odd = "a\x1b[2J\u{202e}b\n";
        let task = Task {
            description: odd.into(),
            session: Some(odd.into()),
            tags: vec![odd.into()],
            ..samples::task()
        };
        let row = row(&task);
        for text in [&*row.description, row.session.as_deref().unwrap(), &*row.tags[0]] {
            assert_eq!(text, "a\u{fffd}[2J\u{fffd}b ");
        }
    }

    #[test]
    fn a_text_is_stored_once_and_forgotten_with_its_last_task() {
        let mut texts = Texts::default();
        assert!(Rc::ptr_eq(&texts.share("gpu"), &texts.share("gpu")));
        let kept = texts.share("kept");
        for number in 0..4 * TEXTS {
            texts.share(&number.to_string());
        }
        assert!(texts.0.len() < 2 * TEXTS);
        assert!(Rc::ptr_eq(&kept, &texts.share("kept")));
    }
}
