//! The optional parts of a build (`[features]` in the manifest) and their names. Each omitted part is replaced by a
//! stub with the same interface: a file `absent.rs` that its `mod` declaration includes instead, so that callers need
//! no `cfg`.

/// An optional part of bgd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Agents that speak the Agent Client Protocol.
    Acp,
    /// Channels that use HTTPS.
    Chats,
    /// Desktop notifications.
    Desktop,
    /// Requesting a cgroup from systemd's user manager.
    Systemd,
}

impl Feature {
    /// Returns the feature's name in the manifest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acp => "acp",
            Self::Chats => "chats",
            Self::Desktop => "desktop",
            Self::Systemd => "systemd",
        }
    }

    /// Reports whether this build includes the feature.
    pub const fn is_here(self) -> bool {
        match self {
            Self::Acp => cfg!(feature = "acp"),
            Self::Chats => cfg!(feature = "chats"),
            Self::Desktop => cfg!(feature = "desktop"),
            Self::Systemd => cfg!(feature = "systemd"),
        }
    }

    /// Returns the end of a sentence about something that requires the feature.
    pub fn needed(self) -> String {
        format!("needs a bgd that was built with the feature `{}`", self.as_str())
    }

    /// Returns the same text if this build lacks the feature, else `None`.
    pub fn missing_feature(self) -> Option<String> {
        (!self.is_here()).then(|| self.needed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_lists_every_feature_and_enables_all_by_default() {
        let manifest: toml::Table = include_str!("../Cargo.toml").parse().unwrap();
        let mut features = manifest["features"].as_table().unwrap().clone();
        let default = features.remove("default").unwrap();
        let names: Vec<&str> = features.keys().map(String::as_str).collect();
        let known = [Feature::Acp, Feature::Chats, Feature::Desktop, Feature::Systemd];
        assert_eq!(names, known.map(Feature::as_str));
        assert_eq!(default, toml::Value::from(names));
        assert!(
            known.iter().all(|feature| feature.missing_feature().is_none()),
            "tests are built with all of them"
        );
    }
}
