//! Parses the params of a request. Errors name the param, the expected value and the actual one. This module is
//! independent of the methods and checks no ranges.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_path_to_error::{Path, Segment, Track};

use crate::error::{ErrorKind, RpcError};
use crate::strict;
use crate::text::truncated;

/// The longest part of a client's text that an error repeats, in characters.
const MAX_REPEATED: usize = 60;

/// Parses the params of a method. Missing params count as an empty object.
///
/// # Errors
/// `invalid_params`, naming the param and the expected value.
pub fn parse_params<'a, P: Deserialize<'a>>(
    method: &str,
    params: Option<&'a RawValue>,
) -> Result<P, RpcError> {
    let params = params.map_or("{}", RawValue::get);
    // Serde would also accept an array of the fields in order, which is not part of the protocol.
    if params.starts_with('[') {
        return Err(invalid(format!(
            "params of {method} must be an object with names and values, not an array"
        )));
    }
    strict::from_str(params)
        .map_err(|_| invalid(explain::<P>(params, &format!("params of {method}"), method)))
}

fn invalid(message: String) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, message).hint("bgd-protocol(7) lists the params of every method")
}

/// Returns why text can't be parsed as a type: the field, the expected value and the actual one. `whole` names the
/// text, and `owner` the owner of its fields. Parses again, as keeping track of the field takes time that only errors
/// deserve.
pub(crate) fn explain<'a, T: Deserialize<'a>>(text: &'a str, whole: &str, owner: &str) -> String {
    let mut track = Track::new();
    let Err(error) = strict::from_str_tracked::<T>(text, &mut track) else {
        return format!("invalid {whole}");
    };
    let message = without_position(&error);
    let param = names(&track.path());
    if let Some((unknown, known)) = unknown_field(&message) {
        let advice = nearest(unknown, known).map(|near| format!("; did you mean `{near}`?"));
        let advice = advice.unwrap_or_default();
        let unknown = shortened(unknown);
        return match parent(&param, unknown.as_str()) {
            "" => format!("{owner} has no param `{unknown}`{advice}"),
            parent => format!("`{parent}` of {owner} has no field `{unknown}`{advice}"),
        };
    }
    if let Some(field) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return match param.as_str() {
            "" => format!("{owner} needs `{field}`"),
            param => format!("`{param}` of {owner} needs `{field}`"),
        };
    }
    if let Some(field) = message.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`')) {
        return match parent(&param, field) {
            "" => format!("`{field}` of {owner} is given twice"),
            parent => format!("`{parent}.{field}` of {owner} is given twice"),
        };
    }
    let subject = match param.as_str() {
        "" => whole.to_owned(),
        param => format!("`{param}` of {owner}"),
    };
    if let Some((found, known)) = unknown_word(&message) {
        return format!("{subject}: {:?} is not {known}", shortened(found));
    }
    match mismatch(&message) {
        Some((found, expected)) => format!("{subject} must be {expected}, not {found}"),
        None if message.starts_with("must be ") => format!("{subject} {message}"),
        None => format!("{subject}: {}", truncated(&message, 4 * MAX_REPEATED)),
    }
}

/// Returns serde's message without the position in the params, which clients that build them by a library don't know.
fn without_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let end = message.rfind(" at line ").filter(|_| error.is_data());
    message[..end.unwrap_or(message.len())].to_owned()
}

/// Returns the names on a path, such as `after[0].id`.
fn names(path: &Path) -> String {
    let mut names = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => names.extend(["[", &index.to_string(), "]"]),
            Segment::Map { key } => {
                let dot = if names.is_empty() { "" } else { "." };
                names.push_str(dot);
                names.push_str(&shortened(key));
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    names
}

/// Returns the name of the object that lacks a field; the path to an unknown field may include its name.
fn parent<'a>(param: &'a str, unknown: &str) -> &'a str {
    let without =
        param.strip_suffix(unknown).and_then(|rest| rest.strip_suffix('.').or(rest.is_empty().then_some("")));
    without.unwrap_or(param)
}

/// Returns the unknown field, and serde's list of the known ones, each in backquotes.
fn unknown_field(message: &str) -> Option<(&str, &str)> {
    let rest = message.strip_prefix("unknown field `")?;
    rest.split_once("`, expected ").or_else(|| Some((rest.strip_suffix("`, there are no fields")?, "")))
}

