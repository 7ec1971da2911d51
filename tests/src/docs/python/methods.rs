//! The methods of the protocol as methods of the two clients.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::head;
use super::text::{docstring, summary, wrapped};
use super::types::{kind, sorted};
use crate::docs::schema::referred;

/// Methods whose line may be sent with descriptors.
const WITH_FDS: [&str; 4] = ["task.submit", "task.submit_many", "task.handoff", "agent.list"];

/// Writes the module: a class for each client, which only makes calls.
pub fn module(schema: &Value, page: &str) -> String {
    let mut text = head("The methods of the protocol for both clients, see bgd-protocol(7).");
    text += "from __future__ import annotations\n\nfrom collections.abc import Mapping, Sequence\n";
    text +=
        "from typing import Any, Optional\n\nfrom . import types\nfrom ._core import DEFAULT, Timeout\n\n\n";
    let methods = schema["methods"].as_object().expect("the schema has methods");
    for (class, is_async) in [("Methods", false), ("AsyncMethods", true)] {
        text += &class_head(class, is_async);
        for (name, method) in sorted(methods) {
            text += &one(schema, page, name, method, is_async);
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

fn class_head(class: &str, is_async: bool) -> String {
    let word = if is_async { "async " } else { "" };
    let about = docstring(
        "One method for each method of the protocol, named after it: `task.submit` is `task_submit`.\n\n\
         A param that is None is not sent. `timeout` is the longest wait for the answer in seconds; None for no \
         limit. By default it is the client's `timeout`, plus the time that the params allow the daemon to wait. \
         `fds` are descriptors that travel with the line; they stay open here.\n\n\
         Every method raises a subclass of `bgd.BgdError`: `bgd.CallError` if the daemon refused the call, \
         `bgd.Timeout` after `timeout`, `bgd.NoDaemon`, `bgd.NoAnswer` or `bgd.ConnectionLost`.",
        4,
    );
    format!(
        "class {class}:\n{about}\n    {word}def _call(\n        self,\n        method: str,\n        \
         params: Mapping[str, Any],\n        timeout: Timeout,\n        fds: Sequence[int] = (),\n        \
         nullable: Sequence[str] = (),\n    ) -> Any:\n        raise NotImplementedError\n\n"
    )
}

/// A param of a method.
struct Param<'a> {
    name: &'a str,
    kind: String,
    /// Default value; `None` if the param is required.
    default: Option<String>,
    /// Whether null means something else than a missing param.
    is_nullable: bool,
    description: &'a str,
}

fn params<'a>(schema: &'a Value, name: &str) -> Vec<Param<'a>> {
    let definition = &schema["$defs"][name];
    let Some(properties) = definition["properties"].as_object() else { return Vec::new() };
    let is_required = |field: &str| {
        definition["required"].as_array().is_some_and(|required| required.iter().any(|name| name == field))
    };
    let mut all: Vec<Param<'a>> = Vec::new();
    for (field, value) in sorted(properties) {
        let kind = qualified(&kind(schema, value, true));
        let is_optional = kind.starts_with("Optional[");
        let is_nullable = is_optional && !value["default"].is_null();
        let default = match (is_required(field), is_nullable) {
            (true, _) => None,
            (false, true) => Some(value["default"].to_string()),
            (false, false) => Some("None".to_owned()),
        };
        let kind = if default.is_some() && !is_optional { format!("Optional[{kind}]") } else { kind };
        let description = value["description"].as_str().unwrap_or_default();
        all.push(Param { name: field, kind, default, is_nullable, description });
    }
    all.sort_by_key(|param| param.default.is_some());
    all
}

/// Qualifies the names of definitions in a type with their module.
fn qualified(kind: &str) -> String {
    const OWN: [&str; 11] =
        ["Optional", "Union", "Sequence", "Mapping", "Any", "None", "str", "int", "bool", "float", "dict"];
    let mut text = String::new();
    for part in kind.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric()) {
        let name = part.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
        if !name.is_empty() && !OWN.contains(&name) {
            text += "types.";
        }
        text += part;
    }
    text
}

fn one(schema: &Value, page: &str, name: &str, method: &Value, is_async: bool) -> String {
    let named = |part: &str| referred(schema, &method[part]).map(|(name, _)| name).expect("it has a name");
    let (params, result) = (params(schema, &named("params")), named("result"));
    let fds = WITH_FDS.contains(&name);
    let required = params.iter().filter(|param| param.default.is_none()).count();
    let mut text = format!(
        "    {}def {}(\n        self,\n",
        if is_async { "async " } else { "" },
        name.replace('.', "_")
    );
    // A single required param may be passed by position; several could be mixed up.
    let mut positions = i32::from(required == 1);
    for param in &params {
        if positions == 0 && !text.contains("*,") {
            text += "        *,\n";
        }
        positions -= i32::from(positions > 0);
        let default = param.default.as_ref().map(|default| format!(" = {default}")).unwrap_or_default();
        let _ = writeln!(text, "        {}: {}{default},", param.name, param.kind);
    }
    if !text.contains("*,") {
        text += "        *,\n";
    }
    if fds {
        text += "        fds: Sequence[int] = (),\n";
    }
    let _ = write!(text, "        timeout: Timeout = DEFAULT,\n    ) -> types.{result}:\n");
    text += &about(page, name, &params);
    text + &body(name, &params, &result, fds, is_async)
}

fn about(page: &str, name: &str, params: &[Param<'_>]) -> String {
    let mut text =
        docstring(&summary(page, name), 8).trim_end().trim_end_matches("\"\"\"").trim_end().to_owned();
    if !params.is_empty() {
        text += "\n\n";
        for param in params {
            text += &wrapped(&format!("{}: {}", param.name, param.description), 8, 4);
        }
        text += "        \"\"\"\n";
        return text;
    }
    text + "\n        \"\"\"\n"
}

fn body(name: &str, params: &[Param<'_>], result: &str, fds: bool, is_async: bool) -> String {
    let space = " ".repeat(8);
    let mut text = String::new();
    let items: BTreeSet<&str> = params.iter().map(|param| param.name).collect();
    if items.is_empty() {
        let _ = writeln!(text, "{space}params: dict[str, Any] = {{}}");
    } else {
        let _ = writeln!(text, "{space}params = {{");
        for name in items {
            let _ = writeln!(text, "{space}    {name:?}: {name},");
        }
        let _ = writeln!(text, "{space}}}");
    }
    let nullable: Vec<&str> =
        params.iter().filter(|param| param.is_nullable).map(|param| param.name).collect();
    let mut arguments = format!("{name:?}, params, timeout");
    if fds {
        arguments += ", fds";
    }
    if !nullable.is_empty() {
        let _ = write!(arguments, ", nullable={nullable:?}");
    }
    let wait = if is_async { "await " } else { "" };
    let _ = write!(
        text,
        "{space}result: types.{result} = {wait}self._call({arguments})\n{space}return result\n\n"
    );
    text
}
