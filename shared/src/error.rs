//! Errors on the wire: a code, a message for people, and a kind for programs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::id::TaskId;
use crate::show::plain;
use crate::task::Task;

/// Declares each kind once, with its wire name and code.
macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal, $code:literal;)+) => {
        /// Kind of an error. Clients should decide by this alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum ErrorKind {
            $($(#[$doc])+ #[serde(rename = $name)] $kind,)+
            /// A kind added by a newer daemon. Never sent.
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl ErrorKind {
            /// All kinds that are sent.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// Returns the name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ Self::Unknown => "unknown" }
            }

            /// Returns the JSON-RPC error code.
            pub const fn code(self) -> i32 {
                match self { $(Self::$kind => $code,)+ Self::Unknown => -32099 }
            }
        }
    };
}

kinds! {
    /// The line is not JSON.
    ParseError = "parse_error", -32700;
    /// The line is JSON but not a request.
    InvalidRequest = "invalid_request", -32600;
    /// Unknown method.
    MethodNotFound = "method_not_found", -32601;
    /// A parameter is missing, unknown or out of range.
    InvalidParams = "invalid_params", -32602;
    /// Internal error in the daemon.
    Internal = "internal", -32603;
    /// No task has this id.
    TaskNotFound = "task_not_found", -32001;
    /// Several task ids begin with this prefix.
    AmbiguousId = "ambiguous_id", -32002;
    /// The task has no result, or has not ended yet.
    NotComplete = "not_complete", -32003;
    /// Only completed agent tasks can be resumed, and agent tasks whose turn was interrupted by the end of the daemon.
    NotResumable = "not_resumable", -32004;
    /// The task is already being resumed.
    BeingResumed = "being_resumed", -32005;
    /// The agent no longer has the conversation.
    SessionExpired = "session_expired", -32006;
    /// The prompt is missing or blank.
    PromptRequired = "prompt_required", -32007;
    /// No agent has this name.
    UnknownAgent = "unknown_agent", -32008;
    /// The agent's program can't be started.
    AgentUnavailable = "agent_unavailable", -32009;
    /// The agent is not logged in.
    AuthenticationRequired = "authentication_required", -32010;
    /// The job can't be moved to the background.
    NotBackgroundable = "not_backgroundable", -32011;
    /// The task has already ended, or the question is no longer open.
    AlreadyFinished = "already_finished", -32012;
    /// The process belongs to another user, or is not the caller's to hand over.
    ForeignProcess = "foreign_process", -32013;
    /// The daemon has reached its limit of tasks, or of memory for them.
    RegistryFull = "registry_full", -32014;
    /// A request line is longer than the limit.
    FrameTooLarge = "frame_too_large", -32015;
    /// The daemon has reached its limit of connections.
    TooManyConnections = "too_many_connections", -32016;
    /// The daemon is shutting down.
    ShuttingDown = "shutting_down", -32017;
    /// Not supported by this daemon, or for this task.
    Unsupported = "unsupported", -32018;
    /// The task is not running, so it accepts neither signals nor input.
    NotRunning = "not_running", -32019;
    /// The connection has reached its limit of unanswered requests, or another limit.
    TooManyRequests = "too_many_requests", -32020;
    /// The caller is not allowed to do this, for example as another user.
    PermissionDenied = "permission_denied", -32021;
    /// The configuration file is invalid; the previous configuration stays in effect.
    ConfigInvalid = "config_invalid", -32022;
    /// No group has this name.
    UnknownGroup = "unknown_group", -32023;
    /// The group has tasks that have not ended, so it can't be removed.
    GroupInUse = "group_in_use", -32024;
    /// Only pending tasks can be held, released or edited.
    NotPending = "not_pending", -32025;
    /// No executor has this name.
    UnknownExecutor = "unknown_executor", -32026;
    /// The daemon could not be upgraded in place, and continues unchanged.
    UpgradeRefused = "upgrade_refused", -32027;
    /// The journal of a durable daemon can't be written, for example because the disk is full, so no task is accepted.
    JournalUnwritable = "journal_unwritable", -32028;
    /// The call was carried out, but its answer is longer than clients accept.
    AnswerTooLarge = "answer_too_large", -32029;
    /// The terminal would be shown in itself: it is the caller's own, or shows the caller's own.
    OwnTerminal = "own_terminal", -32030;
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The `data` of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorData {
    /// Kind of the error, for programs.
    pub kind: ErrorKind,
    /// How to solve the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// With `ambiguous_id`: up to 20 matching ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<TaskId>,
    /// With `already_finished` from `task.detach`: the task as it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<Task>>,
    /// With `not_complete`: why the task failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<Failure>>,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RpcError {
    /// The JSON-RPC code of the kind.
    pub code: i32,
    /// Description of the error in a sentence, for people.
    pub message: String,
    /// Kind, hint and further data.
    pub data: ErrorData,
}

impl RpcError {
    /// Creates an error of this kind. Library errors quoted in the message become plain words.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            code: kind.code(),
            message: plain(&message.into()).into_owned(),
            data: ErrorData { kind, hint: None, candidates: Vec::new(), task: None, failure: None },
        }
    }

    /// Adds a hint on how to solve the problem.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.data.hint = Some(hint.into());
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.data.kind
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RpcError {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn error_codes_and_names_are_unique() {
        let kinds = ErrorKind::ALL.iter().chain([&ErrorKind::Unknown]);
        let codes: BTreeSet<i32> = kinds.clone().map(|kind| kind.code()).collect();
        let names: BTreeSet<&str> = kinds.map(|kind| kind.as_str()).collect();
        assert_eq!([codes.len(), names.len()], [ErrorKind::ALL.len() + 1; 2]);
    }

    #[test]
    fn error_kind_of_a_newer_daemon_is_unknown() {
        let json = r#"{"code":-32098,"message":"m","data":{"kind":"from_the_future"}}"#;
        let error: RpcError = serde_json::from_str(json).unwrap();
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert_eq!(error.message, "m");
    }
}
