//! Calls with a delayed reply: it is sent when tasks have reached a state, or at a deadline.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::request::{BlockMode, BlockUntil, ClearedTasks};
use serde::{Deserialize, Serialize};

use super::caller::ReplyTo;
use super::task::{Ordinal, Task};
use super::time::Mono;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WaiterId(pub u64);

/// A request to wait for tasks.
#[derive(Debug)]
pub struct Block {
    pub to: ReplyTo,
    pub tasks: Vec<Ordinal>,
    /// The batch whose tasks these are, if they were selected by it and not by their status.
    pub batch: Option<TaskId>,
    pub deadline: Option<Mono>,
    pub mode: BlockMode,
    pub until: BlockUntil,
}

/// A request that also waits for tasks which are still to be added.
#[derive(Debug)]
pub struct Postponed {
    pub block: Block,
    /// The task added last at the time of the request.
    pub after: Ordinal,
    /// The batches of the tasks to be added.
    pub batches: Vec<TaskId>,
}

/// The state that a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Until {
    Finished,
    /// Ready, or ended.
    Ready,
    /// Ended, with no process of its tree left.
    Settled,
}

impl Until {
    /// Reports whether a task is in this state.
    pub fn holds(self, task: &Task) -> bool {
        match self {
            Self::Finished => task.is_finished(),
            Self::Ready => task.is_finished() || task.ready_at.is_some(),
            Self::Settled => task.is_settled(),
        }
    }

    /// Reports whether a task that reaches `what` also reaches this state: an end also ends a wait for readiness.
    fn comes_with(self, what: Self) -> bool {
        self == what || (self, what) == (Self::Ready, Self::Finished)
    }
}

/// The step after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitAction {
    /// Reply to a block with the tasks.
    Block,
    /// Reply to a cancel with the tasks.
    Cancel,
    /// Remove the tasks and reply with their number.
    Clear,
    /// Remove the tasks of an ended parent session, and reply.
    EndSession {
        /// How many of its tasks were active.
        cancelled: u64,
    },
    /// Reply, and end the daemon.
    Shutdown {
        /// How many tasks were active and are being ended.
        cancelled: u64,
        /// How many are left running.
        #[serde(default)]
        left: u64,
    },
}

impl WaitAction {
    /// Reports whether the tasks are removed.
    pub fn removes(self) -> bool {
        match self {
            Self::Clear | Self::EndSession { .. } => true,
            Self::Block | Self::Cancel | Self::Shutdown { .. } => false,
        }
    }

    /// Reports whether the reply contains the tasks, including those cleared meanwhile.
    fn shows_tasks(self) -> bool {
        match self {
            Self::Block | Self::Cancel => true,
            Self::Clear | Self::EndSession { .. } | Self::Shutdown { .. } => false,
        }
    }

