//! The local executor's part of the descriptors that pending tasks are to start with (R127): the keeper holds copies, so
//! that a task keeps the input sent with it however the daemon ends. They take at most a quarter of the keeper's
//! descriptors: a keeper without descriptors would leave, and running tasks would be without one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use bgd_shared::id::TaskId;
use nix::sys::resource::{Resource, getrlimit};

use crate::exec::left::pending_text;
use crate::exec::messages::Inherited;
use crate::keeper::Key;
use crate::keeper::client::Keeper;
use crate::os::limit;

/// Pending tasks take at most one of this many parts of the keeper's descriptors.
const PARTS: u64 = 4;

/// The descriptors of a pending task.
#[derive(Debug, Default)]
struct Pending {
    /// Dangling once its process is being started with them.
    inherited: Weak<Inherited>,
    /// How many descriptors the keeper needs to hold them.
    count: usize,
}

impl Pending {
    fn of(inherited: &Arc<Inherited>) -> Self {
        let outputs = inherited.outputs.iter().flatten().count();
        // One takes the place of a process, see `keep`.
        let count = 1 + usize::from(inherited.stdin.is_some()) + outputs;
        Self { inherited: Arc::downgrade(inherited), count }
    }
}

/// The pending tasks that came with descriptors, by whether the keeper holds those.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    kept: BTreeMap<TaskId, Pending>,
    /// Those that the keeper is to hold as soon as there is room.
    left_out: BTreeMap<TaskId, Pending>,
    /// How many descriptors the keeper holds for them.
    count: usize,
    /// Whether it was logged that there is no room.
    has_warned: bool,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns how many descriptors the keeper holds for each task, for an upgrade in place.
    pub(super) fn state(&self) -> BTreeMap<TaskId, usize> {
        // The rest follows from what is kept and from the descriptors that each pending task brings again.
        let Self { kept, left_out: _, count: _, has_warned: _ } = self;
        kept.iter().map(|(task, pending)| (*task, pending.count)).collect()
    }

    /// Creates what the program before had. Its descriptors follow with [`Self::add`].
    pub(super) fn restore(state: BTreeMap<TaskId, usize>) -> Self {
        let all: usize = state.values().sum();
        let pending = |count| Pending { count, ..Pending::default() };
        let kept = state.into_iter().map(|(task, count)| (task, pending(count))).collect();
        Self { kept, count: all, ..Self::default() }
    }

    /// Adds a task; one that the keeper holds already stays so.
    fn add(&mut self, task: TaskId, inherited: &Arc<Inherited>) {
        if self.kept.contains_key(&task) {
            self.note_kept(task, inherited);
        } else {
            self.left_out.insert(task, Pending::of(inherited));
        }
    }

    /// Notes that the keeper holds the descriptors of a task.
    pub(super) fn note_kept(&mut self, task: TaskId, inherited: &Arc<Inherited>) {
        self.remove(task);
        let pending = Pending::of(inherited);
        self.count += pending.count;
        self.kept.insert(task, pending);
    }

    /// Removes a task. Returns whether the keeper holds its descriptors.
    fn remove(&mut self, task: TaskId) -> bool {
        self.left_out.remove(&task);
        let removed = self.kept.remove(&task);
        self.count -= removed.as_ref().map_or(0, |pending| pending.count);
        removed.is_some()
    }

    /// Returns a task to be sent to a keeper that may hold `most` descriptors for all of them, and notes that it is kept.
    fn next_within(&mut self, most: usize) -> Option<(TaskId, Arc<Inherited>)> {
        while let Some((task, pending)) = self.left_out.first_key_value() {
            let (task, inherited, count) = (*task, pending.inherited.upgrade(), pending.count);
            let Some(inherited) = inherited else {
                self.left_out.remove(&task);
                continue;
            };
            if self.count.saturating_add(count) > most {
                return None;
            }
            self.note_kept(task, &inherited);
            return Some((task, inherited));
        }
        None
    }

    /// Notes that the keeper does not hold the descriptors of a task, which could not be copied.
    fn put_back(&mut self, task: TaskId, inherited: &Arc<Inherited>) {
        self.remove(task);
        self.left_out.insert(task, Pending::of(inherited));
    }

    /// Notes that another keeper holds nothing yet.
    fn start_over(&mut self) {
        self.left_out.append(&mut self.kept);
        self.count = 0;
    }

    /// Returns a task for which there is no room, the first time that there is one.
    fn first_without_room(&mut self) -> Option<TaskId> {
        let first = *self.left_out.keys().next().filter(|_| !self.has_warned)?;
        self.has_warned = true;
        Some(first)
    }

    /// Has the keeper hold copies of the descriptors of a pending task, unless it holds them already. If there is no room
    /// for them, it does once there is.
    pub(super) fn keep(&mut self, keeper: &Keeper, task: TaskId, inherited: &Arc<Inherited>) {
        self.add(task, inherited);
        self.fill(keeper);
    }

    /// Has a keeper that has replaced another one hold everything.
    pub(super) fn keep_all(&mut self, keeper: &Keeper) {
        self.start_over();
        self.fill(keeper);
    }

    /// Has the keeper close its copies of the descriptors of a task that was pending: the writer to a standard input would
    /// not notice that nobody reads it any more. Others take their place.
    pub(super) fn close(&mut self, keeper: &Keeper, task: TaskId) {
        if self.remove(task) {
            keeper.close(Key::of_pending(task));
            self.fill(keeper);
        }
    }

    /// Sends the keeper what it lacks and has room for.
    fn fill(&mut self, keeper: &Keeper) {
        if self.left_out.is_empty() {
            return;
        }
        let most = most_for(keeper);
        while let Some((task, inherited)) = self.next_within(most) {
            if let Err(error) = keep(keeper, task, &inherited) {
                self.put_back(task, &inherited);
                tracing::warn!(
                    %task,
                    %error,
                    "it loses the descriptors sent with it if the daemon ends before it starts"
                );
                return;
            }
        }
        if let Some(task) = self.first_without_room() {
            tracing::warn!(
                %task,
                most,
                "it loses the descriptors sent with it if the daemon ends before it starts, as do all pending tasks \
                 for which the keeper has no room: they take at most a quarter of its descriptors (RLIMIT_NOFILE)"
            );
        }
    }
}

