//! The line in which `bgctl --json` reports its failure, to the programs that run it.

use serde::{Deserialize, Serialize};

use crate::id::TaskId;

/// The error line of `bgctl --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorLine {
    /// Why `bgctl` has failed.
    pub error: LineError,
}

/// The error that a line reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineError {
    /// The JSON-RPC code.
    #[serde(default)]
    pub code: i32,
    /// The problem in a sentence, for people.
    pub message: String,
    /// Kind, hint and further data.
    pub data: LineData,
}

/// Further data of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineData {
    /// The kind that programs match on: one of the wire, or of `bgctl` itself.
    pub kind: String,
    /// How to fix the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The ids that match an ambiguous prefix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<TaskId>,
    /// The exit code of `bgctl`.
    #[serde(default)]
    pub exit_code: u8,
}

impl LineError {
    /// Returns the error of the last error line in what a program has written to standard error; `None` if it has
    /// written no such line.
    pub fn last_of(text: &str) -> Option<Self> {
        text.lines()
            .rev()
            .find_map(|line| serde_json::from_str::<ErrorLine>(line).ok())
            .map(|line| line.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_line_is_found_between_other_lines() {
        let line = |message: &str| {
            format!(
                r#"{{"error":{{"code":-32000,"message":"{message}","data":{{"kind":"usage","exit_code":64}}}}}}"#
            )
        };
        let text = format!("Welcome!\n{}\n{}\nBye\n", line("first"), line("last"));
        let error = LineError::last_of(&text).unwrap();
        assert_eq!((&*error.message, &*error.data.kind, error.data.exit_code), ("last", "usage", 64));
        assert_eq!(serde_json::to_string(&ErrorLine { error }).unwrap(), line("last"));
        assert_eq!(LineError::last_of("ssh: what?\n"), None);
    }
}
