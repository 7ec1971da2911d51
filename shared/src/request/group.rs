//! Params and results of the methods on groups.

use serde::{Deserialize, Serialize};

use crate::order::Group;

/// Params of a method on one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupParams {
    /// Name of the group.
    pub name: String,
}

/// Params of `group.set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupSetParams {
    /// Name of the group: 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Number of slots, 1 to 100000. A lower number ends no task; nothing starts until enough have ended.
    /// A pending task that takes more slots (`oversized` of the group) then runs alone.
    pub slots: u32,
}

/// Result of a method on one group: the group after the change, or before its removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupResult {
    /// The group.
    pub group: Group,
}

/// Result of `group.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupListResult {
    /// The groups: `default` first, then the others by name.
    pub groups: Vec<Group>,
}
