//! The generated tables in handwritten pages. A table is placed between two comments, `.\" BEGIN TABLE name`
//! and `.\" END TABLE`, and every table has exactly one place.

use std::collections::BTreeMap;

use bgd::agents::{Agent, Agents};
use bgd::channels::Chat;
use bgd::config::{AGENT_KEYS, CHANNEL_KEYS, Config, channel_types};
use bgd::core::QUESTIONS;
use bgd::exec::agent::acp::LINE_BYTES;
use bgd::exec::agent::recorder::LATE_BYTES;
use bgd::exec::agent::sameness::IGNORED_VARIABLES;
use bgd_shared::agent::AgentInfo;
use bgd_shared::error::ErrorKind;
use bgd_shared::limits;
use bgd_shared::text::{Env, OsText};
use serde_json::Value;

use super::fields::{Direction, fields, list_of_words, words};
use super::roff::{bold, entry, literal, prose};

/// Tables by name.
pub type Tables = BTreeMap<String, String>;

const BEGIN: &str = ".\\\" BEGIN TABLE ";
const END: &str = ".\\\" END TABLE";

/// Returns a page with its tables replaced.
///
/// # Panics
/// A table has no place, or a place has no table. The page then has to be edited.
pub fn filled(path: &str, tables: &Tables) -> String {
    let page = super::read(path);
    let mut unused: Vec<&String> = tables.keys().collect();
    let mut text = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text += line;
        text.push('\n');
        let Some(name) = line.strip_prefix(BEGIN) else { continue };
        let table = tables.get(name).unwrap_or_else(|| panic!("{path}: there is no table {name:?}"));
        unused.retain(|unused| *unused != name);
        text += table;
        assert!(lines.any(|line| line == END), "{path}: the table {name:?} has no end");
        text += END;
        text.push('\n');
    }
    assert!(unused.is_empty(), "{path}: tables without a place: {unused:?}");
    text
}

/// Returns the tables of the protocol's page.
pub fn of_protocol(schema: &Value) -> Tables {
    let mut tables = Tables::new();
    for (method, schemas) in schema["methods"].as_object().into_iter().flatten() {
        for (part, direction) in [("params", Direction::Sent), ("result", Direction::Received)] {
            if let Some((name, _)) = super::schema::referred(schema, &schemas[part]) {
                tables.insert(format!("{part} {method}"), fields(schema, &name, direction));
            }
        }
    }
    for object in OBJECTS {
        tables.insert(format!("object {object}"), fields(schema, object, Direction::Received));
    }
    for object in ["Rlimit", "TerminalSize", "OriginTerminal", "After", "Matching", "Retry"] {
        tables.insert(format!("object {object}"), fields(schema, object, Direction::Sent));
    }
    for name in WORDS {
        tables.insert(format!("words {name}"), list_of_words(schema, name));
    }
    tables.insert("errors".to_owned(), errors(schema));
    tables.insert("limits".to_owned(), limits_table());
    tables.insert("limits of agents".to_owned(), limits_of_agents());
    tables
}

/// Enumerations whose words the page lists with their meanings.
const WORDS: [&str; 13] = [
    "Status",
    "FailureKind",
    "EventKind",
    "StepStatus",
    "OptionKind",
    "HandoffStream",
    "NoticeKind",
    "Part",
    "Condition",
    "WaitingFor",
    "CancelReason",
    "Restart",
    "ProgramState",
];

/// Objects sent by the daemon whose fields the page lists.
const OBJECTS: [&str; 42] = [
    "Task",
    "Dependency",
    "Waiting",
    "Attempt",
    "Usage",
    "LiveUsage",
    "AgentUsage",
    "Cost",
    "PlanStep",
    "Group",
    "Rerun",
    "Failure",
    "Progress",
    "NeedsInput",
    "InputOption",
    "AgentInfo",
    "Chosen",
    "Resources",
    "Elsewhere",
    "ExecutorInfo",
    "ExecutorCheck",
    "AgentCheck",
    "AgentSettings",
    "Output",
    "Summary",
    "ProgramStatus",
    "ClearedTasks",
    "Limits",
    "Event",
    "Gap",
    "ErrorData",
    "OutputNews",
    "StoppedNews",
    "Notice",
    "NoticeResult",
    "InboxItem",
    "InboxSummary",
    "Times",
    "TimeBucket",
    "InboxesStatus",
    "ChannelStatus",
    "ChannelRetry",
];

