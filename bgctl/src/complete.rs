//! Shell completion: the registration scripts, and the candidates they request.
//!
//! The shell calls `bgctl` on every press of the completion key. Nothing here may print anything but candidates.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::CompleteEnv;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{Bash, EnvCompleter, Fish, Shells, Zsh};

use crate::cli::{self, ShellName};
use crate::hosts;

/// The variable that names the shell requesting candidates; set by the scripts that `completions` prints.
pub const VARIABLE: &str = "BGCTL_COMPLETE";

/// Answers a completion request. Returns `false` if this is an ordinary call.
///
/// # Errors
/// The shell is unknown.
pub fn answer(args: &[OsString]) -> Result<bool, clap::Error> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    hosts::take_line(args);
    let folder = std::env::current_dir().ok();
    let shells = Shells(&[&DescribingBash, &Zsh, &Fish, &Nushell]);
    CompleteEnv::with_factory(cli::command).var(VARIABLE).shells(shells).try_complete(args, folder.as_deref())
}

/// Returns the script that registers completion with a shell.
///
/// # Errors
/// The script can't be written to memory.
pub fn script(shell: ShellName) -> io::Result<Vec<u8>> {
    let shell: &dyn EnvCompleter = match shell {
        ShellName::Bash => &DescribingBash,
        ShellName::Zsh => &Zsh,
        ShellName::Fish => &Fish,
        ShellName::Nushell => &Nushell,
    };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "bgctl", "bgctl", "bgctl", &mut script)?;
    Ok(script)
}

/// Bash, with descriptions. Bash can only show them in the list that a second key press opens; nothing from that list
/// is inserted.
struct DescribingBash;

/// `COMP_TYPE` while Bash shows that list.
const LISTING: &str = "63";

impl EnvCompleter for DescribingBash {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        Bash.write_registration(var, name, bin, completer, out)
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        if variable("_CLAP_COMPLETE_COMP_TYPE") != LISTING {
            return Bash.write_complete(command, args, folder, out);
        }
        let place = variable("_CLAP_COMPLETE_INDEX").parse().unwrap_or_default();
        let candidates = clap_complete::engine::complete(command, args, place, folder)?;
        let is_alone = candidates.len() == 1;
        let lines = candidates.iter().map(|candidate| {
            let value = candidate.get_value().to_string_lossy();
            match help_of(candidate).filter(|_| !is_alone) {
                Some(help) => format!("{value}  ({help})"),
                None => value.into_owned(),
            }
        });
        let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
        out.write_all(lines.collect::<Vec<_>>().join(&separator).as_bytes())
    }
}

/// Returns what a candidate means, on one line.
fn help_of(candidate: &CompletionCandidate) -> Option<String> {
    candidate.get_help().map(|help| help.to_string().replace(['\n', '\x0b'], " "))
}

/// Nushell, which asks a closure of its configuration about commands that are not its own. That of others still answers
/// for their commands.
struct Nushell;

const NUSHELL: &str = include_str!("complete/nushell.nu");

impl EnvCompleter for Nushell {
    fn name(&self) -> &'static str {
        "nushell"
    }

    fn is(&self, name: &str) -> bool {
        matches!(name, "nushell" | "nu")
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        _completer: &str,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let script = NUSHELL.replace("@VARIABLE@", var).replace("@NAME@", name).replace("@PROGRAM@", bin);
        out.write_all(script.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let place = args.len().saturating_sub(1);
        // Its menu shows all at once: options only where one is begun, as it has them for its own commands.
        let wants_option = args.last().is_some_and(|word| word.as_encoded_bytes().starts_with(b"-"));
        let candidates = clap_complete::engine::complete(command, args, place, folder)?;
        let is_option = |value: &std::ffi::OsStr| value.as_encoded_bytes().starts_with(b"-");
        let shown = candidates.iter().filter(|candidate| wants_option || !is_option(candidate.get_value()));
        let candidates = shown.map(|candidate| {
            let value = candidate.get_value().to_string_lossy();
            serde_json::json!({"value": value, "description": help_of(candidate).unwrap_or_default()})
        });
        serde_json::to_writer(out, &candidates.collect::<Vec<_>>()).map_err(io::Error::from)
    }
}
