//! What is known of the daemon from outside: the tasks, by its events alone. Every event is checked.

use std::collections::BTreeMap;

use bgd_shared::event::{Event, EventKind};
use bgd_shared::id::TaskId;
use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::request::ListResult;
use bgd_shared::task::{Status, Task};

/// A task as the latest event has shown it.
#[derive(Debug)]
pub struct Known {
    pub task: Task,
    /// How often it has ended for good.
    ends: u32,
    /// Whether its submission was refused, as it was told while the disk was full. It is removed soon, and may be unknown to
    /// the next daemon.
    is_refused: bool,
}

/// What a daemon has told.
#[derive(Debug, Default)]
pub struct Model {
    pub tasks: BTreeMap<TaskId, Known>,
    /// The number of the latest event.
    seq: u64,
    /// How many tasks of the default group may run at once.
    slots: usize,
    /// Tasks that have ended.
    pub ended: u64,
    /// Those that have ended since somebody looked.
    pub just_ended: Vec<Task>,
    /// What the durable daemon before has told, until this one has listed what it knows.
    before: Option<Before>,
}

/// What a durable daemon has told that is gone.
#[derive(Debug, Default)]
struct Before {
    tasks: BTreeMap<TaskId, Known>,
    unanswered: Unanswered,
}

/// What clients were waiting for when it ended: it may be done, and was not told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unanswered {
    /// Whether tasks may have been removed.
    pub removes: bool,
    /// Whether tasks may have been added.
    pub adds: bool,
    /// Whether ends were told that are not written down, as the disk was full.
    pub unwritten: bool,
}

impl Model {
    pub fn new(slots: usize) -> Self {
        Self { slots, ..Self::default() }
    }

    /// Goes on with the durable daemon that follows, which tells from here on, and lists what there is.
    pub fn again(&mut self, unanswered: Unanswered) {
        let Unanswered { removes, adds, unwritten } = unanswered;
        let before = match self.before.take() {
            // The one before has ended before it has listed anything.
            Some(Before { tasks, unanswered: earlier }) => {
                let removes = removes || earlier.removes;
                let (adds, unwritten) = (adds || earlier.adds, unwritten || earlier.unwritten);
                Before { tasks, unanswered: Unanswered { removes, adds, unwritten } }
            }
            None => Before { tasks: std::mem::take(&mut self.tasks), unanswered },
        };
        self.before = Some(before);
    }

    /// Whether the daemon has not yet listed what it knows.
    pub fn is_new(&self) -> bool {
        self.before.is_some()
    }

    /// The number of the latest event when the daemon began to tell.
    pub fn told_until(&mut self, seq: u64) {
        if self.before.is_some() {
            assert!(seq >= self.seq, "after event {} the next daemon begins with {seq}", self.seq);
            self.seq = seq;
        }
    }

    /// Takes what the daemon lists: what its predecessor or this one has told before.
    pub fn listed(&mut self, list: ListResult) {
        let Some(Before { mut tasks, unanswered }) = self.before.take() else { return self.is_listed(&list) };
        assert!(list.next.is_none(), "more tasks than are listed at once");
        for mut task in list.tasks {
            task.status = told_status(&task);
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

    /// Takes the next event. `is_troubled` says whether it could not be written down.
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
        // Nothing starts whose submission was refused.
        known.is_refused &= kind != EventKind::Started;
        known.task = task;
        let runs = |known: &&Known| {
            let task = &known.task;
            task.status == Status::Running && !task.paused && task.group == DEFAULT_GROUP
        };
        let running = self.tasks.values().filter(runs).count();
        assert!(running <= self.slots, "{running} tasks run at once");
    }

    /// Whether it has ended, or is not there any more.
    pub fn has_ended(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_none_or(|known| !known.task.status.is_active())
    }

    /// What the daemon lists is what its events have told.
    fn is_listed(&self, list: &ListResult) {
        if list.next.is_some() {
            return;
        }
        assert_eq!(list.tasks.len(), self.tasks.len(), "the list has other tasks than events have told");
        for task in &list.tasks {
            let told = self.tasks.get(&task.id).map(|known| &known.task);
            assert_eq!(Some(told_status(task)), told.map(told_status), "listed {task:?}\ntold {told:?}");
        }
    }

    /// The daemon has shut down with its tasks. What is pending stays so for the next one if it is durable.
    pub fn all_have_ended(&self, is_durable: bool) {
        let stays = |known: &Known| is_durable && known.task.status == Status::Pending;
        for (id, known) in self.tasks.iter().filter(|(_, known)| !stays(known)) {
            assert!(!known.task.status.is_active(), "{id} has not ended: {:?}", known.task);
            assert_eq!(known.ends, 1, "{id}");
        }
    }
}

/// The status that events have told. A list, and an event about something else, such as a pause, show a task as running as
/// soon as it has a slot; its start is told only when its process has started.
fn told_status(task: &Task) -> Status {
    let is_starting = task.status == Status::Running && task.started_at.is_none();
    if is_starting { Status::Pending } else { task.status }
}
