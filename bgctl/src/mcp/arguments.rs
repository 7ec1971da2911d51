//! Parses the parameters of a tool. Every error is a sentence that a model can act on.

use std::path::PathBuf;

use bgd_shared::id::TaskRef;
use bgd_shared::limits::{DURATION_MS, READY_BYTES};
use bgd_shared::order::Condition;
use bgd_shared::ready::{Ready, line_regex};
use bgd_shared::request::BlockUntil;
use bgd_shared::show::count;
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;
use regex::bytes::Regex;
use rmcp::model::JsonObject;
use serde_json::Value;

use super::catalogue::{OUTPUT, Spec, TASK};
use super::refusal::Refusal;
use crate::cli::parse_after;
use crate::name::Name;
use crate::render::{bounded, bounded_line, clean_lines};
use crate::when::parse_since;

/// Maximum number of characters of a name or value quoted in an error.
const SHOWN_CHARS: usize = 80;

/// Maximum number of characters of a folder quoted in an error.
const FOLDER_CHARS: usize = 500;

/// Maximum number of characters of a parser's error message (of a regular expression, say), which quotes the input.
const WRONG_CHARS: usize = 1000;

/// Maximum number of unknown parameters named in an error.
const UNKNOWN_SHOWN: usize = 5;

/// Maximum number of ids per call.
const MOST_IDS: usize = 100;

/// The parameters of one call.
#[derive(Debug)]
pub struct Arguments {
    tool: &'static Spec,
    given: JsonObject,
}

/// Parameters of a call that its tool does not declare.
#[derive(Debug)]
pub struct Undeclared {
    tool: &'static Spec,
    given: JsonObject,
}

impl Undeclared {
    /// Creates the error. `has_places`: places other than the daemon's machine are configured, so that the tool is
    /// listed with the parameter that names one.
    pub fn refusal(&self, has_places: bool) -> Refusal {
        let Self { tool, given } = self;
        let mut strangers: Vec<String> = given
            .keys()
            .filter(|name| !tool.declares(name))
            .map(|name| format!("\"{}\"", quoted(name)))
            .collect();
        let others = strangers.len().saturating_sub(UNKNOWN_SHOWN);
        strangers.truncate(UNKNOWN_SHOWN);
        let others = if others > 0 { format!(" and {}", count(others, "other")) } else { String::new() };
        let known: Vec<&str> = tool.listed_parameters(has_places).map(|parameter| parameter.name).collect();
        let hint = match tool.name {
            // Another tool of this name had this parameter.
            name if name == OUTPUT.name && given.contains_key("block") => {
                " It never waits: background_block does."
            }
            name if name == TASK.name && given.contains_key("ready") => {
                " An agent never becomes ready: to start something when it has ended, put its id into \"after\"."
            }
            _ => "",
        };
        Refusal::new(format!(
            "{} has no parameter {}{others}. Its parameters are: {}.{hint}",
            tool.name,
            strangers.join(", "),
            known.join(", ")
        ))
    }
}

impl Arguments {
    /// Accepts the parameters of a call, but none that the tool does not declare.
    ///
    /// # Errors
    /// An undeclared parameter.
    pub fn new(tool: &'static Spec, given: JsonObject) -> Result<Self, Undeclared> {
        if given.keys().all(|name| tool.declares(name)) {
            return Ok(Self { tool, given });
        }
        Err(Undeclared { tool, given })
    }

    fn wrong(&self, name: &str, wanted: &str) -> Refusal {
        let given = self.given.get(name).map(shown).unwrap_or_default();
        Refusal::new(format!("{}: \"{name}\" must be {wanted}; it is {given}.", self.tool.name))
    }

