//! Signals to the daemon, and notifications to the service manager.

use std::io;

use nix::sys::signal::Signal;
use nix::sys::signalfd::siginfo;

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

/// Notifies the service manager, if there is one.
pub(super) fn notify_manager(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
