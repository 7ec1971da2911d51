//! The `bgctl` beside this program, which connects to other machines and alone deals with ssh.

use std::path::PathBuf;

use bgd_shared::text::{Env, OsText};

use crate::exec::host::ssh_environment;
use crate::remotes::Shell;

/// The message if `bgctl` is missing.
pub const MISSING: &str =
    "there is no bgctl next to this bgd, and without it no other machine can be reached";

/// Returns the command line of `bgctl` for a machine: `options` come before the options of the connection, `verb` after
/// them. `None` if it is not installed.
pub fn line(shell: &Shell, options: &[&str], verb: &[&str]) -> Option<Vec<OsText>> {
    let within = format!("{}ms", shell.connect_timeout.as_millis());
    let way = ["--host", &shell.host, "--connect-timeout", &within];
    let bootstrap = shell.bootstrap.then_some("--bootstrap");
    let words = options.iter().chain(&way).chain(&bootstrap).chain(verb);
    let program = OsText::from(bgctl()?.into_os_string());
    Some([program].into_iter().chain(words.map(|word| OsText::from(*word))).collect())
}

/// Returns the path of `bgctl`, which is installed beside this program.
fn bgctl() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.with_file_name("bgctl")).filter(|path| path.exists())
}

/// Returns the environment of `bgctl` for a machine.
pub fn environment(shell: &Shell) -> Env {
    let own = ssh_environment();
    own.0.iter().cloned().chain([("BGD_SSH".into(), shell.ssh.as_str().into())]).collect()
}
