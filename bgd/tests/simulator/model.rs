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
}

impl Model {
    pub fn new(slots: usize) -> Self {
        Self { slots, ..Self::default() }
    }

    /// Takes the next event.
    pub fn take(&mut self, event: Event) {
        let Event { seq, kind, task, .. } = event;
        assert_eq!(seq, self.seq + 1, "an event is missing or doubled");
        self.seq = seq;
        let id = task.id;
        if kind == EventKind::Submitted {
            assert!(matches!(task.status, Status::Pending | Status::Running), "{task:?}");
            let before = self.tasks.insert(id, Known { task, ends: 0 });
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
        } else if !was.is_active() {
            assert_eq!(task.status, was, "{kind:?} of {id} after its end");
        } else {
            assert!(task.status.is_active(), "{kind:?}: {task:?}");
        }
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
    pub fn is_listed(&self, list: &ListResult) {
        if list.next.is_some() {
            return;
        }
        assert_eq!(list.tasks.len(), self.tasks.len(), "the list has other tasks than events have told");
        for task in &list.tasks {
            let told = self.tasks.get(&task.id).map(|known| &known.task);
            // It is told when its process has started, but shown as soon as it has a slot.
            let is_starting = task.status == Status::Running && task.started_at.is_none();
            let status = if is_starting { Status::Pending } else { task.status };
            assert_eq!(Some(status), told.map(|told| told.status), "listed {task:?}\ntold {told:?}");
        }
    }

    /// The daemon has shut down.
    pub fn all_have_ended(&self) {
        for (id, known) in &self.tasks {
            assert!(!known.task.status.is_active(), "{id} has not ended: {:?}", known.task);
            assert_eq!(known.ends, 1, "{id}");
        }
    }
}
