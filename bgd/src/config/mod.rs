//! The configuration. Every key has a default; an unknown key is an error that suggests the nearest known one. Nothing
//! here applies a value: those who use it do.

mod advice;
mod agent_machines;
mod agents;
mod channels;
mod durable;
mod error;
mod executors;
mod groups;
mod history;
mod missing;
mod private;
mod size;
mod span;
mod text;
mod tree;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::dirs;
use bgd_shared::foreground::Key;
use bgd_shared::limits;
use bgd_shared::request::{Limits as WireLimits, ReloadResult};
use bgd_shared::small_file;
use serde::{Deserialize, Serialize};

pub use self::agents::{AgentConfig, KEYS as AGENT_KEYS};
pub use self::channels::{ChannelConfig, KEYS as CHANNEL_KEYS, types as channel_types};
pub use self::durable::Durable;
pub use self::error::ConfigError;
pub use self::executors::{ExecutorConfig, KEYS as EXECUTOR_KEYS};
pub use self::groups::GroupConfig;
pub use self::history::History;
pub use self::size::Size;
pub use self::span::Span;
pub use self::text::Text;
pub use self::tree::TreeMode;
use crate::agents::Agents;
use crate::channels::Channels;
use crate::core::{CoreLimits, GroupSettings};
use crate::remotes::Remotes;

/// The maximum size of the file. It is parsed as a whole, in the memory of the daemon.
const FILE_BYTES: u64 = 1024 * 1024;

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Maximum number of concurrently running tasks.
    pub max_concurrent_tasks: usize,
    /// The agent for prompts that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_agent: Option<String>,
    /// The channels for notices of tasks that name none; the first entry is used (R50).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_deliver_to: Option<Vec<String>>,
    /// The key that moves a foreground job to the background.
    pub background_key: Key,
    /// Whether root may connect to another user's daemon.
    pub allow_root: bool,
    /// Whether tasks outlive the daemon.
    pub durable: Durable,
    /// How the processes of a task are tracked.
    pub tree: TreeMode,
    pub limits: Limits,
    /// Grace periods.
    pub grace: Grace,
    /// How long a durable daemon keeps finished tasks.
    pub history: History,
    /// The configured agents, by name.
    pub agents: BTreeMap<String, AgentConfig>,
    /// The configured channels, by name.
    pub channels: BTreeMap<String, ChannelConfig>,
    /// The task groups besides the default one, by name.
    pub groups: BTreeMap<String, GroupConfig>,
    /// The executors that run tasks elsewhere, by name.
    pub executors: BTreeMap<String, ExecutorConfig>,
    /// The text from which the configuration was read.
    #[serde(skip)]
    pub text: Text,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// The maximum length of a request line in bytes.
    pub frame_bytes: usize,
    /// Maximum number of concurrent connections.
    pub connections: usize,
    /// Maximum number of unanswered requests per connection.
    pub requests: usize,
    /// Queued bytes per client above which its next request is not read.
    pub write_queue_bytes: usize,
    /// Maximum number of tasks kept, including finished ones.
    pub tasks: usize,
    /// Memory in bytes that tasks and inboxes may hold when a new task is submitted.
    pub memory: Size,
    /// Bytes of environments kept of started tasks, for `task.rerun`.
    pub environments: Size,
    /// Bytes of output kept per task.
    pub output_bytes: Size,
    /// Bytes of past events kept.
    pub event_history_bytes: usize,
    /// Maximum number of items per inbox.
    pub inbox_items: usize,
    /// Maximum number of queued notices per channel.
    pub channel_queue: usize,
}

/// The grace periods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Grace {
    /// The time between the first signal and SIGKILL.
    pub cancel: Span,
}

