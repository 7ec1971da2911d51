//! `daemon stop`: asks the daemon to end and waits until its process is gone. A daemon that can't be asked gets a
//! signal.

use std::thread;
use std::time::Duration;

use bgd_shared::client::{BUSY, Client, ClientError, FIRST_ANSWER};
use bgd_shared::error::ErrorKind;
use bgd_shared::holder::Phase;
use bgd_shared::request::{DaemonShutdown, ShutdownParams, ShutdownResult};
use bgd_shared::show::count;
use rustix::process::Signal;

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{self, DaemonProcess, pauses};
use crate::progress::Progress;
use crate::remark::report;
use crate::render::clean;

/// Stops the daemon if one is running, then prints the outcome.
pub fn run(order: ShutdownParams, context: &mut Context) -> Result<Code, Failure> {
    let mut stopped = stop(order, context)?;
    // During a restart there is no daemon between the end of the old one and the start of the next one.
    if stopped.is_none() && !context.link.is_remote() && link::until_started(&context.link.socket()?)? {
        stopped = stop(order, context)?;
    }
    if context.json() {
        context.print_json(&stopped.unwrap_or(NOTHING))?;
        return Ok(Code::OK);
    }
    match stopped {
        None => context.print("no daemon is running\n")?,
        Some(result) => context.print(&words(&result))?,
    }
    Ok(Code::OK)
}

/// Formats the outcome, including the fate of the tasks.
pub fn words(result: &ShutdownResult) -> String {
    let ShutdownResult { cancelled, left, lost, ref lost_because } = *result;
    let tasks = |number: u64| count(number, "task");
    let is = |number: u64| {
        if number == 1 { ("was", "is", "keeps", "it") } else { ("were", "are", "keep", "them") }
    };
    let ((were, ..), (_, are, ..), (.., keep, them)) = (is(cancelled), is(lost), is(left));
    let next = match lost {
        0 => format!("the next daemon finds {them} again"),
        // What runs elsewhere is out of its reach.
        _ => format!("the next daemon ends {them} unless on another machine"),
    };
    let why = lost_because.as_ref().map(|why| clean(why));
    let parts = [
        (cancelled > 0).then(|| format!("; {} {were} cancelled", tasks(cancelled))),
        (left > 0).then(|| format!("; {} {keep} running, and {next}", tasks(left))),
        why.map(|why| match lost {
            0 => format!("; the latest changes are lost: {why}"),
            _ => format!(
                "; {} {are} lost unless the journal's folder is put back before the next daemon starts: {why}",
                tasks(lost)
            ),
        }),
    ];
    format!("stopped{}\n", parts.into_iter().flatten().collect::<String>())
}

/// The result if the outcome for the tasks is unknown.
const NOTHING: ShutdownResult = ShutdownResult { cancelled: 0, left: 0, lost: 0, lost_because: None };

/// Stops the daemon. Returns `None` if none is running.
///
/// # Errors
/// The daemon does not end, or the socket is not trusted.
pub fn stop(order: ShutdownParams, context: &Context) -> Result<Option<ShutdownResult>, Failure> {
    // A process on a remote machine can only be asked.
    let daemon = match context.link.host() {
        Some(_) => None,
        None => DaemonProcess::of(&context.link.socket()?),
    };
    let outcome = match (context.link.running(), &daemon) {
        (Ok(None), None) if order.cancel && context.link.has_left_tasks() => {
            return Err(left_tasks("no daemon is running, but the last one was durable, and"));
        }
        (Ok(None), None) => return Ok(None),
        (Ok(None), Some(daemon)) => {
            let is = match daemon.holder.note.phase {
                Phase::Starting => "is starting",
                Phase::Ready => "is running, but its socket is gone",
                Phase::Ending => "is shutting down already",
            };
            report(&format!("the daemon (pid {}) {is}: sending SIGTERM", daemon.pid()));
            by_signal(daemon, order).map(|()| None)
        }
        (Ok(Some(mut client)), daemon) => match (by_call(&mut client, daemon.as_ref(), order), daemon) {
            // Even the places reserved for such calls are taken.
            (Err(failure), Some(daemon)) if failure.kind == ErrorKind::TooManyConnections.as_str() => {
                report(&format!("{}: sending SIGTERM", failure.message));
                by_signal(daemon, order).map(|()| None)
            }
            (outcome, _) => outcome,
        },
        (Err(failure), Some(daemon)) if failure.kind == "no_answer" => {
            report(&failure.message);
            by_signal(daemon, order).map(|()| None)
        }
        (Err(failure), _) => Err(failure),
    };
    let result = outcome?;
    // Connecting once more would start the next daemon if a service manager listens for it.
    if result.is_none() && context.link.is_remote() {
        confirm(context)?;
    }
    if result.is_none() && order.cancel && (context.link.is_remote() || context.link.has_left_tasks()) {
        return Err(left_tasks("the daemon ended without an answer, and"));
    }
    Ok(Some(result.unwrap_or(NOTHING)))
}