/// Returns how many descriptors this keeper may hold for pending tasks. It may have the limit of an earlier daemon.
fn most_for(keeper: &Keeper) -> usize {
    let own = || getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft);
    let limit = limit::soft(keeper.socket().pid, Resource::RLIMIT_NOFILE, "Max open files").or_else(own);
    usize::try_from(limit.unwrap_or(0) / PARTS).unwrap_or(usize::MAX)
}

/// Returns a substitute for the pidfd of a reaped process, or of one that has not started; like a pidfd, it is readable.
pub(super) fn ended() -> io::Result<OwnedFd> {
    Ok(File::open("/dev/null")?.into())
}

fn keep(keeper: &Keeper, task: TaskId, inherited: &Inherited) -> io::Result<()> {
    let (text, copies) = pending_text(inherited)?;
    // In place of a process, which comes first.
    let descriptors = [ended()?].into_iter().chain(copies).collect();
    keeper.keep(Key::of_pending(task), 0, &text, descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the descriptors of a task with an input, for which the keeper needs two.
    fn with_input() -> Arc<Inherited> {
        Arc::new(Inherited { stdin: Some(ended().unwrap()), ..Inherited::default() })
    }

    /// Returns the tasks to be sent now.
    fn sent(waiting: &mut Waiting, most: usize) -> Vec<TaskId> {
        std::iter::from_fn(|| waiting.next_within(most)).map(|(task, _)| task).collect()
    }

    /// Adds tasks one after the other. Returns those that are sent at once.
    fn add_all(waiting: &mut Waiting, all: &BTreeMap<TaskId, Arc<Inherited>>, most: usize) -> Vec<TaskId> {
        let added = all.iter().flat_map(|(task, inherited)| {
            waiting.add(*task, inherited);
            sent(waiting, most)
        });
        added.collect()
    }

    fn tasks(count: usize) -> BTreeMap<TaskId, Arc<Inherited>> {
        (0..count).map(|_| (TaskId::random(), with_input())).collect()
    }

    #[test]
    fn r127_keeper_holds_descriptors_of_pending_tasks_up_to_a_bound() {
        const MOST: usize = 7;
        let all = tasks(5);
        let ids: Vec<TaskId> = all.keys().copied().collect();
        let mut waiting = Waiting::default();
        assert_eq!(add_all(&mut waiting, &all, MOST), ids[..3]);
        assert_eq!((waiting.count, waiting.left_out.len()), (6, 2));
        assert_eq!(waiting.first_without_room(), Some(ids[3]));
        assert_eq!(waiting.first_without_room(), None, "one warning is enough");

        assert!(!waiting.remove(ids[4]), "the keeper has nothing to close");
        assert!(waiting.remove(ids[0]));
        assert_eq!(sent(&mut waiting, MOST), [ids[3]], "it has the place of the other");
        assert_eq!((waiting.count, waiting.left_out.len()), (6, 0));
    }

    #[test]
    fn r127_all_standard_streams_of_pending_tasks_count() {
        let outputs = [0; 2].map(|_| Some(ended().unwrap()));
        let inherited = Arc::new(Inherited { stdin: Some(ended().unwrap()), outputs });
        let mut waiting = Waiting::default();
        waiting.add(TaskId::random(), &inherited);
        assert!(sent(&mut waiting, 3).is_empty());
        assert_eq!(sent(&mut waiting, 4).len(), 1);
        assert_eq!(waiting.count, 4);
    }

    /// The keeper would otherwise be sent everything with every start and upgrade.
    #[test]
    fn r127_what_the_keeper_holds_already_is_not_sent_again() {
        let all = tasks(4);
        let ids: Vec<TaskId> = all.keys().copied().collect();
        let mut waiting = Waiting::default();
        for task in &ids[..2] {
            waiting.note_kept(*task, &all[task]);
        }
        let mut upgraded = Waiting::restore(waiting.state());
        assert_eq!(upgraded.count, 4);
        assert_eq!(add_all(&mut waiting, &all, 100), ids[2..]);
        assert_eq!(add_all(&mut upgraded, &all, 6), [ids[2]], "the bound includes what was kept before");
    }

    #[test]
    fn r127_another_keeper_is_sent_everything_within_its_bound_but_what_has_started() {
        let mut all = tasks(4);
        let mut waiting = Waiting::default();
        assert_eq!(add_all(&mut waiting, &all, 100).len(), 4);
        let (started, _) = all.pop_first().unwrap();
        let ids: Vec<TaskId> = all.keys().copied().collect();

        waiting.start_over();

        assert_eq!(sent(&mut waiting, 5), ids[..2]);
        assert!(!waiting.remove(started));
        let failed = ids[1];
        waiting.put_back(failed, &all[&failed]);
        assert_eq!((waiting.count, waiting.left_out.len()), (2, 2));
        assert_eq!(sent(&mut waiting, 100), ids[1..]);
    }
}
