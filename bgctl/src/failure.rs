//! Why a verb failed, and how that is reported.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::error_line::{ErrorLine, LineData, LineError};
use bgd_shared::id::TaskId;
use bgd_shared::quote::quoted;
use bgd_shared::show::plain;
use bgd_shared::socket::{SocketError, SocketPath};
use bgd_shared::transport::{ConnectError, Unresponsive};
use nix::unistd::{Uid, User};

use crate::exit::{self, Code};
use crate::state::log_file;

/// The failure of a verb: an exit code, a message, and optionally a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    /// The kind that programs match on: the wire's, or for local failures one of `usage`, `no_daemon`, `no_answer`,
    /// `connection_lost`, `maybe_done`, `input_lost`, `other_instance`, `untrusted_socket`, `not_split`, `no_question`,
    /// `garbled`, `signalled` and `io`.
    pub kind: &'static str,
    /// The JSON-RPC error code if the daemon refused the call.
    pub rpc_code: Option<i32>,
    pub message: String,
    /// How to fix the problem.
    pub hint: Option<String>,
    /// The ids that match an ambiguous prefix.
    pub candidates: Vec<TaskId>,
}

/// The JSON-RPC error code of local failures, from the range that JSON-RPC reserves for implementations.
const LOCAL_CODE: i32 = -32000;

/// Why a request is too long, unless its verb knows better.
const LONG_COMMAND_LINE: &str = "the command line is too long for one request";

impl Failure {
    /// Creates a local failure. Library errors quoted in the message are put into plain words.
    pub fn new(code: Code, kind: &'static str, message: impl Into<String>) -> Self {
        let message = plain(&message.into()).into_owned();
        Self { code, kind, rpc_code: None, message, hint: None, candidates: Vec::new() }
    }

    /// Reports whether a call failed because it named a task or batch that is not there.
    pub fn is_of_missing_task(&self) -> bool {
        self.kind == ErrorKind::TaskNotFound.as_str()
    }

