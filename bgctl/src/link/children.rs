//! The ssh processes that this process has started: starting them, and ending all of them with this process.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use bgd_shared::mutex::Mutex;
use bgd_shared::proc::{self, ProcessStat};
use nix::poll::PollFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::wait::becomes_ready;

/// How long ssh may take to print its configuration, or to exit after its streams were closed.
pub const SHORT: Duration = Duration::from_secs(5);

/// Waits until the deadline for a child process to exit. `None` if it is still running.
pub fn ended(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()?;
    let _ = becomes_ready(pidfd, PollFlags::POLLIN, until);
    child.try_wait().ok().flatten()
}

/// Ends ssh, and gives it time to restore the terminal if it was asking for something.
pub fn end(ssh: &mut Child) {
    if matches!(ssh.try_wait(), Ok(Some(_))) {
        return;
    }
    let _ = kill_process(Pid::from_child(ssh), Signal::TERM);
    if ended(ssh, Instant::now() + SHORT).is_none() {
        let _ = ssh.kill();
        let _ = ssh.wait();
    }
}

/// Whether no more ssh may be started. Locked while one is started.
static IS_ENDING: Mutex<bool> = Mutex::new(false);

/// Starts an ssh, unless this process is about to end.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let is_ending = IS_ENDING.lock();
    if *is_ending { Err(io::Error::other("bgctl ends")) } else { command.spawn() }
}

/// Kills all children of this process, and prevents further ssh from being started. For a process that exits while
/// threads still connect to hosts: their ssh would keep running for as long as it takes to reach the hosts.
pub fn end_children() {
    *IS_ENDING.lock() = true;
    let own = std::process::id();
    for pid in proc::children(own) {
        let Some(child) = Pid::from_raw(pid) else { continue };
        let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) else { continue };
        // The pid may have been reused by now, but the descriptor can't refer to another process.
        if ProcessStat::of(pid).and_then(|stat| stat.parent()) == i32::try_from(own).ok() {
            // A full-screen view has other signals blocked, and its children inherit that.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

/// The ssh of each connection to a remote machine, until it has ended.
#[derive(Debug, Default)]
pub struct Carriers(Mutex<Vec<Child>>);

impl Carriers {
    /// Adds the ssh of a new connection, and reaps those that have ended.
    pub fn add(&self, ssh: Child) {
        let mut all = self.0.lock();
        all.retain_mut(|ssh| matches!(ssh.try_wait(), Ok(None)));
        all.push(ssh);
    }
}
