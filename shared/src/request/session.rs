//! Params and results of the methods on parent sessions and their inboxes (R54, R55).

use serde::{Deserialize, Serialize};

use crate::notice::InboxItem;

/// Params of `session.end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SessionEndParams {
    /// The parent session's key.
    pub session: String,
}

/// Result of `session.end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionEndResult {
    /// How many tasks were active.
    pub cancelled: u64,
    /// How many were removed.
    pub cleared: u64,
}

/// Params of `inbox.read`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InboxReadParams {
    /// The parent session's key.
    pub session: String,
    /// Only items with a higher number than this. Default 0: all that were not acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How long to wait for an item if there is none, in milliseconds. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// The most items, 1 to 1000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The daemon whose numbers these are, as `instance` of `hello`; another one refuses the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// Result of `inbox.read`. The same items come again until they are acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxReadResult {
    /// The items, the oldest first; none if none came in time.
    pub items: Vec<InboxItem>,
    /// Whether there are more than fit here: read on with `after`.
    pub more: bool,
    /// This life of the daemon: the numbers of another one mean nothing.
    pub instance: String,
    /// How many items were dropped because the inbox was full: the oldest ones. They count until a later
    /// item than the last of them is acknowledged, or that one itself.
    pub lost: u64,
}

/// Params of `inbox.list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InboxListParams {
    /// Only inboxes whose oldest item has a higher number than this. Default 0: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The most inboxes, 1 to 100. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Result of `inbox.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxListResult {
    /// The inboxes with items, by their oldest one.
    pub inboxes: Vec<InboxSummary>,
    /// Whether there are more than fit here: read on behind the `oldest` of the last one.
    pub more: bool,
    /// This life of the daemon: the numbers of another one mean nothing.
    pub instance: String,
}

/// An inbox that has items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxSummary {
    /// The parent session's key.
    pub session: String,
    /// The number of its oldest item.
    pub oldest: u64,
    /// How many items it has.
    pub items: u64,
}

/// Params of `inbox.ack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InboxAckParams {
    /// The parent session's key.
    pub session: String,
    /// The number of the last item that is done with; all before it are, too.
    pub upto: u64,
    /// The daemon whose numbers these are, as `instance` of `hello`; another one refuses the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// Result of `inbox.ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxAckResult {
    /// How many items were acknowledged by this.
    pub acknowledged: u64,
    /// How many are left.
    pub left: u64,
}