    /// Returns the order of waits that end at the same moment: lower goes first.
    pub fn turn(self) -> u8 {
        match self {
            Self::Block | Self::Cancel => 0,
            Self::Clear | Self::EndSession { .. } => 1,
            Self::Shutdown { .. } => 2,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiter {
    /// Who gets the reply; `None` if the client is gone, and the daemon still shuts down.
    pub to: Option<ReplyTo>,
    /// The tasks, each once, in the order in which they were named.
    pub tasks: Vec<(Ordinal, TaskId)>,
    /// The state that each must reach.
    pub until: Until,
    /// Tasks that have not reached the state yet. Each counts once: a finished task may be resumed and end again.
    pub open: BTreeSet<Ordinal>,
    /// How many tasks must still reach the state. At 0 the wait is over.
    pub missing: usize,
    /// Whether a question from one of the open tasks ends the wait.
    pub ends_on_question: bool,
    /// When the wait ends at the latest; `None` for no limit.
    pub deadline: Option<Mono>,
    pub then: WaitAction,
    /// The last state of the tasks that were cleared during the wait, if the reply contains tasks. Shared by all
    /// waiters.
    pub cleared: Vec<Arc<Task>>,
    /// The tasks of the selected batch that were gone when the wait began.
    #[serde(default)]
    pub gone: Option<ClearedTasks>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Waiters {
    by_id: BTreeMap<WaiterId, Waiter>,
    by_task: HashMap<Ordinal, Vec<WaiterId>>,
    by_client: HashMap<u64, Vec<WaiterId>>,
    /// Tasks to be removed as soon as they have settled, and why. Nobody waits for that.
    removals: BTreeMap<Ordinal, Removal>,
    last: u64,
    #[serde(skip)]
    cleared: Cleared,
}

/// Why a task is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Removal {
    Cleared,
    /// Its parent session has ended.
    SessionEnded,
}

/// The serialised part of the waiting calls. The rest is derived from it.
#[derive(Deserialize)]
struct Stored {
    by_id: BTreeMap<WaiterId, Waiter>,
    by_task: HashMap<Ordinal, Vec<WaiterId>>,
    by_client: HashMap<u64, Vec<WaiterId>>,
    #[serde(default)]
    removals: BTreeMap<Ordinal, Removal>,
    last: u64,
}

impl From<Stored> for Waiters {
    /// Cleared tasks were serialised with each waiter; this shares them again.
    fn from(Stored { mut by_id, by_task, by_client, removals, last }: Stored) -> Self {
        let mut cleared = Cleared::default();
        let mut shared: HashMap<TaskId, Arc<Task>> = HashMap::new();
        for task in by_id.values_mut().flat_map(|waiter| &mut waiter.cleared) {
            *task = Arc::clone(shared.entry(task.id).or_insert_with(|| Arc::clone(task)));
            cleared.keep(task);
        }
        Self { by_id, by_task, by_client, removals, last, cleared }
    }
}

/// The cleared tasks that waiters keep.
#[derive(Debug, Default)]
struct Cleared {
    /// How many waiters keep each task.
    keepers: HashMap<TaskId, usize>,
    /// In bytes. Values shared by several tasks count for each of them, as their holders are unknown after a reload;
    /// the environments were dropped.
    held: usize,
}

impl Cleared {
    /// Counts another waiter that keeps a task.
    fn keep(&mut self, task: &Task) {
        let keepers = self.keepers.entry(task.id).or_default();
        *keepers += 1;
        if *keepers == 1 {
            self.held += cleared_bytes(task);
        }
    }

    /// Uncounts a waiter that keeps a task.
    fn release(&mut self, task: &Task) {
        let Some(keepers) = self.keepers.get_mut(&task.id) else { return };
        *keepers -= 1;
        if *keepers == 0 {
            self.keepers.remove(&task.id);
            self.held = self.held.saturating_sub(cleared_bytes(task));
        }
    }
}

fn cleared_bytes(task: &Task) -> usize {
    task.own_bytes() + task.spec.shared_bytes()
}

impl Waiters {
    /// Returns the memory of kept cleared tasks, in bytes.
    pub fn held(&self) -> usize {
        self.cleared.held
    }

    /// Returns how many more bytes [`Self::held`] would be if a task was cleared now.
    pub fn held_more_without(&self, ordinal: Ordinal, task: &Task) -> usize {
        let waiting = self.by_task.get(&ordinal).into_iter().flatten();
        let mut waiting = waiting.filter_map(|id| self.by_id.get(id));
        let is_kept = waiting.any(|waiter| waiter.to.is_some() && waiter.then.shows_tasks());
        if is_kept { cleared_bytes(task) } else { 0 }
    }

    /// Adds a waiter, which must not be over yet.
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

    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.by_id.remove(&id)?;
        for (ordinal, _) in &waiter.tasks {
            forget(&mut self.by_task, ordinal, id);
        }
        if let Some(to) = waiter.to {
            forget(&mut self.by_client, &to.client, id);
        }
        waiter.cleared.iter().for_each(|task| self.cleared.release(task));
        Some(waiter)
    }

    /// Removes and returns the waits of shutdown requests.
    pub fn take_shutdowns(&mut self) -> Vec<Waiter> {
        let shuts_down = |waiter: &Waiter| matches!(waiter.then, WaitAction::Shutdown { .. });
        let waiting = self.by_id.iter().filter(|(_, waiter)| shuts_down(waiter));
        let ids: Vec<WaiterId> = waiting.map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Notes that a task became ready, finished or settled. Returns the waits that this ends, oldest first.
    pub fn note_change(&mut self, ordinal: Ordinal, what: Until) -> Vec<WaiterId> {
        let Some(waiting) = self.by_task.get(&ordinal) else { return Vec::new() };
        let mut over = Vec::new();
        for id in waiting {
            if let Some(waiter) = self.by_id.get_mut(id)
                && waiter.until.comes_with(what)
                && waiter.open.remove(&ordinal)
            {
                waiter.missing = waiter.missing.saturating_sub(1);
                if waiter.missing == 0 {
                    over.push(*id);
                }
            }
        }
        over
    }

    /// Returns the waits that end because a task asks a question, oldest first.
    pub fn asked(&self, ordinal: Ordinal) -> Vec<WaiterId> {
        let waiting = self.by_task.get(&ordinal).into_iter().flatten();
        let hears = |waiter: &Waiter| waiter.ends_on_question && waiter.open.contains(&ordinal);
        waiting.filter(|id| self.by_id.get(id).is_some_and(hears)).copied().collect()
    }

    /// Removes several finished waits of a task at once: ending 10,000 waits on one task must not cost 10,000 searches
    /// each.
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

    /// Has the tasks of a wait that nobody waits for removed one by one, each as soon as it has settled: the wait need
    /// not be kept. Returns those that already have.
    pub fn remove_unawaited(&mut self, waiter: &Waiter) -> Vec<Ordinal> {
        self.note_removals(waiter.open.iter().copied(), waiter.then);
        let all = waiter.tasks.iter().map(|(ordinal, _)| *ordinal);
        all.filter(|ordinal| !waiter.open.contains(ordinal)).collect()
    }

    /// Notes tasks that are to be removed, because of a wait with this next step.
    pub fn note_removals(&mut self, tasks: impl IntoIterator<Item = Ordinal>, then: WaitAction) {
        for ordinal in tasks {
            let removal = self.removals.entry(ordinal).or_insert(Removal::Cleared);
            if matches!(then, WaitAction::EndSession { .. }) {
                *removal = Removal::SessionEnded;
            }
        }
    }

    /// Reports whether a task that has settled is to be removed although nobody waits for that.
    pub fn is_removed_unawaited(&self, ordinal: Ordinal) -> bool {
        self.removals.contains_key(&ordinal)
    }

    /// Forgets a task that is about to be cleared, and saves it for waiters that still wait for others and whose reply
    /// contains the task.
    pub fn remember_cleared(&mut self, ordinal: Ordinal, task: &Task) {
        self.removals.remove(&ordinal);
        let mut shared = None;
        for id in self.by_task.remove(&ordinal).unwrap_or_default() {
            let waiter = self.by_id.get_mut(&id).filter(|waiter| waiter.to.is_some());
            if let Some(waiter) = waiter.filter(|waiter| waiter.then.shows_tasks()) {
                let shared = shared.get_or_insert_with(|| Arc::new(task.clone()));
                waiter.cleared.push(Arc::clone(shared));
                self.cleared.keep(shared);
            }
        }
    }

    /// Returns the clients that wait for the end of a task or have requested it, except those shutting down the daemon.
    pub fn watching(&self, ordinal: Ordinal) -> BTreeSet<u64> {
        let waiting = self.by_task.get(&ordinal).into_iter().flatten();
        let waiting = waiting.filter_map(|id| self.by_id.get(id));
        let waiting = waiting.filter(|waiter| {
            waiter.open.contains(&ordinal) && !matches!(waiter.then, WaitAction::Shutdown { .. })
        });
        waiting.filter_map(|waiter| Some(waiter.to?.client)).collect()
    }

    pub fn waits(&self, to: ReplyTo) -> bool {
        self.of_client(to.client).any(|waiter| waiter.to == Some(to))
    }

    /// Returns the number of tasks in a client's waits, each counted once per wait. Shutdowns do not count: the daemon
    /// ends with them.
    pub fn waited_for_by(&self, client: u64) -> usize {
        let is_counted = |waiter: &&Waiter| !matches!(waiter.then, WaitAction::Shutdown { .. });
        self.of_client(client).filter(is_counted).map(|waiter| waiter.tasks.len()).sum()
    }

    fn of_client(&self, client: u64) -> impl Iterator<Item = &Waiter> {
        self.by_client.get(&client).into_iter().flatten().filter_map(|id| self.by_id.get(id))
    }

    /// Reports whether this task will be removed when it, or a wait for it, ends.
    pub fn will_remove(&self, ordinal: Ordinal) -> bool {
        let removes = |id: &WaiterId| self.by_id.get(id).is_some_and(|waiter| waiter.then.removes());
        self.is_removed_unawaited(ordinal)
            || self.by_task.get(&ordinal).is_some_and(|waiting| waiting.iter().any(removes))
    }

    /// Reports whether this task will be removed because its parent session has ended.
    pub fn ends_with_session(&self, ordinal: Ordinal) -> bool {
        let ends = |id: &WaiterId| {
            self.by_id.get(id).is_some_and(|waiter| matches!(waiter.then, WaitAction::EndSession { .. }))
        };
        self.removals.get(&ordinal) == Some(&Removal::SessionEnded)
            || self.by_task.get(&ordinal).is_some_and(|waiting| waiting.iter().any(ends))
    }

    /// Removes and returns the waits of a client that is gone, as the only thing left to do for them is to remove
    /// tasks. Shutdowns continue, but send no reply.
    pub fn disconnect(&mut self, client: u64) -> Vec<(WaiterId, Waiter)> {
        let mut ended = Vec::new();
        for id in self.by_client.remove(&client).unwrap_or_default() {
            let Some(waiter) = self.by_id.get_mut(&id) else { continue };
            if matches!(waiter.then, WaitAction::Shutdown { .. }) {
                waiter.to = None;
            } else if let Some(waiter) = self.remove(id) {
                ended.push((id, waiter));
            }
        }
        ended
    }
}

/// Removes an id from an index, and an entry together with its last id.
fn forget<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<WaiterId>>, key: &K, id: WaiterId) {
    if let Some(ids) = index.get_mut(key) {
        ids.retain(|known| *known != id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(client: u64, tasks: &[u64], missing: usize, then: WaitAction) -> Waiter {
        let until = if then == WaitAction::Block { Until::Finished } else { Until::Settled };
        let open = tasks.iter().copied().map(Ordinal).collect();
        let tasks = tasks.iter().map(|task| (Ordinal(*task), TaskId::from_u128((*task).into()))).collect();
        let to = Some(ReplyTo { client, call: 1 });
        Waiter {
            to,
            tasks,
            until,
            open,
            missing,
            ends_on_question: false,
            deadline: None,
            then,
            cleared: Vec::new(),
            gone: None,
        }
    }

    fn is_empty(waiters: &Waiters) -> bool {
        waiters.by_id.is_empty()
            && waiters.by_task.is_empty()
            && waiters.by_client.is_empty()
            && waiters.removals.is_empty()
    }

    #[test]
    fn wait_ends_when_its_last_missing_task_ends() {
        let mut waiters = Waiters::default();
        let all = waiters.insert(waiter(1, &[1, 2], 2, WaitAction::Block));
        let any = waiters.insert(waiter(2, &[1, 2], 1, WaitAction::Block));
        let cancel = waiters.insert(waiter(3, &[1], 1, WaitAction::Cancel));
        let over = waiters.note_change(Ordinal(1), Until::Finished);
        assert_eq!(over, [any], "one is settled later, and one waits for two");
        assert_eq!(waiters.take_all(Ordinal(1), &over).len(), 1);
        assert_eq!(waiters.note_change(Ordinal(1), Until::Settled), [cancel]);
        assert!(waiters.remove(cancel).is_some());
        assert_eq!(waiters.note_change(Ordinal(2), Until::Finished), [all]);
        assert_eq!(waiters.take_all(Ordinal(2), &[all]).len(), 1);
        assert!(is_empty(&waiters), "{waiters:?}");
    }

    #[test]
    fn task_that_ends_twice_is_counted_once() {
        let mut waiters = Waiters::default();
        let both = waiters.insert(waiter(1, &[1, 2], 2, WaitAction::Block));
        assert!(waiters.note_change(Ordinal(1), Until::Finished).is_empty());
        assert!(waiters.note_change(Ordinal(1), Until::Finished).is_empty(), "the other has not ended");
        assert_eq!(waiters.note_change(Ordinal(2), Until::Finished), [both]);
    }

    #[test]
    fn disconnect_ends_all_waits_but_shutdowns() {
        let shutdown = WaitAction::Shutdown { cancelled: 0, left: 0 };
        let mut waiters = Waiters::default();
        let all = [WaitAction::Block, WaitAction::Cancel, WaitAction::Clear];
        let theirs = all.map(|then| waiters.insert(waiter(1, &[1], 1, then)));
        let shutdown = waiters.insert(waiter(1, &[1], 1, shutdown));
        let other = waiters.insert(waiter(2, &[1], 1, WaitAction::Block));
        let ended: Vec<WaiterId> = waiters.disconnect(1).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ended, theirs);
        assert!(waiters.disconnect(1).is_empty(), "it has gone already");
        assert_eq!(waiters.note_change(Ordinal(1), Until::Finished), [other]);
        assert_eq!(waiters.note_change(Ordinal(1), Until::Settled), [shutdown]);
        assert!(waiters.remove(shutdown).is_some_and(|waiter| waiter.to.is_none()));
        assert!(waiters.remove(other).is_some());
        assert!(is_empty(&waiters), "{waiters:?}");
    }

    #[test]
    fn unawaited_removals_are_kept_once_per_task() {
        let session = WaitAction::EndSession { cancelled: 0 };
        let mut waiters = Waiters::default();
        for then in [WaitAction::Clear, session, WaitAction::Clear] {
            let mut unawaited = waiter(1, &[1, 2, 3], 2, then);
            unawaited.open.remove(&Ordinal(3));
            assert_eq!(waiters.remove_unawaited(&unawaited), [Ordinal(3)], "it has settled");
        }
        assert_eq!(waiters.removals.len(), 2);
        assert_eq!([1, 2, 3].map(|task| waiters.will_remove(Ordinal(task))), [true, true, false]);
        assert!(waiters.ends_with_session(Ordinal(1)), "the later clear changes nothing about that");
        let read: Waiters = serde_json::from_str(&serde_json::to_string(&waiters).unwrap()).unwrap();
        assert_eq!(read.removals, waiters.removals);
    }

    #[test]
    fn task_about_to_be_removed_is_detected() {
        let mut waiters = Waiters::default();
        waiters.insert(waiter(1, &[1], 1, WaitAction::Cancel));
        let clear = waiters.insert(waiter(1, &[2, 3], 1, WaitAction::Clear));
        assert_eq!([1, 2, 3].map(|task| waiters.will_remove(Ordinal(task))), [false, true, true]);
        assert!(waiters.remove(clear).is_some());
        assert!(!waiters.will_remove(Ordinal(2)));
    }

    #[test]
    fn reading_waiters_are_answered_before_removing_ones() {
        let shutdown = WaitAction::Shutdown { cancelled: 0, left: 0 };
        let session = WaitAction::EndSession { cancelled: 0 };
        let mut turns = [shutdown, WaitAction::Clear, WaitAction::Cancel, session, WaitAction::Block];
        turns.sort_by_key(|then| then.turn());
        assert_eq!(turns, [WaitAction::Cancel, WaitAction::Block, WaitAction::Clear, session, shutdown]);
    }
}
