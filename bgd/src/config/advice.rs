//! Suggestions for an unknown key: the nearest known ones.

use super::agents::KEYS as AGENT_KEYS;
use super::channels::KEYS as CHANNEL_KEYS;
use super::executors::KEYS as EXECUTOR_KEYS;
use super::groups::KEYS as GROUP_KEYS;

/// Returns the keys that an unknown key may be a misspelling of; `keys` are those of the default configuration.
pub(super) fn known_keys(unknown: &str, keys: &[String]) -> Vec<String> {
    let mut keys = keys.to_vec();
    keys.extend(
        ["agents", "channels", "executors", "groups", "default_agent", "default_deliver_to"]
            .map(ToOwned::to_owned),
    );
    for (table, of_one) in [
        ("agents", &AGENT_KEYS[..]),
        ("channels", &CHANNEL_KEYS[..]),
        ("executors", &EXECUTOR_KEYS[..]),
        ("groups", &GROUP_KEYS[..]),
    ] {
        let rest = unknown.strip_prefix(table).and_then(|rest| rest.strip_prefix('.'));
        if let Some((name, _)) = rest.and_then(|rest| rest.rsplit_once('.')) {
            keys = of_one.iter().map(|key| format!("{table}.{name}.{key}")).collect();
        }
    }
    keys
}

/// Returns a suggestion for an unknown key, as in `ConfigError::UnknownKey`; `keys` are those of the default
/// configuration.
pub(super) fn advice(key: &str, keys: &[String]) -> String {
    // In TOML a key belongs to the table header above it, even if it was meant as a top-level key.
    let below = key.rsplit_once('.').map(|(_, last)| last).filter(|last| {
        !matches!(*last, "agents" | "channels" | "executors" | "groups")
            && known_keys("", keys).iter().any(|known| known == last)
    });
    match (below, nearest(key, &known_keys(key, keys))) {
        (Some(last), _) => {
            format!("; `{last}` belongs above the first [table] of the file")
        }
        (None, Some(near)) => format!("; did you mean `{near}`?"),
        (None, None) => String::new(),
    }
}

fn nearest(key: &str, known: &[String]) -> Option<String> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let near = |name: &&String| {
        strsim::damerau_levenshtein(name, key).min(strsim::damerau_levenshtein(&last(name), &last(key)))
    };
    known.iter().min_by_key(near).filter(|name| near(name) <= last(key).len() / 3 + 1).cloned()
}
