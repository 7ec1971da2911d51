//! The line in which `bgctl --json` reports its failure, to the programs that run it.

use serde::{Deserialize, Serialize};

use crate::id::TaskId;

/// The error line of `bgctl --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorLine {
    /// Why `bgctl` has failed.
    pub error: LineError,
}

/// The error that a line reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineError {
    /// The JSON-RPC code.
    pub code: i32,
    /// The problem in a sentence, for people.
    pub message: String,
    /// Kind, hint and further data.
    pub data: LineData,
}

/// Further data of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineData {
    /// The kind that programs match on: one of the wire, or of `bgctl` itself.
    pub kind: String,
    /// How to fix the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The ids that match an ambiguous prefix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<TaskId>,
    /// The exit code of `bgctl`.
    pub exit_code: u8,
}

/// What readers need of such a line. Another release may have written it, with other data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedError {
    /// The problem in a sentence, for people.
    pub message: String,
    /// The kind that programs match on.
    pub kind: String,
    /// How to fix the problem.
    pub hint: Option<String>,
}

impl ReportedError {
    /// Returns the error of the last error line in what a program has written to standard error; `None` if it has
    /// written no such line.
    pub fn last_of(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line {
            error: Body,
        }
        #[derive(Deserialize)]
        struct Body {
            message: String,
            data: Data,
        }
        #[derive(Deserialize)]
        struct Data {
            kind: String,
            hint: Option<String>,
        }
        let line: Line = text.lines().rev().find_map(|line| serde_json::from_str(line).ok())?;
        let Body { message, data: Data { kind, hint } } = line.error;
        Some(Self { message, kind, hint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_line_is_found_between_other_lines() {
        let line = |message: &str| {
            let data = LineData { kind: "usage".into(), hint: None, candidates: Vec::new(), exit_code: 64 };
            let line = ErrorLine { error: LineError { code: -32000, message: message.into(), data } };
            serde_json::to_string(&line).unwrap()
        };
        let text = format!("Welcome!\n{}\n{}\nBye\n", line("first"), line("last"));
        let reported = |message: &str, kind: &str, hint: Option<&str>| {
            Some(ReportedError { message: message.into(), kind: kind.into(), hint: hint.map(Into::into) })
        };
        assert_eq!(ReportedError::last_of(&text), reported("last", "usage", None));
        let other =
            r#"{"error":{"code":"new","message":"m","data":{"kind":"k","hint":"h","candidates":[1]}}}"#;
        assert_eq!(ReportedError::last_of(other), reported("m", "k", Some("h")));
        assert_eq!(ReportedError::last_of("ssh: what?\n"), None);
    }
}
