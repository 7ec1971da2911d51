//! Reaps orphans: descendants of tasks whose parents have ended become children of the daemon, because it is a
//! subreaper, and would stay zombies.
//!
//! Processes that the daemon started are children of the spawner threads and are waited for by their own pidfds. The
//! kernel reparents orphans to the first thread, so waiting for the children of that thread alone never consumes a
//! leader's exit. After an upgrade in place, leaders are among its children; then orphans are waited for one by one.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::adopted::Adopted;
use crate::os::signals;

/// Reaps orphans for as long as the daemon lives. Must run on the process's first thread, while SIGCHLD is blocked in
/// all threads ([`signals::block_child`]): a handler would wake one of them for each process that ends.
///
/// # Errors
/// No descriptor is left.
pub fn start(adopted: Arc<Adopted>) -> io::Result<()> {
    let news = signals::of_children()?;
    tokio::spawn(async move {
        while let Ok(mut guard) = news.readable().await {
            // One signal stands for all that have arrived since. A later one makes the descriptor readable again.
            if let Err(error) = guard.get_inner().read_signal() {
                tracing::warn!(%error, "cannot read the signals of children");
            }
            guard.clear_ready();
            reap_orphans(&adopted);
        }
    });
    Ok(())
}

fn reap_orphans(adopted: &Adopted) {
    if adopted.is_empty() {
        while reap(Id::All) {}
    } else {
        for orphan in adopted.orphans() {
            reap(Id::Pid(Pid::from_raw(orphan)));
        }
    }
}

/// Reaps one of these children of the first thread if it has ended. Returns whether there may be another.
fn reap(which: Id<'_>) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::__WNOTHREAD;
    match waitid(which, flags) {
        Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => false,
        Ok(_) | Err(Errno::EINTR) => true,
        Err(error) => {
            tracing::warn!(%error, "cannot reap orphans");
            false
        }
    }
}
