//! Why there is no connection to the daemon of a remote machine, from what ssh and the program that it ran there left
//! behind: an exit code and messages.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use bgd_shared::PROTOCOL;
use bgd_shared::client::ClientError;
use bgd_shared::error_line::ReportedError;
use bgd_shared::show::signal;
use bgd_shared::ssh::{CUT, WITH_BOOTSTRAP, program, refusal};
use bgd_shared::task::Exit;

use super::greeting::GreetingError;
use super::host::Host;
use crate::exit::Code;
use crate::failure::Failure;

/// Failure kind: the host may be reachable at another time.
pub const UNREACHABLE: &str = "host_unreachable";

/// Failure kind: the host refuses this user; only the user can change that.
pub const REFUSED: &str = "host_refused";

/// Failure kind: `bgctl` is not installed on the host.
pub const NO_BGCTL: &str = "no_remote_bgctl";

/// A connection that failed.
pub struct Attempt<'a> {
    pub host: &'a Host,
    /// How long it could take.
    pub within: Duration,
    /// Whether `bgctl` is copied to the host if it is missing there.
    pub copies: bool,
}

/// Returns the failure of an attempt; `status` is that of ssh, if it has ended, and `stderr_text` everything printed on
/// standard error, by ssh and on the host.
pub fn failure(
    trouble: GreetingError,
    status: Option<ExitStatus>,
    stderr_text: &str,
    attempt: &Attempt<'_>,
) -> Failure {
    // The hints name the program that failed: another one may work.
    let (host, ssh) = (attempt.host, program());
    let ssh = ssh.display();
    let with = |message: &str| {
        if stderr_text.is_empty() { message.to_owned() } else { format!("{message}: {stderr_text}") }
    };
    match (trouble, status.and_then(|status| status.code())) {
        (GreetingError::Refused(error), _) => ClientError::Rpc(*error).into(),
        (GreetingError::Protocol(hello), _) => {
            let message = format!(
                "the daemon (version {}) speaks protocol {}, this bgctl protocol {PROTOCOL}",
                hello.version, hello.protocol
            );
            Failure::new(Code::NO_DAEMON, "other_protocol", message)
                .hint("install the same version on both machines")
        }
        (GreetingError::Banner, _) => {
            let message = "the remote shell prints text, but no daemon answers";
            Failure::new(Code::NO_DAEMON, NO_BGCTL, message)
                .hint(format!("see what it prints: {ssh} {host} true"))
        }
        (GreetingError::Late, _) => {
            let message = with(&format!("no answer within {} ms", attempt.within.as_millis()));
            Failure::new(Code::NO_DAEMON, UNREACHABLE, message)
                .hint(format!("check the connection with: {ssh} {host} true"))
        }
        (GreetingError::Closed, Some(Exit::NOT_FOUND)) => {
            let copy = if attempt.copies {
                String::new()
            } else {
                format!("; or have this one copied there {WITH_BOOTSTRAP}")
            };
            Failure::new(Code::NO_DAEMON, NO_BGCTL, with("no bgctl there")).hint(format!(
                "install bgd there so that `{ssh} {host} bgctl --version` works: bgctl must be in the PATH of shells \
                 that are not interactive{copy}"
            ))
        }
        (GreetingError::Closed, Some(CUT) | None) => closed(status, stderr_text, host),
        (GreetingError::Closed, Some(code)) if stderr_text.is_empty() => {
            let message = format!("ssh exited with code {code} without a message");
            Failure::new(Code::NO_DAEMON, NO_BGCTL, message)
                .hint(format!("to find out why, run: {ssh} {host} bgctl --version"))
        }
        (GreetingError::Closed, Some(code)) => of_dial(code, stderr_text),
    }
}

