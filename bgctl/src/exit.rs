//! The exit codes, in one table. The man page lists the same codes; scripts rely on them.

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::socket::SocketError;
use bgd_shared::task::Exit;
use bgd_shared::transport::ConnectError;

/// An exit code of `bgctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u8);

impl Code {
    /// Success.
    pub const OK: Self = Self(0);
    /// `block`: a task failed or was cancelled.
    pub const TASK_FAILED: Self = Self(1);
    /// Wrong usage.
    pub const USAGE: Self = Self(2);
    /// The task is in the wrong state, the question is no longer open, or an upgrade was refused.
    pub const WRONG_STATE: Self = Self(65);
    /// Unknown task, or ambiguous id.
    pub const NO_TASK: Self = Self(66);
    /// No daemon is running, or it does not answer or is shutting down, or an agent can't be started.
    pub const NO_DAEMON: Self = Self(69);
    /// An error inside bgd or bgctl, a limit that is reached, or a journal that can't be written.
    pub const INTERNAL: Self = Self(70);
    /// `block` and `inbox --wait`: timed out.
    pub const TIMED_OUT: Self = Self(75);
    /// Not allowed, or an agent that is not logged in.
    pub const NOT_ALLOWED: Self = Self(77);
    /// The configuration is wrong.
    pub const CONFIG: Self = Self(78);
    /// `run` and `block --exit-code`: the task's own time limit ended it. Same code as timeout(1).
    pub const TIME_LIMIT: Self = Self(124);
    /// `run`: the program was found but can't be executed, or its folder can't be entered.
    pub const NOT_EXECUTABLE: Self = Self::of_shell(Exit::NOT_EXECUTABLE);
    /// `run`: the program does not exist.
    pub const NOT_FOUND: Self = Self::of_shell(Exit::NOT_FOUND);
    /// `run`: the terminal was closed.
    pub const HUNG_UP: Self = Self(128 + 1);
    /// Interrupted by Ctrl-C.
    pub const INTERRUPTED: Self = Self(128 + 2);
    /// The reader of standard output is gone; the code that a shell reports for SIGPIPE.
    pub const BROKEN_PIPE: Self = Self(128 + 13);

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "exit codes are 0 to 255")]
    const fn of_shell(code: i32) -> Self {
        Self(code as u8)
    }
}

impl From<Code> for std::process::ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.0)
    }
}

/// Every documented code with its meaning, for help texts and man pages.
pub const TABLE: &[(Code, &str)] = &[
    (Code::OK, "done; for `block`: all named tasks completed"),
    (Code::TASK_FAILED, "`block`: at least one task failed or was cancelled"),
    (Code::USAGE, "wrong usage"),
    (
        Code::WRONG_STATE,
        "the task is in the wrong state, or the question is no longer open; or the task's terminal or output would be shown in itself; or `daemon upgrade` was refused",
    ),
    (Code::NO_TASK, "unknown task, or ambiguous id"),
    (
        Code::NO_DAEMON,
        "no daemon is running, or it can't be started, does not answer, is shutting down or has no connection left; or the agent can't be started; or a check of `doctor`, `executors` or `agents` failed",
    ),
    (
        Code::INTERNAL,
        "an error inside bgd or bgctl, or of the system, such as a file that can't be written; or a limit is reached, such as `limits.tasks` or `limits.frame_bytes`; or a durable daemon can't write its journal",
    ),
    (
        Code::TIMED_OUT,
        "`block`: timed out while tasks were still running; `inbox --wait`: timed out with no notification",
    ),
    (
        Code::NOT_ALLOWED,
        "not allowed (owner or permissions of the socket, or a process that is not the caller's to hand over), or the agent is not logged in",
    ),
    (Code::CONFIG, "the configuration is invalid"),
    (Code::TIME_LIMIT, "`run` and `block --exit-code`: the task exceeded its time limit"),
];