    /// Creates a failure for arguments that parse but are invalid.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::USAGE, "usage", message)
    }

    /// Creates a failure for output from the daemon that does not match its declared encoding.
    pub fn unreadable_output(error: impl fmt::Display) -> Self {
        Self::new(Code::INTERNAL, "garbled", format!("can't decode the output that the daemon sent: {error}"))
    }

    /// Converts the error of a connection that had to stay open; uses `message` if the daemon is gone.
    pub fn of_link(error: ClientError, message: &str) -> Self {
        match error {
            ClientError::Closed | ClientError::Io(_) => Self::lost(message),
            error => error.into(),
        }
    }

    /// Creates a failure for a daemon that went away during an operation that depends on it.
    pub fn lost(message: impl Into<String>) -> Self {
        Self::new(Code::NO_DAEMON, "connection_lost", message).hint(log_hint())
    }

    /// Creates a failure for a local system call.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(Code::INTERNAL, "io", format!("{what}: {error}"))
    }

    /// Names something else than the command line as what makes a request too long.
    #[must_use]
    pub fn blaming(mut self, what: &str) -> Self {
        self.message = self.message.replacen(LONG_COMMAND_LINE, what, 1);
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Writes the failure to standard error. A broken pipe is not reported.
    pub fn print(&self, json: bool) {
        if self.code == Code::BROKEN_PIPE {
            return;
        }
        let text = if json { self.json() } else { self.to_string() };
        // If standard error is closed too, the failure can't be reported.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// Formats the failure as a line of JSON.
    fn json(&self) -> String {
        let error = LineError {
            code: self.rpc_code.unwrap_or(LOCAL_CODE),
            message: self.message.clone(),
            data: LineData {
                kind: self.kind.to_owned(),
                hint: self.hint.clone(),
                candidates: self.candidates.clone(),
                exit_code: self.code.0,
            },
        };
        let text = crate::render::json::line(&ErrorLine { error }).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// The human-readable form: the message, the candidates of an ambiguous id, and the hint.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bgctl: {}", crate::render::clean_lines(&self.message))?;
        for candidate in &self.candidates {
            writeln!(f, "  {candidate}")?;
        }
        if let Some(hint) = &self.hint {
            writeln!(f, "hint: {}", crate::render::clean_lines(hint))?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Points to the log that may explain why a daemon ended.
fn log_hint() -> String {
    format!("its log may say why: {}", log_file().display())
}

/// Only writes to standard output may use `?` on an [`io::Error`]; everything else states what failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Code::BROKEN_PIPE, "io", "standard output was closed by its reader");
        }
        Self::io("can't write to standard output", &error)
    }
}

impl From<SocketError> for Failure {
    fn from(error: SocketError) -> Self {
        let code = exit::of_socket(&error);
        let kind = match code {
            Code::USAGE => "usage",
            Code::NOT_ALLOWED => "untrusted_socket",
            _ => "no_daemon",
        };
        let hint = match &error {
            SocketError::ForeignOwner { owner, me: 0, path } => Some(as_its_user(*owner, path)),
            // Any other folder may be shared on purpose, such as /tmp.
            SocketError::TooOpen { path, .. } if is_usual(path) => Some(open_only_to_its_user(path)),
            SocketError::Closed { path, .. } => Some(open_only_to_its_user(path)),
            _ => error.hint().map(str::to_owned),
        };
        Self { hint, ..Self::new(code, kind, error.to_string()) }
    }
}

fn open_only_to_its_user(folder: &Path) -> String {
    format!("chmod 700 {}", quoted(folder.as_os_str().as_encoded_bytes()))
}

/// Reports whether this is the folder of the socket where no other one is chosen.
fn is_usual(folder: &Path) -> bool {
    SocketPath::usual().is_ok_and(|socket| socket.folder() == folder)
}

/// Tells root how to reach the daemon of another user: no key of the configuration makes `bgctl` use a socket that is
/// not its user's own.
fn as_its_user(uid: u32, path: &Path) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let as_user = user.map_or_else(
        || {
            let gid = fs::metadata(path).map_or(uid, |meta| meta.gid());
            format!("setpriv --reuid {uid} --regid {gid} --clear-groups -- ")
        },
        |user| format!("runuser -u {} -- ", user.name),
    );
    format!("allow_root is for programs that open the socket themselves; instead, run: {as_user}bgctl ...")
}

