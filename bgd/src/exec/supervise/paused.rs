//! How a supervisor pauses a tree, and when it continues it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::process::Supervisor;
use crate::core::Fact;
use crate::exec::tree::Tree;
use crate::os::pidfd::{PidFd, SIGCONT};

/// How long processes may take to stop. A process that waits in the kernel stops only when that wait is over.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval between looks, as no event reports that a process has stopped.
const LOOK: Duration = Duration::from_millis(1);

impl Supervisor {
    /// Pauses the tree, unless its leader has ended, or continues it, and reports the latter. A tree that is not paused
    /// is continued as far as anything else has stopped it.
    pub(super) async fn set_paused(&mut self, paused: bool) {
        if paused && !self.has_ended {
            self.pause().await;
        } else if paused || self.paused.is_some() {
            self.unpause().await;
        } else {
            self.reach_all(Tree::continue_stopped).await;
        }
        if !paused {
            self.report(Fact::Delivered);
        }
    }

    /// Signals every process of the tree. In a paused tree, SIGCONT makes no process run until the tree is unpaused.
    pub(super) async fn signal_as_ordered(&mut self, signal: i32) {
        let Some(mut paused) = self.paused.clone().filter(|_| signal == SIGCONT) else {
            self.signal(signal).await;
            return;
        };
        let tree = self.tree.clone();
        let result = self.context.workers.walk(move || {
            tree.continue_later(&mut paused);
            paused
        });
        if let Some(paused) = result.await {
            self.paused = Some(paused);
        }
    }

    /// Continues a job that has stopped, with its tree. In a paused tree, the job continues when the pause ends; if the
    /// pause itself stopped the job, there is nothing to do.
    pub(super) async fn continue_stopped(&mut self) {
        let pid = self.job.as_ref().map_or(self.tree.leader, |job| job.pid);
        if self.paused.as_ref().is_none_or(|paused| self.tree.had_stopped(paused, pid)) {
            self.signal_as_ordered(SIGCONT).await;
        }
    }

    /// Signals the leader, or the job that it leads, like [`Self::signal_as_ordered`].
    pub(super) fn signal_leader(&mut self, leader: &PidFd, signal: i32) {
        let pid = self.job.as_ref().map_or(self.tree.leader, |job| job.pid);
        let paused = self.paused.as_mut().filter(|_| signal == SIGCONT);
        if !paused.is_some_and(|paused| self.tree.continue_one_later(paused, pid)) {
            self.send_to_leader(leader, signal);
        }
    }

    async fn pause(&mut self) {
        let end = Instant::now() + STOP_TIMEOUT;
        loop {
            let (tree, before) = (self.tree.clone(), self.paused.take());
            let looked = self.context.workers.walk(move || tree.pause(before)).await;
            let Some((paused, all)) = looked else { return };
            self.paused = Some(paused);
            if all {
                return;
            }
            if Instant::now() > end {
                return tracing::warn!(task = %self.tree.task, "not every process of a paused task has stopped yet");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Continues the tree if it is paused. Otherwise, processes that have stopped by themselves stay stopped.
    pub(super) async fn unpause(&mut self) {
        let Some(paused) = self.paused.take().map(Arc::new) else { return };
        self.reach_all(move |tree| tree.continue_all(&paused)).await;
    }

    /// Continues processes of the tree, until this returns that it has reached all of them.
    pub(super) async fn reach_all(&mut self, reach: impl Fn(&Tree) -> bool + Clone + Send + 'static) {
        let end = Instant::now() + STOP_TIMEOUT;
        loop {
            let (tree, reach) = (self.tree.clone(), reach.clone());
            if self.context.workers.walk(move || reach(&tree)).await != Some(false) {
                return;
            }
            if Instant::now() > end {
                return tracing::warn!(task = %self.tree.task, "not every process of a task could be continued");
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
