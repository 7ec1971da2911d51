//! The `[groups]` part of the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::limits;
use bgd_shared::order::{self, DEFAULT_GROUP};
use serde::{Deserialize, Serialize};

use super::agents::Fault;
use crate::core::GroupSettings;

/// The keys of a `[groups.NAME]` table.
pub const KEYS: [&str; 1] = ["slots"];

/// One `[groups.NAME]` table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupConfig {
    /// How many of its tasks may run at once.
    pub slots: u32,
}

/// Checks the number, names and slots of the groups.
pub fn check(groups: &BTreeMap<String, GroupConfig>) -> Result<(), Fault> {
    if groups.len() >= limits::GROUPS {
        let what = format!(
            "has {} groups; at most {} are allowed besides `{DEFAULT_GROUP}`",
            groups.len(),
            limits::GROUPS - 1
        );
        return Err(("groups".to_owned(), what));
    }
    for (name, GroupConfig { slots }) in groups {
        if name == DEFAULT_GROUP {
            let what = "can't be set here: its slots are `max_concurrent_tasks`".to_owned();
            return Err((format!("groups.{name}"), what));
        }
        if !order::is_group_name(name) {
            let what = format!(
                "is not a valid group name: use 1 to {} letters, digits, `.`, `_` and `-`",
                limits::GROUP_BYTES
            );
            return Err((format!("groups.{name}"), what));
        }
        if *slots == 0 || *slots > limits::GROUP_SLOTS {
            let what = format!("is {slots}; it must be 1 to {}", limits::GROUP_SLOTS);
            return Err((format!("groups.{name}.slots"), what));
        }
    }
    Ok(())
}

/// Returns the settings of each group.
pub fn settings(groups: &BTreeMap<String, GroupConfig>) -> impl Iterator<Item = (Arc<str>, GroupSettings)> {
    groups.iter().map(|(name, GroupConfig { slots })| (Arc::from(&**name), GroupSettings { slots: *slots }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_key_is_known() {
        let table = toml::Table::try_from(GroupConfig { slots: 1 }).unwrap();
        assert!(table.keys().eq(KEYS), "{table}");
    }
}
