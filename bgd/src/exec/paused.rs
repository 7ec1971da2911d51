//! The supervisor's part in pausing: when a tree is stopped, and when it must go on.

use std::time::{Duration, Instant};

use super::process::Supervisor;

/// How long processes have to stop. One that waits in the kernel stops when it has got what it waits for.
const STOPPING: Duration = Duration::from_secs(5);

/// How long it takes until they are looked at again: nothing tells that a process has stopped.
const LOOK: Duration = Duration::from_millis(1);

impl Supervisor {
    /// Stops the tree, unless its leader has ended, or lets it go on.
    pub(super) async fn set_paused(&mut self, paused: bool) {
        if paused && !self.has_ended {
            self.pause().await;
        } else {
            self.unpause().await;
        }
    }

    async fn pause(&mut self) {
        let end = Instant::now() + STOPPING;
        loop {
            let (tree, before) = (self.tree.clone(), self.paused.take());
            let looked = self.context.workers.run(move || tree.pause(before)).await;
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

    /// Lets the tree go on if it is paused. What stopped by itself in one that is not stays as it is.
    pub(super) async fn unpause(&mut self) {
        if let Some(before) = self.paused.take() {
            let tree = self.tree.clone();
            let _ = self.context.workers.run(move || tree.go_on(&before)).await;
        }
    }
}
