//! The wire types as Python types: an object is a `TypedDict`, an enumeration a `Literal`.
//!
//! Python 3.9 has no `NotRequired`, so an object with optional fields has two classes: a base class with the required
//! fields, and one with `total=False`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::super::fields::words;
use super::super::schema::{names_in, referred};
use super::head;
use super::text::{docstring, wrapped};

/// Names of definitions.
pub type Names = BTreeSet<String>;

pub fn module(schema: &Value) -> String {
    let sent = sent(schema);
    let mut text = head(
        "The types of the protocol, see bgd-protocol(7).\n\nObjects are plain dictionaries. The daemon omits fields \
         that do not apply. Newer daemons\ncan add fields and words; ignore those you do not know.",
    );
    text += "from __future__ import annotations\n\nfrom collections.abc import Mapping, Sequence\n";
    text += "from typing import Any, Literal, Optional, TypedDict, Union\n\n";
    let definitions = schema["$defs"].as_object().expect("the schema has definitions");
    let (mut simple, mut objects, mut unions, mut mappings) = <(String, String, String, String)>::default();
    for (name, definition) in sorted(definitions) {
        let has_words = !words(schema, name).is_empty();
        if has_words {
            simple += &enumeration(schema, name, definition);
        } else if definition["oneOf"].is_array() || definition["anyOf"].is_array() {
            let (classes, alias) = union(schema, name, definition, &sent);
            // Unions may derive from objects.
            unions += &classes;
            unions += &alias;
        } else if definition["properties"].is_object() {
            objects += &object(schema, name, definition, &sent);
        } else {
            let is_object = definition["type"] == "object";
            let alias = alias(name, &kind(schema, definition, sent.contains(name)), definition);
            if is_object {
                mappings += &alias;
            } else {
                simple += &alias;
            }
        }
    }
    // An alias refers only to definitions above it.
    text + [simple, objects, unions, mappings].concat().trim_end() + "\n"
}

/// Returns the definitions that clients send: these accept any sequence and any mapping.
pub fn sent(schema: &Value) -> Names {
    let methods = schema["methods"].as_object().into_iter().flatten();
    let mut todo: Vec<String> = methods.flat_map(|(_, method)| names_in(&method["params"])).collect();
    let mut found = Names::new();
    while let Some(name) = todo.pop() {
        if found.insert(name.clone()) {
            todo.extend(names_in(&schema["$defs"][&name]));
        }
    }
    found
}

/// Returns the members of an object by name.
pub fn sorted(object: &serde_json::Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut members: Vec<_> = object.iter().collect();
    members.sort_by_key(|(name, _)| *name);
    members
}

/// Returns the Python type of a value. `sent`: clients send the value.
pub fn kind(schema: &Value, value: &Value, sent: bool) -> String {
    if let Some((name, _)) = referred(schema, value) {
        return name;
    }
    if let Some(alternatives) = value["anyOf"].as_array() {
        return joined(alternatives.iter().map(|one| kind(schema, one, sent)).collect());
    }
    match &value["type"] {
        Value::Array(kinds) => {
            let one = |kind: &Value| simple(schema, value, kind.as_str().unwrap_or_default(), sent);
            joined(kinds.iter().map(one).collect())
        }
        kind => simple(schema, value, kind.as_str().unwrap_or_default(), sent),
    }
}

fn joined(mut kinds: Vec<String>) -> String {
    let count = kinds.len();
    kinds.retain(|kind| kind != "None");
    let one = if kinds.len() == 1 { kinds.remove(0) } else { format!("Union[{}]", kinds.join(", ")) };
    if kinds.len() < count && count > 1 && !one.starts_with("Union") {
        format!("Optional[{one}]")
    } else {
        one
    }
}

fn simple(schema: &Value, value: &Value, kind_name: &str, sent: bool) -> String {
    match kind_name {
        "string" => "str".to_owned(),
        "integer" => "int".to_owned(),
        "number" => "float".to_owned(),
        "boolean" => "bool".to_owned(),
        "null" => "None".to_owned(),
        "array" => {
            let item = if value["prefixItems"].is_array() {
                value["prefixItems"][0].clone()
            } else {
                value["items"].clone()
            };
            format!("{}[{}]", if sent { "Sequence" } else { "list" }, kind(schema, &item, sent))
        }
        "object" => {
            let values = &value["additionalProperties"];
            let values = if values.is_object() { kind(schema, values, sent) } else { "Any".to_owned() };
            format!("{}[str, {values}]", if sent { "Mapping" } else { "dict" })
        }
        _ => "Any".to_owned(),
    }
}

fn description(definition: &Value) -> &str {
    definition["description"].as_str().unwrap_or_default()
}

fn alias(name: &str, kind: &str, definition: &Value) -> String {
    let about = description(definition);
    let about = if about.is_empty() { String::new() } else { docstring(about, 0) };
    format!("{name} = {kind}\n{about}\n")
}

