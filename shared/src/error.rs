//! Errors as the wire has them: a code, a message for people, and a kind that programs key on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::id::TaskId;
use crate::task::Task;

/// Declares the kinds with their wire names and codes once.
macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal, $code:literal;)+) => {
        /// What kind of error it is. Clients decide by this and by nothing else.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum ErrorKind {
            $($(#[$doc])+ #[serde(rename = $name)] $kind,)+
            /// A kind that a newer daemon knows and this client does not. Never sent.
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl ErrorKind {
            /// Every kind that is sent.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ Self::Unknown => "unknown" }
            }

            /// The JSON-RPC error code.
            pub const fn code(self) -> i32 {
                match self { $(Self::$kind => $code,)+ Self::Unknown => -32099 }
            }
        }
    };
}

kinds! {
    /// The line is not JSON.
    ParseError = "parse_error", -32700;
    /// The line is JSON, but no request.
    InvalidRequest = "invalid_request", -32600;
    /// There is no such method.
    MethodNotFound = "method_not_found", -32601;
    /// A parameter is missing, unknown or out of its range.
    InvalidParams = "invalid_params", -32602;
    /// Something broke inside the daemon.
    Internal = "internal", -32603;
    /// No task has this id.
    TaskNotFound = "task_not_found", -32001;
    /// Several tasks have ids that begin like this.
    AmbiguousId = "ambiguous_id", -32002;
    /// The task has no result yet, or none at all.
    NotComplete = "not_complete", -32003;
    /// Only completed agent tasks can be resumed.
    NotResumable = "not_resumable", -32004;
    /// A resume of this task is under way.
    BeingResumed = "being_resumed", -32005;
    /// The agent has forgotten the conversation.
    SessionExpired = "session_expired", -32006;
    /// A resume needs a prompt.
    PromptRequired = "prompt_required", -32007;
    /// No agent has this name.
    UnknownAgent = "unknown_agent", -32008;
    /// The agent's program can't be started.
    AgentUnavailable = "agent_unavailable", -32009;
    /// The agent is not logged in.
    AuthenticationRequired = "authentication_required", -32010;
    /// The job can't be moved to the background.
    NotBackgroundable = "not_backgroundable", -32011;
    /// The task ended first, or the question was answered.
    AlreadyFinished = "already_finished", -32012;
    /// The process belongs to somebody else.
    ForeignProcess = "foreign_process", -32013;
    /// The daemon holds as many tasks as it may, or as many bytes for them.
    RegistryFull = "registry_full", -32014;
    /// A request line is longer than the limit.
    FrameTooLarge = "frame_too_large", -32015;
    /// The daemon has as many connections as it may.
    TooManyConnections = "too_many_connections", -32016;
    /// The daemon is about to end.
    ShuttingDown = "shutting_down", -32017;
    /// This daemon can't do that.
    Unsupported = "unsupported", -32018;
    /// The task does not run, so it can be given neither a signal nor input.
    NotRunning = "not_running", -32019;
    /// The connection has as many unanswered requests as it may.
    TooManyRequests = "too_many_requests", -32020;
    /// The caller is another user.
    PermissionDenied = "permission_denied", -32021;
    /// The configuration file is wrong; the old one stays in force.
    ConfigInvalid = "config_invalid", -32022;
    /// No group has this name.
    UnknownGroup = "unknown_group", -32023;
    /// The group has tasks that have not ended, so it can't be removed.
    GroupInUse = "group_in_use", -32024;
    /// Only pending tasks can be held, released or edited.
    NotPending = "not_pending", -32025;
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
    /// What programs key on.
    pub kind: ErrorKind,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// With `ambiguous_id`: the ids that begin like this, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<TaskId>,
    /// With `already_finished` as the answer to `task.detach` and `task.handoff`: the task as it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<Task>>,
    /// With `not_complete`: why the task has no result, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<Failure>>,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RpcError {
    /// The JSON-RPC code of the kind.
    pub code: i32,
    /// What is wrong with what, in a sentence.
    pub message: String,
    /// Kind and hint.
    pub data: ErrorData,
}

impl RpcError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            code: kind.code(),
            message: message.into(),
            data: ErrorData { kind, hint: None, candidates: Vec::new(), task: None, failure: None },
        }
    }

    /// The same with a word on what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.data.hint = Some(hint.into());
        self
    }

    /// Its kind.
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
    use super::*;

    #[test]
    fn codes_and_names_are_given_once() {
        let mut codes: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn a_kind_of_the_future_is_read_as_unknown() {
        let json = r#"{"code":-32098,"message":"m","data":{"kind":"from_the_future"}}"#;
        let error: RpcError = serde_json::from_str(json).unwrap();
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert_eq!(error.message, "m");
    }
}