/// Returns the failure of an ssh that did not pass on an exit code.
fn closed(status: Option<ExitStatus>, stderr_text: &str, host: &Host) -> Failure {
    let ssh = program();
    let ssh = ssh.display();
    let (kind, message) = match refusal(stderr_text) {
        Some(why) => (REFUSED, format!("ssh can't connect: {why}")),
        None if !stderr_text.is_empty() => (UNREACHABLE, format!("ssh can't connect: {stderr_text}")),
        // ssh ends in the same way if a signal killed what it ran, and with `LogLevel QUIET` if it can't connect. A
        // program that is killed now, by a lack of memory for example, may run later.
        None => {
            let end = match status.map(|status| (status.code(), status.signal())) {
                Some((Some(code), _)) => format!("ssh ended with {code} without a message"),
                Some((None, Some(number))) => format!("ssh was killed by signal {}", signal(number)),
                Some((None, None)) | None => "ssh closed the connection without a message".to_owned(),
            };
            let message = format!("{end}: it can't connect, or bgctl over there was killed");
            return Failure::new(Code::NO_DAEMON, UNREACHABLE, message).hint(format!(
                "if `{ssh} {host} true` works, the connection does; then see what is wrong over there with: \
                 {ssh} {host} bgctl --version"
            ));
        }
    };
    Failure::new(Code::NO_DAEMON, kind, message).hint(format!("check the connection with: {ssh} {host} true"))
}

/// Returns the failure reported by `bgctl dial` on the host, or by the program that ran in its place.
fn of_dial(code: i32, stderr_text: &str) -> Failure {
    let Some(error) = ReportedError::last_of(stderr_text) else {
        let message = format!("no bgctl there that knows `dial`: {stderr_text}");
        return Failure::new(Code::NO_DAEMON, NO_BGCTL, message)
            .hint("install the same version of bgd on both machines");
    };
    let ReportedError { message, kind, hint } = error;
    let kind = KINDS_OF_DIAL.into_iter().find(|known| **known == *kind).unwrap_or("remote_failed");
    let code = u8::try_from(code).map_or(Code::NO_DAEMON, Code);
    let failure = Failure::new(code, kind, message);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Failure kinds of `bgctl dial` that make a difference here, or to programs.
const KINDS_OF_DIAL: [&str; 4] = ["no_daemon", "config_invalid", "untrusted_socket", "usage"];

#[cfg(test)]
mod tests {
    use super::*;

    fn of_exit(code: i32, stderr_text: &str, copies: bool) -> Failure {
        let host = Host::new("far").unwrap();
        let attempt = Attempt { host: &host, within: Duration::ZERO, copies };
        failure(GreetingError::Closed, Some(ExitStatus::from_raw(code << 8)), stderr_text, &attempt)
    }

    #[test]
    fn r140_mute_end_of_ssh_is_not_taken_for_a_failed_connection() {
        let mute = of_exit(CUT, "", false);
        assert_eq!(mute.kind, UNREACHABLE, "it may pass");
        assert_eq!(
            mute.message,
            "ssh ended with 255 without a message: it can't connect, or bgctl over there was killed"
        );
        assert!(mute.hint.unwrap().contains("far bgctl --version"));
        let gone = of_exit(CUT, "No route to host", false);
        assert_eq!((gone.kind, &*gone.message), (UNREACHABLE, "ssh can't connect: No route to host"));
        let host = Host::new("far").unwrap();
        let attempt = Attempt { host: &host, within: Duration::ZERO, copies: false };
        let killed = failure(GreetingError::Closed, Some(ExitStatus::from_raw(9)), "", &attempt);
        assert!(killed.message.starts_with("ssh was killed by signal 9 (SIGKILL): "), "{}", killed.message);
    }

    #[test]
    fn r140_refusal_of_ssh_omits_the_warning_around_it() {
        let frame = "@".repeat(59);
        let changed = format!("{frame}\nIT IS POSSIBLE\n{}\nHost key verification failed.", "x".repeat(400));
        let refused = of_exit(CUT, &changed, false);
        assert_eq!(
            (refused.kind, &*refused.message),
            (REFUSED, "ssh can't connect: Host key verification failed")
        );
    }

    #[test]
    fn r143_copy_is_suggested_only_if_none_is_made() {
        let suggests = |copies| of_exit(Exit::NOT_FOUND, "", copies).hint.unwrap().contains(WITH_BOOTSTRAP);
        assert!(suggests(false) && !suggests(true));
    }

    #[test]
    fn r140_failure_reported_by_dial_is_passed_on() {
        let line = r#"{"error":{"code":-32000,"message":"not valid","data":{"kind":"config_invalid","hint":"mend it","exit_code":78}}}"#;
        let failure = of_dial(78, &format!("Welcome!\n{line}"));
        assert_eq!(
            (failure.code, failure.kind, &*failure.message),
            (Code::CONFIG, "config_invalid", "not valid")
        );
        assert_eq!(failure.hint.as_deref(), Some("mend it"));
        assert_eq!(of_dial(1, "bgctl: Command not found.").kind, "no_remote_bgctl");
    }
}
