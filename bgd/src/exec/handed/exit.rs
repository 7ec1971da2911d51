//! How a process ended that is no child of the daemon. It is never made up.
//!
//! In this order: while it waits to be taken away, `/proc` shows it; afterwards the handle to it tells
//! (Linux 6.15); on older kernels only the parent knows, and may tell by `task.exit`. For that is waited as
//! long as the program that handed it over stays connected, and [`PATIENCE`] at most.

use std::time::Duration;

use bgd_shared::task::Exit;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::drain::Drains;
use super::facts::{Remains, remains};
use crate::exec::terminal::Terminal;
use crate::os::pidfd::PidFd;

/// How long the parent has to tell what nobody else can know.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What the system does not show in the moment of the end it shows shortly after: so long is looked again.
pub(in crate::exec) const SHORTLY: Duration = Duration::from_millis(1);

/// How often.
pub(in crate::exec) const LOOKS: u32 = 20;

/// What a supervisor knows of a process beyond those that the daemon starts.
#[derive(Debug, Default)]
pub struct Handed {
    /// Who drains its output.
    pub drains: Drains,
    /// The terminal that shows its output.
    pub terminal: Option<Terminal>,
    /// How it ended, as its parent says.
    pub reported: Option<Exit>,
    /// Whether nobody is connected any more who might tell.
    pub is_left: bool,
}

/// What is known so far.
pub(in crate::exec) enum Known {
    /// How it ended.
    Exit(Exit),
    /// It was not taken away, and is not shown to us.
    Hidden,
    /// It was taken away, and this kernel does not tell.
    Lost,
}

/// What is known of the end of a process.
pub(in crate::exec) fn look(pid: i32, handle: &PidFd) -> Known {
    match (handle.exit_info(), remains(pid, handle)) {
        (Ok(Some(exit)), _) | (_, Remains::Exit(exit)) => Known::Exit(exit),
        (_, Remains::Hidden) => Known::Hidden,
        // It may have been taken away between the two looks.
        (_, Remains::Gone) => match handle.exit_info() {
            Ok(Some(exit)) => Known::Exit(exit),
            Ok(None) | Err(_) => Known::Lost,
        },
    }
}

/// Waits until a process that has ended is taken away by its parent; for ever where the kernel does not
/// tell that. It can be told once only: the runtime takes it for the last word on the handle.
pub(in crate::exec) async fn taken_away(pidfd: &AsyncFd<PidFd>) {
    while let Ok(mut ready) = pidfd.ready(Interest::READABLE).await {
        if ready.ready().is_read_closed() {
            return;
        }
        ready.clear_ready();
    }
}