fn errors(schema: &Value) -> String {
    let meanings: BTreeMap<String, String> = words(schema, "ErrorKind").into_iter().collect();
    let one = |kind: &ErrorKind| {
        let meaning = meanings.get(kind.as_str()).map(String::as_str).unwrap_or_default();
        entry(&format!("{} (\\-{})", bold(kind.as_str()), kind.code().unsigned_abs()), meaning)
    };
    ErrorKind::ALL.iter().map(one).collect()
}

fn bytes(count: u64) -> String {
    let unit = [(1 << 20, "MiB"), (1 << 10, "KiB")].into_iter().find(|(size, _)| count.is_multiple_of(*size));
    unit.map_or_else(|| format!("{count} bytes"), |(size, unit)| format!("{} {unit}", count / size))
}

/// Lists the limits that no configuration changes.
fn limits_table() -> String {
    let years = limits::DURATION_MS / (365 * 24 * 3600 * 1000);
    let rows = [
        ("Maximum size of one `task.output`", bytes(limits::OUTPUT_CHUNK_BYTES)),
        ("Maximum size of one `task.result` of a process", bytes(limits::RESULT_BYTES)),
        ("Maximum size of one `task.write`", bytes(limits::WRITE_BYTES as u64)),
        ("Input that all tasks together have not read", bytes(limits::UNREAD_INPUT_BYTES as u64)),
        ("Size of the beginning of an output that is always kept", bytes(limits::OUTPUT_HEAD_BYTES)),
        ("Foreground jobs per connection", limits::FOREGROUND_JOBS.to_string()),
        ("Subscriptions of `events.subscribe` per connection", limits::SUBSCRIPTIONS.to_string()),
        ("Connections attached to one terminal", limits::TERMINAL_VIEWERS.to_string()),
        ("Items per result of `inbox.read`", limits::INBOX_PAGE.to_string()),
        ("Calls of `inbox.read` per connection that wait for an item", limits::INBOX_WAITS.to_string()),
        ("Inboxes per result of `inbox.list`", limits::INBOXES_PAGE.to_string()),
        ("Tasks per page of `task.list`", limits::LIST_PAGE.to_string()),
        ("Maximum size of an environment", bytes(limits::ENV_BYTES as u64)),
        ("Descriptors per line", limits::FDS_PER_FRAME.to_string()),
        ("Bytes of a description, session, channel, tag or key", limits::LABEL_BYTES.to_string()),
        ("Tags per task", limits::TAGS.to_string()),
        ("Minimum characters of a reference", limits::ID_PREFIX_CHARS.to_string()),
        (
            "Maximum time limit, grace period or timeout",
            format!("{} ms ({years} years)", limits::DURATION_MS),
        ),
        ("Maximum line length that the clients of this project accept", bytes(limits::ANSWER_BYTES as u64)),
    ];
    rows.iter().map(|(what, much)| super::roff::bullet(&format!("{what}: {much}."))).collect()
}