impl Default for Config {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            max_concurrent_tasks: cores.max(4),
            default_agent: None,
            default_deliver_to: None,
            background_key: Key::default(),
            allow_root: false,
            durable: Durable::No,
            tree: TreeMode::Auto,
            limits: Limits::default(),
            grace: Grace::default(),
            history: History::default(),
            agents: BTreeMap::new(),
            channels: BTreeMap::new(),
            groups: BTreeMap::new(),
            executors: BTreeMap::new(),
            text: Text::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes: limits::FRAME_BYTES,
            connections: 1024,
            requests: 256,
            write_queue_bytes: 256 * 1024,
            tasks: 1_000_000,
            memory: Size(256 << 20),
            environments: Size(32 << 20),
            output_bytes: Size(1 << 30),
            event_history_bytes: 8 * 1024 * 1024,
            inbox_items: 1000,
            channel_queue: 1000,
        }
    }
}

impl Default for Grace {
    fn default() -> Self {
        Self { cancel: Span(Duration::from_secs(5)) }
    }
}

impl Config {
    /// Returns the path of the file: `bgd/config.toml` in `$XDG_CONFIG_HOME`, or in `~/.config` by default.
    pub fn default_path() -> PathBuf {
        dirs::config_home().join("bgd/config.toml")
    }

    /// Reads the file. Without the default file, and a link in its place, all defaults apply; any other file was named, and
    /// must exist.
    ///
    /// # Errors
    /// The file can't be read, is not a regular file, is too large or is invalid. The error names the file, the key and
    /// what the value must be.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let read_error = |source| ConfigError::Read { path: path.to_path_buf(), source };
        match small_file::read(path, FILE_BYTES) {
            Ok((text, _)) => Self::parse(path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match missing::dangling(path) {
                None if path == Self::default_path() => Ok(Self::default()),
                dangling => Err(read_error(dangling.unwrap_or(error))),
            },
            Err(error) => Err(read_error(missing::advised(path, error, path != Self::default_path()))),
        }
    }

