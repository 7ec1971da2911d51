//! Leaders that are children of the daemon's first thread. Normally its only children are orphans of tasks, as leaders
//! are children of the spawner threads. After an upgrade in place only the first thread is left, and every unreaped
//! leader is its child: such leaders must not be mistaken for orphans, and only their supervisors may reap them.
//!
//! The trees of a killed daemon are reparented to pid 1, or to the process that collects orphans in its place. Their
//! orphans are looked up among the children of these processes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use bgd_shared::mutex::Mutex;
use bgd_shared::proc;
use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{getpid, gettid};

/// The leaders that were carried over an upgrade and have not been reaped.
#[derive(Debug, Default)]
pub struct Adopted {
    pids: Mutex<BTreeSet<i32>>,
    /// The number of `pids`, so that the common case of none needs no lock.
    count: AtomicUsize,
    /// The processes that adopted the orphans of a killed daemon.
    subreapers: Mutex<BTreeSet<i32>>,
}

impl Adopted {
    /// Adds a leader. Call it before any signal of a child's end is handled.
    pub fn add(&self, leader: i32) {
        let mut pids = self.pids.lock();
        pids.insert(leader);
        self.count.store(pids.len(), Ordering::Relaxed);
    }

    /// Removes a leader that has been reaped.
    pub fn remove(&self, leader: i32) {
        if !self.is_empty() {
            let mut pids = self.pids.lock();
            pids.remove(&leader);
            self.count.store(pids.len(), Ordering::Relaxed);
        }
    }

    /// Also looks for orphans of a killed daemon among the children of these processes.
    pub fn search_children_of(&self, subreapers: impl IntoIterator<Item = i32>) {
        self.subreapers.lock().extend(subreapers);
    }

    /// Returns the processes whose children are searched for orphans.
    pub fn subreapers(&self) -> Vec<i32> {
        self.subreapers.lock().iter().copied().collect()
    }

    /// Reports whether there is no such leader.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns the processes that lost their parents and so became children of the daemon's first thread.
    pub fn orphans(&self) -> Vec<i32> {
        if is_childless() {
            return Vec::new();
        }
        let mut children = proc::children_of_thread("self", std::process::id());
        if !self.is_empty() {
            let pids = self.pids.lock();
            children.retain(|child| !pids.contains(child));
        }
        children
    }

    /// Returns those `wanted` processes of this user that lost their parents under a killed daemon, and unknown ones.
    /// This daemon is excluded, although it too lost its parent, the `bgctl` that started it. Blocks for a moment.
    pub fn reparented(&self, wanted: impl Fn(i32) -> bool) -> Vec<i32> {
        let own = nix::unistd::Uid::effective().as_raw();
        let me = std::process::id().cast_signed();
        let mut children: Vec<i32> = self.subreapers().into_iter().flat_map(proc::children).collect();
        {
            // Release the lock before reading `/proc`.
            let pids = self.pids.lock();
            children.retain(|child| *child != me && !pids.contains(child));
        }
        // A child that was reaped meanwhile stays: it shows that the list may have missed another one.
        children.retain(|child| wanted(*child) && proc::owner(*child).map_or(true, |owner| owner == own));
        children
    }
}

/// Reports whether this is the first thread and has no children: one system call per ended task instead of listing
/// `/proc`.
fn is_childless() -> bool {
    let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT | WaitPidFlag::__WNOTHREAD;
    IS_FIRST.with(|is_first| *is_first) && waitid(Id::All, any) == Err(Errno::ECHILD)
}

thread_local! {
    /// Whether this is the first thread, which adopts orphans.
    static IS_FIRST: bool = gettid() == getpid();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r122_adopted_leaders_count_until_reaped() {
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
