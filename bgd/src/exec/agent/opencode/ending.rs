//! Derives how a turn ended from its last message. No I/O.

use serde::{Deserialize, Serialize};

use super::super::connection::TurnEnd;
use super::wire::{Fault, Message};

/// The last message of a turn so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Last {
    id: String,
    error: Option<Fault>,
    completed: bool,
    finish: Option<String>,
    /// Whether a tool call in the message failed, which is how a denied permission ends a turn.
    tool_failed: bool,
}

impl Last {
    /// Extracts the relevant parts of a message.
    pub fn of(message: &Message) -> Self {
        let mut states = message.parts.iter().filter_map(|part| part.state.as_ref());
        Self {
            id: message.info.id.clone(),
            error: message.info.error.clone(),
            completed: message.info.time.completed.is_some(),
            finish: message.info.finish.clone(),
            tool_failed: states.any(|state| state.status == "error"),
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns whether the message is complete.
    pub fn is_done(&self) -> bool {
        self.error.is_some() || self.completed
    }

    /// Returns the end of the turn whose last message this is. `cancelled`: the daemon asked the turn to end.
    /// `unanswered`: a question of the model that got no answer.
    pub fn end(&self, cancelled: bool, unanswered: Option<&str>) -> TurnEnd {
        if let Some(fault) = &self.error {
            return of_fault(fault);
        }
        let failed = |why: &str| TurnEnd::Failed(why.into());
        match (self.finish.as_deref(), unanswered) {
            (Some("length"), _) => failed("the answer reached the model's length limit"),
            (Some("content-filter"), _) => failed("the model refused to answer"),
            (Some("error"), _) => failed("the model failed"),
            (Some("tool-calls") | None, _) if cancelled => TurnEnd::Cancelled,
            (Some("tool-calls"), Some(question)) => {
                TurnEnd::Failed(format!("it asked a question that nobody answered: {question}").into())
            }
            // The user denied the tool call. It is the user's turn to speak, as at the end of every turn.
            (Some("tool-calls"), None) if self.tool_failed => TurnEnd::Completed,
            (Some("tool-calls"), None) => failed("it stopped in the middle of its work, after a tool call"),
            (None, _) => failed("it was stopped before it answered"),
            (Some(_), _) => TurnEnd::Completed,
        }
    }
}

/// Returns the end of a turn that failed with this error.
pub fn of_fault(fault: &Fault) -> TurnEnd {
    match fault.name.as_str() {
        "MessageAbortedError" => TurnEnd::Cancelled,
        "ProviderAuthError" => TurnEnd::LoggedOut(fault.words()),
        // A key that the model's server rejects is as good as none.
        _ if fault.data.status == Some(401) => TurnEnd::LoggedOut(fault.words()),
        _ => TurnEnd::Failed(fault.words()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn last(more: &Value, parts: &Value) -> Last {
        let mut info = json!({ "id": "a", "role": "assistant", "parentID": "u" });
        info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Last::of(&serde_json::from_value(json!({ "info": info, "parts": parts })).unwrap())
    }

    fn finished(finish: &str) -> Last {
        last(&json!({ "time": { "completed": 12 }, "finish": finish }), &json!([]))
    }

    #[test]
    fn error_name_decides_how_the_turn_ends() {
        let end = |name: &str, status: u16| {
            let error = json!({ "name": name, "data": { "message": "why", "statusCode": status } });
            let last = last(&json!({ "error": error }), &json!([]));
            assert!(last.is_done());
            last.end(false, None)
        };
        assert_eq!(end("MessageAbortedError", 0), TurnEnd::Cancelled);
        assert_eq!(end("ProviderAuthError", 0), TurnEnd::LoggedOut("ProviderAuthError: why".into()));
        assert_eq!(end("APIError", 401), TurnEnd::LoggedOut("APIError: why".into()));
        assert_eq!(end("APIError", 400), TurnEnd::Failed("APIError: why".into()));
    }

    #[test]
    fn incomplete_finish_without_error_is_a_failure() {
        for finish in ["length", "content-filter", "error", "tool-calls"] {
            assert!(matches!(finished(finish).end(false, None), TurnEnd::Failed(_)), "{finish}");
        }
        assert_eq!(finished("stop").end(false, None), TurnEnd::Completed);
        assert_eq!(finished("tool-calls").end(true, None), TurnEnd::Cancelled);
        let stopped = last(&json!({ "time": { "completed": 12 } }), &json!([]));
        assert!(matches!(stopped.end(false, None), TurnEnd::Failed(_)));
        assert_eq!(stopped.end(true, None), TurnEnd::Cancelled);
    }

    #[test]
    fn turn_ending_on_a_denied_tool_completes_unless_a_question_is_open() {
        let denied = json!({ "time": { "completed": 12 }, "finish": "tool-calls" });
        let tool = json!([{ "id": "p", "type": "tool", "tool": "bash", "state": { "status": "error" } }]);
        let denied = last(&denied, &tool);
        assert_eq!(denied.end(false, None), TurnEnd::Completed);
        assert!(matches!(denied.end(false, Some("Which?")), TurnEnd::Failed(why) if why.contains("Which?")));
    }
}
