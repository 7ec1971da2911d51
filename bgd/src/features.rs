//! What a build can leave out (`[features]` of its manifest), and how that is named. What is left out has a stand-in of
//! the same shape: a file `absent.rs`, which its `mod` takes in its place, so that whoever uses it asks for no feature.

/// A part of bgd that a build may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Agents that speak the Agent Client Protocol.
    Acp,
    /// Channels that speak HTTPS.
    Chats,
    /// Notifications of the desktop.
    Desktop,
    /// Asking systemd's user manager for a cgroup.
    Systemd,
}

impl Feature {
    /// Its name in the manifest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acp => "acp",
            Self::Chats => "chats",
            Self::Desktop => "desktop",
            Self::Systemd => "systemd",
        }
    }

    /// Whether this build has it.
    pub const fn is_here(self) -> bool {
        match self {
            Self::Acp => cfg!(feature = "acp"),
            Self::Chats => cfg!(feature = "chats"),
            Self::Desktop => cfg!(feature = "desktop"),
            Self::Systemd => cfg!(feature = "systemd"),
        }
    }

    /// The end of a sentence about what can't be without it.
    pub fn needed(self) -> String {
        format!("needs a bgd that was built with the feature `{}`", self.as_str())
    }

    /// The same in a build that lacks it, `None` in others.
    pub fn lack(self) -> Option<String> {
        (!self.is_here()).then(|| self.needed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_each_of_them_and_all_by_default() {
        let manifest: toml::Table = include_str!("../Cargo.toml").parse().unwrap();
        let mut features = manifest["features"].as_table().unwrap().clone();
        let default = features.remove("default").unwrap();
        let names: Vec<&str> = features.keys().map(String::as_str).collect();
        let known = [Feature::Acp, Feature::Chats, Feature::Desktop, Feature::Systemd];
        assert_eq!(names, known.map(Feature::as_str));
        assert_eq!(default, toml::Value::from(names));
        assert!(known.iter().all(|feature| feature.lack().is_none()), "tests are built with all of them");
    }
}
