//! The value of `tree`: how the processes of a task are tracked.

use serde::{Deserialize, Serialize};

/// How process trees are tracked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeMode {
    /// A cgroup per task if cgroups are delegated to the daemon, else sessions.
    #[default]
    Auto,
    /// A session per task, and a walk of its descendants.
    Session,
}
