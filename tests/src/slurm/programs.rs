//! Slurm's commands for a program under test: each call is recorded, and a test can make a command misbehave.

use std::fs;
use std::path::{Path, PathBuf};

use crate::executable;
use crate::wait;

/// The commands that the executor may use.
const NAMES: [&str; 5] = ["sbatch", "squeue", "scontrol", "scancel", "sacct"];

/// A folder with the commands, to be put first in a `PATH`.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// Writes the commands into a folder of the cluster at `home`.
    pub(super) fn write(home: &Path) -> Self {
        let programs = Self(home.join("programs"));
        fs::create_dir(&programs.0).expect("a folder");
        for name in NAMES {
            let text = format!(
                "#!/bin/sh\nfolder={folder}\nprintf '%s\\n' \"$*\" >>\"$folder/{name}.calls\"\n\
                 [ ! -e \"$folder/{name}.first\" ] || . \"$folder/{name}.first\"\n\
                 SLURM_CONF={home}/slurm.conf exec /usr/bin/{name} \"$@\"\n",
                folder = programs.0.display(),
                home = home.display(),
            );
            executable::write(&programs.0.join(name), &text);
        }
        programs
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the arguments of each call of a command so far. An argument with several lines counts as several calls.
    pub fn calls(&self, name: &str) -> Vec<String> {
        let noted = fs::read_to_string(self.0.join(format!("{name}.calls"))).unwrap_or_default();
        noted.lines().map(str::to_owned).collect()
    }

    /// Waits until a command was called this often.
    #[track_caller]
    pub fn wait_for_calls(&self, name: &str, count: u64) {
        wait::for_lines(&self.0.join(format!("{name}.calls")), count, "");
    }

    /// Runs these lines of shell at the beginning of each later call of a command. Unless they exit, the real command
    /// follows.
    pub fn before(&self, name: &str, lines: &str) {
        let draft = self.0.join("draft");
        fs::write(&draft, format!("{lines}\n")).expect("a file");
        fs::rename(draft, self.0.join(format!("{name}.first"))).expect("a file");
    }

    /// Makes later calls of a command run the real one directly. The file stays, as a call may be about to read it.
    pub fn restore(&self, name: &str) {
        assert!(self.0.join(format!("{name}.first")).exists(), "a command that misbehaves");
        self.before(name, "");
    }
}
