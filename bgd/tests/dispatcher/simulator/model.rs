//! An outside view of the daemon: the tasks, according to its events only. Every event is checked.

use std::collections::BTreeMap;

use bgd_shared::event::{Event, EventKind};
use bgd_shared::id::TaskId;
use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::request::ListResult;
use bgd_shared::task::{Status, Task};

/// A task according to its latest event.
#[derive(Debug)]
pub struct Known {
    pub task: Task,
    /// How often it has ended for good.
    ends: u32,
    /// Whether its submission was refused because the disk was full. It is removed soon, and may be unknown to the next
    /// daemon.
    is_refused: bool,
}

/// What a daemon has reported.
#[derive(Debug, Default)]
pub struct Model {
    pub tasks: BTreeMap<TaskId, Known>,
    /// The number of the latest event.
    seq: u64,
    /// How many tasks of the default group may run at once.
    slots: usize,
    /// The number of tasks that have ended.
    pub ended: u64,
    /// Tasks that have ended since the last check.
    pub just_ended: Vec<Task>,
    /// The reports of the previous durable daemon, until this one has listed its tasks.
    before: Option<Before>,
}

/// The reports of a durable daemon that is gone.
#[derive(Debug, Default)]
struct Before {
    tasks: BTreeMap<TaskId, Known>,
    unanswered: Unanswered,
}

/// The effects of calls without a reply when the daemon ended: they may have happened unreported.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unanswered {
    /// Whether tasks may have been removed.
    pub removes: bool,
    /// Whether tasks may have been added.
    pub adds: bool,
    /// Whether ends were published that were not persisted because the disk was full.
    pub unwritten: bool,
}

impl Model {
    pub fn new(slots: usize) -> Self {
        Self { slots, ..Self::default() }
    }

    /// Continues with the next durable daemon, which publishes events from here on, and lists its tasks.
    pub fn restart(&mut self, unanswered: Unanswered) {
        let Unanswered { removes, adds, unwritten } = unanswered;
        let before = match self.before.take() {
            // The previous daemon ended before it listed anything.
            Some(Before { tasks, unanswered: earlier }) => {
                let removes = removes || earlier.removes;
                let (adds, unwritten) = (adds || earlier.adds, unwritten || earlier.unwritten);
                Before { tasks, unanswered: Unanswered { removes, adds, unwritten } }
            }
            None => Before { tasks: std::mem::take(&mut self.tasks), unanswered },
        };
        self.before = Some(before);
    }

    /// Reports whether the daemon has not yet listed its tasks.
    pub fn is_new(&self) -> bool {
        self.before.is_some()
    }

    /// Notes the number of the latest event when the daemon started to publish.
    pub fn published_until(&mut self, seq: u64) {
        if self.before.is_some() {
            assert!(seq >= self.seq, "after event {} the next daemon begins with {seq}", self.seq);
            self.seq = seq;
        }
    }

    /// Accepts a list of the daemon's tasks, and compares it with earlier reports of this daemon or its predecessor.
    pub fn listed(&mut self, list: ListResult) {
        let Some(Before { mut tasks, unanswered }) = self.before.take() else { return self.is_listed(&list) };
        assert!(list.next.is_none(), "more tasks than are listed at once");
        for mut task in list.tasks {
            task.status = event_status(&task);
            let is_over = !task.status.is_active();
            match tasks.remove(&task.id) {
                Some(known) if !known.task.status.is_active() => {
                    let is_same = (task.status, &task.exit) == (known.task.status, &known.task.exit);
                    assert!(is_same || unanswered.unwritten, "{task:?} had ended: {known:?}");
                }
                Some(_) if is_over => {
                    self.ended += 1;
                    self.just_ended.push(task.clone());
                }
                Some(_) => {}
                None => {
                    let may_be = unanswered.adds || unanswered.unwritten || task.batch.is_some();
                    assert!(may_be, "nobody has submitted {task:?}");
                }
            }
            self.tasks.insert(task.id, Known { ends: u32::from(is_over), task, is_refused: false });
        }
        tasks.retain(|_, known| !(known.is_refused && unanswered.unwritten));
        assert!(tasks.is_empty() || unanswered.removes, "these tasks are lost: {tasks:?}");
    }

    /// Accepts the next event. `is_troubled` means that it could not be persisted.
    pub fn take(&mut self, event: Event, is_troubled: bool) {
        let Event { seq, kind, task, .. } = event;
        assert_eq!(seq, self.seq + 1, "an event is missing or doubled");
        self.seq = seq;
        let id = task.id;
        if kind == EventKind::Submitted {
            assert!(matches!(task.status, Status::Pending | Status::Running), "{task:?}");
            let before = self.tasks.insert(id, Known { task, ends: 0, is_refused: is_troubled });
            return assert!(before.is_none(), "{id} was submitted twice");
        }
        let known = self.tasks.get_mut(&id).unwrap_or_else(|| panic!("{kind:?} of an unknown task {id}"));
        if kind == EventKind::Cleared {
            self.tasks.remove(&id);
            return;
        }
        let was = known.task.status;
        if kind.is_terminal() {
            known.ends += 1;
            self.ended += 1;
            assert_eq!(known.ends, 1, "{id} has ended twice");
            assert!(!task.status.is_active(), "{kind:?}: {task:?}");
            self.just_ended.push(task.clone());
        } else if !was.is_active() {
            assert_eq!(task.status, was, "{kind:?} of {id} after its end");
        } else {
            assert!(task.status.is_active(), "{kind:?}: {task:?}");
        }
        assert!(kind != EventKind::Started || task.started_at.is_some(), "{task:?}");
        // A task whose submission was refused does not start.
        known.is_refused &= kind != EventKind::Started;
        known.task = task;
        let runs = |known: &&Known| {
            let task = &known.task;
            task.status == Status::Running && !task.paused && task.group == DEFAULT_GROUP
        };
        let running = self.tasks.values().filter(runs).count();
        assert!(running <= self.slots, "{running} tasks run at once");
    }

    /// Reports whether a task has ended, or no longer exists.
    pub fn has_ended(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_none_or(|known| !known.task.status.is_active())
    }

    /// Checks that the daemon's list matches its events.
    fn is_listed(&self, list: &ListResult) {
        if list.next.is_some() {
            return;
        }
        assert_eq!(list.tasks.len(), self.tasks.len(), "the list has other tasks than events have told");
        for task in &list.tasks {
            let published = self.tasks.get(&task.id).map(|known| &known.task);
            assert_eq!(
                Some(event_status(task)),
                published.map(event_status),
                "listed {task:?}\ntold {published:?}"
            );
        }
    }

    /// Checks the tasks after a shutdown. If the daemon is durable, pending ones remain for the next daemon.
    pub fn all_have_ended(&self, is_durable: bool) {
        let stays = |known: &Known| is_durable && known.task.status == Status::Pending;
        for (id, known) in self.tasks.iter().filter(|(_, known)| !stays(known)) {
            assert!(!known.task.status.is_active(), "{id} has not ended: {:?}", known.task);
            assert_eq!(known.ends, 1, "{id}");
        }
    }
}

/// Returns the status according to events. A list, and an event about something else, such as a pause, show a task as
/// running as soon as it has a slot; its start is published only when its process has started.
fn event_status(task: &Task) -> Status {
    let is_starting = task.status == Status::Running && task.started_at.is_none();
    if is_starting { Status::Pending } else { task.status }
}
