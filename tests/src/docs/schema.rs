//! The JSON Schema of the protocol, generated from the wire types.

use std::collections::BTreeSet;

use bgd_shared::error::RpcError;
use bgd_shared::event::EventParams;
use bgd_shared::notice::Notice;
use bgd_shared::request::{OutputNews, StoppedNews, method_schemas};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

const DESCRIPTION: &str = "The wire types of bgd. `methods` has the params and result of every method by \
    name, `notifications` the notifications that the daemon sends, `error` what it returns instead of a result, and \
    `notice` what the program of a channel `exec` gets on standard input, and a webhook as the body of a POST. Point a validator at any of them, for example at #/methods/task.submit/params.";

/// Returns the whole schema. Params are described as they are read, everything else as it is written: a field that a
/// request may omit is always present in an answer.
pub fn document() -> Value {
    let mut reading = SchemaSettings::draft2020_12().into_generator();
    let mut writing = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut methods = Map::new();
    for ((name, params, _), (_, _, result)) in
        method_schemas(&mut reading).into_iter().zip(method_schemas(&mut writing))
    {
        methods.insert(name.to_owned(), json!({ "params": params, "result": result }));
    }
    let event = writing.subschema_for::<EventParams>();
    let error = writing.subschema_for::<RpcError>();
    let output = writing.subschema_for::<OutputNews>();
    let stopped = writing.subschema_for::<StoppedNews>();
    // No method refers to it: an item of an inbox has its fields, but not its name.
    let notice = writing.subschema_for::<Notice>();
    let notifications = json!({
        "event": { "params": event },
        "output": { "params": output },
        "stopped": { "params": stopped },
    });
    let of_methods = |part: &str| -> Vec<Value> {
        methods.values().filter_map(|method| method.get(part)).cloned().collect()
    };
    let mut definitions = reachable(&mut reading, &of_methods("params"));
    let mut written = vec![json!(notifications), json!(error), json!(notice)];
    written.extend(of_methods("result"));
    for (name, definition) in reachable(&mut writing, &written) {
        let both = definitions.insert(name.clone(), definition.clone());
        assert!(
            both.is_none_or(|other| other == definition),
            "{name} is read otherwise than it is written, so it needs two names"
        );
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bgd protocol",
        "description": DESCRIPTION,
        "protocol": bgd_shared::PROTOCOL,
        "methods": methods,
        "notifications": notifications,
        "error": error,
        "notice": notice,
        "$defs": definitions,
    })
}

/// Returns the schema as it is checked in: sorted by name, regardless of the order of generation.
pub fn text(document: &Value) -> String {
    let mut document = document.clone();
    document.sort_all_objects();
    serde_json::to_string_pretty(&document).expect("a schema is JSON") + "\n"
}

/// Returns the definition that a schema refers to, if any.
pub fn referred<'a>(document: &'a Value, schema: &Value) -> Option<(String, &'a Value)> {
    let name = schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
    Some((name.to_owned(), &document["$defs"][name]))
}

/// Returns the definitions that these schemas need.
fn reachable(generator: &mut SchemaGenerator, from: &[Value]) -> Map<String, Value> {
    let all = generator.take_definitions(true);
    let mut found = Map::new();
    let mut todo: Vec<String> = from.iter().flat_map(names_in).collect();
    while let Some(name) = todo.pop() {
        if let Some(definition) = all.get(&name)
            && found.insert(name, definition.clone()).is_none()
        {
            todo.extend(names_in(definition));
        }
    }
    found
}

/// Returns the names of the definitions that a schema refers to.
pub fn names_in(schema: &Value) -> BTreeSet<String> {
    match schema {
        Value::Object(members) => {
            let own = members.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
            own.map(str::to_owned).into_iter().chain(members.values().flat_map(names_in)).collect()
        }
        Value::Array(items) => items.iter().flat_map(names_in).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => BTreeSet::new(),
    }
}
