//! Orders in the user's last message for the model server. Nothing here carries them out.

use bgd_shared::id::TaskId;
use serde_json::json;

use super::request::{Purpose, Request, Role};

/// The answer to give, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// The gate to pass before the answer.
    pub hold: Option<String>,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Answer with a text, at once.
    Say(String),
    /// Answer with a text that a limit has cut off.
    Cut(String),
    /// Stream this many chunks, each after a release of the gate.
    Slow {
        gate: String,
        chunks: usize,
    },
    Error(u16),
    Tool {
        name: String,
        arguments: String,
    },
}

impl Order {
    /// Parses the order in a request.
    pub(super) fn of(request: &Request) -> Self {
        let words = match request.purpose {
            Purpose::Turn => request.last_words(),
            Purpose::Title => return Self { hold: None, answer: Answer::Say("a title".to_owned()) },
            Purpose::Summary => return Self { hold: None, answer: Answer::Say("a summary".to_owned()) },
        };
        let mut order = Self { hold: None, answer: Answer::Say(format!("answer to: {words}")) };
        let mut calls = Vec::new();
        for line in words.lines() {
            let (verb, rest) = line.trim().split_once(' ').unwrap_or((line, ""));
            match (verb, answer(verb, rest)) {
                ("HOLD", _) => order.hold = Some(rest.to_owned()),
                ("RECALL", _) => order.answer = Answer::Say(recalled(request)),
                (_, Some(call @ Answer::Tool { .. })) => {
                    calls.push(Self { hold: order.hold.take(), answer: call });
                }
                (_, answer) => order.answer = answer.unwrap_or(order.answer),
            }
        }
        let results = request.tool_results();
        match (calls.get(results.len()), results.last()) {
            (Some(call), _) => Self { hold: call.hold.clone(), answer: with_id(&call.answer, &results) },
            (None, Some(result)) => {
                Self { hold: order.hold, answer: Answer::Say(format!("the tool said: {result}")) }
            }
            (None, None) => order,
        }
    }
}

/// Returns the model's previous answers in the conversation.
fn recalled(request: &Request) -> String {
    let said = request.messages.iter().filter(|message| message.role == Role::Assistant);
    let said: Vec<&str> = said.map(|message| &*message.text).filter(|text| !text.is_empty()).collect();
    format!("so far I said: {}", said.join(", "))
}

/// Returns a call with `$ID` replaced by the first task id in the results so far.
fn with_id(call: &Answer, results: &[&str]) -> Answer {
    let words = results.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_hexdigit() && c != '-'));
    let id = words.into_iter().find(|word| word.len() == 36 && word.parse::<TaskId>().is_ok());
    match call {
        Answer::Tool { name, arguments } => {
            let arguments = arguments.replace("$ID", id.unwrap_or("no id"));
            Answer::Tool { name: name.clone(), arguments }
        }
        other => other.clone(),
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
        // Phrased as a person would ask an agent.
        "Run:" => {
            let arguments = json!({"command": rest, "description": "as it was told"}).to_string();
            Some(Answer::Tool { name: "bash".to_owned(), arguments })
        }
        _ => None,
    }
}
