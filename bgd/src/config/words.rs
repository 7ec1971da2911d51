//! Error messages for invalid configuration files: the position, the key, the expected value and the actual one. They
//! show no value that may be a secret.

use serde_path_to_error::{Path, Segment};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, Error};

use super::advice::known_keys;
use super::agents::KEYS as AGENT_KEYS;
use super::channels::KEYS as CHANNEL_KEYS;
use super::executors::KEYS as EXECUTOR_KEYS;
use super::groups::KEYS as GROUP_KEYS;

/// Returns the message for a file that is not TOML; `keys` are those of the default configuration.
pub fn syntax_error(text: &str, error: &Error, keys: &[String]) -> String {
    let (place, line) = place(text, error);
    let key = key_on(line, keys).map(|key| format!(", `{key}`")).unwrap_or_default();
    format!("invalid TOML: {place}{key}: {}", error.message())
}

/// Returns the message for an invalid value; `path` is where deserializing stopped.
pub fn value_error(text: &str, error: &Error, path: &Path) -> String {
    let (place, _) = place(text, error);
    let (key, is_within) = key_of(path);
    let message = error.message();
    if let Some(text) = no_size(message) {
        return format!("{place}: `{key}` must be {}; `{text}` is not a size", wanted(SIZE, &key));
    }
    if let Some((found, expected)) = types(message) {
        let which = if is_within { format!("each value in `{key}`") } else { format!("`{key}`") };
        let is = if is_within { "this one is" } else { "it is" };
        return format!("{place}: {which} must be {}; {is} {found}", wanted(expected, &key));
    }
    // `expected` lists bgd's own keywords. A key with such values holds no secret, so its value may be shown.
    let variant = message.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "));
    match variant {
        Some((found, expected)) => format!("{place}: `{key}` is {found}; it must be {expected}"),
        None if message.starts_with("wanted ") => {
            let value = error.span().and_then(|span| text.get(span)).unwrap_or_default();
            format!("{place}: `{key}` must be a string in quotes; it is {}", type_of(value))
        }
        None => format!("{place}: `{key}`: {message}"),
    }
}

/// Returns the position of an error, and the part of the line before it. The error's own `Display` is not used, as it
/// shows the whole line, which may contain a token.
fn place<'a>(text: &'a str, error: &Error) -> (String, &'a str) {
    at(text, error.span().map_or(0, |span| span.start))
}

/// Returns the position of a byte, and the part of the line before it.
fn at(text: &str, byte: usize) -> (String, &str) {
    let before = text.get(..byte).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let (number, column) = (before.matches('\n').count() + 1, line.chars().count() + 1);
    (format!("line {number}, column {column}"), line)
}

/// Returns the names that lead to a key that no part of the configuration knows.
pub fn names(path: &serde_ignored::Path<'_>) -> Vec<String> {
    use serde_ignored::Path;
    let (parent, name) = match path {
        Path::Root => return Vec::new(),
        Path::Seq { parent, index } => (parent, Some(index.to_string())),
        Path::Map { parent, key } => (parent, Some(key.clone())),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            (parent, None)
        }
    };
    let mut names = names(parent);
    names.extend(name);
    names
}

/// Returns the position of the key with these names in a valid file.
pub fn place_of_key(text: &str, names: &[String]) -> String {
    let mut names = names.iter();
    let byte = last_found(text, |table| {
        let (key, value) = table.get_key_value(names.next()?.as_str())?;
        Some((key.span().start, value.get_ref()))
    });
    at(text, byte.unwrap_or(0)).0
}

/// Returns the position of the key with this dotted name in a valid file, for the beginning of a message. That of its
/// table if the file doesn't have the key; nothing if it has neither.
pub fn place_before(text: &str, key: &str) -> String {
    let mut rest = key;
    let byte = last_found(text, |table| {
        // Names chosen by users may contain dots.
        let (key, left, value) = longest_of(table, rest).filter(|_| !rest.is_empty())?;
        rest = left;
        Some((key.span().start, value.get_ref()))
    });
    byte.map(|byte| format!("{}: ", at(text, byte).0)).unwrap_or_default()
}

/// Follows a key into the tables of a valid file: `next` returns where its next part begins, and its value. Returns where
/// the last part begins that was found.
fn last_found(
    text: &str,
    mut next: impl for<'a, 'de> FnMut(&'a DeTable<'de>) -> Option<(usize, &'a DeValue<'de>)>,
) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let (mut table, mut byte) = (document.get_ref(), None);
    while let Some((start, value)) = next(table) {
        byte = Some(start);
        let DeValue::Table(inner) = value else { break };
        table = inner;
    }
    byte
}

