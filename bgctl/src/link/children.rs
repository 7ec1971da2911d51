//! The processes of ssh that this process has started: how they begin, and that all of them end with it.

use std::io;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bgd_shared::proc::{self, ProcessStat};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::wait::time_left;

/// The time ssh gets to print its configuration, and to end after its streams were closed.
pub const SHORT: Duration = Duration::from_secs(5);

/// Waits for the exit of ssh until then. `None`: it is still running.
pub fn ended(ssh: &mut Child, until: Instant) -> Option<ExitStatus> {
    let pidfd = pidfd_open(Pid::from_child(ssh), PidfdFlags::empty()).ok()?;
    while let Err(Errno::EINTR) = poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], time_left(until))
    {
    }
    ssh.try_wait().ok().flatten()
}

/// Ends ssh, with time to put the terminal in order that it may have asked something.
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

/// Whether no ssh is to be started any more. Held while one is started.
static IS_ENDING: Mutex<bool> = Mutex::new(false);

/// Starts an ssh, unless this process is about to end.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let is_ending = IS_ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_ending { Err(io::Error::other("bgctl ends")) } else { command.spawn() }
}

/// Ends all children of this process, and lets no ssh start any more: before it ends itself while threads still connect
/// to hosts, whose ssh would go on for as long as it takes to reach them.
pub fn end_children() {
    *IS_ENDING.lock().unwrap_or_else(PoisonError::into_inner) = true;
    let own = std::process::id();
    for pid in proc::children(own) {
        let Some(child) = Pid::from_raw(pid) else { continue };
        let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) else { continue };
        // The number may be another process's by now, but the descriptor is not.
        if ProcessStat::of(pid).and_then(|stat| stat.parent()) == i32::try_from(own).ok() {
            // Whoever has the screen has other signals blocked, and so have its children.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}
