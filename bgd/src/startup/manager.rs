//! Signals to the daemon, and notifications to the service manager.

use std::io;

use crate::wire::mailbox::{Internal, Internals};

/// Passes signals on to the dispatcher.
pub(super) fn watch_signals(internals: Internals) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hup = signal(SignalKind::hangup())?;
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            let internal = tokio::select! {
                Some(()) = hup.recv() => Internal::Reload,
                Some(()) = term.recv() => Internal::Terminate { signal: "SIGTERM" },
                Some(()) = int.recv() => Internal::Terminate { signal: "SIGINT" },
                else => break,
            };
            internals.send(internal);
        }
    });
    Ok(())
}

/// Notifies the service manager, if there is one.
pub(super) fn notify_manager(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
