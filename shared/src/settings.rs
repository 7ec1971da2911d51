//! Options of an agent's session: mode, model and others, by the agent's own ids.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::{AGENT_OPTIONS, AGENT_SETTING_BYTES};

/// Value of an option of an agent's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "must be a string in quotes, or true or false")]
pub enum Setting {
    /// On or off.
    Flag(bool),
    /// One of several values, by its id.
    Text(String),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(formatter),
            Self::Text(text) => text.fmt(formatter),
        }
    }
}

/// Options of an agent's session. Only for agents with protocol `acp`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentSettings {
    /// Mode, by the agent's own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Model, by the agent's own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Other options, by the agent's own ids.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, Setting>,
}

impl AgentSettings {
    /// Reports whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Returns the name of the first setting that is set.
    pub fn first(&self) -> Option<&'static str> {
        let is_set = [
            ("mode", self.mode.is_some()),
            ("model", self.model.is_some()),
            ("config", !self.config.is_empty()),
        ];
        is_set.iter().find(|(_, is_set)| *is_set).map(|(key, _)| *key)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The invalid key, and the problem with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let is_odd = |text: &str| {
            text.is_empty() || text.len() > AGENT_SETTING_BYTES || text.contains(char::is_control)
        };
        for (key, text) in [("mode", &self.mode), ("model", &self.model)] {
            if text.as_deref().is_some_and(is_odd) {
                return Err((key, format!("must have 1 to {AGENT_SETTING_BYTES} bytes on one line")));
            }
        }
        if self.config.len() > AGENT_OPTIONS {
            return Err(("config", format!("has more than {AGENT_OPTIONS} options")));
        }
        let is_odd_value = |value: &Setting| matches!(value, Setting::Text(text) if is_odd(text));
        if self.config.iter().any(|(name, value)| is_odd(name) || is_odd_value(value)) {
            let what = format!(
                "has a name or a value that is empty, longer than {AGENT_SETTING_BYTES} bytes or of several lines"
            );
            return Err(("config", what));
        }
        Ok(())
    }

    /// Returns these settings, with unset ones taken from `others`.
    #[must_use]
    pub fn over(&self, others: &Self) -> Self {
        let mut config = others.config.clone();
        config.extend(self.config.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self {
            mode: self.mode.clone().or_else(|| others.mode.clone()),
            model: self.model.clone().or_else(|| others.model.clone()),
            config,
        }
    }

    /// Returns all names and values that are text.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let values = self.config.values().filter_map(|value| match value {
            Setting::Flag(_) => None,
            Setting::Text(text) => Some(text.as_str()),
        });
        let names = self.config.keys().map(String::as_str);
        [&self.mode, &self.model].into_iter().filter_map(|text| text.as_deref()).chain(names).chain(values)
    }
}
