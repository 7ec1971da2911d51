//! Probes the kernel's features for `bgctl doctor`, in a separate process.

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use crate::os::pidfd::PidFd;

/// Prints the available features as JSON; in `untried`, why they could not be tried, if so.
pub fn main() -> ExitCode {
    let (pidfd, exit_codes, untried) = match start() {
        Ok(child) => match try_exit(child) {
            Ok(tells) => (true, tells, None),
            Err(_) => (false, false, None),
        },
        Err(error) => (false, false, Some(error.to_string())),
    };
    let report = serde_json::json!({"pidfd": pidfd, "exit_codes": exit_codes, "untried": untried});
    // The reader may be gone.
    let _ = writeln!(io::stdout(), "{report}");
    ExitCode::SUCCESS
}

/// Starts a process that ends at once.
fn start() -> io::Result<Child> {
    // Without /proc, only the starter's word says which program this is.
    let own = env::current_exe().or_else(|error| env::args_os().next().map(PathBuf::from).ok_or(error))?;
    Command::new(own).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}

/// Reports whether the kernel still provides the exit status of a process after others have waited for it. Fails if
/// there are no pidfds.
fn try_exit(mut child: Child) -> io::Result<bool> {
    let handle = i32::try_from(child.id()).map_err(io::Error::other).and_then(PidFd::open);
    child.wait()?;
    Ok(handle?.exit_info().is_ok_and(|exit| exit.is_some()))
}
