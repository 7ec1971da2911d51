//! How a process ended that is no child of the daemon. It is never made up.
//!
//! In this order: while it waits to be taken away, `/proc` shows it; afterwards the handle to it tells
//! (Linux 6.15); on older kernels only the parent knows, and may tell by `task.exit`. For that is waited as
//! long as the program that handed it over stays connected, and [`PATIENCE`] at most.

use std::time::Duration;

use bgd_shared::task::Exit;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::drain::Drains;
use super::facts::{Remains, remains};
use crate::exec::process::Supervisor;
use crate::exec::terminal::Terminal;
use crate::sys::pidfd::PidFd;

/// How long the parent has to tell what nobody else can know.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What the system does not show in the moment of the end it shows shortly after: so long is looked again.
const SHORTLY: Duration = Duration::from_millis(1);

/// How often.
const LOOKS: u32 = 20;

/// What a supervisor knows of a process beyond those that the daemon starts.
#[derive(Debug, Default)]
pub struct Handed {
    /// Who drains its output.
    pub drains: Drains,
    /// The terminal that shows its output.
    pub terminal: Option<Terminal>,
    /// How it ended, as its parent says.
    pub told: Option<Exit>,
    /// Whether nobody is connected any more who might tell.
    pub is_left: bool,
}

/// What is known so far.
enum Known {
    Exit(Exit),
    /// It was not taken away, and is not shown to us.
    Hidden,
    /// It was taken away, and this kernel does not tell.
    Lost,
}

fn look(pid: i32, handle: &PidFd) -> Known {
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

impl Supervisor {
    /// Finds out how a process ended that was handed over. Obeys orders meanwhile.
    pub(in crate::exec) async fn exit_of_handed(&mut self, pidfd: &AsyncFd<PidFd>) -> Exit {
        let pid = self.tree.leader;
        let mut known = look(pid, pidfd.get_ref());
        for _ in 0..LOOKS {
            if !matches!(known, Known::Hidden) {
                break;
            }
            tokio::time::sleep(SHORTLY).await;
            known = look(pid, pidfd.get_ref());
        }
        let deadline = Instant::now() + PATIENCE;
        let mut may_be_taken = true;
        loop {
            let why = match known {
                Known::Exit(exit) => return exit,
                Known::Hidden => "the system does not show it, and its parent has not waited for it",
                Known::Lost => "this kernel does not tell, and neither did its parent",
            };
            let (told, is_left) = self.handed.as_ref().map_or((None, true), |handed| {
                (handed.told.clone(), handed.is_left && matches!(known, Known::Lost))
            });
            if let Some(exit) = told {
                return exit;
            }
            if is_left || Instant::now() >= deadline {
                return Exit::Unknown(why.into());
            }
            tokio::select! {
                Some(order) = self.orders.recv() => self.obey(order).await,
                () = taken_away(pidfd), if may_be_taken => may_be_taken = false,
                () = sleep_until(deadline) => {}
            }
            known = look(pid, pidfd.get_ref());
        }
    }
}

/// Waits until a process that has ended is taken away by its parent; for ever where the kernel does not
/// tell that. It can be told once only: the runtime takes it for the last word on the handle.
async fn taken_away(pidfd: &AsyncFd<PidFd>) {
    while let Ok(mut ready) = pidfd.ready(Interest::READABLE).await {
        if ready.ready().is_read_closed() {
            return;
        }
        ready.clear_ready();
    }
}
