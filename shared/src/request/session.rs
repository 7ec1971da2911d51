//! Params and results of the methods on parent sessions and their inboxes (R54, R55).

use serde::{Deserialize, Serialize};

use crate::notice::InboxItem;

/// Params of `session.end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SessionEndParams {
    /// Key of the parent session.
    pub session: String,
}

/// Result of `session.end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionEndResult {
    /// Number of cancelled tasks.
    pub cancelled: u64,
    /// Number of deleted tasks.
    pub cleared: u64,
}

/// Params of `inbox.read`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InboxReadParams {
    /// Key of the parent session.
    pub session: String,
    /// Only items with a higher number than this. Default 0: all unacknowledged ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum wait for an item if there is none, in milliseconds. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Maximum number of items, 1 to 1000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Instance of the daemon that the numbers are from, see `hello`. Another daemon rejects the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// Result of `inbox.read`. Items are repeated until they are acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxReadResult {
    /// The items, oldest first; empty if there were none in time.
    pub items: Vec<InboxItem>,
    /// Whether there are more: continue with `after`.
    pub more: bool,
    /// Instance of this daemon. Numbers from another instance are meaningless.
    pub instance: String,
    /// Number of the oldest items dropped because the inbox was full. Reset when the last of them, or a later item,
    /// is acknowledged.
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
    /// Maximum number of inboxes, 1 to 100. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Result of `inbox.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxListResult {
    /// The inboxes with items, ordered by their oldest item.
    pub inboxes: Vec<InboxSummary>,
    /// Whether there are more: continue after the `oldest` of the last one.
    pub more: bool,
    /// Instance of this daemon. Numbers from another instance are meaningless.
    pub instance: String,
}

/// An inbox that has items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxSummary {
    /// Key of the parent session.
    pub session: String,
    /// Number of the oldest item.
    pub oldest: u64,
    /// Number of items.
    pub items: u64,
}

/// Params of `inbox.ack`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InboxAckParams {
    /// Key of the parent session.
    pub session: String,
    /// Number of the last item to acknowledge, including all before it that no other connection has reserved.
    pub upto: u64,
    /// Whether to acknowledge only the item `upto`, whoever has reserved it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only: bool,
    /// Whether to reserve the item `upto` instead, if no other connection has: others do not get it until it is
    /// acknowledged, or until this connection ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reserve: bool,
    /// Instance of the daemon that the numbers are from, see `hello`. Another daemon rejects the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// Result of `inbox.ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InboxAckResult {
    /// Number of items acknowledged, or reserved, by this call.
    pub acknowledged: u64,
    /// Number of remaining items.
    pub left: u64,
}
