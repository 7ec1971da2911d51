//! The exit of a process that is not a child of the daemon. The exit is never made up.
//!
//! The sources, in this order: while the process is a zombie, `/proc` shows its exit; afterwards its pidfd does (Linux
//! 6.15); on older kernels only the parent knows it, and may report it by `task.exit`. The daemon waits for that report
//! as long as the program that handed the process over stays connected, and at most for [`PATIENCE`].

use std::time::Duration;

use bgd_shared::task::Exit;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::drain::Drains;
use super::facts::{ExitInfo, remains};
use crate::exec::terminal::Terminal;
use crate::os::pidfd::PidFd;

/// How long the parent may take to report an exit that only it can know.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The interval between looks for a state that the system shows only shortly after the end.
pub(in crate::exec) const SHORTLY: Duration = Duration::from_millis(1);

/// The number of such looks.
pub(in crate::exec) const LOOKS: u32 = 20;

/// Additional state of the supervisor of a handed-over process.
#[derive(Debug, Default)]
pub struct Handed {
    /// The drains of its output.
    pub drains: Drains,
    /// The terminal that shows its output, if one came with it.
    pub terminal: Option<Terminal>,
    /// Its exit, as reported by its parent.
    pub reported: Option<Exit>,
    /// Whether the client that might report its exit has disconnected.
    pub is_left: bool,
}

/// The information about an exit so far.
pub(in crate::exec) enum Known {
    Exit(Exit),
    /// It was not reaped yet, and the system hides its exit from us.
    Hidden,
    /// It was reaped, and this kernel does not keep its exit.
    Lost,
}

/// Looks up the exit of an ended process.
pub(in crate::exec) fn look(pid: i32, handle: &PidFd) -> Known {
    match (handle.exit_info(), remains(pid, handle)) {
        (Ok(Some(exit)), _) | (_, ExitInfo::Exit(exit)) => Known::Exit(exit),
        (_, ExitInfo::Hidden) => Known::Hidden,
        // It may have been reaped between the two looks.
        (_, ExitInfo::Gone) => match handle.exit_info() {
            Ok(Some(exit)) => Known::Exit(exit),
            Ok(None) | Err(_) => Known::Lost,
        },
    }
}

/// Waits until an ended process is reaped by its parent; forever if the kernel does not report that. Works only once:
/// the runtime takes this event for the last one of the pidfd.
pub(in crate::exec) async fn until_reaped(pidfd: &AsyncFd<PidFd>) {
    while let Ok(mut ready) = pidfd.ready(Interest::READABLE).await {
        if ready.ready().is_read_closed() {
            return;
        }
        ready.clear_ready();
    }
}