impl From<Unresponsive> for Failure {
    fn from(silent: Unresponsive) -> Self {
        let failure = Self::new(Code::NO_DAEMON, "no_answer", silent.to_string());
        let Some(holder) = silent.holder else {
            return failure.hint("find its process with: pgrep -a bgd");
        };
        let pid = holder.pid;
        failure.hint(match holder.state() {
            Some(state) if state.is_stopped() => {
                format!("`kill -CONT {pid}` continues it; `bgctl daemon stop` stops it and its tasks")
            }
            Some(_) if silent.is_working => format!(
                "it may still carry out the request, so check `bgctl list` once it answers again before you repeat \
                 it; meanwhile, `top -p {pid}` shows what it uses"
            ),
            Some(_) | None => format!(
                "try again when the machine is less busy; `bgctl daemon stop` stops it and its tasks, or `kill \
                 -KILL {pid}` if that fails"
            ),
        })
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Untrusted(SocketError::Missing(path)) => {
                let message = format!("no daemon is running: {} does not exist", path.display());
                Self::new(Code::NO_DAEMON, "no_daemon", message).hint("`bgctl daemon start` starts one")
            }
            ConnectError::Untrusted(error) => error.into(),
            ConnectError::ForeignPeer { peer, me, ref socket } => {
                let failure = Self::new(exit::of_connect(&error), "untrusted_socket", error.to_string());
                if me == 0 { failure.hint(as_its_user(peer, Path::new(socket))) } else { failure }
            }
            // Nothing was sent, so nothing will be carried out.
            ConnectError::NoAnswer(silent) if silent.is_working => {
                Self::from(silent).hint("nothing was sent: try again when it is less busy")
            }
            ConnectError::NoAnswer(silent) => silent.into(),
            ConnectError::NoDaemon { .. } => {
                let code = exit::of_connect(&error);
                let failure = Self::new(code, "no_daemon", error.to_string());
                if code == Code::NO_DAEMON {
                    failure.hint("`bgctl daemon start` starts one")
                } else {
                    failure
                }
            }
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = exit::of_client(&error);
        match error {
            ClientError::Connect(error) => error.into(),
            ClientError::NoAnswer(silent) => silent.into(),
            ClientError::Rpc(error) if error.kind() == ErrorKind::FrameTooLarge => {
                let message = format!("{LONG_COMMAND_LINE} ({})", error.message);
                Self { rpc_code: Some(error.code), ..Self::new(code, error.kind().as_str(), plain(&message)) }
                    .hint("pass long lists in a file or on standard input, or raise limits.frame_bytes")
            }
            ClientError::Rpc(error) => Self {
                code,
                kind: error.kind().as_str(),
                rpc_code: Some(error.code),
                message: plain(&error.message).into_owned(),
                hint: error.data.hint,
                candidates: error.data.candidates,
            },
            ClientError::Io(_) | ClientError::Closed => Self::new(code, "connection_lost", error.to_string())
                .hint(format!("the daemon may have ended; {}", log_hint())),
            ClientError::Garbled(_) => Self::new(code, "garbled", error.to_string())
                .hint("bgctl and the daemon may have different versions: check with `bgctl daemon status`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use bgd_shared::error::RpcError;
    use bgd_shared::holder::{Holder, Note};

    #[test]
    fn ambiguous_id_error_lists_candidates() {
        let mut error =
            RpcError::new(ErrorKind::AmbiguousId, "2 tasks begin with 3f2a").hint("type more of it");
        error.data.candidates = vec![TaskId::from_u128(1), TaskId::from_u128(2)];
        let failure = Failure::from(ClientError::Rpc(error));
        assert_eq!(failure.code, Code::NO_TASK);
        assert_eq!(
            failure.to_string(),
            "bgctl: 2 tasks begin with 3f2a\n  00000000-0000-0000-0000-000000000001\n  \
             00000000-0000-0000-0000-000000000002\nhint: type more of it\n"
        );
        let json: serde_json::Value = serde_json::from_str(&failure.json()).unwrap();
        assert_eq!(json["error"]["code"], -32002);
        assert_eq!(json["error"]["data"]["kind"], "ambiguous_id");
        assert_eq!(json["error"]["data"]["exit_code"], 66);
    }

    #[test]
    fn busy_daemon_is_not_to_be_killed_as_it_may_carry_out_the_order() {
        let pid = std::process::id().cast_signed();
        let hint_if = |is_working| {
            let holder = Some(Holder { pid, note: Note::default() });
            let silent = Unresponsive {
                socket: None,
                holder: holder.map(Box::new),
                after: Duration::from_secs(5),
                is_working,
            };
            Failure::from(silent)
        };
        let (busy, idle) = (hint_if(true), hint_if(false));
        assert!(busy.message.contains("no data from it for 5 s; it is busy (state "), "{}", busy.message);
        let hint = busy.hint.expect("advice");
        assert!(hint.contains("may still carry out") && hint.contains(&format!("top -p {pid}")), "{hint}");
        assert!(!hint.contains("kill") && !hint.contains("daemon stop"), "{hint}");
        assert!(idle.hint.expect("advice").contains(&format!("kill -KILL {pid}")));
    }

    #[test]
    fn system_error_message_omits_errno() {
        let failure = Failure::io("can't read /x", &io::Error::from_raw_os_error(13));
        assert_eq!(failure.to_string(), "bgctl: can't read /x: Permission denied\n");
    }

    #[test]
    fn broken_pipe_exits_with_code_141() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure.code, Code(141));
    }
}
