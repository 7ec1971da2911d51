//! Renders permission requests as text for people: the parts one below the other, each with a size limit. The requested
//! action comes first. A title comes last, because a model may choose it ("List files" for an `rm -rf`).
//!
//! Nothing is sanitized here: the API reports the text as the agent sent it, and programs that display it sanitize it.
//! But only [`part`] starts a line, so that no command can pass for another part.

use bgd_shared::show;
use bgd_shared::text::{beginning, ending};
use serde_json::Value;

/// The maximum length of a command, in bytes: enough for those that agents really run, as nobody can allow what they
/// can't read. Chat services show only the beginning of a question that does not fit into their message.
pub const COMMAND_BYTES: usize = 16 * 1024;

/// The maximum length of the other parts.
pub const CHANGE_BYTES: usize = 800;
pub const INPUT_BYTES: usize = 300;
pub const TITLE_BYTES: usize = 200;

/// Describes the action that a permission of an opencode server would allow. The server names the target in patterns (a
/// command, a file), and the change of a file in separate fields.
pub fn permission(action: &str, patterns: &[String], metadata: &Value) -> String {
    let mut parts = vec![
        part(&on_one_line(action), &patterns.join(", "), COMMAND_BYTES)
            .unwrap_or_else(|| bounded(&on_one_line(action), TITLE_BYTES)),
    ];
    parts.extend(part("changes", metadata["diff"].as_str().unwrap_or_default(), CHANGE_BYTES));
    parts.extend(part("input", &rest(metadata, &["diff"], &[]), INPUT_BYTES));
    parts.join("\n")
}

/// Formats a part with its name; `None` if the text is blank. Continuation lines are indented, so that none
/// can pass for the next part.
pub fn part(name: &str, text: &str, most: usize) -> Option<String> {
    let text = text.trim();
    (!show::is_blank(text)).then(|| format!("{name}: {}", bounded(&text.replace('\n', "\n  "), most)))
}

/// Returns the tool's remaining input, without the fields already shown, as JSON on one line.
pub fn rest(input: &Value, shown: &[&str], paths: &[&str]) -> String {
    let is_shown =
        |name: &str, value: &Value| shown.contains(&name) || (paths.contains(&name) && value.is_string());
    match input {
        Value::Null => String::new(),
        Value::Object(all) => {
            let left: Vec<String> = all
                .iter()
                .filter(|(name, value)| !is_shown(name, value))
                .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
                .collect();
            if left.is_empty() { String::new() } else { format!("{{{}}}", left.join(",")) }
        }
        other => other.to_string(),
    }
}

/// Replaces the line breaks of a text with spaces.
pub fn on_one_line(text: &str) -> String {
    text.trim().replace('\n', " ")
}

/// Cuts the middle out of a text longer than `most` bytes: the part of a command that matters may be at its end.
pub fn bounded(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let (begin, end) = (beginning(text, most * 2 / 3), ending(text, most / 3));
    format!("{begin} … ({} bytes omitted) … {end}", text.len() - begin.len() - end.len())
}
