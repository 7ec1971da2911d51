//! Calls that are answered later: when tasks have ended, or at a deadline.

use std::collections::{BTreeMap, HashMap};

use bgd_shared::id::TaskId;
use serde::{Deserialize, Serialize};

use super::input::ReplyTo;
use super::task::{Ordinal, Snapshot, Task};
use super::time::Mono;

/// The number of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WaiterId(pub u64);

/// What a waiter waits for each of its tasks to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Until {
    /// Ended.
    Finished,
    /// Ended, with no process of its tree left.
    Settled,
}

impl Until {
    /// Whether a task is so.
    pub fn holds(self, task: &Task) -> bool {
        match self {
            Self::Finished => task.is_finished(),
            Self::Settled => task.is_settled(),
        }
    }
}

/// What is done when the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// Answer a block with the summary.
    Block,
    /// Answer a cancel with the tasks.
    Cancel,
    /// Remove the tasks and say how many they were.
    Clear,
    /// The same for a parent session.
    EndSession {
        /// How many of its tasks were active.
        cancelled: u64,
    },
    /// Say so, and end the daemon.
    Shutdown {
        /// How many tasks were active.
        cancelled: u64,
    },
}

/// A call that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiter {
    /// Who gets the answer; nobody if the client is gone but the work goes on.
    pub to: Option<ReplyTo>,
    /// The tasks, each once, in the order of naming.
    pub tasks: Vec<(Ordinal, TaskId)>,
    /// What each must be.
    pub until: Until,
    /// How many must still become so. 0: the wait is over.
    pub missing: usize,
    /// When it is over at the latest.
    pub deadline: Option<Mono>,
    /// What comes then.
    pub then: Then,
    /// Those of its tasks that were cleared while it waited, as they were last.
    pub cleared: Vec<Snapshot>,
}

/// All calls that wait.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Waiters {
    by_id: BTreeMap<WaiterId, Waiter>,
    by_task: HashMap<Ordinal, Vec<WaiterId>>,
    by_client: HashMap<u64, Vec<WaiterId>>,
    last: u64,
}

impl Waiters {
    /// Adds a waiter that is not over yet.
    pub fn insert(&mut self, waiter: Waiter) -> WaiterId {
        self.last += 1;
        let id = WaiterId(self.last);
        for (ordinal, _) in &waiter.tasks {
            self.by_task.entry(*ordinal).or_default().push(id);
        }
        if let Some(to) = waiter.to {
            self.by_client.entry(to.client).or_default().push(id);
        }
        self.by_id.insert(id, waiter);
        id
    }

    /// Ends a wait.
    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.by_id.remove(&id)?;
        for (ordinal, _) in &waiter.tasks {
            forget(&mut self.by_task, ordinal, id);
        }
        if let Some(to) = waiter.to {
            forget(&mut self.by_client, &to.client, id);
        }
        Some(waiter)
    }

    /// A task has become finished or settled: returns the waits that are over by it, the oldest first.
    pub fn became(&mut self, ordinal: Ordinal, what: Until) -> Vec<WaiterId> {
        let Some(waiting) = self.by_task.get(&ordinal) else { return Vec::new() };
        let mut over = Vec::new();
        for id in waiting {
            if let Some(waiter) = self.by_id.get_mut(id)
                && waiter.until == what
            {
                waiter.missing = waiter.missing.saturating_sub(1);
                if waiter.missing == 0 {
                    over.push(*id);
                }
            }
        }
        over
    }

    /// Takes many ended waits out at once: 10,000 on one task must not cost 10,000 searches each.
    pub fn take_all(&mut self, ordinal: Ordinal, over: &[WaiterId]) -> Vec<(WaiterId, Waiter)> {
        if let Some(waiting) = self.by_task.get_mut(&ordinal) {
            let over: std::collections::HashSet<&WaiterId> = over.iter().collect();
            waiting.retain(|id| !over.contains(id));
            if waiting.is_empty() {
                self.by_task.remove(&ordinal);
            }
        }
        over.iter().filter_map(|id| self.remove(*id).map(|waiter| (*id, waiter))).collect()
    }

    /// A task is about to be cleared: those who wait for others too keep what it was.
    pub fn remember_cleared(&mut self, ordinal: Ordinal, snapshot: &Snapshot) {
        for id in self.by_task.remove(&ordinal).unwrap_or_default() {
            if let Some(waiter) = self.by_id.get_mut(&id) {
                waiter.cleared.push(snapshot.clone());
            }
        }
    }

    /// The waits of a client that is gone. Blocks are for it alone and end: they are returned. The
    /// others do their work and tell nobody.
    pub fn disconnect(&mut self, client: u64) -> Vec<(WaiterId, Waiter)> {
        let mut ended = Vec::new();
        for id in self.by_client.remove(&client).unwrap_or_default() {
            let Some(waiter) = self.by_id.get_mut(&id) else { continue };
            waiter.to = None;
            if waiter.then == Then::Block
                && let Some(waiter) = self.remove(id)
            {
                ended.push((id, waiter));
            }
        }
        ended
    }
}

/// Takes an id out of an index, and the entry with its last one.
fn forget<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<WaiterId>>, key: &K, id: WaiterId) {
    if let Some(ids) = index.get_mut(key) {
        ids.retain(|known| *known != id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}