/// Returns the word that an enumeration does not have, and serde's list of those that it has: "one of", or one or two
/// of them.
fn unknown_word(message: &str) -> Option<(&str, &str)> {
    message.strip_prefix("unknown variant `")?.rsplit_once("`, expected ")
}

fn nearest<'a>(unknown: &str, known: &'a str) -> Option<&'a str> {
    if unknown.len() > MAX_REPEATED {
        return None;
    }
    let distance = |name: &&str| strsim::damerau_levenshtein(name, unknown);
    let names = known.split('`').skip(1).step_by(2);
    names.min_by_key(distance).filter(|name| distance(name) <= unknown.len() / 3 + 1)
}

/// Returns the found and the expected type of serde's message, in the terms of JSON.
fn mismatch(message: &str) -> Option<(String, String)> {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    Some((in_json(found), wanted(expected)))
}

fn in_json(found: &str) -> String {
    let number = found.strip_prefix("integer `").or_else(|| found.strip_prefix("floating point `"));
    if let Some(number) = number.and_then(|number| number.strip_suffix('`')) {
        return format!("the number {number}");
    }
    if let Some(text) = found.strip_prefix("string ") {
        return format!("the string {}", shortened(text));
    }
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "an array".to_owned(),
        "unit" => "null".to_owned(),
        "boolean `true`" => "true".to_owned(),
        "boolean `false`" => "false".to_owned(),
        other => other.to_owned(),
    }
}

