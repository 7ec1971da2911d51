//! The file of the daemon's program: whether an installation has replaced it since the daemon started (R124).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bgd_shared::proc;
use bgd_shared::request::{ProgramState, ProgramStatus};

/// The program of this process. The kernel keeps that file while it is running, even if its name is gone.
const RUNNING: &str = "/proc/self/exe";

/// Where the program was when the daemon started.
#[derive(Clone, Debug)]
pub struct Program(PathBuf);

impl Program {
    /// Determines the program's path, as the absolute path that it was started with: a link there leads to the next
    /// version when the folder of this one is gone. `None` without /proc. Only correct at startup: later the file may
    /// have been replaced more than once, and the kernel names the one that is gone.
    pub fn own() -> Option<Self> {
        let called = std::env::args_os().next().map(PathBuf::from).filter(|path| path.is_absolute());
        let is_own = |path: &PathBuf| Self(path.clone()).state() == ProgramState::Current;
        let resolved = || proc::program("self").ok().map(|path| proc::undeleted(&path).to_owned());
        called.filter(is_own).or_else(resolved).map(Self)
    }

    /// Creates a program that is known to be at this path.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Compares the file at the path with the running program.
    pub fn status(&self) -> ProgramStatus {
        ProgramStatus { path: self.0.display().to_string(), state: self.state() }
    }

    fn state(&self) -> ProgramState {
        let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
        match identity(&self.0) {
            Some(there) if Some(there) == identity(Path::new(RUNNING)) => ProgramState::Current,
            Some(_) => ProgramState::Replaced,
            None => ProgramState::Removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r124_current_replaced_and_removed_programs_are_distinguished() {
        assert_eq!(Program::own().unwrap().status().state, ProgramState::Current);
        assert_eq!(Program("/dev/null".into()).state(), ProgramState::Replaced);
        assert_eq!(Program("/dev/null/gone".into()).state(), ProgramState::Removed);
        assert_eq!(Program::own().unwrap().path(), std::env::current_exe().unwrap());
    }
}
