//! What has left its task's tree unseen: such processes are orphans of the daemon, and are ended with it.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use super::members;
use crate::os::pidfd::{PidFd, SIGKILL, wait_for_all};
use bgd_shared::proc;

/// How long killed processes have to be gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same for a daemon that is in a hurry.
const PATIENCE_IN_A_HURRY: Duration = Duration::from_secs(1);

/// Knows which children of this process are none of the daemon's.
#[derive(Debug)]
pub struct Strays {
    spared: HashSet<i32>,
}

impl Strays {
    /// To be called before anything is started: children that this process has by then are not the
    /// daemon's (a shell may have started them and then become the daemon).
    pub fn before_anything() -> Self {
        Self { spared: members::orphans().into_iter().collect() }
    }

    /// Ends every stray, and waits until they are gone. False: some do not end.
    pub fn end(&self, is_hurried: bool) -> bool {
        let patience = if is_hurried { PATIENCE_IN_A_HURRY } else { PATIENCE };
        let deadline = Instant::now() + patience;
        loop {
            let strays = self.find();
            if strays.is_empty() {
                return true;
            }
            for (pid, process) in &strays {
                tracing::warn!(pid, "ending a process that has left its task's tree");
                // One that has ended meanwhile needs no signal.
                let _ = process.signal(SIGKILL);
            }
            if !wait_for_all(strays.iter().map(|(_, process)| process), deadline) {
                return false;
            }
        }
    }

    fn find(&self) -> Vec<(i32, PidFd)> {
        // Also those that spawners started: some may not end by SIGKILL, and were given up.
        let mut roots = proc::children("self");
        roots.retain(|pid| !self.spared.contains(pid) && !is_daemon(*pid));
        let processes = members::descendants_of(&roots).into_iter();
        let open =
            |pid| PidFd::open(pid).ok().filter(|process| !process.has_ended()).map(|process| (pid, process));
        processes.filter_map(open).collect()
    }
}

/// Whether a process is a daemon like this one, with tasks of its own: one of our tasks may have
/// started it.
fn is_daemon(pid: i32) -> bool {
    match (proc::program(pid), proc::program("self")) {
        (Ok(exe), Ok(own)) => exe == own,
        // A daemon keeps its memory to itself, and with it the kernel keeps which program it runs.
        (Err(error), Ok(_)) if error.kind() == ErrorKind::PermissionDenied => {
            proc::name(pid) == proc::name("self")
        }
        (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
    }
}
