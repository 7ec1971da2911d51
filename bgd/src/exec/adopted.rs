//! Leaders that are children of the daemon's first thread. Usually those are the orphans of tasks and nothing else, as
//! leaders are children of the spawner threads. After an upgrade in place only the first thread is left, and every leader
//! that has not been reaped is its child: these must not be taken for orphans, and only their supervisors may reap them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bgd_shared::proc;

/// The leaders that came over an upgrade and are not reaped yet.
#[derive(Debug, Default)]
pub struct Adopted {
    pids: Mutex<BTreeSet<i32>>,
    /// How many there are, so that nobody takes the lock for none.
    count: AtomicUsize,
}

impl Adopted {
    fn pids(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a leader. Call it before any signal of a child's end is handled.
    pub fn add(&self, leader: i32) {
        let mut pids = self.pids();
        pids.insert(leader);
        self.count.store(pids.len(), Ordering::Relaxed);
    }

    /// Removes a leader that has been reaped.
    pub fn remove(&self, leader: i32) {
        if !self.is_empty() {
            let mut pids = self.pids();
            pids.remove(&leader);
            self.count.store(pids.len(), Ordering::Relaxed);
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns the processes that lost their parents and so became children of the daemon's first thread.
    pub fn orphans(&self) -> Vec<i32> {
        let mut children = proc::children_of_thread("self", std::process::id());
        if !self.is_empty() {
            let pids = self.pids();
            children.retain(|child| !pids.contains(child));
        }
        children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r122_leaders_that_came_over_are_counted_until_they_are_reaped() {
        let adopted = Adopted::default();
        assert!(adopted.is_empty());
        adopted.remove(7);
        adopted.add(7);
        adopted.add(8);
        adopted.remove(7);
        assert!(!adopted.is_empty());
        adopted.remove(8);
        assert!(adopted.is_empty());
    }
}
