//! How a process ended that is not a child of the daemon. The exit is never made up.
//!
//! The sources, in this order: while the process is a zombie, `/proc` shows its exit; afterwards its pidfd does
//! (Linux 6.15); on older kernels only the parent knows, and may report it by `task.exit`. The daemon waits for that
//! as long as the program that handed the process over stays connected, and [`PATIENCE`] at most.

use std::time::Duration;

use bgd_shared::task::Exit;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::drain::Drains;
use super::facts::{Remains, remains};
use crate::exec::terminal::Terminal;
use crate::os::pidfd::PidFd;

/// How long the parent has to report what nobody else can know.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The interval between looks for what the system shows only shortly after the end.
pub(in crate::exec) const SHORTLY: Duration = Duration::from_millis(1);

/// The number of such looks.
pub(in crate::exec) const LOOKS: u32 = 20;

/// What a supervisor keeps for a handed-over process in addition.
#[derive(Debug, Default)]
pub struct Handed {
    /// The drains of its output.
    pub drains: Drains,
    /// The terminal that shows its output, if it came with one.
    pub terminal: Option<Terminal>,
    /// Its exit, as reported by its parent.
    pub reported: Option<Exit>,
    /// Whether the client that might report its exit has disconnected.
    pub is_left: bool,
}

/// What is known of an exit so far.
pub(in crate::exec) enum Known {
    /// How it ended.
    Exit(Exit),
    /// It was not reaped yet, and the system does not show us its exit.
    Hidden,
    /// It was reaped, and this kernel does not keep the exit.
    Lost,
}

/// Looks up how a process ended.
pub(in crate::exec) fn look(pid: i32, handle: &PidFd) -> Known {
    match (handle.exit_info(), remains(pid, handle)) {
        (Ok(Some(exit)), _) | (_, Remains::Exit(exit)) => Known::Exit(exit),
        (_, Remains::Hidden) => Known::Hidden,
        // It may have been reaped between the two looks.
        (_, Remains::Gone) => match handle.exit_info() {
            Ok(Some(exit)) => Known::Exit(exit),
            Ok(None) | Err(_) => Known::Lost,
        },
    }
}

/// Waits until an ended process is reaped by its parent; forever if the kernel does not report that. This works only
/// once: the runtime takes the event for the last one of the pidfd.
pub(in crate::exec) async fn taken_away(pidfd: &AsyncFd<PidFd>) {
    while let Ok(mut ready) = pidfd.ready(Interest::READABLE).await {
        if ready.ready().is_read_closed() {
            return;
        }
        ready.clear_ready();
    }
}
