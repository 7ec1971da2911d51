//! Errors of starting or taking over, and their report.

use std::io::{self, Write as _};
use std::path::Path;

use bgd_shared::show::{lines, plain};
use bgd_shared::socket::SocketError;
use nix::errno::Errno;

/// Why the daemon could not start or run: an exit code from bgctl's table, and a message.
#[derive(Debug)]
pub struct Failure {
    pub(super) code: u8,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: plain(&message.into()).into_owned() }
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
        Self::new(code, error.to_string())
    }
}

/// Reports on standard error why the daemon can't start. Ignores a closed standard error.
pub(super) fn print_error(message: &str) {
    let _ = writeln!(io::stderr(), "bgd: {}", lines(&plain(message)));
}

/// What to do when a thread or process can't be started.
const TOO_MANY: &str = "; end some of your processes, or raise `ulimit -u`";

/// Converts an I/O error of a startup step to a failure, which says what to do if no more threads or processes are
/// allowed.
pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    let what = what.into();
    move |error| {
        let advice = if error.kind() == io::ErrorKind::WouldBlock { TOO_MANY } else { "" };
        Failure::new(UNAVAILABLE, format!("{what}: {error}{advice}"))
    }
}

/// Converts an error of the state folder to a failure that says what to set if another folder helps, as for a home that
/// is read-only.
pub(super) fn state_unusable(state: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| {
        let advice = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ENOENT | Errno::ENOTDIR) => {
                "; set XDG_STATE_HOME to a writable folder"
            }
            Some(_) | None => "",
        };
        Failure::new(UNAVAILABLE, format!("the state folder {}: {error}{advice}", state.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_is_not_allowed_comes_with_advice() {
        let said = |number| failed("cannot start threads")(io::Error::from_raw_os_error(number)).message;
        assert!(said(libc::EAGAIN).ends_with("; end some of your processes, or raise `ulimit -u`"));
        assert!(!said(libc::ENOMEM).contains("ulimit"));
    }
}
