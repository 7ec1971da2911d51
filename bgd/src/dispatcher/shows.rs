//! The terminals that are open, and who is shown which.

use std::collections::{BTreeMap, HashMap};

use bgd_shared::id::TaskId;

use crate::core::SpawnFailure;
use crate::exec::terminal::viewers::Door;
use crate::exec::terminal::{Opening, Terminal, Terminals};

/// A terminal that is open, and who is shown it.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) terminal: Terminal,
    pub(super) viewers: BTreeMap<u64, Door>,
}

/// All terminals of the daemon.
#[derive(Debug, Default)]
pub(super) struct Shows {
    thread: Terminals,
    pub(super) open: HashMap<TaskId, Shown>,
}

impl Shows {
    /// Has the thread ready before something is started in a terminal.
    pub(super) fn prepare(&mut self) -> Result<(), SpawnFailure> {
        self.thread.start().map_err(|error| format!("cannot start a thread for terminals: {error}").into())
    }

    /// Follows a terminal; its owner is shown it from the first byte on.
    pub(super) fn open(&mut self, opening: Opening) -> std::io::Result<Terminal> {
        let task = opening.task;
        let owner = opening.owner.as_ref().map(|owner| (owner.client.id, owner.door.clone()));
        let terminal = self.thread.open(opening)?;
        let viewers = owner.into_iter().collect();
        self.open.insert(task, Shown { terminal: terminal.clone(), viewers });
        Ok(terminal)
    }

    /// A task's processes are gone.
    pub(super) fn close(&mut self, task: TaskId) {
        self.open.remove(&task);
    }

    /// A client is shown a terminal no more: not a byte from now on. Whether it was.
    pub(super) fn leave(&mut self, task: TaskId, client: u64) -> bool {
        let Some(shown) = self.open.get_mut(&task) else { return false };
        let Some(door) = shown.viewers.remove(&client) else { return false };
        door.close();
        shown.terminal.leave(client);
        true
    }

    /// A client is gone.
    pub(super) fn disconnect(&mut self, client: u64) {
        for shown in self.open.values_mut().filter(|shown| shown.viewers.contains_key(&client)) {
            shown.viewers.remove(&client);
            shown.terminal.leave(client);
        }
    }
}
