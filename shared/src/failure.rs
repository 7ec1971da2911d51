//! Why a task failed: a kind and numbers for programs, a sentence for people.

use serde::{Deserialize, Serialize};

/// What a task failed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Its program could not be started.
    Spawn,
    /// It exited with a code other than 0.
    Exit,
    /// A signal ended it.
    Signal,
    /// Its time limit ended it, or it was not ready in time.
    Timeout,
    /// Its agent refused the prompt, or ended the turn badly.
    Agent,
    /// Nobody knows how it ended; also a kind that a newer daemon has.
    #[serde(other)]
    Unknown,
}

/// Why a task failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    /// What it failed by.
    pub kind: FailureKind,
    /// With `spawn`: the system's number of the error, as in `errno(3)`, where the system refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// With `exit`: the code. With `spawn`: what a shell exits with, 127 if there is no such program, 126 if it can't
    /// be run; none if something else is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// With `signal`: its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The same for people, in a sentence; as `error` of the task.
    pub message: String,
}

impl Failure {
    /// One of this kind, without numbers.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, errno: None, code: None, signal: None, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_newer_daemon_is_unknown() {
        let failure = r#"{"kind":"dependency","message":"the task it waits for failed"}"#;
        let failure: Failure = serde_json::from_str(failure).unwrap();
        assert_eq!(failure, Failure::new(FailureKind::Unknown, "the task it waits for failed"));
    }
}
