//! The connection to the daemon of another machine: `bgctl dial` on this machine runs ssh and `bgctl dial` on the
//! remote machine. Only `bgctl` deals with ssh; this module owns its process, and the client that communicates through
//! it.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bgd_shared::client::{AsyncClient, ClientError};
use bgd_shared::error_line::ReportedError;
use bgd_shared::request::{EventsSubscribe, Hello, HelloParams, HelloResult, Method, SubscribeParams};
use bgd_shared::ssh::WITH_BOOTSTRAP;

use super::program;
use crate::exec::host::{self, Host, Launch, Leased};
use crate::remotes::Shell;

/// How much longer than ssh itself the connection may take, as programs start on both sides.
const MARGIN: Duration = Duration::from_secs(10);

/// The maximum number of message bytes that are read, from the beginning.
const MESSAGE_BYTES: u64 = 16 * 1024;

/// The error kind for an ssh that can't be started.
const NO_SSH: &str = "no_ssh";

/// What to do about that.
const SET_SSH: &str = "correct `ssh` of the executor, or install OpenSSH's client";

/// How an executor has the programs copied: options are for people.
const WITH_SETTING: &str = "with `bootstrap = true` of the executor";

/// The error kinds that do not resolve by themselves: a person must act.
const FINAL: [&str; 8] = [
    NO_SSH,
    "host_refused",
    "no_remote_bgctl",
    "bootstrap_failed",
    "other_protocol",
    "usage",
    "untrusted_socket",
    "config_invalid",
];

/// The reason why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeError {
    /// The problem, for humans, without the name of the machine.
    pub message: Box<str>,
    /// How to fix it.
    pub hint: Option<Box<str>>,
    /// Whether another attempt is pointless until a person acts.
    pub is_final: bool,
}

impl BridgeError {
    fn passing(message: impl Into<Box<str>>) -> Self {
        Self { message: message.into(), hint: None, is_final: false }
    }

    /// Returns message and hint as one sentence.
    pub fn sentence(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}; {hint}", self.message),
            None => self.message.to_string(),
        }
    }
}

/// A connection to the daemon of another machine. Dropping it ends its process; the tasks on the machine keep running.
#[derive(Debug)]
pub struct Bridge {
    client: AsyncClient,
    /// The greeting of that daemon.
    pub hello: HelloResult,
    within: Duration,
    _process: Leased,
}

/// Connects, and subscribes to the events of a parent session on the machine.
///
/// # Errors
/// The machine can't be reached, or has no daemon that this one can communicate with.
pub async fn connect(host: &Host, shell: &Shell, session: Option<&str>) -> Result<Bridge, BridgeError> {
    let cant = |error: std::io::Error| BridgeError::passing(format!("cannot start bgctl: {error}"));
    let (theirs, ours, errors) = host::socket_streams().map_err(cant)?;
    let argv = program::line(shell, &["--json"], &["dial"]).ok_or_else(no_bgctl)?;
    let launch = Launch::of_daemon(argv, program::environment(shell), theirs);
    let process = Leased(host.start(launch).await.map_err(BridgeError::passing)?);
    let client = AsyncClient::over(OwnedFd::from(ours).into()).map_err(cant)?;
    let within = shell.connect_timeout;
    let patience = shell.connect_limit() + MARGIN;
    let greeted = tokio::time::timeout(patience, client.listen::<Hello>(&HelloParams::default())).await;
    let hello = match greeted {
        Ok(Ok(hello)) => hello,
        Ok(Err(ClientError::Rpc(error))) => return Err(BridgeError::passing(error.message)),
        Ok(Err(_)) => {
            // The process has closed its streams, and is about to exit.
            let _ = tokio::time::timeout(MARGIN, process.0.exited()).await;
            return Err(reported_error(&errors, &shell.host));
        }
        Err(_) => return Err(BridgeError::passing(format!("no answer within {} s", patience.as_secs()))),
    };
    client.limit_lines(hello.limits.frame_bytes);
    let bridge = Bridge { client, hello, within, _process: process };
    if let Some(session) = session {
        let params = SubscribeParams { session: Some(session.to_owned()), ..SubscribeParams::default() };
        let subscribed = bridge.call::<EventsSubscribe>(&params).await;
        subscribed.map_err(|error| BridgeError::passing(error.to_string()))?;
    }
    Ok(bridge)
}

