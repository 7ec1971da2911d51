//! Pauses a tree (R106): freezes its cgroup, and stops processes outside it by a signal.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{LOOKS, Tree};
use crate::exec::processes::cgroup::{self, is_in_cgroup};
use crate::exec::processes::members::{Member, Order, Stat, wait_for_leaving};

/// How long a look waits for the kernel to report a cgroup as frozen.
const FREEZING: Duration = Duration::from_millis(100);

/// The state of a paused tree.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Paused {
    /// The processes that had already been stopped, by anything else: they stay stopped when the tree continues.
    before: HashSet<i32>,
}

impl Tree {
    /// Starts or continues to pause a tree: stops every process that is not stopped yet, and returns whether all had
    /// stopped before. A stopped process creates no children, so once a look finds no running process, all are stopped.
    /// `before` is the result of the last look. Blocks for a short time: call it on a worker.
    pub fn pause(&self, before: Option<Paused>) -> (Paused, bool) {
        let (mut paused, is_first) = before.map_or((Paused::default(), true), |before| (before, false));
        if let Some(cgroup) = &self.cgroup {
            self.freeze(cgroup, true);
        }
        let had_stopped = self.stop_all(is_first.then_some(&mut paused.before));
        let is_frozen = self.cgroup.as_ref().is_none_or(|cgroup| {
            cgroup::until_frozen(cgroup, Instant::now() + FREEZING).unwrap_or_else(|error| {
                tracing::debug!(cgroup = %cgroup.display(), %error, "cgroup can't be watched");
                true
            })
        });
        (paused, had_stopped && is_frozen)
    }

    /// Continues the processes of a paused tree. Returns false if one could not be reached. Blocks for a short time: call
    /// it on a worker.
    pub fn continue_all(&self, paused: &Paused) -> bool {
        // Children first: a process that continues may end, which makes its children hard to find.
        let has_reached_all = self.visit_not_frozen(Order::ChildrenFirst, |member| {
            if !paused.before.contains(&member.pid) {
                member.send(libc::SIGCONT);
            }
        });
        if let Some(cgroup) = &self.cgroup {
            self.freeze(cgroup, false);
        }
        has_reached_all
    }

    /// Continues the processes that are stopped in a tree that is not paused, whatever has stopped them. Returns false if
    /// one could not be reached. Blocks for a short time: call it on a worker.
    pub fn continue_stopped(&self) -> bool {
        self.visit(Order::ChildrenFirst, |member| {
            if Stat::of(member.pid).is_some_and(|stat| stat.is_stopped()) {
                member.send(libc::SIGCONT);
            }
        })
    }

    /// Like [`Self::continue_stopped`], but only if the leader is stopped: a process that runs may have stopped others on
    /// purpose.
    pub fn continue_with_leader(&self) -> bool {
        let is_stopped = Stat::of(self.leader).is_some_and(|stat| stat.is_stopped());
        !is_stopped || self.continue_stopped()
    }

    /// Has all processes of a paused tree continue with the tree, including those that had stopped before the pause.
    /// Frozen processes are sent the signal, which has the same effect. Blocks for a short time: call it on a worker.
    pub fn continue_later(&self, paused: &mut Paused) {
        paused.before.clear();
        if let Some(cgroup) = &self.cgroup {
            self.signal_if(libc::SIGCONT, |pid| is_in_cgroup(pid, cgroup));
        }
    }

    /// Like [`Self::continue_later`], for one process. Returns false if the process is frozen, and the caller must send
    /// it the signal.
    pub fn continue_one_later(&self, paused: &mut Paused, pid: i32) -> bool {
        let is_frozen = self.cgroup.as_ref().is_some_and(|cgroup| is_in_cgroup(pid, cgroup));
        paused.before.remove(&pid);
        !is_frozen
    }

    /// Reports whether a stopped process of a paused tree was stopped by anything else before: freezing stops none.
    pub fn had_stopped(&self, paused: &Paused, pid: i32) -> bool {
        let is_frozen = || self.cgroup.as_ref().is_some_and(|cgroup| is_in_cgroup(pid, cgroup));
        paused.before.contains(&pid) || is_frozen()
    }

    /// Stops every process that is not stopped; returns whether all had stopped before. Adds those to `stopped`.
    fn stop_all(&self, mut stopped: Option<&mut HashSet<i32>>) -> bool {
        let mut had_stopped = true;
        let has_seen_all = self.visit_not_frozen(Order::ParentsFirst, |member| match Stat::of(member.pid) {
            None => {}
            Some(stat) if stat.is_zombie() => {}
            Some(stat) if stat.is_at_rest() => {
                if let Some(stopped) = &mut stopped {
                    stopped.insert(member.pid);
                }
            }
            Some(_) => {
                member.send(libc::SIGSTOP);
                had_stopped = false;
            }
        });
        has_seen_all && had_stopped
    }

    /// Like [`Self::visit`], for the processes outside the tree's cgroup, without a leader that only leads a terminal.
    fn visit_not_frozen(&self, order: Order, mut visitor: impl FnMut(&Member)) -> bool {
        let leads =
            |pid: i32| self.leader_only_leads_terminal && pid == self.leader && self.leader_is_there();
        let is_frozen = |pid: i32| self.cgroup.as_ref().is_some_and(|cgroup| is_in_cgroup(pid, cgroup));
        self.visit(order, |member| {
            if !is_frozen(member.pid) && !leads(member.pid) {
                visitor(member);
            }
        })
    }

    /// Visits every living process of the tree, one after the other, so that a large tree takes up one descriptor only.
    /// Returns false if a process could not be visited, as not even that one is left.
    fn visit(&self, order: Order, mut visitor: impl FnMut(&Member)) -> bool {
        if let Some(handed) = &self.handed {
            return handed.visit(order, visitor);
        }
        let mut has_seen_all = true;
        for _ in 0..LOOKS {
            let pids = order.of(self.pids());
            let mut has_found = false;
            for pid in &pids {
                match self.member(*pid) {
                    Ok(Some(member)) => {
                        has_found = true;
                        visitor(&member);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(task = %self.task, pid, %error, "cannot reach a process");
                        has_seen_all = false;
                    }
                }
            }
            // The listed processes have ended, but may have left children behind.
            if has_found || !has_seen_all || pids.is_empty() {
                break;
            }
            wait_for_leaving(&pids);
        }
        has_seen_all
    }

    fn freeze(&self, cgroup: &Path, frozen: bool) {
        if let Err(error) = cgroup::freeze(cgroup, frozen) {
            tracing::warn!(task = %self.task, cgroup = %cgroup.display(), %error, "cgroup.freeze failed");
        }
    }
}