    /// Returns a string; `None` if it is omitted or blank.
    ///
    /// # Errors
    /// The value is not a string.
    pub fn text(&self, name: &str) -> Result<Option<String>, Refusal> {
        match self.given.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.trim().is_empty())),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    /// Returns a flag; `false` if it is omitted.
    ///
    /// # Errors
    /// The value is not a boolean.
    pub fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.given.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) if text == "true" => Ok(true),
            Some(Value::String(text)) if text == "false" => Ok(false),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    /// Returns a duration in milliseconds.
    ///
    /// # Errors
    /// The value is not a whole number, or too large.
    pub fn milliseconds(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let value = match self.given.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        // Some models write every number as 5000.0, or as a string.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was checked to fit")]
        let whole = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok()).or_else(|| {
            let number = value.as_f64().filter(|number| number.fract() == 0.0)?;
            (0.0..=1e15).contains(&number).then_some(number as u64)
        });
        match whole.filter(|ms| *ms <= DURATION_MS) {
            Some(ms) => Ok(Some(ms)),
            None => Err(self.wrong(name, "a whole number of milliseconds, such as 30000")),
        }
    }

    /// Returns a task status.
    ///
    /// # Errors
    /// There is no such status.
    pub fn status(&self, name: &str) -> Result<Option<Status>, Refusal> {
        let Some(word) = self.text(name)? else { return Ok(None) };
        word.trim().parse().map(Some).map_err(|_| {
            let known: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
            self.wrong(name, &format!("one of {}", known.join(", ")))
        })
    }

    /// Returns a time in the past, given as an age or as a point in time.
    ///
    /// # Errors
    /// The text is not a time, or is in the future.
    pub fn since(&self, name: &str) -> Result<Option<Timestamp>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        parse_since(&text).map(Some).map_err(|error| self.refused(name, &error, ""))
    }

    /// Returns a folder on another machine, where tasks start in the home folder by default and the daemon checks the
    /// folder.
    ///
    /// # Errors
    /// The value is not a string.
    pub fn folder_there(&self, name: &str) -> Result<Option<PathBuf>, Refusal> {
        let Some(named) = self.text(name)? else { return Ok(None) };
        let below = if named == "~" { Some("") } else { named.strip_prefix("~/") };
        Ok(Some(below.map_or_else(
            || PathBuf::from(&named),
            |below| PathBuf::from(".").join(below.trim_start_matches('/')),
        )))
    }

    /// Returns a folder in a place other than the daemon's machine, which checks that the folder exists.
    ///
    /// # Errors
    /// The value is not a string, or not an absolute path.
    pub fn folder_elsewhere(&self, name: &str) -> Result<Option<PathBuf>, Refusal> {
        let Some(named) = self.text(name)? else { return Ok(None) };
        if named.starts_with('/') {
            return Ok(Some(named.into()));
        }
        Err(self.wrong(
            name,
            "an absolute path if \"on\" is given, as it is one there; omit it for the usual folder",
        ))
    }

    /// Returns an existing folder as an absolute path. Models write `~`, so a leading `~` or `~/` stands for `home`;
    /// no other shell expansion happens.
    ///
    /// # Errors
    /// The value is not a string, or there is no such folder.
    pub fn folder(&self, name: &str, home: Option<PathBuf>) -> Result<Option<PathBuf>, Refusal> {
        let Some(named) = self.text(name)? else { return Ok(None) };
        let below = if named == "~" { Some("") } else { named.strip_prefix("~/") };
        let folder = match (below, home) {
            (Some(""), Some(home)) => home,
            (Some(below), Some(home)) => home.join(below.trim_start_matches('/')),
            _ => PathBuf::from(&named),
        };
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        if folder.is_dir() {
            return Ok(Some(folder));
        }
        Err(Refusal::new(format!(
            "{}: \"{name}\": there is no folder {}. Give an existing one, or omit it to use this server's folder.",
            self.tool.name,
            bounded_line(&folder.to_string_lossy(), FOLDER_CHARS)
        )))
    }

    /// Returns a task reference.
    ///
    /// # Errors
    /// The value is not a task id.
    pub fn task(&self, name: &str) -> Result<Option<TaskRef>, Refusal> {
        self.text(name)?.map(|text| task_ref(self.tool, name, &text)).transpose()
    }

    /// Returns a list of task references.
    ///
    /// # Errors
    /// The value is not a list, or an entry is not a task id.
    pub fn tasks(&self, name: &str) -> Result<Option<Vec<TaskRef>>, Refusal> {
        let wanted = "a list of task ids, such as [\"3f2a9c1e-…\"]";
        self.list(name, wanted, |text| task_ref(self.tool, name, text))
    }

    /// Returns conditions on other tasks; empty if omitted.
    ///
    /// # Errors
    /// The value is not a list, or an entry is not a task id with an optional condition.
    pub fn after(&self, name: &str) -> Result<Vec<(TaskRef, Condition)>, Refusal> {
        let wanted = "a list of task ids, such as [\"3f2a9c1e-…\", \"91bc0d2e-…:fail\"]";
        let read = |text: &str| {
            let hint = format!("Use ID or ID:ok|any|fail|start|ready; {LISTED}");
            let after = parse_after(text.trim()).map_err(|error| self.refused(name, &error, &hint))?;
            let Name::Id(id) = after.name else {
                return Err(self.refused(name, &format!("{text:?} is not a task id"), &hint));
            };
            Ok((id, after.condition))
        };
        self.list(name, wanted, read).map(Option::unwrap_or_default)
    }

    /// Returns the readiness check.
    ///
    /// # Errors
    /// The text is not a known kind of readiness check.
    pub fn ready(&self, name: &str) -> Result<Option<Ready>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let ready: Result<Ready, _> = text.trim().parse();
        ready.map(Some).map_err(|error| self.refused(name, &error.to_string(), ""))
    }

    /// Returns the task state to wait for.
    ///
    /// # Errors
    /// The protocol has no such word.
    pub fn until(&self, name: &str) -> Result<Option<BlockUntil>, Refusal> {
        let Some(word) = self.text(name)? else { return Ok(None) };
        let until = serde_json::from_value(Value::String(word.trim().to_owned()));
        until.map(Some).map_err(|_| self.wrong(name, "one of ended, ready"))
    }

    /// Returns the pattern that a line must match.
    ///
    /// # Errors
    /// The pattern is too long or not a valid regular expression.
    pub fn line(&self, name: &str) -> Result<Option<Regex>, Refusal> {
        let Some(pattern) = self.text(name)? else { return Ok(None) };
        if pattern.len() > READY_BYTES {
            let error = format!("it has {} bytes; at most {READY_BYTES} are allowed", pattern.len());
            return Err(self.refused(name, &error, ""));
        }
        line_regex(&pattern).map(Some).map_err(|error| {
            self.refused(name, &error, "Use the syntax of Rust's regex, and escape literal characters.")
        })
    }

    /// Parses a list of strings with `read`.
    fn list<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Result<Option<Vec<T>>, Refusal> {
        let parsed;
        let values = match self.given.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
            Some(Value::Array(values)) => values,
            // Some models and clients write a list as a string, or a single id where a list is expected.
            Some(Value::String(text)) => match serde_json::from_str(text) {
                Ok(Value::Array(values)) => {
                    parsed = values;
                    &parsed
                }
                _ => return Ok(Some(vec![read(text)?])),
            },
            Some(_) => return Err(self.wrong(name, wanted)),
        };
        if values.len() > MOST_IDS {
            return Err(Refusal::new(format!(
                "{}: \"{name}\" has {} ids, but at most {MOST_IDS} are allowed per call: make several calls.",
                self.tool.name,
                values.len()
            )));
        }
        let read = |value: &Value| match value {
            Value::String(text) => read(text),
            _ => Err(self.wrong(name, wanted)),
        };
        values.iter().map(read).collect::<Result<_, _>>().map(Some)
    }

    /// Creates the error for a bad parameter, with a hint on what to do.
    fn refused(&self, name: &str, error: &str, hint: &str) -> Refusal {
        let error = clean_lines(error.trim_end_matches('.'));
        let text = format!("{}: \"{name}\": {}. {hint}", self.tool.name, bounded(&error, WRONG_CHARS));
        Refusal::new(text.trim_end())
    }

    /// Creates the error for parameters that are missing or empty, which describes each of them.
    pub fn missing(&self, names: &[&str]) -> Refusal {
        let lines: Vec<String> = names
            .iter()
            .filter_map(|name| self.tool.parameters.iter().find(|parameter| parameter.name == *name))
            .map(|parameter| format!("- \"{}\": {}", parameter.name, parameter.about))
            .collect();
        let is_given = |name: &&&str| self.given.get(**name).is_some_and(|value| !value.is_null());
        let what = match names.iter().filter(is_given).count() {
            0 => "missing",
            empty if empty == names.len() => "empty",
            _ => "missing or empty",
        };
        let are = if lines.len() == 1 { "a parameter is" } else { "parameters are" };
        Refusal::new(format!("{}: {are} {what}:\n{}", self.tool.name, lines.join("\n")))
    }
}

