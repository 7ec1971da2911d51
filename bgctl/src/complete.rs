//! Shell completion: the registration scripts, and the candidates they request.
//!
//! The shell calls `bgctl` on every press of the completion key. Nothing here may print anything but candidates.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::Command;
use clap::builder::Resettable;
use clap_complete::CompleteEnv;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{Bash, EnvCompleter, Fish, Shells, Zsh};

use crate::cli::{self, ShellName, Verb};
use crate::{candidates, hosts};

/// The variable that names the shell requesting candidates; set by the scripts that `completions` prints.
pub const VARIABLE: &str = "BGCTL_COMPLETE";

/// The program's name, as known to the shells.
const NAME: &str = "bgctl";

/// Appended to the script for zsh's `fpath`: without it, the first Tab of a session would only define the function.
const ZSH_FIRST: &str = include_str!("complete/zsh.sh");

/// Answers a completion request. Returns `false` if this is an ordinary call.
///
/// # Errors
/// The shell is unknown.
pub fn answer(args: &[OsString]) -> Result<bool, clap::Error> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    hosts::take_line(args);
    candidates::take_argument(is_argument(args));
    candidates::take_other_words(other_words(args));
    let folder = std::env::current_dir().ok();
    let shells = Shells(&[&Expected(DescribingBash), &Expected(Zsh), &Expected(Fish), &Nushell]);
    CompleteEnv::with_factory(command).var(VARIABLE).shells(shells).try_complete(args, folder.as_deref())
}

/// Returns the command line with hidden aliases. Of all names of a verb, clap offers only the alphabetically first one;
/// hidden ones are offered only if nothing else matches.
fn command() -> Command {
    Verb::ALIASES.iter().fold(cli::command(), |command, (verb, aliases)| {
        command.mut_subcommand(verb, |verb| {
            verb.visible_alias(Resettable::Reset).aliases(aliases.iter().copied())
        })
    })
}

/// Returns the words of the command line to complete.
fn line_of(args: &[OsString]) -> Vec<OsString> {
    args.iter().skip_while(|word| *word != "--").skip(1).cloned().collect()
}

/// Returns the words of the line other than the one to complete.
fn other_words(args: &[OsString]) -> Vec<String> {
    let line = line_of(args);
    let place = place_of_word(&line);
    let others = line.into_iter().enumerate().filter(|(at, _)| *at != place);
    others.filter_map(|(_, word)| word.into_string().ok()).collect()
}

/// Reports whether the word to complete comes after the first word of the command that `run` or `submit` is to start.
fn is_argument(args: &[OsString]) -> bool {
    let line = line_of(args);
    let before = line.iter().take(place_of_word(&line));
    // An unfinished line may lack required arguments.
    let matches = cli::command().ignore_errors(true).try_get_matches_from(before);
    let words = matches.ok().and_then(|matches| {
        let (_, of_verb) = matches.subcommand()?;
        of_verb.try_get_raw("command").ok()?.map(Iterator::count)
    });
    words.is_some_and(|count| count > 0)
}

/// Returns the script that registers completion with a shell.
///
/// # Errors
/// The script can't be written to memory.
pub fn script(of: ShellName) -> io::Result<Vec<u8>> {
    let shell: &dyn EnvCompleter = match of {
        ShellName::Bash => &DescribingBash,
        ShellName::Zsh => &Zsh,
        ShellName::Fish => &Fish,
        ShellName::Nushell => &Nushell,
    };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, NAME, NAME, NAME, &mut script)?;
    if matches!(of, ShellName::Zsh) {
        script.extend_from_slice(ZSH_FIRST.replace("@NAME@", NAME).as_bytes());
    }
    Ok(script)
}

/// A shell that gets options only where one is begun: on an empty word they would hide the few ids, verbs or paths that
/// are expected there.
struct Expected<S>(S);

/// Reports whether the word to complete begins an option.
fn begins_option(args: &[OsString], place: usize) -> bool {
    args.get(place).is_some_and(|word| cli::is_option(word))
}

