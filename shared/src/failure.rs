//! Why a task failed: a kind and numbers for programs, a sentence for people.

use serde::{Deserialize, Serialize};

/// Kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The program could not be started.
    Spawn,
    /// The process exited with a code other than 0.
    Exit,
    /// A signal ended the process.
    Signal,
    /// The task exceeded its time limit, or was not ready in time.
    Timeout,
    /// The agent rejected the prompt, or the turn failed.
    Agent,
    /// The turn of its agent was interrupted by the end of the daemon or of the machine. The task can be resumed.
    Interrupted,
    /// The cluster ended the task because it used more memory than it had requested.
    Memory,
    /// The machine that ran the task failed.
    Node,
    /// The executor no longer knows the task, so nobody can say how it ended.
    Lost,
    /// The reason is unknown, or was added by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// Why a task failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    /// Kind of the failure.
    pub kind: FailureKind,
    /// With `spawn`: the system's error number (see `errno(3)`), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// With `exit`: the exit code. With `spawn`: 127 if the program was not found, 126 if it can't be run, as in a
    /// shell; missing for other reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// With `signal`: the signal's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The failure in a sentence, for people; the same as the task's `error`.
    pub message: String,
}

impl Failure {
    /// Creates a failure without numbers.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, errno: None, code: None, signal: None, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_kind_of_a_newer_daemon_is_unknown() {
        let failure = r#"{"kind":"dependency","message":"the task it waits for failed"}"#;
        let failure: Failure = serde_json::from_str(failure).unwrap();
        assert_eq!(failure, Failure::new(FailureKind::Unknown, "the task it waits for failed"));
    }
}
