//! Checks values against the schema. Only what the wire types need: which members an object has, and of which types.

use serde_json::Value;

use super::schema::referred;

/// Checks that a value is what a part of the schema describes. A member that the schema does not have is an error, too:
/// whoever reads the schema would not know of it.
///
/// # Panics
/// It is not.
#[track_caller]
pub fn check_valid(document: &Value, schema: &Value, value: &Value) {
    if let Err(why) = valid(document, schema, value, "") {
        panic!("{why} in {value:#}");
    }
}

fn valid(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some((_, definition)) = referred(document, schema) {
        return valid(document, definition, value, at);
    }
    if let Some(alternatives) = ["anyOf", "oneOf"].iter().find_map(|key| schema[*key].as_array()) {
        let fits = |one: &Value| valid(document, one, value, at).is_ok();
        return if alternatives.iter().any(fits) { Ok(()) } else { Err(format!("{at} fits no alternative")) };
    }
    if let Some(word) = schema.get("const")
        && word != value
    {
        return Err(format!("{at} is not {word}"));
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.as_slice(),
        Value::Null => &[],
        kind => std::slice::from_ref(kind),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is_of(kind.as_str().unwrap_or_default(), value)) {
        return Err(format!("{at} is not of the type {kinds:?}"));
    }
    match value {
        Value::Object(_) => valid_object(document, schema, value, at),
        Value::Array(items) if schema["items"].is_object() => {
            items.iter().try_for_each(|item| valid(document, &schema["items"], item, &format!("{at}[]")))
        }
        _ => Ok(()),
    }
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("unknown type {other}"),
    }
}

fn valid_object(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = required.find(|name| value.get(name).is_none()) {
        return Err(format!("{at}/{missing} is missing"));
    }
    let Some(members) = value.as_object() else { return Ok(()) };
    members.iter().try_for_each(|(name, member)| {
        let own = schema["properties"].get(name);
        let known = own.or_else(|| schema.get("additionalProperties").filter(|others| others.is_object()));
        let known = known.ok_or_else(|| format!("{at}/{name} is unknown"))?;
        valid(document, known, member, &format!("{at}/{name}"))
    })
}
