//! Errors of starting or taking over, and their report.

use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;

use bgd_shared::show::{lines, plain};
use bgd_shared::socket::SocketError;
use nix::errno::Errno;

/// Why the daemon could not start or run: an exit code from bgctl's table, a message, and what to do about it.
#[derive(Debug)]
pub struct Failure {
    pub(super) code: u8,
    message: String,
    hint: Option<&'static str>,
}

impl Failure {
    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: plain(&message.into()).into_owned(), hint: None }
    }

    #[must_use]
    pub(super) fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// Formats the failure for the program that has started this one: `error <exit code> <message>`, and a line
    /// `hint <text>` if there is one.
    pub(super) fn report(&self) -> String {
        let hint = self.hint.map(|hint| format!("hint {hint}\n")).unwrap_or_default();
        format!("error {} {}\n{hint}", self.code, self.message)
    }
}

/// The message and the hint in one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

/// No daemon is running, and none could be started.
pub(super) const UNAVAILABLE: u8 = 69;
/// Not allowed.
pub(super) const NO_PERMISSION: u8 = 77;
/// The configuration is invalid.
pub(super) const CONFIG: u8 = 78;

impl From<SocketError> for Failure {
    fn from(error: SocketError) -> Self {
        let code = match error {
            SocketError::PathTooLong(_) | SocketError::NotAbsolute(_) => 2,
            SocketError::Link(_)
            | SocketError::NotAFolder(_)
            | SocketError::ForeignOwner { .. }
            | SocketError::TooOpen { .. } => NO_PERMISSION,
            SocketError::Closed { .. } | SocketError::Missing(_) | SocketError::Io { .. } => UNAVAILABLE,
        };
        Self { hint: error.hint(), ..Self::new(code, error.to_string()) }
    }
}

/// Reports on standard error why the daemon can't start. Ignores a closed standard error.
pub(super) fn print_error(message: &str) {
    let _ = writeln!(io::stderr(), "bgd: {}", lines(&plain(message)));
}

/// What to do when a thread or process can't be started.
const TOO_MANY: &str = "end some of your processes, or raise `ulimit -u`";

/// Converts an I/O error of a startup step to a failure, which says what to do if no more threads or processes are
/// allowed.
pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    let what = what.into();
    move |error| {
        let hint = (error.kind() == io::ErrorKind::WouldBlock).then_some(TOO_MANY);
        Failure { hint, ..Failure::new(UNAVAILABLE, format!("{what}: {error}")) }
    }
}

/// Converts an error of the state folder to a failure that says what to set if another folder helps, as for a home that
/// is read-only.
pub(super) fn state_unusable(state: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| {
        let hint = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ENOENT | Errno::ENOTDIR) => {
                Some("set XDG_STATE_HOME to a writable folder")
            }
            Some(_) | None => None,
        };
        Failure {
            hint,
            ..Failure::new(UNAVAILABLE, format!("the state folder {}: {error}", state.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_is_not_allowed_comes_with_advice() {
        let failure = |number| failed("cannot start threads")(io::Error::from_raw_os_error(number));
        let advice = "end some of your processes, or raise `ulimit -u`";
        assert!(failure(libc::EAGAIN).to_string().ends_with(&format!("; {advice}")));
        assert!(failure(libc::EAGAIN).report().ends_with(&format!("\nhint {advice}\n")));
        assert!(!failure(libc::ENOMEM).report().contains("hint"));
    }
}