fn enumeration(schema: &Value, name: &str, definition: &Value) -> String {
    let all = words(schema, name);
    let line = |(word, _): &(String, String)| format!("    {word:?},\n");
    let list: String = all.iter().map(line).collect();
    let meanings: Vec<String> = all.iter().map(|(word, meaning)| format!("`{word}`: {meaning}")).collect();
    let about = [vec![description(definition).to_owned()], meanings].concat().join("\n\n");
    format!("{name} = Literal[\n{list}]\n{}\n", docstring(&about, 0))
}

/// Writes a union: its objects become classes, named after their only required field.
fn union(schema: &Value, name: &str, definition: &Value, sent: &Names) -> (String, String) {
    let is_sent = sent.contains(name);
    let alternatives = definition["oneOf"].as_array().or_else(|| definition["anyOf"].as_array());
    let mut classes = String::new();
    let mut kinds = Vec::new();
    for alternative in alternatives.into_iter().flatten() {
        if let Some((base, _)) = referred(schema, alternative) {
            // An object with the alternative's fields and those of the union itself.
            let class = format!("{name}{base}");
            let properties = definition["properties"].as_object().expect("the fields of the union itself");
            let _ = write!(classes, "class {class}({base}):\n{}\n", docstring(description(alternative), 4));
            classes += &fields(schema, properties.iter().collect(), false, is_sent);
            classes += "\n\n";
            kinds.push(class);
        } else if let Some(properties) = alternative["properties"].as_object() {
            let field = properties.keys().next().expect("an object has a field");
            let class = format!("{name}{}", super::text::camel_case(field));
            let about = Some(description(alternative)).filter(|about| !about.is_empty());
            let _ = write!(
                classes,
                "class {class}(TypedDict):\n{}\n",
                docstring(about.unwrap_or("Bytes that are not UTF-8, in Base64."), 4)
            );
            classes += &fields(schema, properties.iter().collect(), false, is_sent);
            classes += "\n\n";
            kinds.push(class);
        } else {
            kinds.push(kind(schema, alternative, is_sent));
        }
    }
    (classes, alias(name, &joined(kinds), definition))
}

fn object(schema: &Value, name: &str, definition: &Value, sent: &Names) -> String {
    let is_sent = sent.contains(name);
    let properties = definition["properties"].as_object().expect("it has fields");
    let is_required = |field: &str| {
        definition["required"].as_array().is_some_and(|required| required.iter().any(|name| name == field))
    };
    let (required, optional): (Vec<_>, Vec<_>) =
        sorted(properties).into_iter().partition(|(field, _)| is_required(field));
    let about = docstring(description(definition), 4);
    if required.iter().chain(&optional).any(|(field, _)| KEYWORDS.contains(&field.as_str())) {
        return functional(schema, name, definition, &required, &optional);
    }
    if optional.is_empty() {
        let fields = fields(schema, required, false, is_sent);
        return format!("class {name}(TypedDict):\n{about}\n{fields}\n\n");
    }
    let mut text = String::new();
    let mut base = "TypedDict".to_owned();
    if !required.is_empty() {
        base = format!("_{name}");
        let _ = write!(
            text,
            "class {base}(TypedDict):\n{}\n\n",
            fields(schema, required, false, is_sent).trim_end()
        );
        text.push('\n');
    }
    let _ = write!(text, "class {name}({base}, total=False):\n{about}\n");
    text + &fields(schema, optional, !is_sent, is_sent) + "\n\n"
}

/// Field names that can't be attributes of a class.
const KEYWORDS: [&str; 6] = ["from", "in", "is", "not", "pass", "class"];

fn functional(
    schema: &Value,
    name: &str,
    definition: &Value,
    required: &[(&String, &Value)],
    optional: &[(&String, &Value)],
) -> String {
    assert!(optional.is_empty(), "{name}: a field can't have the name of a keyword beside optional ones");
    let mut text = format!("{name} = TypedDict(\n    \"{name}\",\n    {{\n");
    for (field, value) in required {
        text += &wrapped(description(value), 8, 0).replace("        ", "        # ");
        let _ = writeln!(text, "        \"{field}\": {},", kind(schema, value, false));
    }
    text + "    },\n)\n" + &docstring(description(definition), 0) + "\n\n"
}

/// Writes fields with their descriptions. `never_null`: the daemon omits a field rather than sending null.
fn fields(schema: &Value, fields: Vec<(&String, &Value)>, never_null: bool, sent: bool) -> String {
    let mut text = String::new();
    for (field, value) in fields {
        let kind = kind(schema, value, sent);
        let inner = kind.strip_prefix("Optional[").and_then(|kind| kind.strip_suffix(']'));
        let kind = if never_null { inner.unwrap_or(&kind) } else { &kind };
        let _ = writeln!(text, "    {field}: {kind}");
        if !description(value).is_empty() {
            text += &docstring(description(value), 4);
        }
        text.push('\n');
    }
    format!("{}\n", text.trim_end())
}