fn wanted(expected: &str) -> String {
    match expected {
        "u8" => "an integer from 0 to 255".to_owned(),
        "u16" => "an integer from 0 to 65535".to_owned(),
        "u32" => "an integer from 0 to 4294967295".to_owned(),
        "u64" | "usize" => "an integer from 0".to_owned(),
        "i32" => "an integer from -2147483648 to 2147483647".to_owned(),
        "i64" => "an integer".to_owned(),
        "f64" => "a number".to_owned(),
        "a sequence" => "an array".to_owned(),
        "a map" => "an object".to_owned(),
        "a boolean" => "true or false".to_owned(),
        _ if expected.starts_with("struct ") => "an object".to_owned(),
        _ if expected.starts_with("internally tagged enum ") => "an object".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the part of a client's text that an error repeats.
pub fn shortened(text: &str) -> String {
    truncated(text, MAX_REPEATED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{BlockParams, ExitParams, HelloParams, IdParams, SubmitParams};

    fn error_of<P: for<'a> Deserialize<'a>>(method: &str, params: &str) -> String {
        let raw: Box<RawValue> = serde_json::from_str(params).unwrap();
        let Err(error) = parse_params::<P>(method, Some(&raw)) else { panic!("{params} are valid") };
        assert_eq!(error.kind(), ErrorKind::InvalidParams);
        error.message
    }

    #[test]
    fn deeply_nested_params_are_refused() {
        let deep = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"hello","params":{}{}}}"#,
            "[".repeat(400_000),
            "]".repeat(400_000)
        );
        let error = match crate::message::parse_request(deep.as_bytes()) {
            Ok(request) => parse_params::<HelloParams>("hello", request.params).unwrap_err(),
            Err(error) => error,
        };
        assert_ne!(error.kind(), ErrorKind::Internal);
    }

    #[test]
    fn params_by_position_are_refused() {
        let message = error_of::<IdParams>("task.get", r#" ["3f2a"]"#);
        assert_eq!(message, "params of task.get must be an object with names and values, not an array");
    }

    #[test]
    fn errors_name_param_wanted_and_found_type() {
        let submit = |params| error_of::<SubmitParams>("task.submit", params);
        for (params, message) in [
            (r#"{"argv":"ls"}"#, r#"`argv` of task.submit must be an array, not the string "ls""#),
            (
                r#"{"argv":["ls"],"cwd":"/","pty":{"rows":"x","cols":3}}"#,
                r#"`pty.rows` of task.submit must be an integer from 0 to 65535, not the string "x""#,
            ),
            (
                r#"{"argv":["ls"],"cwd":"/","time_limit_ms":-1}"#,
                "`time_limit_ms` of task.submit must be an integer from 0, not the number -1",
            ),
            (
                r#"{"argv":["ls"],"cwd":"/","env":{"A":[]}}"#,
                r#"`env.A` of task.submit must be a string, or {"base64": "…"} for bytes that are not UTF-8, not an array"#,
            ),
            (r#"{"argv":["ls",null],"cwd":"/"}"#, "argv[1]"),
            ("5", "params of task.submit must be an object, not the number 5"),
            (r#"{"argv":["ls"],"cwdd":"/"}"#, "task.submit has no param `cwdd`; did you mean `cwd`?"),
            (r#"{"argv":["ls"],"something_else":1}"#, "task.submit has no param `something_else`"),
            (
                r#"{"argv":["ls"],"pty":{"row":1,"cols":1}}"#,
                "`pty` of task.submit has no field `row`; did you mean `rows`?",
            ),
            (r#"{"argv":["ls"],"pty":{"cols":1}}"#, "`pty` of task.submit needs `rows`"),
            (r#"{"argv":["ls"],"argv":["ls"]}"#, "`argv` of task.submit is given twice"),
            (
                r#"{"argv":["ls"],"restart":"x"}"#,
                "`restart` of task.submit: \"x\" is not `on_failure` or `always`",
            ),
            (
                r#"{"argv":["ls"],"after":[{"id":"3f2a","condition":"x"}]}"#,
                "`after[0].condition` of task.submit: \"x\" is not one of `ok`, `any`, `fail`, `start`, `ready`",
            ),
            (
                r#"{"argv":["ls"],"start_at":"x"}"#,
                "`start_at` of task.submit must be a time as in RFC 3339, such as \"2026-11-29T08:30:00Z\", not the string \"x\"",
            ),
        ] {
            let said = submit(params);
            assert!(
                said == message || message == "argv[1]" && said.contains("`argv[1]` of"),
                "{params}: {said}"
            );
        }
        assert_eq!(error_of::<IdParams>("task.get", "{}"), "task.get needs `id`");
        let message = error_of::<BlockParams>("task.block", r#"{"ids":["zz"]}"#);
        assert!(message.starts_with("`ids[0]` of task.block: \"zz\" is not a task id"), "{message}");
        assert!(!message.contains("line 1"), "{message}");
    }

    #[test]
    fn errors_of_exit_say_what_it_must_be() {
        let exit =
            |exit: &str| error_of::<ExitParams>("task.exit", &format!(r#"{{"id":"3f2a","exit":{exit}}}"#));
        let must = "`exit` of task.exit must be an object with one of `code`, `signal` and `unknown`";
        for (text, found) in [
            ("{}", "an empty object"),
            ("5", "the number 5"),
            ("null", "null"),
            (r#"{"code":1,"signal":2}"#, "one with several members"),
        ] {
            assert_eq!(exit(text), format!("{must}, not {found}"));
        }
        assert!(exit(r#"{"cod":1}"#).contains("\"cod\" is not one of `code`, `signal`, `unknown`"));
    }

    #[test]
    fn long_values_are_shortened() {
        let long = "é".repeat(10_000);
        for params in [
            format!(r#"{{"argv":"{long}"}}"#),
            format!(r#"{{"{long}":1}}"#),
            format!(r#"{{"env":{{"{long}":1}}}}"#),
            format!(r#"{{"after":[{{"id":"{long}"}}]}}"#),
        ] {
            let message = error_of::<SubmitParams>("task.submit", &params);
            assert!(message.chars().count() < 400, "{message}");
        }
    }
}
