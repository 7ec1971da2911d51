//! `daemon stop`: asks the daemon to end, and returns when its process is gone. One that can't be asked is told by a
//! signal.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bgd_shared::client::{BUSY, Client, ClientError, FIRST_ANSWER};
use bgd_shared::error::ErrorKind;
use bgd_shared::request::{DaemonShutdown, ShutdownParams, ShutdownResult};
use rustix::process::Signal;

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::living::Living;

/// Stops the daemon, if one runs.
pub fn run(grace_ms: Option<u64>, context: &mut Context) -> Result<Code, Failure> {
    let daemon = Living::of(&context.socket()?);
    let outcome = match (context.running(), &daemon) {
        (Ok(None), None) => {
            if context.json() {
                context.print_json(&ShutdownResult { cancelled: 0 })?;
            } else {
                context.print("no daemon is running\n")?;
            }
            return Ok(Code::OK);
        }
        (Ok(None), Some(daemon)) => {
            say(&format!("the daemon (pid {}) runs, but its socket is gone: it gets SIGTERM", daemon.pid()));
            by_signal(daemon, grace_ms)
        }
        (Ok(Some(mut client)), daemon) => by_call(&mut client, daemon.as_ref(), grace_ms),
        (Err(failure), Some(daemon)) if failure.kind == "no_answer" => {
            say(&failure.message);
            by_signal(daemon, grace_ms)
        }
        (Err(failure), _) => Err(failure),
    };
    let result = outcome?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        match result.cancelled {
            0 => context.print("stopped\n")?,
            1 => context.print("stopped; 1 task was cancelled\n")?,
            count => context.print(&format!("stopped; {count} tasks were cancelled\n"))?,
        }
    }
    Ok(Code::OK)
}

/// Standard error may be closed; the exit code tells how it went.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "bgctl: {text}");
}

/// Asks it, and waits for as long as it works on that.
fn by_call(
    client: &mut Client,
    daemon: Option<&Living>,
    grace_ms: Option<u64>,
) -> Result<ShutdownResult, Failure> {
    let _progress = Progress::begin(daemon);
    let call = client.send::<DaemonShutdown>(&ShutdownParams { grace_ms }, &[])?;
    let outcome = match client.answer::<DaemonShutdown>(call) {
        Err(ClientError::NoAnswer(silent)) => {
            let Some(daemon) = daemon else { return Err(silent.into()) };
            if !daemon.is_stopped() {
                say(&silent.to_string());
                return by_signal(daemon, grace_ms);
            }
            // What it was asked waits for it.
            say(&format!("the daemon (pid {}) is stopped: it gets SIGCONT, to end", daemon.pid()));
            daemon.signal(Signal::CONT)?;
            client.wait_again();
            client.answer::<DaemonShutdown>(call)
        }
        outcome => outcome,
    };
    let result = match outcome {
        Ok(result) => result,
        // Somebody else stops it at the same time: all the same, it will be gone.
        Err(ClientError::Rpc(error)) if error.kind() == ErrorKind::ShuttingDown => {
            ShutdownResult { cancelled: 0 }
        }
        Err(ClientError::Closed) => ShutdownResult { cancelled: 0 },
        Err(error) => return Err(error.into()),
    };
    client.until_closed()?;
    match daemon {
        // The kernel closes a process's connections a moment before it is gone.
        Some(daemon) if !daemon.has_ended(BUSY) => Err(lasts(daemon, BUSY)),
        Some(_) | None => Ok(result),
    }
}

/// Tells it by SIGTERM, which cancels every task; a second one does not wait for the grace.
fn by_signal(daemon: &Living, grace_ms: Option<u64>) -> Result<ShutdownResult, Failure> {
    let _progress = Progress::begin(Some(daemon));
    let is_stopped = daemon.is_stopped();
    daemon.signal(Signal::TERM)?;
    if is_stopped {
        daemon.signal(Signal::CONT)?;
    }
    let grace = grace_ms.map_or(FIRST_ANSWER, Duration::from_millis);
    if !daemon.has_ended(grace) {
        if grace_ms.is_some() {
            daemon.signal(Signal::TERM)?;
        }
        if !daemon.has_ended(BUSY) {
            return Err(lasts(daemon, grace + BUSY));
        }
    }
    // How many they were, it can tell nobody.
    Ok(ShutdownResult { cancelled: 0 })
}

fn lasts(daemon: &Living, after: Duration) -> Failure {
    let pid = daemon.pid();
    let state = daemon.holder.state().map(|state| format!("; it {state}")).unwrap_or_default();
    let message = format!("the daemon (pid {pid}) has not ended after {} s{state}", after.as_secs());
    Failure::new(Code::NO_DAEMON, "no_answer", message).hint(format!(
        "its tasks may use their grace: `bgctl daemon stop --grace 0` does not wait for that; \
         `kill -KILL {pid}` ends it, and the next daemon ends what it leaves"
    ))
}

/// Tells people what is waited for.
struct Progress {
    /// Dropped at the end, which the thread hears.
    _end: Option<mpsc::Sender<()>>,
}

/// When it is told first, and how often then.
const FIRST_TOLD: Duration = Duration::from_secs(2);
const TOLD_EVERY: Duration = Duration::from_secs(10);

impl Progress {
    fn begin(daemon: Option<&Living>) -> Self {
        if !io::stderr().is_terminal() {
            return Self { _end: None };
        }
        let who = daemon.map(|daemon| format!(" (pid {})", daemon.pid())).unwrap_or_default();
        let (end, ends) = mpsc::channel();
        let told = thread::Builder::new().name("progress".to_owned()).spawn(move || {
            let mut waited = FIRST_TOLD;
            let mut pause = FIRST_TOLD;
            while ends.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                say(&format!("waiting for the daemon{who} to end, {} s so far …", waited.as_secs()));
                waited += TOLD_EVERY;
                pause = TOLD_EVERY;
            }
        });
        Self { _end: told.is_ok().then_some(end) }
    }
}
