//! The end of supervision: waits for the processes that have outlived their leader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::process::{REST, Supervisor};
use crate::core::Fact;
use crate::exec::handed::drain::Drains;
use crate::exec::processes::cgroup;
use crate::exec::processes::members::Member;
use crate::os::clock::sleep_until;
use crate::os::pidfd::SIGKILL;

/// How many processes of a tree are watched at once after its leader has ended. When these have ended, the next are
/// watched, so that a large tree does not use up the descriptors.
const WATCHED: usize = 8;

impl Supervisor {
    /// Resumes after an upgrade the supervision of a tree whose leader had ended, while other processes had not.
    pub(super) async fn resume_rest(mut self) {
        self.tree.has_leader = false;
        self.has_ended = true;
        let (members, drains) = (self.survivors().await, self.drains());
        self.until_empty(members, &drains).await;
        self.finish(&drains).await;
    }

    /// Returns the drains of its output, if the process was handed over.
    pub(super) fn drains(&self) -> Drains {
        self.handed.as_ref().map(|handed| handed.drains.clone()).unwrap_or_default()
    }

    /// Waits until all output has arrived, as other processes may have the pipes open.
    pub(super) async fn finish(mut self, drains: &Drains) {
        if !drains.have_ended() {
            drains.end().await;
            let _ = self.report_output(false).await;
        }
        self.remove_cgroup();
    }

    /// Waits until no process of the tree is left, starting with these.
    pub(super) async fn until_empty(&mut self, mut members: Vec<Member>, drains: &Drains) {
        while !members.is_empty() {
            self.signal_newcomers(&members);
            if self.ending == Some(SIGKILL) {
                self.signal(SIGKILL).await;
            }
            self.until_all_ended(members).await;
            if self.give_up_at.is_some_and(|at| at <= Instant::now()) {
                self.give_up().await;
            }
            members = self.survivors().await;
        }
        drains.settle().await;
        let _ = self.report_output(!drains.have_ended()).await;
        if self.tree.cgroup.is_some() {
            self.report_usage(self.usage).await;
        }
        self.report(Fact::TreeEmpty);
    }

    /// Removes the cgroup, unless a service manager may be signalling all processes of the daemon's unit, one cgroup
    /// after the other: if a cgroup vanishes meanwhile, systemd takes that for a failure, and kills the daemon. In that
    /// case the daemon removes all cgroups at its very end.
    pub(super) fn remove_cgroup(&mut self) {
        if let Some(cgroup) = self.tree.cgroup.take() {
            let is_terminating = Arc::clone(&self.context.is_terminating);
            self.context.workers.later(move || {
                if !is_terminating.load(Ordering::Relaxed) {
                    cgroup::remove(&cgroup);
                }
            });
        }
    }

    /// Returns the processes of the tree that have outlived its leader. There are nearly always none, so the cheap
    /// check comes first.
    pub(super) async fn survivors(&mut self) -> Vec<Member> {
        if self.tree.is_plainly_empty() {
            return Vec::new();
        }
        loop {
            let tree = self.tree.clone();
            match self.context.workers.walk(move || tree.members(WATCHED)).await {
                Some(Ok(members)) => return members,
                Some(Err(error)) => {
                    tracing::warn!(task = %self.tree.task, %error, "cannot examine a process tree");
                }
                None => tracing::error!(task = %self.tree.task, "examining a process tree failed"),
            }
            tokio::select! {
                biased;
                () = sleep_until(self.give_up_at) => self.give_up().await,
                () = tokio::time::sleep(REST) => {}
            }
        }
    }
}
