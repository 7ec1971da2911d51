//! Resource usage of tasks on the machine that runs them.

use serde::{Deserialize, Serialize};

use crate::id::TaskId;

/// Resource usage of a run of a task, from its start to its end.
///
/// Includes the process itself and all descendants that were waited for by their parents; if the daemon has a cgroup of
/// its own for the task, every process of the tree; for a job of a Slurm cluster with accounting, all its steps, known
/// some seconds after its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// CPU time in user mode, in milliseconds.
    pub user_ms: u64,
    /// CPU time in the kernel, in milliseconds.
    pub system_ms: u64,
    /// The most memory that one of the processes has had at a time, in bytes; with a cgroup of its own and the
    /// controller `memory`, the most of all together, including the kernel's cache of their files. Missing if it is no
    /// more than the memory of the daemon itself: the system does not report less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Bytes written to disks, or still to be written. Those of processes that nobody waited for are included if the
    /// task has a cgroup of its own and the controllers `memory` and `io`.
    pub written_bytes: u64,
}

impl Usage {
    /// Returns the CPU time in milliseconds.
    pub const fn cpu_ms(&self) -> u64 {
        self.user_ms.saturating_add(self.system_ms)
    }
}

/// Current resource usage of the living processes of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LiveUsage {
    /// Id of the task.
    pub id: TaskId,
    /// Number of processes.
    pub processes: u32,
    /// CPU time in user mode so far, in milliseconds, including that of ended children.
    pub user_ms: u64,
    /// CPU time in the kernel so far, in milliseconds, including that of ended children.
    pub system_ms: u64,
    /// Resident memory now, in bytes. Memory shared by several processes is counted for each.
    pub memory_bytes: u64,
}
