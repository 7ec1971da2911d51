//! The exit code and the output of a program.

use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;

/// The exit code and the output of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The exit code, or 128 + the number of the signal that ended it.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    /// Runs a command to its end, without input.
    pub fn of(command: &mut Command) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        let output =
            command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let code = output.status.code().or_else(|| output.status.signal().map(|signal| 128 + signal));
        Self {
            code: code.expect("a process that was waited for has exited or was killed"),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts this exit code.
    #[track_caller]
    #[allow(clippy::return_self_not_must_use, reason = "making sure is often all that is wanted")]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout_text(), self.stderr);
        self
    }

    /// Asserts the exit code 0.
    #[track_caller]
    #[allow(clippy::return_self_not_must_use, reason = "making sure is often all that is wanted")]
    pub fn success(self) -> Self {
        self.expect_code(0)
    }

    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Parses stdout as a single word (an id, for instance).
    #[track_caller]
    pub fn word<T: std::str::FromStr<Err: std::fmt::Debug>>(&self) -> T {
        self.stdout_text()
            .trim()
            .parse()
            .unwrap_or_else(|error| panic!("{:?}: {error:?}", self.stdout_text()))
    }

    /// Parses stdout as JSON (`--json`).
    #[track_caller]
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("{:?}: {error}", self.stdout_text()))
    }
}
