//! Lists of fields, from the schema.

use std::fmt::Write as _;

use serde_json::Value;

use super::roff::{bold, entry, prose};
use super::schema::referred;

/// Whether the fields are ones that a client sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A client may omit fields that are not required.
    Sent,
    /// The daemon omits fields that do not apply.
    Received,
}

/// Returns the fields of the named object, required ones first.
///
/// # Panics
/// The schema does not have the object: the page would say that it has no fields.
pub fn fields(document: &Value, name: &str, direction: Direction) -> String {
    let object = document["$defs"].get(name).unwrap_or_else(|| panic!("the schema does not have {name}"));
    let Some(properties) = object["properties"].as_object().filter(|properties| !properties.is_empty())
    else {
        return prose("None.");
    };
    let required = |field: &str| {
        object["required"].as_array().is_some_and(|required| required.iter().any(|name| name == field))
    };
    let mut names: Vec<&String> = properties.keys().collect();
    names.sort_by_key(|name| (!required(name), *name));
    let mut list = String::new();
    for field in names {
        let schema = &properties[field];
        let word = match (required(field), direction) {
            (true, _) => "",
            (false, Direction::Sent) => ", optional",
            (false, Direction::Received) => ", may be missing",
        };
        let kind = kind(document, schema);
        // The daemon omits a field rather than sending null, so readers never see null.
        let kind = match (required(field), direction) {
            (false, Direction::Received) => kind.strip_suffix(" or null").unwrap_or(&kind),
            (true, _) | (false, Direction::Sent) => &kind,
        };
        let tag = format!("{} ({kind}{word})", bold(field));
        list += &entry(&tag, schema["description"].as_str().unwrap_or_default());
    }
    list
}

/// Returns the words of an enumeration with their meanings.
pub fn words(document: &Value, name: &str) -> Vec<(String, String)> {
    let alternatives = document["$defs"][name]["oneOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    let word = |schema: &Value| {
        let word = schema["const"].as_str()?.to_owned();
        Some((word, schema["description"].as_str().unwrap_or_default().to_owned()))
    };
    alternatives.iter().filter_map(word).collect()
}

/// Returns the words of an enumeration as a roff list.
///
/// # Panics
/// The schema does not have the enumeration.
pub fn list_of_words(document: &Value, name: &str) -> String {
    let words = words(document, name);
    assert!(!words.is_empty(), "the schema does not have the words of {name}");
    words.iter().map(|(word, meaning)| entry(&bold(word), meaning)).collect()
}

/// Returns the type of a value, in a few words.
fn kind(document: &Value, schema: &Value) -> String {
    if let Some((name, definition)) = referred(document, schema) {
        return named(document, &name, definition);
    }
    if let Some(alternatives) = schema["anyOf"].as_array() {
        return alternatives.iter().map(|one| kind(document, one)).collect::<Vec<_>>().join(" or ");
    }
    match &schema["type"] {
        Value::Array(kinds) => {
            let one = |kind: &Value| simple(document, schema, kind.as_str().unwrap_or_default());
            kinds.iter().map(one).collect::<Vec<_>>().join(" or ")
        }
        kind => simple(document, schema, kind.as_str().unwrap_or("any value")),
    }
}

/// Describes a reference to a named type: types with a paragraph of their own have a word; enumerations are written
/// out.
fn named(document: &Value, name: &str, definition: &Value) -> String {
    match name {
        "TaskRef" => return "reference".to_owned(),
        "TaskId" => return "id".to_owned(),
        "OsText" => return "text".to_owned(),
        "Env" => return "object of texts".to_owned(),
        "Timestamp" => return "time".to_owned(),
        _ => {}
    }
    let words: Vec<String> = words(document, name).iter().map(|(word, _)| bold(word)).collect();
    match (words.len(), definition["type"].as_str()) {
        (1..=5, _) => words.join(" or "),
        (6.., _) => format!("one of the words under \\fI{name}\\fR"),
        (0, _) => format!("\\fI{name}\\fR"),
    }
}

fn simple(document: &Value, schema: &Value, kind: &str) -> String {
    match kind {
        "array" => format!("array of {}", plural(&self::kind(document, &schema["items"]))),
        "object" => {
            let mut text = "object".to_owned();
            if schema["additionalProperties"].is_object() {
                let _ = write!(text, " of {}", self::kind(document, &schema["additionalProperties"]));
            }
            text
        }
        other => other.to_owned(),
    }
}

fn plural(word: &str) -> String {
    if word.ends_with(|last: char| last.is_ascii_lowercase()) { format!("{word}s") } else { word.to_owned() }
}