    /// Parses the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// Something in the file is invalid.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let parse_error = |message| ConfigError::Parse { path: path.to_path_buf(), message };
        let mut unknown = None;
        let document = toml::Deserializer::parse(text)
            .map_err(|error| parse_error(words::syntax_error(text, &error, &Self::default().keys())))?;
        let mut track = serde_path_to_error::Track::new();
        let document = serde_path_to_error::Deserializer::new(document, &mut track);
        let config = serde_ignored::deserialize(document, |key| {
            unknown.get_or_insert_with(|| words::names(&key));
        });
        let mut config: Self =
            config.map_err(|error| parse_error(words::value_error(text, &error, &track.path())))?;
        if let Some(names) = unknown {
            let (place, key) = (words::place_of_key(text, &names), names.join("."));
            let advice = advice::advice(&key, &Self::default().keys());
            return Err(ConfigError::UnknownKey { path: path.to_path_buf(), place, key, advice });
        }
        config.check(path, text)?;
        let value = |(key, what): agents::Fault| {
            let place = words::place_before(text, &key);
            ConfigError::Value { path: path.to_path_buf(), place, key, what }
        };
        config.agents().map_err(value)?;
        config.channels().map_err(value)?;
        groups::check(&config.groups).map_err(value)?;
        config.remotes().map_err(value)?;
        config.text = Text(text.into());
        Ok(config)
    }

    fn check(&self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let ranges: [(&'static str, u64, u64, u64); 14] = [
            ("max_concurrent_tasks", self.max_concurrent_tasks as u64, 1, 100_000),
            ("limits.frame_bytes", limits.frame_bytes as u64, 4096, limits::FRAME_BYTES_MAX as u64),
            ("limits.connections", limits.connections as u64, 1, 1_000_000),
            ("limits.requests", limits.requests as u64, 1, 1_000_000),
            ("limits.write_queue_bytes", limits.write_queue_bytes as u64, 4096, 1 << 30),
            ("limits.tasks", limits.tasks as u64, 1, 100_000_000),
            ("limits.memory", limits.memory.0, 1 << 20, 1 << 40),
            ("limits.environments", limits.environments.0, 0, 1 << 40),
            ("limits.output_bytes", limits.output_bytes.0, 1 << 20, 1 << 50),
            ("limits.event_history_bytes", limits.event_history_bytes as u64, 4096, 1 << 40),
            ("limits.inbox_items", limits.inbox_items as u64, 1, 100_000),
            ("limits.channel_queue", limits.channel_queue as u64, 1, 1_000_000),
            ("history.days", self.history.days, 1, 36_500),
            ("history.bytes", self.history.bytes.0, 1 << 20, 1 << 50),
        ];
        for (key, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                let (place, range) = (words::place_before(text, key), format!("{low} to {high}"));
                return Err(ConfigError::Range { path: path.to_path_buf(), place, key, value, range });
            }
        }
        Ok(())
    }

    /// Returns every key, as a dotted name, with its value.
    fn flat(&self) -> Vec<(String, toml::Value)> {
        fn walk(prefix: &str, value: toml::Value, into: &mut Vec<(String, toml::Value)>) {
            match value {
                toml::Value::Table(table) => {
                    for (key, value) in table {
                        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                        walk(&name, value, into);
                    }
                }
                value => into.push((prefix.to_owned(), value)),
            }
        }
        let mut flat = Vec::new();
        // The configuration consists of tables, arrays, numbers, strings and booleans, all of which
        // TOML can represent.
        if let Ok(value) = toml::Value::try_from(self) {
            walk("", value, &mut flat);
        }
        flat
    }

    /// Returns the dotted names of all keys.
    pub fn keys(&self) -> Vec<String> {
        self.flat().into_iter().map(|(key, _)| key).collect()
    }

    /// Takes over the values that can change at run time. Returns the changed keys, those of them that are back at
    /// their default, and those that need a restart.
    pub fn take_over(&mut self, new: Self) -> ReloadResult {
        let (durable, tree) = (self.durable, self.tree);
        let defaults: BTreeMap<String, toml::Value> = Self::default().flat().into_iter().collect();
        let values: BTreeMap<String, toml::Value> = new.flat().into_iter().collect();
        let mut old: BTreeMap<String, toml::Value> = self.flat().into_iter().collect();
        let mut changed: Vec<String> = values
            .iter()
            .filter(|(key, value)| old.remove(*key).as_ref() != Some(value))
            .map(|(key, _)| key.clone())
            .collect();
        // The remaining keys were removed.
        changed.extend(old.into_keys());
        let (needs_restart, changed): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|key| NEEDS_RESTART.contains(&key.as_str()));
        let has_default = |key: &&String| values.get(*key) == defaults.get(*key);
        let defaulted = changed.iter().filter(has_default).cloned().collect();
        *self = new;
        (self.durable, self.tree) = (durable, tree);
        ReloadResult { changed, defaulted, needs_restart, ..ReloadResult::default() }
    }

    /// Returns the configured agents combined with the built-in ones.
    ///
    /// # Errors
    /// A value is invalid; the fault names the key and the reason.
    pub fn agents(&self) -> Result<Agents, agents::Fault> {
        let configured =
            self.agents.iter().map(|(name, config)| agent_machines::agent(name, config, &self.executors));
        let configured = configured.collect::<Result<_, _>>()?;
        let agents = Agents::new(configured, self.default_agent.as_deref());
        match &self.default_agent {
            Some(name) if !agents.knows(name) => {
                let what = format!("is {name:?}, which is not one of {}", agents.names());
                Err(("default_agent".to_owned(), what))
            }
            Some(_) | None => Ok(agents),
        }
    }

    /// Returns the configured channels combined with the built-in ones.
    ///
    /// # Errors
    /// A value is invalid; the fault names the key and the reason.
    pub fn channels(&self) -> Result<Channels, agents::Fault> {
        let configured =
            self.channels.iter().map(|(name, config)| config.channel(name)).collect::<Result<_, _>>()?;
        let channels = Channels::new(configured, self.default_deliver_to.as_deref());
        for name in self.default_deliver_to.iter().flatten() {
            let missing = match channels.get(name) {
                None => Some(format!("is not one of {}", channels.names())),
                Some(channel) => channel.kind.missing_feature(),
            };
            if let Some(missing) = missing {
                let what = format!("names {name:?}, which {missing}");
                return Err(("default_deliver_to".to_owned(), what));
            }
        }
        Ok(channels)
    }

    /// Returns the executors that run tasks elsewhere.
    ///
    /// # Errors
    /// A value is invalid; the fault names the key and the reason.
    pub fn remotes(&self) -> Result<Remotes, agents::Fault> {
        executors::check(&self.executors)?;
        self.executors.iter().map(|(name, config)| config.remote(name)).collect()
    }

    /// Returns the settings of each group. Each executor has a group of its name, by default without a limit.
    pub fn group_settings(&self) -> BTreeMap<Arc<str>, GroupSettings> {
        let unlimited = GroupSettings { slots: limits::GROUP_SLOTS };
        let executors = self.executors.keys().map(|name| (Arc::from(name.as_str()), unlimited.clone()));
        executors.chain(groups::settings(&self.groups)).collect()
    }

    /// Returns the limits that the core enforces.
    pub fn core_limits(&self) -> CoreLimits {
        let (tasks, memory) =
            (self.limits.tasks, usize::try_from(self.limits.memory.0).unwrap_or(usize::MAX));
        CoreLimits {
            max_concurrent_tasks: self.max_concurrent_tasks,
            tasks,
            memory,
            environments: usize::try_from(self.limits.environments.0).unwrap_or(usize::MAX),
            grace_ms: u64::try_from(self.grace.cancel.0.as_millis()).unwrap_or(u64::MAX),
            inbox_items: self.limits.inbox_items,
            history: (self.durable != Durable::No).then(|| self.history.limits(tasks, memory)),
        }
    }

    /// Returns the limits reported to clients.
    pub fn wire_limits(&self) -> WireLimits {
        WireLimits {
            frame_bytes: self.limits.frame_bytes as u64,
            connections: self.limits.connections as u64,
            requests: self.limits.requests as u64,
            write_queue_bytes: self.limits.write_queue_bytes as u64,
            tasks: self.limits.tasks as u64,
            memory: self.limits.memory.0,
            output_bytes: self.limits.output_bytes.0,
            event_history_bytes: self.limits.event_history_bytes as u64,
            max_concurrent_tasks: self.max_concurrent_tasks as u64,
        }
    }
}

