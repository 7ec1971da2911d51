//! What the user's last words order the model server to do. Nothing here does it.

use serde_json::json;

use super::request::{Purpose, Request};

/// What is to be answered, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// The gate before the answer.
    pub hold: Option<String>,
    /// The answer.
    pub answer: Answer,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A text, at once.
    Say(String),
    /// A text that a limit has cut off.
    Cut(String),
    /// As many chunks, each behind the gate.
    Slow { gate: String, chunks: usize },
    /// A status and an error.
    Error(u16),
    /// The call of a tool.
    Tool { name: String, arguments: String },
}

impl Order {
    /// The order in a request.
    pub(super) fn of(request: &Request) -> Self {
        let words = match request.purpose {
            Purpose::Turn => request.last_words(),
            Purpose::Title => return Self { hold: None, answer: Answer::Say("a title".to_owned()) },
            Purpose::Summary => return Self { hold: None, answer: Answer::Say("a summary".to_owned()) },
        };
        let mut order = Self { hold: None, answer: Answer::Say(format!("answer to: {words}")) };
        for line in words.lines() {
            let (verb, rest) = line.trim().split_once(' ').unwrap_or((line, ""));
            match verb {
                "HOLD" => order.hold = Some(rest.to_owned()),
                _ => order.answer = answer(verb, rest).unwrap_or(order.answer),
            }
        }
        if let (Answer::Tool { .. }, Some(result)) = (&order.answer, request.tool_result()) {
            // The gate was before the call; after it the turn goes on by itself.
            return Self { hold: None, answer: Answer::Say(format!("the tool said: {result}")) };
        }
        order
    }
}

fn answer(verb: &str, rest: &str) -> Option<Answer> {
    match verb {
        "SAY" => Some(Answer::Say(rest.to_owned())),
        "CUT" => Some(Answer::Cut(rest.to_owned())),
        "SLOW" => {
            let (gate, chunks) = rest.split_once(' ')?;
            Some(Answer::Slow { gate: gate.to_owned(), chunks: chunks.parse().ok()? })
        }
        "ERROR" => rest.parse().ok().map(Answer::Error),
        "TOOL" => {
            let (name, arguments) = rest.split_once(' ')?;
            Some(Answer::Tool { name: name.to_owned(), arguments: arguments.to_owned() })
        }
        // As a person would say it to an agent.
        "Run:" => {
            let arguments = json!({"command": rest, "description": "as it was told"}).to_string();
            Some(Answer::Tool { name: "bash".to_owned(), arguments })
        }
        _ => None,
    }
}
