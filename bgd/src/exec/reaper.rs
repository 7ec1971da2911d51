//! Reaps orphans: descendants of tasks whose parents have ended become children of the daemon, because it is a
//! subreaper, and would stay zombies.
//!
//! Processes that the daemon started are children of the spawner threads and are waited for by their own pidfds. The
//! kernel reparents orphans to the first thread, so waiting for the children of that thread alone never consumes a
//! leader's exit.

use std::io;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use tokio::signal::unix::{SignalKind, signal};

/// Reaps orphans for as long as the daemon lives. Must run on the process's first thread.
///
/// # Errors
/// The signal handler can't be installed.
pub fn start() -> io::Result<()> {
    let mut child_signals = signal(SignalKind::child())?;
    tokio::spawn(async move {
        while child_signals.recv().await.is_some() {
            reap_orphans();
        }
    });
    Ok(())
}

fn reap_orphans() {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::__WNOTHREAD;
    loop {
        match waitid(Id::All, flags) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => break,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot reap orphans");
                break;
            }
        }
    }
}