/// Creates the failure for a daemon that has ended, as `what` says, and may have left tasks running. Starting a daemon to
/// cancel them would also start pending tasks; that is for the user to decide.
fn left_tasks(what: &str) -> Failure {
    let message = format!("{what} may have left tasks running");
    Failure::new(Code::NO_DAEMON, "no_daemon", message).hint(
        "`bgctl daemon start` takes them over, and starts what is pending; then `bgctl daemon stop --cancel` cancels \
         what runs",
    )
}

/// Makes sure that the daemon of a remote machine has ended, and not only the connection to it. Its process can't be
/// waited for from here.
fn confirm(context: &Context) -> Result<(), Failure> {
    for pause in pauses() {
        match context.link.running() {
            Ok(None) => return Ok(()),
            // Something has started the next one already.
            Err(failure) if failure.kind == link::OTHER_INSTANCE => return Ok(()),
            running => drop(running?),
        }
        thread::sleep(pause);
    }
    let message = "the connection was lost; the daemon is still running";
    Err(Failure::new(Code::NO_DAEMON, "maybe_done", message))
}

/// Requests the shutdown, and waits for as long as the daemon keeps working on it. `None` if the daemon ended without an
/// answer to this request.
fn by_call(
    client: &mut Client,
    daemon: Option<&DaemonProcess>,
    order: ShutdownParams,
) -> Result<Option<ShutdownResult>, Failure> {
    let _progress = Progress::begin(&waited_for(daemon));
    let call = client.send::<DaemonShutdown>(&order, &[])?;
    let outcome = match client.answer::<DaemonShutdown>(call) {
        Err(ClientError::NoAnswer(silent)) => {
            let Some(daemon) = daemon else { return Err(silent.into()) };
            if !daemon.is_stopped() {
                report(&silent.to_string());
                return by_signal(daemon, order).map(|()| None);
            }
            // The request stays queued and is served once the daemon continues.
            report(&format!(
                "the daemon (pid {}) is stopped: sending SIGCONT so that it can end",
                daemon.pid()
            ));
            daemon.signal(Signal::CONT)?;
            client.wait_again();
            client.answer::<DaemonShutdown>(call)
        }
        outcome => outcome,
    };
    let result = match outcome {
        Ok(result) => Some(result),
        // Another caller is already stopping the daemon; wait for it nevertheless.
        Err(ClientError::Rpc(error)) if error.kind() == ErrorKind::ShuttingDown => None,
        Err(ClientError::Closed) => None,
        Err(error) => return Err(error.into()),
    };
    client.until_closed()?;
    match daemon {
        // The kernel closes a process's connections shortly before the process is gone.
        Some(daemon) if !daemon.has_ended(BUSY) => Err(lasts(daemon, BUSY)),
        Some(_) | None => Ok(result),
    }
}

/// Stops the daemon by SIGTERM, which cancels every task except those of a durable daemon. With `--grace`, a second
/// SIGTERM skips the rest of the tasks' grace period.
fn by_signal(daemon: &DaemonProcess, order: ShutdownParams) -> Result<(), Failure> {
    let ShutdownParams { grace_ms, cancel } = order;
    if cancel {
        report("a signal does not cancel the tasks of a durable daemon");
    }
    let _progress = Progress::begin(&waited_for(Some(daemon)));
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
    Ok(())
}

fn waited_for(daemon: Option<&DaemonProcess>) -> String {
    let who = daemon.map(|daemon| format!(" (pid {})", daemon.pid())).unwrap_or_default();
    format!("the daemon{who} to end")
}

fn lasts(daemon: &DaemonProcess, after: Duration) -> Failure {
    let pid = daemon.pid();
    let state = daemon.holder.state().map(|state| format!("; it {state}")).unwrap_or_default();
    let message = format!("the daemon (pid {pid}) has not ended after {} s{state}", after.as_secs());
    Failure::new(Code::NO_DAEMON, "no_answer", message).hint(format!(
        "its tasks may be using their grace period: `bgctl daemon stop --grace 0` skips it; `kill -KILL {pid}` \
         kills the daemon, and the next one ends any remaining processes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r131_stop_promises_nothing_about_tasks_of_a_missing_journal() {
        let kept = ShutdownResult { left: 1, ..NOTHING };
        assert_eq!(words(&kept), "stopped; 1 task keeps running, and the next daemon finds it again\n");
        let lost =
            ShutdownResult { left: 2, lost: 3, lost_because: Some("it was removed".into()), ..NOTHING };
        assert_eq!(
            words(&lost),
            "stopped; 2 tasks keep running, and the next daemon ends them unless on another machine; 3 tasks are lost \
             unless the journal's folder is put back before the next daemon starts: it was removed\n"
        );
        let some = ShutdownResult { lost: 0, left: 0, ..lost };
        assert_eq!(words(&some), "stopped; the latest changes are lost: it was removed\n");
    }
}
