//! The result of a check whose request failed. Makes no requests itself.

use std::path::Path;

use crate::exit::Code;
use crate::failure::Failure;
use crate::render::doctor::Check;

/// Returns the check for a request that a running daemon did not carry out.
pub fn failed(part: &'static str, name: &str, failure: &Failure) -> Check {
    let log = || Some("see the daemon's log: bgctl daemon status names its folder".to_owned());
    check(part, name, failure, log)
}

/// Returns the check for a daemon that did not answer at all. `log` is the file in which it, or the last one, has
/// written why; `None` if it is on another machine.
pub fn unanswered(part: &'static str, name: &str, failure: &Failure, log: Option<&Path>) -> Check {
    // A daemon that did not come as far has no log.
    let log = log.filter(|log| log.exists());
    check(part, name, failure, || log.map(|log| format!("the daemon's log may say why: {}", log.display())))
}

fn check(part: &'static str, name: &str, failure: &Failure, log: impl FnOnce() -> Option<String>) -> Check {
    let advice = match failure.code {
        Code::CONFIG => Some("correct that; then bgctl daemon start, or bgctl daemon reload if one runs"),
        // Without a socket that may be used, the daemon can't be asked.
        Code::NOT_ALLOWED => Some("set BGD_SOCKET to a path in a folder of your own with mode 0700"),
        _ => None,
    };
    let hint = failure.hint.clone().or_else(|| advice.map(str::to_owned)).or_else(log);
    Check::fails(part, name, &failure.message, hint.unwrap_or_else(|| AS_IT_SAYS.to_owned()))
}

/// The hint for a message that leaves nothing to add.
const AS_IT_SAYS: &str = "correct that, then run bgctl doctor again";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r168_hint_about_the_configuration_fits_its_error() {
        let hint =
            |code, message: &str| failed("daemon", "x", &Failure::new(code, "x", message)).hint.unwrap();
        assert!(hint(Code::CONFIG, "/c: line 3: unknown key `x`").ends_with("daemon reload if one runs"));
        assert!(hint(Code::NO_DAEMON, "it ended").contains("daemon's log"));
    }

    #[test]
    fn r168_hint_of_a_daemon_that_does_not_answer_names_only_a_log_that_exists() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let hint = |message: &str, log: Option<&Path>| {
            unanswered("daemon", "x", &Failure::new(Code::NO_DAEMON, "no_daemon", message), log).hint.unwrap()
        };
        let path = log.path().display().to_string();
        assert!(hint("it ended", Some(log.path())).ends_with(&path));
        for (message, log) in [("it ended", Some(Path::new("/no/such/bgd.log"))), ("it ended", None)] {
            assert_eq!(hint(message, log), AS_IT_SAYS, "{message}");
        }
        let hinted = Failure::new(Code::NO_DAEMON, "no_daemon", "it ended").hint("wait");
        assert_eq!(unanswered("daemon", "x", &hinted, Some(log.path())).hint.unwrap(), "wait");
    }
}
