//! Ends strays: processes that have left their task's tree unnoticed. They are orphans of the daemon, and end with it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Instant;

use super::left::SparedProcesses;
use super::processes::adopted::Adopted;
use super::processes::members;
use crate::os::pidfd::{PidFd, SIGKILL, wait_for_all};
use bgd_shared::proc;

/// Finds strays. Records which children of this process are not the daemon's.
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

    /// Spares the children that the previous program of the same process has recorded.
    pub fn sparing(spared: impl IntoIterator<Item = i32>) -> Self {
        Self { spared: spared.into_iter().collect() }
    }

    /// Returns the children that are not the daemon's.
    pub fn spared(&self) -> Vec<i32> {
        self.spared.iter().copied().collect()
    }

    /// Kills every stray, and waits until all are gone. Returns false if some have not ended by the deadline. Spares
    /// the processes that a durable daemon leaves to the next one, and its keeper; `output` is the folder of the
    /// outputs.
    pub fn end(
        &self,
        deadline: Instant,
        (left, keeper): (&SparedProcesses, Option<i32>),
        output: &Path,
    ) -> bool {
        loop {
            let strays = self.find((left, keeper), output);
            if strays.is_empty() {
                return true;
            }
            for (pid, process) in &strays {
                tracing::warn!(pid, "ending a process that has left its task's tree");
                // A process that has ended meanwhile needs no signal.
                let _ = process.signal(SIGKILL);
            }
            if !wait_for_all(strays.iter().map(|(_, process)| process), deadline) {
                return false;
            }
        }
    }

    fn find(&self, (left, keeper): (&SparedProcesses, Option<i32>), output: &Path) -> Vec<(i32, PidFd)> {
        // This includes children of the spawner threads: some may have survived SIGKILL and been abandoned.
        let mut roots = proc::children("self");
        roots.retain(|pid| !self.spared.contains(pid) && keeper != Some(*pid));
        roots.retain(|pid| !is_daemon(*pid) && !left.owns(*pid, output));
        let processes = members::descendants_of(&roots).into_iter();
        let open =
            |pid| PidFd::open(pid).ok().filter(|process| !process.has_ended()).map(|process| (pid, process));
        processes.filter_map(open).collect()
    }
}

/// Reports whether a process is a daemon like this one, with tasks of its own: it may have been started by one of our
/// tasks.
fn is_daemon(pid: i32) -> bool {
    match (proc::program(pid), proc::program("self")) {
        (Ok(exe), Ok(own)) => is_same_program(&exe, &own),
        // A daemon is not dumpable, so the kernel also hides its program.
        (Err(error), Ok(_)) if error.kind() == ErrorKind::PermissionDenied => {
            proc::name(pid) == proc::name("self")
        }
        (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
    }
}

/// Reports whether these are the same program, possibly in different versions: an upgrade either replaces the file,
/// which is then deleted, or continues with a file elsewhere.
fn is_same_program(one: &Path, other: &Path) -> bool {
    proc::undeleted(one).file_name() == proc::undeleted(other).file_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r121_other_versions_of_the_program_count_as_the_same() {
        let own = Path::new("/usr/bin/bgd");
        for same in ["/usr/bin/bgd", "/usr/bin/bgd (deleted)", "/opt/bin/bgd", "/opt/bin/bgd (deleted)"] {
            assert!(is_same_program(Path::new(same), own) && is_same_program(own, Path::new(same)), "{same}");
        }
        for other in ["/usr/bin/bgctl", "/usr/bin/bgctl (deleted)", "/usr/bin/bgd/sh"] {
            assert!(!is_same_program(Path::new(other), own), "{other}");
        }
    }
}