/// Returns the longest name in a table that a dotted name begins with, the rest of that, and the value.
fn longest_of<'a, 'b, 'de>(table: &'a DeTable<'de>, dotted: &'b str) -> Option<Entry<'a, 'b, 'de>> {
    let matching = table.iter().filter_map(|(name, value)| {
        let left = dotted.strip_prefix(&**name.get_ref())?;
        let left = if left.is_empty() { left } else { left.strip_prefix('.')? };
        Some((name, left, value))
    });
    matching.min_by_key(|(_, left, _)| left.len())
}

/// A key of a table, the rest of the dotted name that begins with it, and its value.
type Entry<'a, 'b, 'de> = (&'a Spanned<DeString<'de>>, &'b str, &'a Spanned<DeValue<'de>>);

/// Returns the key at the beginning of a line if it is a known one; any other word may be part of a secret.
fn key_on<'a>(line: &'a str, keys: &[String]) -> Option<&'a str> {
    let key = line.split('=').next()?.trim();
    let mut known = known_keys("", keys);
    let of_tables = AGENT_KEYS.iter().chain(&CHANNEL_KEYS).chain(&EXECUTOR_KEYS).chain(&GROUP_KEYS);
    known.extend(of_tables.map(ToString::to_string));
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    known.iter().any(|name| last(name) == key).then_some(key)
}

/// Returns the configuration key that a path leads to, and whether the path continues into the key's value.
fn key_of(path: &Path) -> (String, bool) {
    let names: Vec<&str> = path
        .iter()
        .map_while(|segment| match segment {
            Segment::Map { key } => Some(key.as_str()),
            Segment::Seq { .. } | Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect();
    let most = if names.first().is_some_and(|first| has_named_tables(first)) { 3 } else { 2 };
    let is_list = path.iter().any(|segment| matches!(segment, Segment::Seq { .. }));
    (names[..names.len().min(most)].join("."), is_list || names.len() > most)
}

/// Whether this key contains tables with names that users choose.
fn has_named_tables(key: &str) -> bool {
    matches!(key, "agents" | "channels" | "executors" | "groups")
}

/// The parser's description of a text with an amount of bytes.
const SIZE: &str = "parsable string";

/// Extracts the text that is not an amount of bytes. A key with such values holds no secret, so it may be shown.
fn no_size(message: &str) -> Option<&str> {
    let (text, expected) = message.strip_prefix("invalid value: string \"")?.rsplit_once("\", expected ")?;
    (expected == SIZE).then_some(text)
}

/// Extracts the found and the expected type from the parser's message, without the value itself.
fn types(message: &str) -> Option<(&'static str, &str)> {
    let (found, expected) = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))?
        .rsplit_once(", expected ")?;
    let found = match found.split([' ', '"', '`']).next().unwrap_or_default() {
        "string" => "a string",
        "integer" if message.contains("integer `-") => "a negative number",
        "integer" => "a number out of range",
        "floating" => "a fraction",
        "boolean" => "true or false",
        "sequence" => "a list",
        "map" => "a table",
        _ => "something else",
    };
    let is_any_number = matches!(found, "a number out of range" | "a fraction");
    let found = if is_any_number && !is_number(expected) { "a number" } else { found };
    Some((found, expected))
}

/// Returns the type of a value other than a string, as it begins in the file.
fn type_of(value: &str) -> &'static str {
    match value.as_bytes().first() {
        Some(b't' | b'f') => "true or false",
        Some(b'[') => "a list",
        Some(b'{') => "a table",
        Some(b'0'..=b'9' | b'+' | b'-') => "a number",
        Some(_) | None => "something else",
    }
}

fn is_number(expected: &str) -> bool {
    matches!(expected, "usize" | "u8" | "u16" | "u32" | "u64" | "an integer or string")
}

/// Translates the parser's description of the expected type for users.
fn wanted(expected: &str, key: &str) -> String {
    let last = key.rsplit('.').next().unwrap_or_default();
    match expected {
        "a map" if matches!(last, "headers" | "env") => {
            "a table of strings, such as { NAME = \"value\" }".to_owned()
        }
        "a map" if has_named_tables(key) => format!("a table: [{key}.NAME] with its keys below"),
        "a map" => format!("a table: [{key}] with its keys below"),
        _ if expected.starts_with("struct ") => format!("a table: [{key}] with its keys below"),
        "a string" | "string" => "a string in quotes".to_owned(),
        "a sequence" => "a list of strings, such as [\"one\", \"two\"]".to_owned(),
        "a boolean" => "true or false".to_owned(),
        // The parser of sizes calls it so if a number is negative.
        "an integer or string" | "integer overflow" | SIZE => {
            "a number of bytes, or a string such as \"1GiB\"".to_owned()
        }
        _ if is_number(expected) => "a whole number".to_owned(),
        other => other.to_owned(),
    }
}
