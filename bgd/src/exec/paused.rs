//! The supervisor's part in pausing: when a tree is stopped, and when it must go on.

use std::time::{Duration, Instant};

use super::process::Supervisor;

/// How long processes have to stop. One that waits in the kernel stops when it has got what it waits for.
const STOPPING: Duration = Duration::from_secs(5);

/// How long it takes until they are looked at again: nothing tells that a process has stopped.
const LOOK: Duration = Duration::from_millis(1);

impl Supervisor {
    /// Stops the tree, or lets it go on.
    pub(super) async fn set_paused(&mut self, paused: bool) {
        if paused {
            return self.pause().await;
        }
        let (tree, before) = (self.tree.clone(), self.paused.take().unwrap_or_default());
        let _ = self.context.workers.run(move || tree.go_on(&before)).await;
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

    /// Lets a paused tree go on: it is to end, or its leader has.
    pub(super) async fn unpause(&mut self) {
        if self.paused.is_some() {
            self.set_paused(false).await;
        }
    }
}
