//! Configurations: the file is the user's, and an agent may have written it.

use std::path::Path;

use bgd::config::{Config, ConfigError};

const PATH: &str = "/home/somebody/.config/bgd/config.toml";

/// A configuration is refused with an error that names its file, or every part of it can be used and means the same
/// when it is read again.
pub fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let read = || Config::parse(Path::new(PATH), &text);
    let config = match read() {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    assert!((1..=100_000).contains(&config.max_concurrent_tasks));
    let (agents, channels, remotes) = (config.agents(), config.channels(), config.remotes());
    assert!(agents.is_ok() && channels.is_ok() && remotes.is_ok(), "what was accepted can be used");
    let limits = config.core_limits();
    assert!(limits.grace_ms <= bgd_shared::limits::DURATION_MS, "{limits:?}");
    let mut config = config;
    let keys = config.keys();
    let result = config.take_over(read().unwrap());
    assert!(result.changed.is_empty() && result.defaulted.is_empty(), "{result:?} of {keys:?}");
}

fn refused(error: &ConfigError) {
    let words = error.to_string();
    assert!(words.contains(PATH), "{words}");
    assert!(words.len() < 8 * 1024, "{} bytes", words.len());
}
