//! Helpers: the processes of agents and hooks are started, watched and ended with those of tasks, but nobody else knows
//! of them than who asked for them.

use std::collections::HashMap;

use bgd_shared::id::TaskId;

use crate::core::Fact;
use crate::exec::executor::Close;
use crate::exec::host::{Alive, Purpose, SIGKILL, Watcher};

/// A helper.
#[derive(Debug)]
struct Helper {
    purpose: Purpose,
    /// The signal for one that does not run yet.
    waiting: Option<i32>,
    watcher: Watcher,
}

/// All helpers that run, or are being started.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    all: HashMap<TaskId, Helper>,
    /// Whether the daemon ends, and how.
    pub(super) closing: Option<Close>,
}

impl Helpers {
    /// A helper is being started.
    pub(super) fn starting(&mut self, id: TaskId, purpose: Purpose, watcher: Watcher) {
        self.all.insert(id, Helper { purpose, waiting: None, watcher });
    }

    /// Whether this is a helper, and no task.
    pub(super) fn owns(&self, id: TaskId) -> bool {
        self.all.contains_key(&id)
    }

    /// It shall get this signal when it runs.
    pub(super) fn end_later(&mut self, id: TaskId, signal: i32) {
        // Nothing is stronger than SIGKILL.
        if let Some(helper) = self.all.get_mut(&id).filter(|helper| helper.waiting != Some(SIGKILL)) {
            helper.waiting = Some(signal);
        }
    }

    /// It runs. Gives the signal that waited for that.
    pub(super) fn begun(&mut self, id: TaskId, alive: Alive) -> Option<i32> {
        let helper = self.all.get_mut(&id)?;
        helper.watcher.begun(Ok(alive));
        helper.waiting.take()
    }

    /// It could not be started.
    pub(super) fn failed(&mut self, id: TaskId, why: Box<str>) {
        if let Some(mut helper) = self.all.remove(&id) {
            helper.watcher.begun(Err(why));
        }
    }

    /// Something about its end.
    pub(super) fn fact(&mut self, id: TaskId, fact: Fact) {
        if self.all.get(&id).is_some_and(|helper| helper.watcher.fact(fact)) {
            self.all.remove(&id);
        }
    }

    /// Those for this; all of them if it is not given.
    pub(super) fn of(&self, purpose: Option<Purpose>) -> Vec<TaskId> {
        let is_wanted = |helper: &Helper| purpose.is_none_or(|purpose| helper.purpose == purpose);
        self.all.iter().filter(|(_, helper)| is_wanted(helper)).map(|(id, _)| *id).collect()
    }

    /// Whether any is left.
    pub(super) fn is_busy(&self) -> bool {
        !self.all.is_empty()
    }
}
