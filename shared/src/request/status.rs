//! The result of `daemon.status` (R08).

use serde::{Deserialize, Serialize};

use super::Limits;
use crate::task::Summary;
use crate::time::Timestamp;

/// Result of `daemon.status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonStatus {
    /// How many tasks are `pending`, `running` or `resumed`.
    pub active: u64,
    /// How many tasks are in each status.
    pub summary: Summary,
    /// How long the daemon has run, in milliseconds.
    pub uptime_ms: u64,
    /// Its resident memory in bytes.
    pub memory_bytes: u64,
    /// The bytes of it that tasks and inboxes hold, as `limits.memory` counts them.
    #[serde(default)]
    pub held_bytes: u64,
    /// Clients that are connected.
    pub connections: u64,
    /// Subscriptions to events.
    pub subscriptions: u64,
    /// The number of the latest event.
    pub seq: u64,
    /// This life of the daemon.
    pub instance: String,
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: i32,
    /// Its socket.
    pub socket: String,
    /// The folder with output and log.
    pub state_dir: String,
    /// The configuration file; it may not exist.
    pub config: String,
    /// Whether that file exists and is in force.
    pub config_loaded: bool,
    /// How trees are kept together: `cgroup` or `session`.
    pub tree: String,
    /// Why that, for people; empty if the daemon is older than this field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tree_reason: String,
    /// The limits in force.
    pub limits: Limits,
    /// How long tasks waited for a slot.
    pub waited: Times,
    /// How long runs took.
    pub ran: Times,
    /// The inboxes of parent sessions.
    pub inboxes: InboxesStatus,
    /// The channels that news went to, or that the configuration has.
    pub channels: Vec<ChannelStatus>,
    /// Ends of runs that were told to no channel, because the task has none, or one that is not configured
    /// (R52).
    pub untold: u64,
    /// What needs somebody's attention, such as a full disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// How often something took how long, since the daemon began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Times {
    /// How often.
    pub count: u64,
    /// All of it together, in milliseconds.
    pub sum_ms: u64,
    /// How many took at most so long: each count has those of the shorter ones in it.
    pub buckets: Vec<TimeBucket>,
}

/// How many took at most so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimeBucket {
    /// The longest time that is counted here, in milliseconds.
    pub le_ms: u64,
    /// How many took at most this.
    pub count: u64,
}

/// How full the inboxes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxesStatus {
    /// Parent sessions that have items.
    pub sessions: u64,
    /// Items that were not acknowledged.
    pub items: u64,
    /// Items that were dropped because an inbox was full.
    pub lost: u64,
}

/// How a channel does. Counts are of notices, since the daemon began or the channel was configured anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChannelStatus {
    /// Its name.
    pub name: String,
    /// What it is: `exec`, `webhook`, `telegram`, `discord`, `slack`, `desktop`, `tty` or `inbox`; `gone` if
    /// the configuration has it no more, and notices still wait.
    pub kind: String,
    /// Waiting, or on their way.
    pub queued: u64,
    /// Delivered.
    pub sent: u64,
    /// Given up.
    pub failed: u64,
    /// Not taken, because the queue was full.
    pub dropped: u64,
    /// What is wrong with its settings, such as a token that is missing, and what to do about it. It was found when
    /// the configuration was read, or with the last delivery; never with a secret in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The notice that is being tried again, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<ChannelRetry>,
    /// Why the last one failed that did; never with a secret in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<Timestamp>,
}

/// A notice that could not be delivered yet and is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChannelRetry {
    /// How often it was tried so far; 0 if the server has asked before to be left alone.
    pub tries: u64,
    /// How often it is tried at most. It may be given up earlier, as no try begins later than 2 minutes after the
    /// first.
    pub most: u64,
    /// What the last try met; never with a secret in it.
    pub error: String,
    /// When that was.
    pub at: Timestamp,
    /// When it is tried next; in the past while it is being tried.
    pub next_at: Timestamp,
}