/// Hint on where to look up ids.
const LISTED: &str = "background_list shows the ids.";

fn task_ref(tool: &Spec, name: &str, text: &str) -> Result<TaskRef, Refusal> {
    text.trim().parse().map_err(|error| Refusal::new(format!("{}: \"{name}\": {error}. {LISTED}", tool.name)))
}

/// Parses parameters that a client sent as a string: a JSON object, or blank for none.
pub fn written(text: &str) -> Option<JsonObject> {
    if text.trim().is_empty() { Some(JsonObject::new()) } else { serde_json::from_str(text).ok() }
}

/// Cleans and shortens untrusted text for use in an error.
pub fn quoted(name: &str) -> String {
    bounded_line(name, SHOWN_CHARS)
}

/// Cleans and shortens a value for use in an error.
fn shown(value: &Value) -> String {
    quoted(&value.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::catalogue::{BLOCK, COMMAND, LIST, OUTPUT, TASK};

    fn given(tool: &'static Spec, value: &Value) -> Result<Arguments, Refusal> {
        let given = value.as_object().unwrap().clone();
        Arguments::new(tool, given).map_err(|undeclared| undeclared.refusal(false))
    }

    fn error<T: std::fmt::Debug>(result: Result<T, Refusal>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn r20_block_parameter_is_unknown() {
        let text = error(given(&OUTPUT, &json!({"task_id": "3f2a", "block": true})));
        assert!(text.contains("has no parameter \"block\"") && text.contains("background_block"), "{text}");
        assert!(text.contains("Its parameters are: task_id."), "{text}");
        let text = error(given(&BLOCK, &json!({"task_ids": ["3f2a"], "block": true})));
        assert!(text.ends_with("Its parameters are: task_ids, timeout, until, line."), "{text}");
    }

    #[test]
    fn r145_unknown_parameter_error_lists_on_only_if_the_tool_has_it() {
        let undeclared = || {
            let given = json!({"command": "true", "shell": "bash"}).as_object().unwrap().clone();
            Arguments::new(&COMMAND, given).unwrap_err()
        };
        let text = undeclared().refusal(false).to_string();
        assert!(text.ends_with("parameters are: command, cwd, description, after, group, ready."), "{text}");
        let text = undeclared().refusal(true).to_string();
        assert!(text.ends_with(", group, ready, on."), "{text}");
    }

    #[test]
    fn errors_quote_only_a_bounded_part_of_arguments() {
        let long = "\"".repeat(1_000_000);
        let many: JsonObject =
            (0..1000).map(|number| (format!("{number:04}{long:.900}"), json!(1))).collect();
        let text = Arguments::new(&OUTPUT, many).unwrap_err().refusal(false).to_string();
        assert!(text.len() < 1000 && text.contains("and 995 others. Its parameters"), "{text}");
        let arguments = given(&BLOCK, &json!({"timeout": long, "task_ids": long})).unwrap();
        for text in [error(arguments.milliseconds("timeout")), error(arguments.tasks("task_ids"))] {
            assert!(text.len() < 1000, "{}", text.len());
        }
        let arguments = given(&LIST, &json!({"status": long, "all": long})).unwrap();
        for text in [error(arguments.status("status")), error(arguments.flag("all"))] {
            assert!(text.len() < 1000, "{}", text.len());
        }
        let arguments = given(&COMMAND, &json!({"cwd": long})).unwrap();
        let text = error(arguments.folder("cwd", None));
        assert!(text.len() < 2000 && text.ends_with("server's folder."), "{text}");
    }

    #[test]
    fn leading_tilde_expands_to_home_and_nothing_else_is_expanded() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("x")).unwrap();
        let folder = |named: &str, home: Option<&std::path::Path>| {
            let arguments = given(&COMMAND, &json!({"cwd": named})).unwrap();
            arguments.folder("cwd", home.map(Into::into)).map(Option::unwrap)
        };
        for (named, expected) in
            [("~", home.path().to_owned()), ("~/", home.path().to_owned()), ("~//x", home.path().join("x"))]
        {
            assert_eq!(folder(named, Some(home.path())).unwrap(), expected, "{named}");
        }
        for named in ["~x", "~root", "$HOME", "x/~", "~/no"] {
            assert!(error(folder(named, Some(home.path()))).contains("there is no folder /"), "{named}");
        }
        assert!(error(folder("~", None)).contains("/~. Give an existing one"), "nobody knows where that is");
        assert_eq!(folder(".", None).unwrap(), std::env::current_dir().unwrap());
    }

    #[test]
    fn parameters_may_be_a_json_object_in_a_string() {
        assert_eq!(written(r#"{"all": true}"#), json!({"all": true}).as_object().cloned());
        assert_eq!(written(" "), Some(JsonObject::new()));
        for other in ["[1]", "all", "7", "\"{}\""] {
            assert_eq!(written(other), None, "{other}");
        }
    }

    #[test]
    fn r37_missing_parameters_are_listed() {
        let arguments = given(&TASK, &json!({"resume": "", "prompt": "  ", "agent": null})).unwrap();
        assert_eq!(arguments.text("prompt").unwrap(), None);
        assert_eq!(arguments.text("agent").unwrap(), None);
        let text = arguments.missing(&["description", "agent"]).to_string();
        assert!(text.contains("parameters are missing:\n- \"description\": "), "{text}");
        assert!(text.contains("\n- \"agent\": "), "{text}");
        let text = arguments.missing(&["description", "prompt"]).to_string();
        assert!(text.contains("parameters are missing or empty:\n"), "{text}");
    }

    #[test]
    fn empty_parameters_are_not_called_missing() {
        let text = given(&COMMAND, &json!({"command": ""})).unwrap().missing(&["command"]).to_string();
        assert!(text.starts_with("background_command: a parameter is empty:\n- \"command\": "), "{text}");
        let text = given(&BLOCK, &json!({"task_ids": []})).unwrap().missing(&["task_ids"]).to_string();
        assert!(text.starts_with("background_block: a parameter is empty:\n- \"task_ids\": "), "{text}");
        let text = given(&BLOCK, &json!({"task_ids": null})).unwrap().missing(&["task_ids"]).to_string();
        assert!(text.starts_with("background_block: a parameter is missing:\n"), "{text}");
    }

    #[test]
    fn wrong_argument_types_are_reported_and_lenient_forms_accepted() {
        let arguments = given(&BLOCK, &json!({"task_ids": {"a": 1}, "timeout": -1})).unwrap();
        assert!(error(arguments.tasks("task_ids")).contains("must be a list of task ids"));
        assert!(error(arguments.milliseconds("timeout")).contains("it is -1."));
        for wrong in [json!(1.5), json!("5s"), json!("-5"), json!([]), json!(1e300)] {
            let arguments = given(&BLOCK, &json!({"timeout": wrong})).unwrap();
            assert!(arguments.milliseconds("timeout").is_err(), "{wrong}");
        }
        let arguments = given(&BLOCK, &json!({"timeout": 5000.0, "task_ids": ["3f2a", 7]})).unwrap();
        assert_eq!(arguments.milliseconds("timeout").unwrap(), Some(5000));
        assert!(arguments.tasks("task_ids").is_err());
        for lists in [json!("3f2a"), json!("[\"3f2a\"]"), json!(["3f2a"])] {
            let arguments = given(&BLOCK, &json!({"task_ids": lists, "timeout": "5000"})).unwrap();
            assert_eq!(arguments.tasks("task_ids").unwrap(), Some(vec!["3f2a".parse().unwrap()]));
            assert_eq!(arguments.milliseconds("timeout").unwrap(), Some(5000));
        }
        let arguments = given(&BLOCK, &json!({"task_ids": ["bg_1234"]})).unwrap();
        assert!(error(arguments.tasks("task_ids")).contains("background_list shows the ids"));
    }
}