/// Lists the values that are truncated, denied or ended beyond a limit without a failing call.
fn limits_of_agents() -> String {
    let rows = [
        format!("Size of an agent's answer that is kept: the last {}.", bytes(limits::AGENT_RESULT_BYTES)),
        format!("Open questions per task: {QUESTIONS}. Further questions are denied."),
        format!(
            "Options per question: {}, with ids of at most {} bytes. Further options are omitted, \
             and longer names are truncated.",
            limits::INPUT_OPTIONS,
            limits::INPUT_OPTION_BYTES
        ),
        format!(
            "Bytes of the id of an agent's session: {}. A prompt that starts a session with a longer id is rejected.",
            limits::AGENT_SESSION_BYTES
        ),
        format!(
            "Size of a prompt in all results except that of `task.get`: {}. Longer prompts are truncated and end in ….",
            bytes(limits::PROMPT_BYTES as u64)
        ),
        format!(
            "Text kept from an agent after the end of its turn: {}. The rest is dropped.",
            bytes(LATE_BYTES as u64)
        ),
        format!(
            "Maximum line length of the Agent Client Protocol: {}. An agent that writes a longer line is ended, and \
             its turns fail.",
            bytes(LINE_BYTES as u64)
        ),
    ];
    rows.iter().map(|row| super::roff::bullet(row)).collect()
}

/// Returns the tables of the configuration's page.
pub fn of_config() -> Tables {
    let mut table =
        ".TS\nl2 l2 lx2 l.\n\\fBkey\\fR\t\\fBdefault\\fR\t\\fBrange\\fR\t\\fBreload\\fR\n".to_owned();
    for (key, default) in config_defaults() {
        let range = config_range(&key).unwrap_or_else(|| match key.as_str() {
            "default_agent" => "a known agent".to_owned(),
            "default_deliver_to" => "names of channels".to_owned(),
            "background_key" => {
                "ctrl- and a letter except c, i, j, m, or one of @ \\e ] \\(ha _; none".to_owned()
            }
            "allow_root" => "true, false".to_owned(),
            "durable" => "true, false, \"sync\"".to_owned(),
            "tree" => "\"auto\", \"session\"".to_owned(),
            "grace.cancel" => "0s to 100 years".to_owned(),
            "limits.environments" => "0 to 1099511627776".to_owned(),
            other => panic!("{other} has a range that nobody has told"),
        });
        let range = if counts_bytes(&key) { in_units(&range) } else { range };
        let reload = if needs_restart(&key) { "restart" } else { "yes" };
        table += &([key.as_str(), &default, &cell(&range), reload].join("\t") + "\n");
    }
    table += ".TE\n";
    Tables::from([
        ("keys".to_owned(), table),
        ("agent keys".to_owned(), agent_keys_table()),
        ("channel keys".to_owned(), channel_keys_table()),
        ("known agents".to_owned(), known_agents_table()),
        ("left aside".to_owned(), left_aside()),
    ])
}

/// The longest text of a cell that is not wrapped.
const CELL: usize = 22;

/// Renders a cell in the column that takes the remaining width.
fn cell(text: &str) -> String {
    if text.len() > CELL { format!("T{{\n{text}\nT}}") } else { text.to_owned() }
}

/// Lists the keys of `[agents.NAME]`. A reload applies all of them.
fn agent_keys_table() -> String {
    let mut table =
        ".TS\nl2 l2 l2 lx.\n\\fBkey\\fR\t\\fBtype\\fR\t\\fBdefault\\fR\t\\fBrange\\fR\n".to_owned();
    for key in AGENT_KEYS {
        let row = agent_key(key);
        table += &([key, row.kind, &row.default.unwrap_or_else(|| "none".to_owned()), &cell(&row.range)]
            .join("\t")
            + "\n");
    }
    table + ".TE\n"
}

/// Lists the keys of `[channels.NAME]`. A reload applies all of them.
fn channel_keys_table() -> String {
    let mut table =
        ".TS\nl2 l2 l2 l.\n\\fBkey\\fR\t\\fBtype\\fR\t\\fBdefault\\fR\t\\fBgoes with\\fR\n".to_owned();
    for key in CHANNEL_KEYS {
        let (kind, default) = channel_key(key);
        table += &([key, kind, default, &types_with(key)].join("\t") + "\n");
    }
    table + ".TE\n"
}

