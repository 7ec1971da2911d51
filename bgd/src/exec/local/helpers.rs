//! Helpers: the processes of agents and hooks are started, watched and ended like those of tasks, but are visible only
//! to their requesters.

use std::collections::HashMap;

use bgd_shared::id::TaskId;

use crate::carry::Obstacle;
use crate::core::Fact;
use crate::exec::carried::HelperState;
use crate::exec::executor::Close;
use crate::exec::helper::UnclaimedHelpers;
use crate::exec::host::{Alive, Purpose, SIGKILL, Watcher};

#[derive(Debug)]
struct Helper {
    purpose: Purpose,
    /// The signal to send once it runs.
    waiting: Option<i32>,
    watcher: Watcher,
}

/// All helpers that run or are being started.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    all: HashMap<TaskId, Helper>,
    /// How the daemon is ending, if it is.
    pub(super) closing: Option<Close>,
}

impl Helpers {
    /// Adds a helper that is being started.
    pub(super) fn starting(&mut self, id: TaskId, purpose: Purpose, watcher: Watcher) {
        self.all.insert(id, Helper { purpose, waiting: None, watcher });
    }

    /// Reports whether this is the id of a helper, not of a task.
    pub(super) fn owns(&self, id: TaskId) -> bool {
        self.all.contains_key(&id)
    }

    /// Stores a signal for a helper until it runs.
    pub(super) fn end_later(&mut self, id: TaskId, signal: i32) {
        // No signal is stronger than SIGKILL.
        if let Some(helper) = self.all.get_mut(&id).filter(|helper| helper.waiting != Some(SIGKILL)) {
            helper.waiting = Some(signal);
        }
    }

    /// Reports that a helper runs. Returns the signal that was stored for it.
    pub(super) fn begun(&mut self, id: TaskId, alive: Alive) -> Option<i32> {
        let helper = self.all.get_mut(&id)?;
        helper.watcher.begun(Ok(alive));
        helper.waiting.take()
    }

    /// Reports that a helper could not be started, and forgets it.
    pub(super) fn failed(&mut self, id: TaskId, why: Box<str>) {
        if let Some(mut helper) = self.all.remove(&id) {
            helper.watcher.begun(Err(why));
        }
    }

    /// Applies a fact about a helper's end.
    pub(super) fn fact(&mut self, id: TaskId, fact: Fact) {
        if self.all.get(&id).is_some_and(|helper| helper.watcher.fact(fact)) {
            self.all.remove(&id);
        }
    }

    /// Returns the helpers whose purpose is wanted.
    pub(super) fn of(&self, is_wanted: impl Fn(Purpose) -> bool) -> Vec<TaskId> {
        self.all.iter().filter(|(_, helper)| is_wanted(helper.purpose)).map(|(id, _)| *id).collect()
    }

    /// Returns the state. The process of a connection to another machine is ended after the upgrade, and the connection
    /// made again when it is needed.
    ///
    /// # Errors
    /// A helper is being started.
    pub(super) fn state(&self) -> Result<Vec<HelperState>, Obstacle> {
        // The rest is not needed: a daemon that is ending is not upgraded.
        let Self { all: helpers, closing: _ } = self;
        let mut all = Vec::new();
        for (id, Helper { purpose, waiting: _, watcher }) in helpers {
            if watcher.begun.is_some() {
                return Err(Obstacle::passing("a process is being started"));
            }
            all.push(HelperState { id: *id, purpose: *purpose, life: watcher.life.borrow().clone() });
        }
        Ok(all)
    }

    /// Restores helpers of another program. Their requesters reclaim them from `lives`.
    pub(super) fn restore(&mut self, all: Vec<HelperState>, lives: &UnclaimedHelpers) {
        for HelperState { id, purpose, life } in all {
            let watcher = lives.keep(id, purpose, life);
            self.all.insert(id, Helper { purpose, waiting: None, watcher });
        }
    }

    /// Reports whether any helper is left.
    pub(super) fn is_busy(&self) -> bool {
        !self.all.is_empty()
    }
}