impl Bridge {
    /// Makes a call. The connection may be silent for its timeout.
    ///
    /// # Errors
    /// Returns the daemon's refusal, or an error if the call is too long for it or the connection is broken or silent.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.client.listen_within::<M>(self.within, params).await
    }

    /// Makes a call whose answer may take any time.
    ///
    /// # Errors
    /// Returns the daemon's refusal, or an error if the call is too long for it or the connection is broken.
    pub async fn wait<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.client.listen::<M>(params).await
    }

    /// Waits for the next event; `None` once the connection is closed.
    pub async fn next_news(&self) -> Option<bgd_shared::event::EventParams> {
        self.client.next_news().await
    }
}

fn no_bgctl() -> BridgeError {
    BridgeError {
        message: program::MISSING.into(),
        hint: Some("install both programs into one folder".into()),
        is_final: true,
    }
}

/// Returns the trouble that the process reported before it exited.
fn reported_error(errors: &OwnedFd, host: &str) -> BridgeError {
    let mut bytes = Vec::new();
    // The process has exited, so everything has been written, and our end does not block.
    if let Ok(copy) = errors.try_clone() {
        let _ = std::fs::File::from(copy).take(MESSAGE_BYTES).read_to_end(&mut bytes);
    }
    of_lines(&String::from_utf8_lossy(&bytes), host)
}

fn of_lines(text: &str, host: &str) -> BridgeError {
    match ReportedError::last_of(text) {
        Some(ReportedError { message, kind, hint }) => BridgeError {
            // Whoever shows it names the executor, which may be called like its host.
            message: message
                .strip_prefix(host)
                .and_then(|rest| rest.strip_prefix(": "))
                .unwrap_or(&message)
                .into(),
            // The environment of the daemon is not where this one is set.
            hint: if kind == NO_SSH {
                Some(SET_SSH.into())
            } else {
                hint.map(|hint| hint.replace(WITH_BOOTSTRAP, WITH_SETTING).into())
            },
            is_final: FINAL.contains(&&*kind),
        },
        None if text.trim().is_empty() => BridgeError::passing("the connection was closed without a message"),
        None => BridgeError::passing(bgd_shared::show::line(text.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r145_bridge_failure_is_read_from_the_last_line() {
        let line = r#"{"error":{"code":-32000,"message":"no bgctl there","data":{"kind":"no_remote_bgctl","hint":"install it","exit_code":69}}}"#;
        let of_lines = |text: &str| super::of_lines(text, "far");
        let trouble = of_lines(&format!("banner\n{line}\n"));
        assert_eq!((&*trouble.message, trouble.is_final), ("no bgctl there", true));
        assert_eq!(trouble.sentence(), "no bgctl there; install it");
        let silent = of_lines(&line.replace("no_remote_bgctl", "host_unreachable"));
        assert!(!silent.is_final);
        let no_ssh = of_lines(&line.replace("no_remote_bgctl", "no_ssh"));
        assert_eq!(no_ssh.hint.as_deref(), Some(SET_SSH));
        assert_eq!(&*of_lines("ssh: what?\n").message, "ssh: what?");
        assert!(!of_lines("").message.is_empty());
    }

    #[test]
    fn r145_message_omits_the_host_and_advice_is_about_the_executor() {
        let line = format!(
            r#"{{"error":{{"code":-32000,"message":"far: no bgctl there: far: x","data":{{"kind":"no_remote_bgctl","hint":"install bgd there; or have this one copied there {WITH_BOOTSTRAP}","exit_code":69}}}}}}"#
        );
        let trouble = of_lines(&line, "far");
        assert_eq!(&*trouble.message, "no bgctl there: far: x");
        let hint = "install bgd there; or have this one copied there with `bootstrap = true` of the executor";
        assert_eq!(trouble.hint.as_deref(), Some(hint));
        assert_eq!(&*of_lines(&line, "fa").message, "far: no bgctl there: far: x");
    }
}
