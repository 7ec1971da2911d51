//! A tmux server of a test, for programs that ask their terminal something that only a complete one answers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::daemon::TestDaemon;

/// A server that a test may start at this socket. Dropping it ends the server, also if the test fails before the
/// programs in it have ended: create it after the daemon, whose home holds the socket, and before the terminal.
pub struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    /// Starts nothing yet.
    pub fn of(daemon: &TestDaemon) -> Self {
        Self { socket: daemon.home().join("tmux") }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&self.socket).arg("kill-server");
        // It has usually ended by itself, with the last program in it.
        let _ = tmux.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
