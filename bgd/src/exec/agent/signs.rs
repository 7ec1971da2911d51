//! How agents say that a model failed, each in its own way and not by the protocol's: one list of all that were seen.

use serde_json::Value;

/// How an answer begins that is nothing but an error, and who gives such answers. `#` is a digit.
const ERRORS: [(&str, &str); 4] = [
    ("API Error", "claude-agent-acp"),
    ("[API Error", "gemini-cli, qwen-code"),
    ("Error: ###", "copilot"),
    ("HTTP ###: ", "hermes"),
];

/// The longest answer that is taken for an error, in bytes. An agent that talks about an error says more.
const ERROR_BYTES: usize = 2048;

/// How deep an agent's own fields are looked through.
const DEPTH: usize = 4;

/// The answer, if it is nothing but an error of the model.
pub fn error_as_answer(said: &str) -> Option<&str> {
    let said = said.trim();
    let is_error = ERRORS.iter().any(|(begin, _)| begins(said, begin));
    (is_error && said.len() <= ERROR_BYTES).then_some(said)
}

fn begins(said: &str, begin: &str) -> bool {
    let mut said = said.chars();
    begin.chars().all(|wanted| match said.next() {
        Some(c) if wanted == '#' => c.is_ascii_digit(),
        found => found == Some(wanted),
    })
}

/// What an agent's own fields (`_meta`) say of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Model {
    /// It failed, and why.
    Failed(String),
    /// It works.
    Works,
}

/// Reads the fields that an agent adds to a message of the protocol: codex-acp tells the status of its thread
/// (`threadStatus`), hermes that a turn has `failed`.
pub fn of_meta(meta: &Value) -> Option<Model> {
    look(meta, DEPTH)
}

fn look(value: &Value, depth: usize) -> Option<Model> {
    let object = value.as_object()?;
    match object.get("threadStatus").and_then(|status| status["type"].as_str()) {
        Some("systemError") => {
            return Some(Model::Failed("its thread is in the status systemError".to_owned()));
        }
        Some("active") => return Some(Model::Works),
        Some(_) | None => {}
    }
    if object.get("failed") == Some(&Value::Bool(true)) {
        let error =
            object.get("error").and_then(Value::as_str).unwrap_or("the agent says that the turn failed");
        return Some(Model::Failed(error.to_owned()));
    }
    let depth = depth.checked_sub(1)?;
    object.values().find_map(|value| look(value, depth))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_that_is_nothing_but_an_error_is_known_by_its_beginning() {
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
    fn what_an_agent_adds_to_its_messages_is_read() {
        let failed = |meta: Value| match of_meta(&meta) {
            Some(Model::Failed(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(failed(json!({"codex": {"threadStatus": {"type": "systemError"}}})).contains("systemError"));
        assert_eq!(failed(json!({"hermes": {"failed": true, "error": "HTTP 400: x"}})), "HTTP 400: x");
        assert!(failed(json!({"failed": true})).contains("failed"));
        assert_eq!(of_meta(&json!({"codex": {"threadStatus": {"type": "active"}}})), Some(Model::Works));
        assert_eq!(of_meta(&json!({"codex": {"threadStatus": {"type": "idle"}}, "failed": false})), None);
        assert_eq!(of_meta(&Value::Null), None);
        let deep = json!({"a": {"b": {"c": {"d": {"e": {"failed": true}}}}}});
        assert_eq!(of_meta(&deep), None);
    }
}