/// Maps an error kind of the daemon to an exit code. Exhaustive, so that a new kind can't be forgotten.
pub const fn of_kind(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::TaskNotFound | ErrorKind::AmbiguousId => Code::NO_TASK,
        ErrorKind::NotComplete
        | ErrorKind::NotResumable
        | ErrorKind::BeingResumed
        | ErrorKind::NotRunning
        | ErrorKind::AlreadyFinished
        | ErrorKind::NotBackgroundable
        | ErrorKind::NotPending
        | ErrorKind::GroupInUse
        | ErrorKind::UpgradeRefused
        | ErrorKind::SessionExpired
        | ErrorKind::OwnTerminal => Code::WRONG_STATE,
        ErrorKind::PermissionDenied | ErrorKind::ForeignProcess | ErrorKind::AuthenticationRequired => {
            Code::NOT_ALLOWED
        }
        ErrorKind::ConfigInvalid => Code::CONFIG,
        ErrorKind::InvalidParams
        | ErrorKind::PromptRequired
        | ErrorKind::UnknownAgent
        | ErrorKind::UnknownGroup
        | ErrorKind::UnknownExecutor => Code::USAGE,
        ErrorKind::ShuttingDown | ErrorKind::TooManyConnections | ErrorKind::AgentUnavailable => {
            Code::NO_DAEMON
        }
        ErrorKind::Internal
        | ErrorKind::Unsupported
        | ErrorKind::ParseError
        | ErrorKind::InvalidRequest
        | ErrorKind::MethodNotFound
        | ErrorKind::RegistryFull
        | ErrorKind::JournalUnwritable
        | ErrorKind::FrameTooLarge
        | ErrorKind::AnswerTooLarge
        | ErrorKind::TooManyRequests
        | ErrorKind::Unknown => Code::INTERNAL,
    }
}

/// Maps an unusable socket path or folder to an exit code.
pub fn of_socket(error: &SocketError) -> Code {
    match error {
        SocketError::PathTooLong(_) | SocketError::NotAbsolute(_) => Code::USAGE,
        SocketError::Link(_)
        | SocketError::NotAFolder(_)
        | SocketError::ForeignOwner { .. }
        | SocketError::TooOpen { .. }
        | SocketError::Closed { .. } => Code::NOT_ALLOWED,
        SocketError::Missing(_) => Code::NO_DAEMON,
        SocketError::Io { source, .. } => of_system(source),
    }
}

/// Maps a failed connection attempt to an exit code.
pub fn of_connect(error: &ConnectError) -> Code {
    match error {
        ConnectError::Untrusted(error) => of_socket(error),
        ConnectError::ForeignPeer { .. } => Code::NOT_ALLOWED,
        ConnectError::NoAnswer(_) => Code::NO_DAEMON,
        ConnectError::NoDaemon { source, .. } => of_system(source),
    }
}

/// Maps a failed call to an exit code.
pub fn of_client(error: &ClientError) -> Code {
    match error {
        ClientError::Connect(error) => of_connect(error),
        ClientError::Rpc(error) => of_kind(error.kind()),
        ClientError::Io(_) | ClientError::Closed | ClientError::NoAnswer(_) => Code::NO_DAEMON,
        ClientError::Garbled(_) => Code::INTERNAL,
    }
}

/// Maps a system error on the way to the daemon: access is denied, or no daemon is there.
fn of_system(error: &std::io::Error) -> Code {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => Code::NOT_ALLOWED,
        _ => Code::NO_DAEMON,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_kind_has_a_documented_exit_code() {
        for kind in ErrorKind::ALL {
            let code = of_kind(*kind);
            assert!(TABLE.iter().any(|(known, _)| *known == code), "{kind}: {code:?} is not in the table");
            assert_ne!(code, Code::OK, "{kind}");
        }
    }

    #[test]
    fn table_lists_each_code_once_in_ascending_order() {
        assert!(TABLE.windows(2).all(|pair| pair[0].0.0 < pair[1].0.0));
    }

    #[test]
    fn documented_error_kinds_map_to_documented_codes() {
        assert_eq!(of_kind(ErrorKind::NotComplete).0, 65);
        assert_eq!(of_kind(ErrorKind::AmbiguousId).0, 66);
        assert_eq!(of_kind(ErrorKind::ShuttingDown).0, 69);
        assert_eq!(of_kind(ErrorKind::AgentUnavailable).0, 69);
        assert_eq!(of_kind(ErrorKind::Internal).0, 70);
        assert_eq!(of_kind(ErrorKind::ForeignProcess).0, 77);
        assert_eq!(of_kind(ErrorKind::AuthenticationRequired).0, 77);
        assert_eq!(of_kind(ErrorKind::ConfigInvalid).0, 78);
    }
}
