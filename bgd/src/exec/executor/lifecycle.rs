//! An executor's own workers and configuration, from the daemon's start to its end.

use std::sync::Arc;

use bgd_shared::id::TaskId;
use futures_util::future::LocalBoxFuture;

use crate::agents::Agents;
use crate::remotes::Remotes;

/// Follows the daemon's life. An executor without workers, configuration and state implements none of these calls.
pub trait Lifecycle {
    /// Called when the configured agents or the places that run tasks elsewhere have changed.
    fn configure(&mut self, agents: &Arc<Agents>, remotes: &Arc<Remotes>) {
        let _ = (agents, remotes);
    }

    /// Returns the keys of the configuration whose values here take effect only after a restart of the daemon.
    fn needs_restart(&self, remotes: &Remotes) -> Vec<String> {
        let _ = remotes;
        Vec::new()
    }

    /// Waits for the next event from this executor's own workers and handles it. Cancel-safe: the future may be
    /// dropped while it waits, and nothing is lost.
    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Reports whether the main process of a task's run has ended, even if that was not reported yet.
    fn has_ended(&self, task: TaskId) -> bool {
        let _ = task;
        false
    }

    /// Called when the replies of a dispatcher turn are on their way: work that would compete with the clients waiting
    /// for them may begin.
    fn answered(&mut self) {}

    /// Called when the daemon ends and no tasks are left, or only tasks that keep running: ends what the executor keeps
    /// for itself.
    fn close(&mut self, close: Close) {
        let _ = close;
    }

    /// Reports whether the daemon must wait for this executor before it ends.
    fn is_busy(&self) -> bool {
        false
    }
}

/// How an executor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Gracefully, in its own time.
    Asked,
    /// Immediately.
    Forced,
}
