//! Limits on tasks, bytes and times. Plain data: other modules enforce them.

use serde::{Deserialize, Serialize};

use crate::history::HistoryLimits;

/// The limits that the core enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreLimits {
    /// Tasks that run at once, at least 1. Further ones wait, except those that must not (foreground jobs, resumes,
    /// handed-over processes): these count too, but start even above the limit.
    pub max_concurrent_tasks: usize,
    /// Tasks kept, including finished ones. With `history`, these give way to new ones.
    pub tasks: usize,
    /// Memory of tasks and inboxes, in bytes. A request that would exceed it is refused, unless finished tasks can give
    /// way to it.
    pub memory: usize,
    /// Bytes of environments kept so that tasks can be submitted again.
    pub environments: usize,
    /// How long a cancelled task has to end before SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// Items per inbox, at least 1. Beyond that, the oldest are dropped.
    pub inbox_items: usize,
    /// How long finished tasks are kept; `None` until they are cleared.
    #[serde(default)]
    pub history: Option<HistoryLimits>,
}
