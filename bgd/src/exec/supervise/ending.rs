//! How a supervisor ends a tree: which of its processes are signalled, how often, and until when.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;

use super::process::Supervisor;
use crate::core::{Fact, GIVE_UP_MS};
use crate::exec::processes::cgroup;
use crate::exec::processes::forked::ForkedCopies;
use crate::exec::processes::members::{Member, Stat, send};
use crate::exec::tree::Signalled;
use crate::os::pidfd::{PidFd, SIGCONT, SIGKILL};

/// How long processes may take to disappear after SIGKILL before the supervisor gives up.
const GIVE_UP: Duration = Duration::from_millis(GIVE_UP_MS);

impl Supervisor {
    /// Ends the tree, and reports that the signal was delivered.
    pub(super) async fn end_as_ordered(&mut self, signal: i32) {
        self.end_all(signal).await;
        self.report(Fact::Delivered);
    }

    pub(super) async fn end_all(&mut self, signal: i32) {
        if signal == SIGKILL && self.ending != Some(SIGKILL) {
            self.give_up_at = Instant::now().checked_add(GIVE_UP);
        }
        self.ending = Some(signal);
        if signal == SIGKILL
            && let Some(cgroup) = &self.tree.cgroup
            && let Err(error) = cgroup::kill(cgroup)
        {
            tracing::warn!(cgroup = %cgroup.display(), %error, "cgroup.kill failed");
        }
        let signalled = self.signal(signal).await;
        self.unpause().await;
        self.missed = !signalled.all;
        self.asked = signalled.pids.into_iter().collect();
        self.forked = signalled.forked;
        if signal != SIGKILL && signal != SIGCONT {
            // A stopped process can't act on the signal.
            self.signal(SIGCONT).await;
        }
    }

    /// Repeats the signal to forked copies that have executed another program by now.
    pub(super) fn signal_forked(&mut self) {
        match self.ending {
            Some(signal) if signal != SIGKILL => self.forked.signal(signal),
            Some(_) | None => self.forked = ForkedCopies::default(),
        }
    }

    /// Ends processes that are waited for but no longer found in the tree: a process can shed everything that
    /// identifies it, but not the pidfd held on it.
    pub(super) fn end_held(&mut self, watched: &[(i32, AsyncFd<PidFd>)]) {
        // A handed-over tree holds pidfds of its own.
        let Some(signal) = self.ending.filter(|_| self.tree.handed.is_none()) else { return };
        for (pid, handle) in watched {
            if self.asked.insert(*pid) {
                send(*pid, handle.get_ref(), signal);
                send(*pid, handle.get_ref(), SIGCONT);
            }
        }
    }

    /// Reports which processes survive SIGKILL. The supervisor still waits for them, as they may end later.
    pub(super) async fn give_up(&mut self) {
        self.shown.works();
        self.give_up_at = None;
        let tree = self.tree.clone();
        let left = self.context.workers.walk(move || tree.survivors()).await;
        let left = left.unwrap_or_else(|| "it is not known which".into());
        let seconds = GIVE_UP.as_secs();
        tracing::error!(task = %self.tree.task, %left, "processes do not end after SIGKILL");
        let why = format!("not ended {seconds} s after SIGKILL: {left}");
        self.report(Fact::GaveUp { why: why.into() });
    }

    pub(super) async fn signal(&self, signal: i32) -> Signalled {
        let tree = self.tree.clone();
        self.context.workers.walk(move || tree.signal(signal)).await.unwrap_or_default()
    }

    /// Ends processes that were born while the others were signalled and whose parents have ended: nothing else would
    /// end them before SIGKILL. A child of a live signalled process is left to its parent, as it may help with cleaning
    /// up.
    pub(super) fn signal_newcomers(&mut self, members: &[Member]) {
        let Some(signal) = self.ending.filter(|_| self.tree.handed.is_none()) else { return };
        let living: HashSet<i32> = members.iter().map(|member| member.pid).collect();
        for member in members {
            let has_parent = Stat::of(member.pid).is_some_and(|stat| living.contains(&stat.parent));
            if !has_parent && self.asked.insert(member.pid) {
                self.forked.add(ForkedCopies::among(std::slice::from_ref(member), None, false));
                member.send(signal);
            }
        }
    }
}