/// Lists the channel types that accept a key; those of chats together as "bots" if others accept it, too.
fn types_with(key: &str) -> String {
    if ["type", "started"].contains(&key) {
        return "all".to_owned();
    }
    let is_chat = |name: &&str| Chat::named(name).is_some();
    let with = channel_types().filter(|(_, takes)| takes.contains(&key)).map(|(name, _)| name);
    let (chats, others): (Vec<_>, Vec<_>) = with.partition(is_chat);
    let chats = if chats.len() == Chat::ALL.len() && !others.is_empty() { vec!["bots"] } else { chats };
    [others, chats].concat().join(", ")
}

/// Describes a key of `[channels.NAME]` for the page: its type and its default.
///
/// # Panics
/// The key has no description here.
fn channel_key(key: &str) -> (&'static str, &'static str) {
    match key {
        "type" => ("a word", "none"),
        "started" => ("true, false", "see below"),
        "command" => ("a list of strings", "none"),
        "env" | "headers" => ("a table of strings", "none"),
        "url" => ("a URL", "none"),
        "token" | "token_file" | "chat_id" | "channel_id" => ("a string", "none"),
        "api_base" => ("a URL", "the service's"),
        "timeout" => ("a time, to 1 h", "\"30s\", \"10s\""),
        other => panic!("{other} is a key that nobody has told about"),
    }
}

/// Description of a key of `[agents.NAME]` for the page.
#[derive(Debug)]
pub struct AgentKey {
    pub kind: &'static str,
    /// Default as written in the file; `None` if an omitted key means that there is no value.
    pub default: Option<String>,
    pub range: String,
}

/// Describes a key of `[agents.NAME]`.
///
/// # Panics
/// The key has no description here.
pub fn agent_key(key: &str) -> AgentKey {
    let agent = Agent::new("NAME");
    let time = |span: std::time::Duration| (format!("\"{}s\"", span.as_secs()), "a time");
    let word = |word: &str| (format!("\"{word}\""), "a word");
    let above_0 = "more than 0s, to 100 years";
    let ((default, kind), range) = match key {
        "protocol" => (word(agent.protocol.as_str()), "\"acp\", \"opencode\", \"template\""),
        "permissions" => (word(agent.permissions.as_str()), "\"deny\", \"allow\", \"ask\""),
        "max_sessions" => ((agent.max_sessions.to_string(), "a number"), "1 to 1000"),
        "keep_warm" => (time(agent.keep_warm), "0s to 100 years"),
        "stalled_after" => (time(agent.stalled_after), above_0),
        "start_timeout" => (time(agent.start_timeout), above_0),
        "ask_timeout" => (time(agent.ask_timeout), above_0),
        "command" | "resume" => return optional("a list of strings", "at least one"),
        "mode" | "model" => return optional("a string", "1 to 256 bytes"),
        "config" => return optional("a table of strings or flags", "at most 32"),
        "session" | "result" | "cost" => return optional("a string", "a JSON pointer"),
        "tokens" => return optional("a table of strings", "JSON pointers"),
        "currency" => return optional("a string", "1 to 16 bytes"),
        "url" => return optional("a string", "a URL"),
        "on" => return optional("a string", "an executor"),
        "env" => return optional("a table of strings", "any"),
        other => panic!("{other} is a key that nobody has told about"),
    };
    AgentKey { kind, default: Some(default), range: range.to_owned() }
}

fn optional(kind: &'static str, range: &str) -> AgentKey {
    AgentKey { kind, default: None, range: range.to_owned() }
}

/// Returns the agents known without configuration, as listed by `agent.list` if none is installed.
pub fn known_agents() -> Vec<AgentInfo> {
    let env: Env = [("PATH".into(), "/nowhere".into())].into_iter().collect();
    let all = Agents::default().list(&[], &env).expect("all of them are known");
    all.into_iter().map(|(_, info)| info).collect()
}

fn known_agents_table() -> String {
    let row = |agent: AgentInfo| {
        let command: Vec<_> = agent.command.iter().map(OsText::to_string_lossy).collect();
        let tag = format!("{} ({})", bold(&agent.name), literal(&command.join(" ")));
        let install = literal(&agent.install.unwrap_or_default());
        format!(".TP\n{tag}\n{install}\n")
    };
    known_agents().into_iter().map(row).collect()
}

