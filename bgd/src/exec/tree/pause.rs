//! Pauses a tree (R106): freezes its cgroup, and stops processes outside it by a signal.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Tree;
use crate::exec::cgroup::{self, is_in_cgroup};
use crate::exec::members::{Member, Stat};

/// How long a look waits for the kernel to report a cgroup as frozen.
const FREEZING: Duration = Duration::from_millis(100);

/// The maximum number of processes that are stopped by signals; each takes up a descriptor meanwhile.
const MOST: usize = 4096;

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
        let had_stopped = !self.stop_all(is_first.then_some(&mut paused.before));
        let is_frozen = self.cgroup.as_ref().is_none_or(|cgroup| {
            cgroup::until_frozen(cgroup, Instant::now() + FREEZING).unwrap_or_else(|error| {
                tracing::debug!(cgroup = %cgroup.display(), %error, "cgroup can't be watched");
                true
            })
        });
        (paused, had_stopped && is_frozen)
    }

    /// Continues the processes of a paused tree. Blocks for a short time: call it on a worker.
    pub fn continue_all(&self, paused: &Paused) {
        for member in self.not_frozen() {
            if !paused.before.contains(&member.pid) {
                member.send(libc::SIGCONT);
            }
        }
        if let Some(cgroup) = &self.cgroup {
            self.freeze(cgroup, false);
        }
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

    /// Stops every process that is not stopped; returns whether there was any. Adds those already stopped to `stopped`.
    fn stop_all(&self, mut stopped: Option<&mut HashSet<i32>>) -> bool {
        let mut any = false;
        for member in self.not_frozen() {
            match Stat::of(member.pid) {
                None => {}
                Some(stat) if stat.has_ended() => {}
                Some(stat) if stat.is_at_rest() => {
                    if let Some(stopped) = &mut stopped {
                        stopped.insert(member.pid);
                    }
                }
                Some(_) => {
                    member.send(libc::SIGSTOP);
                    any = true;
                }
            }
        }
        any
    }

    /// Returns the tree's processes outside its cgroup, without a leader that only leads a terminal.
    fn not_frozen(&self) -> Vec<Member> {
        let leads = |pid: i32| self.leader_only_leads_terminal && self.leader_is_ours && pid == self.leader;
        let mut members = match self.members(MOST) {
            Ok(members) => members,
            Err(error) => {
                tracing::warn!(task = %self.task, %error, "cannot reach the processes of a task");
                return Vec::new();
            }
        };
        members.retain(|member| {
            let is_frozen = self.cgroup.as_ref().is_some_and(|cgroup| is_in_cgroup(member.pid, cgroup));
            !is_frozen && !leads(member.pid)
        });
        members
    }

    fn freeze(&self, cgroup: &Path, frozen: bool) {
        if let Err(error) = cgroup::freeze(cgroup, frozen) {
            tracing::warn!(task = %self.task, cgroup = %cgroup.display(), %error, "cgroup.freeze failed");
        }
    }
}
