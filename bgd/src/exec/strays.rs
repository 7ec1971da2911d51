//! Ends strays: processes that have left their task's tree unnoticed. They are orphans of the daemon, and end with
//! it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use super::adopted::Adopted;
use super::left::Spared;
use super::members;
use crate::os::pidfd::{PidFd, SIGKILL, wait_for_all};
use bgd_shared::proc;

/// How long killed processes have to disappear.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same for a daemon that must end quickly.
const PATIENCE_IN_A_HURRY: Duration = Duration::from_secs(1);

/// Finds strays. Knows which children of this process are not the daemon's.
#[derive(Debug)]
pub struct Strays {
    spared: BTreeSet<i32>,
}

impl Strays {
    /// Records the children that this process already has. Call it before anything is started: they are not the
    /// daemon's, as a shell may have started them and then become the daemon by exec.
    pub fn before_anything() -> Self {
        Self { spared: Adopted::default().orphans().into_iter().collect() }
    }

    /// Spares these, as the program before this one of the same process has found them.
    pub fn sparing(spared: impl IntoIterator<Item = i32>) -> Self {
        Self { spared: spared.into_iter().collect() }
    }

    /// Returns the children that are not the daemon's.
    pub fn spared(&self) -> Vec<i32> {
        self.spared.iter().copied().collect()
    }

    /// Kills every stray, and waits until they are gone. Returns false if some do not end. What a durable daemon leaves to the
    /// next one is spared; `output` is the folder of the outputs.
    pub fn end(&self, is_hurried: bool, left: &Spared, output: &Path) -> bool {
        let patience = if is_hurried { PATIENCE_IN_A_HURRY } else { PATIENCE };
        let deadline = Instant::now() + patience;
        loop {
            let strays = self.find(left, output);
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

    fn find(&self, left: &Spared, output: &Path) -> Vec<(i32, PidFd)> {
        // Includes children of the spawner threads: some may have survived SIGKILL and been given up.
        let mut roots = proc::children("self");
        roots.retain(|pid| !self.spared.contains(pid) && !is_daemon(*pid) && !left.owns(*pid, output));
        let processes = members::descendants_of(&roots).into_iter();
        let open =
            |pid| PidFd::open(pid).ok().filter(|process| !process.has_ended()).map(|process| (pid, process));
        processes.filter_map(open).collect()
    }
}

/// Whether a process is a daemon like this one, with tasks of its own: one of our tasks may have started it.
fn is_daemon(pid: i32) -> bool {
    match (proc::program(pid), proc::program("self")) {
        (Ok(exe), Ok(own)) => exe == own,
        // A daemon is not dumpable, so the kernel also hides which program it runs.
        (Err(error), Ok(_)) if error.kind() == ErrorKind::PermissionDenied => {
            proc::name(pid) == proc::name("self")
        }
        (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
    }
}
