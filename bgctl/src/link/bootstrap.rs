//! Copies this program and its daemon to a machine on which they are not installed (R143): announced first, verified on
//! that machine, then used.

use bgd_shared::show::exit_code;
use nix::sys::utsname::uname;

use super::programs::{PROBE, Program, Programs, probed, refusals};
use super::ssh::{Dial, Ended};
use super::ssh_failure::NO_BGCTL;
use crate::exit::Code;
use crate::failure::Failure;
use crate::remark::say;
use crate::render::clean_lines;

/// Runs an operation that needs `bgctl` on the remote machine. If it is missing there, and a bootstrap is wanted,
/// copies the programs and runs the operation again.
///
/// # Errors
/// Those of `run`; the copy fails.
pub fn with_bootstrap<'a, T>(
    dial: &Dial<'a>,
    run: impl Fn(&Dial<'a>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    match (run(dial), dial.how.programs) {
        (Err(failure), Some(programs)) if failure.kind == NO_BGCTL => {
            copy(dial, programs, failure)?;
            run(dial)
        }
        (outcome, _) => outcome,
    }
}

/// Copies the programs. `failure` is the reason; it is returned if `bgctl` is installed there but can't be used.
fn copy(dial: &Dial<'_>, programs: &Programs, failure: Failure) -> Result<(), Failure> {
    let Ended { code, output, stderr_text } = dial.ask(PROBE)?;
    let Some(there) = probed(&output) else {
        let message = format!("no shell there that can receive a copy: {}", words(code, &stderr_text));
        return Err(failed(message, "install bgd there"));
    };
    if there.has_bgctl {
        return Err(failure);
    }
    let here = machine()?;
    if there.machine != here {
        let message =
            format!("no bgctl there, and this one, for {here}, can't run there ({})", there.machine);
        return Err(failed(message, "install a bgd there that was built for that machine"));
    }
    for program in &programs.all {
        let Program { name, digest, bytes, .. } = program;
        let version = env!("CARGO_PKG_VERSION");
        say(format_args!(
            "bgctl: copying {name} {version} ({bytes} bytes, sha256 {digest}) to the cache folder of {}",
            dial.host
        ));
        let Ended { code, stderr_text, .. } = dial.feed(&program.take(&programs.folder), &program.file)?;
        if code != 0 {
            return Err(refused(name, code, &stderr_text));
        }
    }
    // Leftover versions cost nothing but disk space.
    let _ = dial.ask(&Programs::tidy());
    Ok(())
}

/// Returns this machine's system and architecture, as `uname -sm` prints them.
fn machine() -> Result<String, Failure> {
    let names =
        uname().map_err(|error| Failure::io("can't determine the type of this machine", &error.into()))?;
    Ok(format!("{} {}", names.sysname().to_string_lossy(), names.machine().to_string_lossy()))
}

fn refused(name: &str, code: i32, stderr_text: &str) -> Failure {
    let stderr_text = words(code, stderr_text);
    let (message, hint) = match code {
        refusals::FOLDER => (
            format!("can't write the cache folder there: {stderr_text}"),
            "set XDG_CACHE_HOME there to a writable folder, or install bgd there",
        ),
        refusals::COPY => {
            (format!("can't copy {name} there: {stderr_text}"), "free some space there, or install bgd there")
        }
        refusals::DIGEST => (
            format!("what arrived there is not the {name} that was sent: it was discarded"),
            "try again; if that fails too, install bgd there",
        ),
        refusals::NO_DIGEST => (
            format!("a copy can't be checked there: neither sha256sum nor shasum: {stderr_text}"),
            "install bgd there",
        ),
        refusals::DOES_NOT_RUN => (
            format!("{name} was copied there, but does not run: {stderr_text}"),
            "its file system may not allow programs (noexec), or the system may be too old for this one: set \
             XDG_CACHE_HOME there to another folder, or install bgd there",
        ),
        _ => (format!("can't copy {name} there: {stderr_text}"), "install bgd there"),
    };
    failed(message, hint)
}

fn failed(message: String, hint: &str) -> Failure {
    Failure::new(Code::NO_DAEMON, "bootstrap_failed", message).hint(hint)
}

fn words(code: i32, stderr_text: &str) -> String {
    if stderr_text.is_empty() { exit_code(code) } else { clean_lines(stderr_text) }
}
