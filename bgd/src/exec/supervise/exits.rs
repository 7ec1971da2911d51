//! Waits for the exit of a process that is not a child of the daemon; its supervisor handles commands meanwhile.

use bgd_shared::task::Exit;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::process::Supervisor;
use crate::exec::handed::exit::{Known, LOOKS, PATIENCE, SHORTLY, look, until_reaped};
use crate::os::pidfd::PidFd;

impl Supervisor {
    /// Returns the exit of a process that another program, or a killed daemon, started. Handles commands while it
    /// waits.
    pub(super) async fn exit_of_another(&mut self, pidfd: &AsyncFd<PidFd>) -> Exit {
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
                Known::Hidden => "the system does not report it, and its parent has not waited for it",
                Known::Lost if self.tree.is_inherited => {
                    "the daemon that started it was gone, and this kernel reports it only to parents (Linux 6.15 to others, too)"
                }
                Known::Lost => "neither this kernel nor its parent reported it",
            };
            let is_lost = matches!(known, Known::Lost);
            let (reported, is_left) = self
                .handed
                .as_ref()
                .map_or((None, is_lost), |handed| (handed.reported.clone(), handed.is_left && is_lost));
            if let Some(exit) = reported {
                return exit;
            }
            if is_left || Instant::now() >= deadline {
                return Exit::Unknown(why.into());
            }
            tokio::select! {
                Some(order) = self.orders.recv() => self.handle_control(order).await,
                () = until_reaped(pidfd), if may_be_taken => may_be_taken = false,
                () = sleep_until(deadline) => {}
            }
            known = look(pid, pidfd.get_ref());
        }
    }
}
