//! Tries what the kernel can do, for `bgctl doctor`: on a process of its own.

use std::io::{self, Write as _};
use std::process::{Command, ExitCode, Stdio};

use crate::os::pidfd::PidFd;

/// Prints what works, as JSON.
pub fn main() -> ExitCode {
    let (pidfd, exit_codes) = match try_exit() {
        Ok(tells) => (true, tells),
        Err(_) => (false, false),
    };
    // Whoever asks may be gone.
    let _ = writeln!(io::stdout(), "{{\"pidfd\":{pidfd},\"exit_codes\":{exit_codes}}}");
    ExitCode::SUCCESS
}

/// Whether the kernel tells how a process has ended that others have waited for.
///
/// # Errors
/// There are no pidfds.
fn try_exit() -> io::Result<bool> {
    let own = std::env::current_exe()?;
    let mut child = Command::new(own).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let handle = i32::try_from(child.id()).map_err(io::Error::other).and_then(PidFd::open);
    child.wait()?;
    Ok(handle?.exit_info().is_ok_and(|exit| exit.is_some()))
}
