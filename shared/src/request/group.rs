//! Params and results of the methods on groups.

use serde::{Deserialize, Serialize};

use crate::order::Group;

/// Params of a method on one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupParams {
    /// Its name.
    pub name: String,
}

/// Params of `group.set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupSetParams {
    /// Its name: 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// How many slots it has, 1 to 100000. A lower number ends nothing: no task starts until enough have ended.
    pub slots: u32,
}

/// Result of a method on one group: the group as it is now, or as it was last.
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
    /// The groups.
    pub groups: Vec<Group>,
}