/// Keys that are read only at startup.
const NEEDS_RESTART: &[&str] = &["durable", "tree"];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("config.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn empty_file_yields_defaults() {
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn values_are_parsed_with_units() {
        let config = parse(
            "max_concurrent_tasks = 3\n[limits]\noutput_bytes = \"2MiB\"\n[grace]\ncancel = \"1m 30s\"\n",
        )
        .unwrap();
        assert_eq!(config.max_concurrent_tasks, 3);
        assert_eq!(config.limits.output_bytes, Size(2 << 20));
        assert_eq!(config.grace.cancel.0, Duration::from_secs(90));
        let longest = parse("grace.cancel = \"100 years\"").unwrap();
        assert_eq!(longest.grace.cancel.0.as_millis(), limits::DURATION_MS.into());
    }

    #[test]
    fn unknown_key_error_suggests_the_nearest_key() {
        let error = parse("max_concurent_tasks = 3").unwrap_err();
        assert_eq!(
            error,
            "config.toml: line 1, column 1: unknown key `max_concurent_tasks`; did you mean `max_concurrent_tasks`?"
        );
        let error = parse("[limits]\nconections = 3").unwrap_err();
        assert!(error.contains("`limits.conections`; did you mean `limits.connections`?"), "{error}");
        let error =
            parse("[agents.claude-cli]\ncommand = [\"a\"]\ndefault_deliver_to = [\"tty\"]").unwrap_err();
        assert_eq!(
            error,
            "config.toml: line 3, column 1: unknown key `agents.claude-cli.default_deliver_to`; \
             `default_deliver_to` belongs above the first [table] of the file"
        );
        let error = parse("[limits]\nmax_concurrent_tasks = 3").unwrap_err();
        assert!(error.contains("`max_concurrent_tasks` belongs above the first"), "{error}");
        let error = parse("[grace]\nxyzzy_plugh = 3").unwrap_err();
        assert_eq!(error, "config.toml: line 2, column 1: unknown key `grace.xyzzy_plugh`");
    }

    #[test]
    fn unknown_key_error_has_the_position_of_the_key() {
        for (text, place) in [
            ("# a comment\n\nallow_rot = true", "line 3, column 1: unknown key `allow_rot`"),
            ("durable = true\n  limits.taks = 3", "line 2, column 10: unknown key `limits.taks`"),
            ("limits = { tasks = 3, x = 1 }", "line 1, column 23: unknown key `limits.x`"),
            ("[groups.\"a.b\"]\nslots = 1\nslot = 2", "line 3, column 1: unknown key `groups.a.b.slot`"),
            ("durable = true\n[limit]\ntasks = 3", "line 2, column 2: unknown key `limit`"),
            (
                "[executors.\"é\"]\nhost = \"h\"\nhots = \"h\"",
                "line 3, column 1: unknown key `executors.é.hots`",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(place), "{text}: {error}");
        }
    }

    #[test]
    fn invalid_value_error_has_the_position_of_the_key() {
        for (text, words) in [
            ("tree = \"auto\"\n[limits]\n  tasks = 0", "line 3, column 3: `limits.tasks` is 0; it must be 1"),
            ("limits.tasks = 0", "line 1, column 8: `limits.tasks` is 0; it must be 1"),
            ("[groups.\"a.b\"]\nslots = 0", "line 2, column 1: `groups.a.b.slots` is 0; it must be 1"),
            ("\n[groups.default]\nslots = 1", "line 2, column 9: `groups.default` can't"),
            ("[executors.far]\ntype = \"ssh\"\nhost = \"-x\"", "line 3, column 1: `executors.far.host` is"),
            ("# ü\n[channels.ops]\nstarted = true", "line 2, column 11: `channels.ops.type` is missing"),
            ("[channels.ops]\ntype = \"fax\"", "line 2, column 1: `channels.ops.type` is an unknown type"),
            ("\n[agents.x]\nprotocol = \"template\"\ncommand = []", "line 4, column 1: `agents.x.command` "),
            ("\ndefault_agent = \"nobody\"", "line 2, column 1: `default_agent` is \"nobody\", which"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("config.toml: {words}")), "{text}: {error}");
        }
    }

    #[test]
    fn invalid_values_are_refused_naming_key_and_type() {
        let error = parse("max_concurrent_tasks = 0").unwrap_err();
        assert_eq!(
            error,
            "config.toml: line 1, column 1: `max_concurrent_tasks` is 0; it must be 1 to 100000"
        );
        for (text, part) in [
            ("max_concurrent_tasks = \"x\"", "`max_concurrent_tasks` must be a whole number; it is a string"),
            ("max_concurrent_tasks = -1", "must be a whole number; it is a negative number"),
            (
                "[limits]\nmemory = \"12 bananas\"",
                "`limits.memory` must be a number of bytes, or a string such as \"1GiB\"; `12 bananas` is not a size",
            ),
            (
                "[limits]\noutput_bytes = -1",
                "`limits.output_bytes` must be a number of bytes, or a string such as \"1GiB\"; it is a negative number",
            ),
            ("tree = \"forest\"", "line 1, column 8: `tree` is `forest`; it must be `auto` or `session`"),
            ("[grace]\ncancel = 5", "`grace.cancel` must be a duration such as \"5s\"; it is a number"),
            ("max_concurrent_tasks = 4.0", "must be a whole number; it is a fraction"),
            ("tree = 3", "`tree` must be a string in quotes; it is a number"),
            ("tree = true", "`tree` must be a string in quotes; it is true or false"),
            ("tree = [\"auto\"]", "`tree` must be a string in quotes; it is a list"),
            ("allow_root = \"yes\"", "`allow_root` must be true or false; it is a string"),
            ("default_deliver_to = \"ops\"", "`default_deliver_to` must be a list of strings, such as"),
            (
                "default_deliver_to = [3]",
                "each value in `default_deliver_to` must be a string in quotes; this one is a number",
            ),
            ("limits = 3", "`limits` must be a table: [limits] with its keys below; it is a number"),
            ("groups = 3", "`groups` must be a table: [groups.NAME] with its keys below; it is a number"),
            ("[groups.gpu]\nslots = \"two\"", "`groups.gpu.slots` must be a whole number; it is a string"),
            ("[executors.far]\nhost = 3", "`executors.far.host` must be a string in quotes; it is a number"),
            (
                "channels = 3",
                "`channels` must be a table: [channels.NAME] with its keys below; it is a number",
            ),
            (
                "[channels]\nops = \"exec\"",
                "line 2, column 7: `channels.ops` must be a table: [channels.ops] with",
            ),
            (
                "[limits]\noutput_bytes = true",
                "must be a number of bytes, or a string such as \"1GiB\"; it is true",
            ),
            ("[grace]\ncancel = \"soon\"", "not a duration such as"),
            ("[limits]\noutput_bytes = \"much\"", "output_bytes"),
            ("= 3", "invalid TOML: line 1, column 1: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn reload_reports_changed_keys_and_needed_restart() {
        let mut config = Config::default();
        let new = parse("tree = \"session\"\nallow_root = true\n[limits]\ntasks = 10").unwrap();
        let ReloadResult { changed, defaulted, needs_restart: restart, .. } = config.take_over(new);
        assert_eq!(changed, ["allow_root", "limits.tasks"]);
        assert!(defaulted.is_empty(), "{defaulted:?}");
        assert_eq!(restart, ["tree"]);
        assert_eq!((config.limits.tasks, config.tree), (10, TreeMode::Auto));
    }
    #[test]
    fn parse_errors_never_show_secret_values() {
        let lines = [
            ("token = \"t0kensecret", "line 3, column "),
            ("token = t0kensecret", "`token`: "),
            ("token = [\"t0kensecret\"]", "`channels.x.token` must be a string in quotes; it is a list"),
            ("token = 70050700000", "`channels.x.token` must be a string in quotes; it is a number"),
            (
                "headers = \"t0kensecret, expected or not\"",
                "`channels.x.headers` must be a table of strings, such as",
            ),
            (
                "headers = { A = \"t0kensecret\", B = 3 }",
                "each value in `channels.x.headers` must be a string in quotes; this one is a number",
            ),
            ("env = [\"t0kensecret\"]", "`channels.x.env` must be a table of strings"),
            (
                "command = [\"a\",\n\"t0kensecret\", 3]",
                "each value in `channels.x.command` must be a string in quotes",
            ),
            ("token_file = \"t0kensecret\"", "`channels.x.token_file` is not a file path"),
            ("api_base = \"t0kensecret\"\ntoken = \"a\"", "`channels.x.api_base` is not a URL"),
            ("timeout = true\n\"t0kensecret\"", "line "),
        ];
        for (line, expected) in lines {
            let error = parse(&format!("[channels.x]\ntype = \"slack\"\n{line}")).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
            assert!(!error.contains("secret") && !error.contains("70050700000"), "{line}: {error}");
        }
    }
}