/// Returns the index of the word to complete, as passed by the Bash and Zsh scripts; with Fish and Nushell it is the
/// last word.
fn place_of_word(args: &[OsString]) -> usize {
    let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|place| place.parse().ok());
    index.unwrap_or(args.len().saturating_sub(1))
}

/// Returns the separator between candidates, as passed by the Bash and Zsh scripts.
fn separator() -> String {
    std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned())
}

impl<S: EnvCompleter> EnvCompleter for Expected<S> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn is(&self, name: &str) -> bool {
        self.0.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        self.0.write_registration(var, name, bin, completer, out)
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        if begins_option(&args, place_of_word(&args)) {
            return self.0.write_complete(command, args, folder, out);
        }
        let mut all = Vec::new();
        self.0.write_complete(command, args, folder, &mut all)?;
        out.write_all(without_options(&String::from_utf8_lossy(&all), &separator()).as_bytes())
    }
}

/// Returns the candidates for the word to complete, with options only if one is begun.
fn candidates(
    command: &mut Command,
    args: Vec<OsString>,
    place: usize,
    folder: Option<&Path>,
) -> io::Result<Vec<CompletionCandidate>> {
    let wants_option = begins_option(&args, place);
    let mut candidates = clap_complete::engine::complete(command, args, place, folder)?;
    candidates.retain(|candidate| wants_option || !cli::is_option(candidate.get_value()));
    Ok(candidates)
}

/// Removes options from the candidates that a shell's own adapter has written.
fn without_options(candidates: &str, separator: &str) -> String {
    let kept = candidates.split(separator).filter(|candidate| !candidate.starts_with('-'));
    kept.collect::<Vec<_>>().join(separator)
}

/// Bash, with descriptions. Bash can only show them in the list that a second press of the key opens; nothing is
/// inserted from that list.
struct DescribingBash;

const BASH: &str = include_str!("complete/bash.sh");

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
        _completer: &str,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        out.write_all(filled(BASH, var, name, bin).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        if std::env::var("_CLAP_COMPLETE_COMP_TYPE").as_deref() != Ok(LISTING) {
            return Bash.write_complete(command, args, folder, out);
        }
        let place = place_of_word(&args);
        let candidates = candidates(command, args, place, folder)?;
        let is_alone = candidates.len() == 1;
        let lines = candidates.iter().map(|candidate| {
            let value = candidate.get_value().to_string_lossy();
            match help_of(candidate).filter(|_| !is_alone) {
                Some(help) => format!("{value}  ({help})"),
                None => value.into_owned(),
            }
        });
        out.write_all(lines.collect::<Vec<_>>().join(&separator()).as_bytes())
    }
}

/// Fills these names into a script template.
fn filled(script: &str, variable: &str, name: &str, program: &str) -> String {
    script.replace("@VARIABLE@", variable).replace("@NAME@", name).replace("@PROGRAM@", program)
}

/// Returns the description of a candidate, on one line.
fn help_of(candidate: &CompletionCandidate) -> Option<String> {
    candidate.get_help().map(|help| help.to_string().replace(['\n', '\x0b'], " "))
}

/// Nushell, which asks a closure in its configuration about external commands. A closure configured for other commands
/// keeps answering for them.
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
        out.write_all(filled(NUSHELL, var, name, bin).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let place = args.len().saturating_sub(1);
        let candidates = candidates(command, args, place, folder)?;
        let candidates = candidates.iter().map(|candidate| {
            let value = candidate.get_value().to_string_lossy();
            serde_json::json!({"value": value, "description": help_of(candidate).unwrap_or_default()})
        });
        serde_json::to_writer(out, &candidates.collect::<Vec<_>>()).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_omits_options_unless_word_starts_with_dash() {
        assert_eq!(without_options("list\n--json\tPrint JSON\n", "\n"), "list\n");
        assert_eq!(without_options("--json\x0b-H", "\x0b"), "");
        assert_eq!(without_options("3f2a\x0ba-b\x0b--json", "\x0b"), "3f2a\x0ba-b");
        let args = |last: &str| ["bgctl", last].map(OsString::from);
        assert!(
            begins_option(&args("-"), 1) && !begins_option(&args(""), 1) && !begins_option(&args("-"), 2)
        );
    }
}
