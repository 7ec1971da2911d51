//! The tables inside the pages that people write. A table stands between two comments,
//! `.\" BEGIN TABLE name` and `.\" END TABLE`, and every table has exactly one place.

use std::collections::BTreeMap;

use bgd::config::Config;
use bgd_shared::error::ErrorKind;
use bgd_shared::limits;
use serde_json::Value;

use super::fields::{Direction, fields, list_of_words, words};
use super::roff::{bold, entry};

/// Tables by their names.
pub type Tables = BTreeMap<String, String>;

const BEGIN: &str = ".\\\" BEGIN TABLE ";
const END: &str = ".\\\" END TABLE";

/// A page with its tables replaced.
///
/// # Panics
/// A table has no place, or a place has no table: then the page has to be edited.
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

/// The tables of the page on the protocol.
pub fn of_protocol(schema: &Value) -> Tables {
    let mut tables = Tables::new();
    for (method, schemas) in schema["methods"].as_object().into_iter().flatten() {
        for (part, direction) in [("params", Direction::Sent), ("result", Direction::Received)] {
            if let Some((name, _)) = super::schema::referred(schema, &schemas[part]) {
                tables.insert(format!("{part} {method}"), fields(schema, &name, direction));
            }
        }
    }
    for object in ["Task", "Progress", "Output", "Summary", "Limits", "Event", "Gap", "ErrorData"] {
        tables.insert(format!("object {object}"), fields(schema, object, Direction::Received));
    }
    tables.insert("object Rlimit".to_owned(), fields(schema, "Rlimit", Direction::Sent));
    for name in ["Status", "EventKind"] {
        tables.insert(format!("words {name}"), list_of_words(schema, name));
    }
    tables.insert("errors".to_owned(), errors(schema));
    tables.insert("limits".to_owned(), limits_table());
    tables
}

fn errors(schema: &Value) -> String {
    let meanings: BTreeMap<String, String> = words(schema, "ErrorKind").into_iter().collect();
    let one = |kind: &ErrorKind| {
        let meaning = meanings.get(kind.as_str()).map(String::as_str).unwrap_or_default();
        entry(&format!("{} (\\-{})", bold(kind.as_str()), kind.code().unsigned_abs()), meaning)
    };
    ErrorKind::ALL.iter().map(one).collect()
}

/// What no configuration changes.
fn limits_table() -> String {
    let bytes = |count: u64| {
        let unit =
            [(1 << 20, "MiB"), (1 << 10, "KiB")].into_iter().find(|(size, _)| count.is_multiple_of(*size));
        unit.map_or_else(|| format!("{count} bytes"), |(size, unit)| format!("{} {unit}", count / size))
    };
    let years = limits::DURATION_MS / (365 * 24 * 3600 * 1000);
    let rows = [
        ("Bytes of one `task.output`", bytes(limits::OUTPUT_CHUNK_BYTES)),
        ("Bytes of one `task.result`", bytes(limits::RESULT_BYTES)),
        ("Bytes of one `task.write`", bytes(limits::WRITE_BYTES as u64)),
        ("Bytes that are kept at the beginning of an output", bytes(limits::OUTPUT_HEAD_BYTES)),
        ("Tasks on one page of `task.list`", limits::LIST_PAGE.to_string()),
        ("Descriptors that travel with one line", limits::FDS_PER_FRAME.to_string()),
        ("Bytes of a description, a session, a channel, a tag or a key", limits::LABEL_BYTES.to_string()),
        ("Tags of a task", limits::TAGS.to_string()),
        ("Characters of a reference, at least", limits::ID_PREFIX_CHARS.to_string()),
        ("Time limits, graces and timeouts", format!("{} ms ({years} years)", limits::DURATION_MS)),
        ("Bytes of a line that the clients of this project take", bytes(limits::ANSWER_BYTES as u64)),
    ];
    rows.iter().map(|(what, much)| super::roff::bullet(&format!("{what}: {much}."))).collect()
}

/// The tables of the page on the configuration.
pub fn of_config() -> Tables {
    let mut table =
        ".TS\nl2 l2 l2 l.\n\\fBkey\\fR\t\\fBdefault\\fR\t\\fBrange\\fR\t\\fBreload\\fR\n".to_owned();
    for (key, default) in config_defaults() {
        let range = config_range(&key).unwrap_or_else(|| match key.as_str() {
            "allow_root" => "true, false".to_owned(),
            "tree" => "\"auto\", \"session\"".to_owned(),
            "grace.cancel" => "0s to 100 years".to_owned(),
            other => panic!("{other} has a range that nobody has told"),
        });
        let range = if key.ends_with("_bytes") { in_units(&range) } else { range };
        let reload = if needs_restart(&key) { "restart" } else { "yes" };
        table += &([key.as_str(), &default, &range, reload].join("\t") + "\n");
    }
    table += ".TE\n";
    Tables::from([("keys".to_owned(), table)])
}

/// Numbers of bytes in the largest units that they are whole numbers of.
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

/// Every key of the configuration with its default as it would be written in the file.
pub fn config_defaults() -> Vec<(String, String)> {
    let text = |key: &str, value: &toml::Value| match (key, value) {
        // It depends on the machine.
        ("max_concurrent_tasks", _) => "cores (4+)".to_owned(),
        (_, toml::Value::String(text)) => format!("\"{}\"", text.replace(".0 ", "")),
        (_, other) => other.to_string(),
    };
    values().into_iter().map(|(key, value)| (key.clone(), text(&key, &value))).collect()
}

fn values() -> Vec<(String, toml::Value)> {
    let all = toml::Value::try_from(Config::default()).expect("the configuration is TOML");
    let find = |key: &str| key.split('.').try_fold(&all, |table, part| table.get(part)).cloned();
    let keys = Config::default().keys().into_iter();
    keys.map(|key| (key.clone(), find(&key).expect("a key has a value"))).collect()
}

/// The range of a number, as the error for a value that is too small tells it.
pub fn config_range(key: &str) -> Option<String> {
    let error = load(&format!("{key} = 0\n")).err()?;
    Some(error.split_once("; it must be ")?.1.to_owned())
}

/// Whether a changed value is only used after a restart, as the reload tells it.
///
/// # Panics
/// The reload tells something else.
pub fn needs_restart(key: &str) -> bool {
    let value = values().into_iter().find(|(name, _)| name == key).map(|(_, value)| value);
    let other = match (key, value) {
        ("tree", _) => "\"session\"".to_owned(),
        ("grace.cancel", _) => "\"7s\"".to_owned(),
        ("limits.output_bytes", _) => "\"7GiB\"".to_owned(),
        (_, Some(toml::Value::Integer(number))) => (number + 1).to_string(),
        (_, Some(toml::Value::Boolean(truth))) => (!truth).to_string(),
        (_, other) => panic!("{key} is {other:?}, which nobody knows how to change"),
    };
    let new = load(&format!("{key} = {other}\n")).unwrap_or_else(|error| panic!("{error}"));
    let (changed, restart) = Config::default().take_over(new);
    assert_eq!(changed.len() + restart.len(), 1, "{key}: {changed:?} {restart:?}");
    restart == [key]
}

/// Reads a configuration of one dotted key.
fn load(text: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).expect("a file in it");
    Config::load(&path).map_err(|error| error.to_string())
}
