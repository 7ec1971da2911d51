//! Signals to the daemon, and notifications to the service manager.

use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::signalfd::siginfo;
use sd_notify::NotifyState;

use crate::os::signals;
use crate::wire::mailbox::{Internal, Internals};

/// Passes signals on to the dispatcher. They must be blocked in all threads ([`signals::block_commands`]).
pub(super) fn watch_signals(internals: Internals) -> io::Result<()> {
    let news = signals::commands_to_daemon()?;
    tokio::spawn(async move {
        while let Ok(mut guard) = news.readable().await {
            match guard.get_inner().read_signal() {
                Ok(Some(signal)) => internals.send(meaning(&signal)),
                Ok(None) => guard.clear_ready(),
                Err(error) => {
                    tracing::error!(%error, "cannot read the signals to the daemon");
                    guard.clear_ready();
                }
            }
        }
    });
    Ok(())
}

fn meaning(signal: &siginfo) -> Internal {
    match i32::try_from(signal.ssi_signo).map(Signal::try_from) {
        Ok(Ok(Signal::SIGHUP)) => Internal::Reload,
        Ok(Ok(Signal::SIGINT)) => Internal::Terminate { signal: "SIGINT" },
        // No other signal is read.
        _ => Internal::Terminate { signal: "SIGTERM" },
    }
}

/// How long the daemon may need after its dispatcher has ended: to finish reads, and to end remaining processes.
const AFTERWARDS: Duration = Duration::from_secs(30);

/// Tells the service manager that the daemon is stopping, and within what time its dispatcher ends. Without that time,
/// the manager would kill it after its own limit (`TimeoutStopSec=`), even if tasks have a longer grace period.
pub(super) fn notify_stopping(left: Duration) {
    // `NotifyState::ExtendTimeoutUsec` has room for an hour only.
    let time = u64::try_from(left.saturating_add(AFTERWARDS).as_micros()).unwrap_or(u64::MAX);
    notify_manager(&[NotifyState::Stopping, NotifyState::Custom(&format!("EXTEND_TIMEOUT_USEC={time}"))]);
}

/// Notifies the service manager, if there is one.
pub(super) fn notify_manager(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