/// Lists the variables in which tasks that share an agent's process may differ.
fn left_aside() -> String {
    let names: Vec<String> = IGNORED_VARIABLES.iter().map(|name| format!("`{name}`")).collect();
    let (last, others) = names.split_last().expect("there are some");
    prose(&format!("{} and {last}.", others.join(", ")))
}

/// Reports whether a key's value is a number of bytes.
pub fn counts_bytes(key: &str) -> bool {
    key.ends_with("_bytes") || ["limits.memory", "limits.environments", "history.bytes"].contains(&key)
}

/// Rewrites numbers of bytes in the largest unit of which they are whole multiples.
fn in_units(range: &str) -> String {
    let unit = |word: &str| {
        let bytes: u64 = word.parse().ok()?;
        let power = (bytes.trailing_zeros() / 10) as usize;
        let names = ["", "KiB", "MiB", "GiB", "TiB", "PiB"];
        Some(format!("{}{}", bytes >> (10 * power), names.get(power)?))
    };
    let words = range.split(' ').map(|word| unit(word).unwrap_or_else(|| word.to_owned()));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns every key of the configuration with its default as written in the file.
pub fn config_defaults() -> Vec<(String, String)> {
    let text = |key: &str, value: &toml::Value| match (key, value) {
        // The default depends on the machine.
        ("max_concurrent_tasks", _) => "cores (4+)".to_owned(),
        (_, toml::Value::String(text)) => format!("\"{}\"", text.replace(".0 ", "")),
        (_, other) => other.to_string(),
    };
    let mut all: Vec<(String, String)> =
        values().into_iter().map(|(key, value)| (key.clone(), text(&key, &value))).collect();
    // These keys have no default, so the default configuration lacks them.
    all.extend(["default_agent", "default_deliver_to"].map(|key| (key.to_owned(), "none".to_owned())));
    all.sort();
    all
}

fn values() -> Vec<(String, toml::Value)> {
    let all = toml::Value::try_from(Config::default()).expect("the configuration is TOML");
    let find = |key: &str| key.split('.').try_fold(&all, |table, part| table.get(part)).cloned();
    let keys = Config::default().keys().into_iter();
    keys.map(|key| (key.clone(), find(&key).expect("a key has a value"))).collect()
}

/// Returns the range of a number, taken from the error for a value that is too small.
pub fn config_range(key: &str) -> Option<String> {
    let error = load(&format!("{key} = 0\n")).err()?;
    Some(error.split_once("; it must be ")?.1.to_owned())
}

/// Reports whether a changed value takes effect only after a restart, according to the reload.
///
/// # Panics
/// The reload reports something else.
pub fn needs_restart(key: &str) -> bool {
    let value = values().into_iter().find(|(name, _)| name == key).map(|(_, value)| value);
    let other = match (key, value) {
        ("tree", _) => "\"session\"".to_owned(),
        ("default_agent", _) => "\"opencode\"".to_owned(),
        ("default_deliver_to", _) => "[\"desktop\"]".to_owned(),
        ("background_key", _) => "\"ctrl-o\"".to_owned(),
        ("grace.cancel", _) => "\"7s\"".to_owned(),
        ("limits.memory" | "limits.environments" | "limits.output_bytes" | "history.bytes", _) => {
            "\"7GiB\"".to_owned()
        }
        (_, Some(toml::Value::Integer(number))) => (number + 1).to_string(),
        (_, Some(toml::Value::Boolean(truth))) => (!truth).to_string(),
        (_, other) => panic!("{key} is {other:?}, which nobody knows how to change"),
    };
    let new = load(&format!("{key} = {other}\n")).unwrap_or_else(|error| panic!("{error}"));
    let result = Config::default().take_over(new);
    assert_eq!(result.changed.len() + result.needs_restart.len(), 1, "{key}: {result:?}");
    result.needs_restart == [key]
}

/// Parses a configuration of one dotted key.
fn load(text: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).expect("a file in it");
    Config::load(&path).map_err(|error| error.to_string())
}
