//! The limits of the daemon, as reported to clients. This module sets none.

use serde::{Deserialize, Serialize};

/// Limits of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// Maximum length of a request line in bytes, including its newline.
    pub frame_bytes: u64,
    /// Maximum number of connections.
    pub connections: u64,
    /// Maximum number of unanswered requests per connection.
    pub requests: u64,
    /// Maximum number of unread bytes queued for one client before the daemon stops reading its requests.
    pub write_queue_bytes: u64,
    /// Maximum number of tasks, including finished ones.
    pub tasks: u64,
    /// Maximum memory of tasks and inboxes, in bytes.
    #[serde(default)]
    pub memory: u64,
    /// Bytes of output kept per task.
    pub output_bytes: u64,
    /// Bytes of past events kept for `since`.
    pub event_history_bytes: u64,
    /// Slots of the default group.
    pub max_concurrent_tasks: u64,
}
