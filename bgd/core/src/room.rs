//! What decides whether finished tasks give way to a request (R129). Plain data: other modules clear the tasks.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

use super::held::Shared;
use super::ordinal::Ordinal;
use super::task::Task;

/// For which limits the history gives way to a request that was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivesWay {
    pub for_tasks: bool,
    pub for_memory: bool,
}

impl GivesWay {
    /// To new tasks.
    pub const TO_TASKS: Self = Self { for_tasks: true, for_memory: true };

    /// To changes of a task.
    pub const TO_TEXTS: Self = Self { for_tasks: false, for_memory: true };
}

/// What a request needs of the tasks that are there: clearing the history does not free this.
#[derive(Debug, Default)]
pub struct Stays {
    tasks: BTreeSet<Ordinal>,
    shared: HashSet<Shared>,
}

impl Stays {
    /// These tasks are needed.
    pub fn of(tasks: impl IntoIterator<Item = Ordinal>) -> Self {
        Self { tasks: tasks.into_iter().collect(), shared: HashSet::new() }
    }

    /// Adds tasks that are needed.
    pub fn extend(&mut self, tasks: impl IntoIterator<Item = Ordinal>) {
        self.tasks.extend(tasks);
    }

    /// Adds a new task: those that it comes after, and the values that it shares with others.
    pub fn extend_with(&mut self, task: &Task) {
        self.tasks.extend(task.plan().needed());
        self.shared.extend(task.shared());
    }

    pub fn has(&self, task: Ordinal) -> bool {
        self.tasks.contains(&task)
    }

    pub fn tasks(&self) -> impl Iterator<Item = Ordinal> {
        self.tasks.iter().copied()
    }

    pub fn shared(&self) -> &HashSet<Shared> {
        &self.shared
    }
}
