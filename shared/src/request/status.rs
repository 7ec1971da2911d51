//! The result of `daemon.status` (R08).

use serde::{Deserialize, Serialize};

use super::limits::Limits;
use crate::task::Summary;
use crate::time::Timestamp;

/// Result of `daemon.status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonStatus {
    /// Number of tasks that are `pending`, `running` or `resumed`.
    pub active: u64,
    /// Whether the daemon is shutting down: it accepts no more tasks, and waits for the ends of those that can't outlive
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shutting_down: bool,
    /// Number of tasks by status.
    pub summary: Summary,
    /// Uptime in milliseconds.
    pub uptime_ms: u64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    /// Memory used by tasks and inboxes, in bytes, as `limits.memory` counts it.
    #[serde(default)]
    pub held_bytes: u64,
    /// Number of connected clients.
    pub connections: u64,
    /// Number of subscriptions to events.
    pub subscriptions: u64,
    /// Number of the latest event.
    pub seq: u64,
    /// Id of the daemon, which a durable one keeps across restarts. A different one means that all earlier tasks are
    /// lost.
    pub instance: String,
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: i32,
    /// The daemon's program; missing if the daemon is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramStatus>,
    /// Path of the socket.
    pub socket: String,
    /// Folder with output and log.
    pub state_dir: String,
    /// Path of the configuration file; it may not exist.
    pub config: String,
    /// Whether the configuration file exists and is in effect.
    pub config_loaded: bool,
    /// Time of the last change of the configuration file before it was read; missing if there was none, or if the
    /// daemon is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_modified: Option<Timestamp>,
    /// Files that no other user should be able to read: the configuration, if it has a token, a header, a URL of a webhook
    /// or a variable, and the files of tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private_files: Vec<String>,
    /// How process trees are tracked: `cgroup` or `session`.
    pub tree: String,
    /// Why they are tracked like this, for people; empty if the daemon is older than this field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tree_reason: String,
    /// Whether tasks outlive the daemon; missing if the daemon is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<DurableStatus>,
    /// Path of the journal of a durable daemon, if its file was removed, moved or replaced: unless its folder is put back,
    /// all tasks are lost with the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_journal: Option<String>,
    /// The limits in effect.
    pub limits: Limits,
    /// Times from the submissions of tasks to their first start.
    pub waited: Times,
    /// Run times of tasks: each attempt and each run counts.
    pub ran: Times,
    /// The inboxes of parent sessions.
    pub inboxes: InboxesStatus,
    /// `default_deliver_to` in the configuration; missing if it is not set, or if the daemon is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_deliver_to: Option<Vec<String>>,
    /// Channels that are configured, are the first of `default_deliver_to`, or have had notices; of those that were
    /// removed, the ones with queued notices, and the last 64 that have lost some.
    pub channels: Vec<ChannelStatus>,
    /// Ended runs without a notification, because the task had no channel, or a channel that is not configured; and
    /// notices lost by channels that were removed so long ago that `channels` omits them.
    #[serde(rename = "untold")]
    pub undelivered: u64,
    /// Problems that need attention, such as a full disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The subset of the warnings that is about the past: they require no action any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Whether tasks outlive the daemon, as set by `durable` in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DurableStatus {
    /// All tasks end with the daemon.
    No,
    /// Tasks outlive the daemon: each change is written to a journal.
    Written,
    /// The same, and each change is on the disk before it is answered.
    Synced,
    /// A setting added by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// The file of the daemon's program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgramStatus {
    /// Its path when the daemon started.
    pub path: String,
    /// State of the file at that path.
    pub state: ProgramState,
}

/// State of the file at the path from which a running program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProgramState {
    /// The running program.
    Current,
    /// Another file, such as a newer version; the daemon continues to run the old one.
    Replaced,
    /// Nothing. The daemon keeps running, but can't be restarted or upgraded from there.
    Removed,
    /// A state added by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// Histogram of durations since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Times {
    /// Number of values.
    pub count: u64,
    /// Sum of all values, in milliseconds.
    pub sum_ms: u64,
    /// Cumulative buckets: each count includes those of shorter ones.
    pub buckets: Vec<TimeBucket>,
}

/// A bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimeBucket {
    /// Upper bound of the bucket, in milliseconds.
    pub le_ms: u64,
    /// Number of values up to `le_ms`.
    pub count: u64,
}

/// State of all inboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxesStatus {
    /// Parent sessions with items.
    pub sessions: u64,
    /// Unacknowledged items.
    pub items: u64,
    /// Items dropped because an inbox was full.
    pub lost: u64,
}

/// State of a channel. Counts are of notices since the daemon started or the channel was reconfigured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChannelStatus {
    /// Name of the channel.
    pub name: String,
    /// Type: `exec`, `webhook`, `telegram`, `discord`, `slack`, `desktop`, `tty` or `inbox`; `gone` if it is no
    /// longer configured but still has queued notices or has lost some.
    pub kind: String,
    /// Notices queued or being sent.
    pub queued: u64,
    /// Delivered notices.
    pub sent: u64,
    /// Notices that could not be delivered.
    pub failed: u64,
    /// Notices dropped because the queue was full.
    pub dropped: u64,
    /// Problem with its settings, such as a missing token or program, and how to fix it, without secrets. Found when the
    /// configuration was read, or on the last delivery; that with a program, on each call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The notice being retried, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<ChannelRetry>,
    /// Error of the last failed notice since the channel's settings were changed, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Time of `last_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<Timestamp>,
    /// Whether the latest notice that was sent or given up is the one of `last_error`. False with daemons that do not
    /// report it.
    #[serde(default)]
    pub failing: bool,
}

impl ChannelStatus {
    /// Reports whether its latest notification failed, as far as is known: older daemons do not say which was the
    /// latest. Always false for `tty`, which covers many terminals: an error of one proves nothing about the others, and
    /// for `gone`, which gets no others.
    pub fn is_failing(&self) -> bool {
        !["tty", "gone"].contains(&&*self.kind)
            && self.last_error.is_some()
            && (self.failing || self.sent == 0)
    }
}

/// A notice whose delivery failed and is being retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChannelRetry {
    /// Number of attempts so far; 0 if the server has asked to wait before the first one.
    pub tries: u64,
    /// Maximum number of attempts. No attempt starts later than 2 minutes after the first.
    pub most: u64,
    /// Error of the last attempt, without secrets.
    pub error: String,
    /// Time of the last attempt.
    pub at: Timestamp,
    /// Time of the next attempt; in the past during the attempt.
    pub next_at: Timestamp,
}
