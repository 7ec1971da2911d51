//! The ways in which agents report a failed model when they don't use the protocol's own. Lists all forms seen so far.

use serde_json::Value;

/// Prefixes of answers that are nothing but an error, and the agents that send them. `#` stands for a digit.
const ERRORS: [(&str, &str); 4] = [
    ("API Error", "claude-agent-acp"),
    ("[API Error", "gemini-cli, qwen-code"),
    ("Error: ###", "copilot"),
    ("HTTP ###: ", "hermes"),
];

/// Lower-case prefixes of answers that may be nothing but an error. Only a guess: a real answer may begin the
/// same way.
const GUESSES: [&str; 12] = [
    "error:",
    "error ",
    "api error",
    "[error",
    "an error occurred",
    "request failed",
    "stream error",
    "unexpected status",
    "rate limit",
    "quota exceeded",
    "too many requests",
    "failed to ",
];

/// The longest answer that is suspected to be an error, in bytes.
const GUESS_BYTES: usize = 400;

/// The longest answer that counts as an error, in bytes. An agent that writes about an error writes more.
const ERROR_BYTES: usize = 2048;

/// How deep to search an agent's own fields.
const DEPTH: usize = 4;

/// Returns the trimmed answer if it is nothing but an error of the model.
pub fn error_as_answer(said: &str) -> Option<&str> {
    let said = said.trim();
    let is_error = ERRORS.iter().any(|(begin, _)| begins(said, begin));
    (is_error && said.len() <= ERROR_BYTES).then_some(said)
}

/// Returns whether an answer looks like an error of the model, even without a prefix that an agent is known to use.
pub fn looks_like_error(said: &str) -> bool {
    let said = said.trim().trim_start_matches(|c: char| !c.is_alphanumeric() && c != '[');
    let begin: String = said.chars().take(32).flat_map(char::to_lowercase).collect();
    said.len() <= GUESS_BYTES && GUESSES.iter().any(|guess| begin.starts_with(guess))
}

fn begins(said: &str, begin: &str) -> bool {
    let mut said = said.chars();
    begin.chars().all(|wanted| match said.next() {
        Some(c) if wanted == '#' => c.is_ascii_digit(),
        found => found == Some(wanted),
    })
}

/// The state of the model according to an agent's own fields (`_meta`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Model {
    /// The model failed, for this reason.
    Failed(String),
    Works,
}

/// Parses the fields that an agent adds to its updates: codex-acp reports the status of its thread (`threadStatus`).
pub fn of_news(meta: &Value) -> Option<Model> {
    look(meta, DEPTH, &thread_status)
}

/// Parses the fields that an agent adds to the end of a turn. There, hermes marks the turn as `failed`; in an update
/// the same field may be about a tool.
pub fn of_end(meta: &Value) -> Option<Model> {
    look(meta, DEPTH, &|object| thread_status(object).or_else(|| failed(object)))
}

type Object = serde_json::Map<String, Value>;

fn look(value: &Value, depth: usize, read: &dyn Fn(&Object) -> Option<Model>) -> Option<Model> {
    let object = value.as_object()?;
    if let Some(model) = read(object) {
        return Some(model);
    }
    let depth = depth.checked_sub(1)?;
    object.values().find_map(|value| look(value, depth, read))
}

fn thread_status(object: &Object) -> Option<Model> {
    match object.get("threadStatus").and_then(|status| status["type"].as_str()) {
        Some("systemError") => Some(Model::Failed("its thread has the status systemError".to_owned())),
        Some("active") => Some(Model::Works),
        Some(_) | None => None,
    }
}

fn failed(object: &Object) -> Option<Model> {
    let why =
        || object.get("error").and_then(Value::as_str).unwrap_or("the agent reported that the turn failed");
    (object.get("failed") == Some(&Value::Bool(true))).then(|| Model::Failed(why().to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn error_only_answer_is_recognized_by_its_beginning() {
        for error in
            [" API Error: 400 bad\n", "[API Error: quota]", "Error: 400 bad request", "HTTP 529: overloaded"]
        {
            assert_eq!(error_as_answer(error), Some(error.trim()));
        }
        for answer in ["The API Error is in line 3", "Error: none found", "HTTP 2 is a protocol", "Err", ""] {
            assert_eq!(error_as_answer(answer), None, "{answer}");
        }
        assert_eq!(error_as_answer(&format!("API Error{}", " and so on".repeat(1000))), None);
    }

    #[test]
    fn answer_resembling_an_error_is_flagged() {
        for error in
            ["Error: none found", "⚠️ Rate limit reached", "**Request failed** (503)", "error sending"]
        {
            assert!(looks_like_error(error), "{error}");
        }
        for answer in ["", "No error: all is well", "Errors are in line 3", "The rate limit is 5"] {
            assert!(!looks_like_error(answer), "{answer}");
        }
        assert!(!looks_like_error(&format!("Error: {}", "and so on ".repeat(100))));
    }

    #[test]
    fn agent_metadata_reveals_model_failure() {
        let failed = |meta: Value| match of_end(&meta) {
            Some(Model::Failed(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(failed(json!({"codex": {"threadStatus": {"type": "systemError"}}})).contains("systemError"));
        assert_eq!(failed(json!({"hermes": {"failed": true, "error": "HTTP 400: x"}})), "HTTP 400: x");
        assert!(failed(json!({"failed": true})).contains("failed"));
        assert_eq!(of_news(&json!({"codex": {"threadStatus": {"type": "active"}}})), Some(Model::Works));
        assert_eq!(of_end(&json!({"codex": {"threadStatus": {"type": "idle"}}, "failed": false})), None);
        assert_eq!(of_news(&json!({"tool": {"failed": true}})), None, "a tool, and not the turn");
        assert_eq!(of_news(&Value::Null), None);
        let deep = json!({"a": {"b": {"c": {"d": {"e": {"failed": true}}}}}});
        assert_eq!(of_end(&deep), None);
    }
}
