//! Pausing a tree (R106): its cgroup is frozen, and who is in none is stopped by a signal.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Tree;
use crate::exec::cgroup::{self, is_in_cgroup};
use crate::exec::members::{Member, Stat};

/// How long a look waits for the kernel's word that a cgroup is frozen.
const FREEZING: Duration = Duration::from_millis(100);

/// The most processes that are stopped by signals, each held by a descriptor meanwhile.
const MOST: usize = 4096;

/// A tree that is paused.
#[derive(Debug, Default)]
pub struct Paused {
    /// Those who had been stopped before, by whomever: they stay so when the tree goes on.
    before: HashSet<i32>,
}

impl Tree {
    /// Begins to pause a tree, or looks at one that is being paused: stops every process that has not stopped, and tells
    /// whether all had. Who is stopped makes no children, so with the first look that finds nobody else all are. Blocks
    /// for a short time; to be called on a worker. `before` is what the last look has returned.
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

    /// Lets the processes of a paused tree go on. Blocks for a short time; to be called on a worker.
    pub fn go_on(&self, paused: &Paused) {
        for member in self.not_frozen() {
            if !paused.before.contains(&member.pid) {
                member.send(libc::SIGCONT);
            }
        }
        if let Some(cgroup) = &self.cgroup {
            self.freeze(cgroup, false);
        }
    }

    /// Stops who has not stopped; tells whether there was anybody. `stopped` takes those who had.
    fn stop_all(&self, mut stopped: Option<&mut HashSet<i32>>) -> bool {
        let mut any = false;
        for member in self.not_frozen() {
            match Stat::of(member.pid).map(|stat| stat.state) {
                None | Some('Z' | 'X') => {}
                Some('T' | 't') => {
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

    /// Its processes that are in no cgroup of the daemon, without one that only leads their terminal.
    fn not_frozen(&self) -> Vec<Member> {
        let leads = |pid: i32| self.leader_stands_by && self.leader_is_ours && pid == self.leader;
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
        if let Err(error) = freeze(cgroup, frozen) {
            tracing::warn!(task = %self.task, cgroup = %cgroup.display(), %error, "cgroup.freeze failed");
        }
    }
}

fn freeze(cgroup: &Path, frozen: bool) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.freeze"), if frozen { "1" } else { "0" })
}
