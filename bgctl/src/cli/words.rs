//! What users type from habit: `help VERB`, the names that other tools use, a program or a task in place of a verb.
//! Errors suggest what to type instead.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bgd_shared::show;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, Id};

use super::foreign;
use crate::name::Name;
use crate::programs::{self, Found};

/// The word in front of a verb that requests its help.
pub const HELP: &str = "help";

/// The length from which a word is taken for the beginning of a verb, in bytes.
const BEGINNING: usize = 3;

pub fn help() -> Command {
    let verb =
        Arg::new("verb").value_name("VERB").num_args(0..=2).help("Verb, such as `submit` or `daemon stop`");
    Command::new(HELP).about("Print this help, or the help of a verb").arg(verb)
}

/// Returns the command line that `help VERB` stands for.
pub fn asks_for_help(matches: &ArgMatches, all: &Command) -> Vec<OsString> {
    let mut words: Vec<&String> = matches.get_many("verb").into_iter().flatten().collect();
    // Further words of other verbs, such as `submit`, could be a command to run, and so could `--help` after them.
    let has_verbs = |name: &&String| all.find_subcommand(name).is_some_and(Command::has_subcommands);
    if !words.first().is_some_and(has_verbs) {
        words.truncate(1);
    }
    let words = words.into_iter().map(OsString::from);
    std::iter::once("bgctl".into()).chain(words).chain(std::iter::once("--help".into())).collect()
}

/// Returns the error for the command line. For what is known from other tools, it suggests the right verb or option, as
/// the nearest spelling would be something else. `verbs` are the names of all verbs.
pub fn answered(command: &mut Command, args: &[OsString], verbs: &[&str], error: clap::Error) -> clap::Error {
    match error.kind() {
        ErrorKind::MissingRequiredArgument => without_ids(command, args, verbs, error),
        ErrorKind::ValueValidation => in_plain_words(error),
        ErrorKind::InvalidValue => empty_value(args, error),
        ErrorKind::InvalidUtf8 => not_text(command, args, verbs, error),
        ErrorKind::UnknownArgument => unknown_option(command, args, error),
        ErrorKind::ArgumentConflict => shell_for_items(command, args, verbs, error),
        ErrorKind::InvalidSubcommand => unknown_verb(command, args, verbs, error),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if args.iter().any(|arg| arg == "--json") => {
            without_subcommand(command, args, verbs, error)
        }
        _ => error,
    }
}

/// Returns the error for a word that is no verb.
fn unknown_verb(command: &mut Command, args: &[OsString], verbs: &[&str], error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let Some(place) = args.iter().skip(1).position(|arg| *arg == **word) else { return error };
    let (before, line) = args.split_at(place + 1);
    // After a verb such as `daemon`, the word means something else.
    if before.iter().any(|arg| verbs.iter().any(|name| arg == name)) {
        return error;
    }
    let known = foreign::verb(word).map(str::to_owned);
    match known.or_else(|| of_task(word)).or_else(|| of_program(command, line)) {
        Some(answer) => {
            let message = format!("unknown verb `{word}`: {answer}");
            command.error(ErrorKind::InvalidSubcommand, message)
        }
        None => error,
    }
}

/// Returns what to do with a task that is typed in place of a verb.
fn of_task(word: &str) -> Option<String> {
    Some(match word.parse::<Name>().ok()? {
        Name::Id(_) | Name::Latest(_) => {
            format!(
                "`bgctl status {word}` shows the details of the task, `bgctl output {word}` prints its output"
            )
        }
        Name::Batch(batch) => format!("`bgctl list --batch {}` lists the tasks of the batch", batch.as_str()),
    })
}

/// Returns how to run the program that is typed in place of a verb, if there is one.
fn of_program(command: &Command, line: &[OsString]) -> Option<String> {
    let words: Vec<&[u8]> = line.iter().map(|word| word.as_encoded_bytes()).collect();
    let program = line.get(programs::split(&words).0.len())?;
    // This is what `help VERB` asks for.
    if matches!(line, [_, only] if only == "--help") || begins_verb(command, program.to_str()?) {
        return None;
    }
    if programs::find(program, &std::env::var_os("PATH")?, Path::new("")) != Found::Program {
        return None;
    }
    let call = programs::call("submit", &words);
    Some(format!("{call} runs the program in the background, `bgctl run` in the foreground"))
}

/// Reports whether a verb begins with this word, as `status` does with `stat`.
fn begins_verb(command: &Command, word: &str) -> bool {
    let mut names = command.get_subcommands().flat_map(Command::get_name_and_visible_aliases);
    word.len() >= BEGINNING && names.any(|name| name.starts_with(word))
}

/// Returns the error for an option that the verb does not have.
fn unknown_option(command: &mut Command, args: &[OsString], error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let verb = args.iter().skip(1).find(|arg| command.find_subcommand(arg).is_some());
    let Some(verb) = verb.and_then(|verb| command.find_subcommand_mut(verb)) else { return error };
    match foreign::option(option, verb.get_name()) {
        Some(answer) => {
            let message = format!("unknown option `{option}`: {answer}");
            verb.error(ErrorKind::UnknownArgument, message)
        }
        None => error,
    }
}

/// Returns the error for `--each` with `--shell`, which can't have items filled in.
fn shell_for_items(
    command: &mut Command,
    args: &[OsString],
    verbs: &[&str],
    error: clap::Error,
) -> clap::Error {
    let names = |option: &str| {
        [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().any(|kind| match error.get(kind) {
            Some(ContextValue::String(name)) => name.starts_with(option),
            Some(ContextValue::Strings(names)) => names.iter().any(|name| name.starts_with(option)),
            _ => false,
        })
    };
    if !names("--each <") || !names("--shell <") {
        return error;
    }
    let Some(verb) = verb(command, args, verbs) else { return error };
    let what = "--each cannot be used with --shell: have a shell run a line in which \"$1\" is the item, as in `bgctl \
                submit --each FILE -- sh -c LINE - {}`, or each item, as in `bgctl submit --each FILE -- sh -c {}`";
    verb.error(ErrorKind::ArgumentConflict, what)
}

/// Rewords the error for a wrong value if its text comes from a library.
fn in_plain_words(error: clap::Error) -> clap::Error {
    let text = error.to_string();
    let message = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    let is_negative = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.starts_with('-') && value.parse::<i64>().is_ok(),
        _ => false,
    };
    let plain = match show::plain(message) {
        plain if is_negative => plain.replacen("not a whole number", "must not be negative", 1),
        plain => plain.into_owned(),
    };
    match between(&plain).unwrap_or(plain) {
        plain if plain == message => error,
        plain => clap::Error::raw(error.kind(), plain + "\n"),
    }
}

/// Rewords the error for an empty value, which clap takes for one that is missing.
fn empty_value(args: &[OsString], error: clap::Error) -> clap::Error {
    let is_empty = |arg: &OsString| {
        let bytes = arg.as_encoded_bytes();
        bytes.is_empty() || bytes.starts_with(b"-") && bytes.ends_with(b"=")
    };
    let text = error.to_string();
    let named = text.strip_prefix("error: a value is required for ").filter(|_| args.iter().any(is_empty));
    match named.and_then(|named| named.split_once(" but none was supplied")) {
        Some((option, rest)) => {
            clap::Error::raw(error.kind(), format!("the value of {option} is empty{}\n", rest.trim_end()))
        }
        None => error,
    }
}

/// Rewords an out-of-range error, which clap writes in Rust notation: `0 is not in 1..=9`.
fn between(message: &str) -> Option<String> {
    let (before, rest) = message.split_once(" is not in ")?;
    let (least, rest) = rest.split_once("..=")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (most, after) = rest.split_at(digits);
    least.parse::<i64>().ok()?;
    Some(format!("{before} is not between {least} and {most}{after}"))
}

/// Returns the verb of a command line.
fn verb<'a>(command: &'a mut Command, args: &[OsString], verbs: &[&str]) -> Option<&'a mut Command> {
    let name = args.iter().find(|arg| verbs.iter().any(|name| arg == name))?;
    command.find_subcommand_mut(name)
}

/// Returns the error for a verb without a task, with the options that could select tasks instead.
fn without_ids(command: &mut Command, args: &[OsString], verbs: &[&str], error: clap::Error) -> clap::Error {
    let lacks_ids = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.iter().any(|arg| arg.contains("<ID>")),
        _ => false,
    };
    let Some(verb) = verb(command, args, verbs).filter(|_| lacks_ids) else { return error };
    let what = match verb.get_name() {
        "cancel" => "no task given: give task ids, or --all for every active task",
        "hold" | "release" | "pause" | "continue" | "rerun" => {
            "no task given: give task ids, @, or options that select tasks, such as --tag or --group"
        }
        "signal" => "no task and no signal given: give both, as in `bgctl signal 3f2a HUP`",
        _ => return error,
    };
    verb.error(ErrorKind::MissingRequiredArgument, what)
}

/// Returns the error for a verb without its subcommand, which replaces the help where a program reads the output.
fn without_subcommand(
    command: &mut Command,
    args: &[OsString],
    verbs: &[&str],
    error: clap::Error,
) -> clap::Error {
    let Some(verb) = verb(command, args, verbs).filter(|verb| verb.has_subcommands()) else { return error };
    let names: Vec<&str> =
        verb.get_subcommands().map(Command::get_name).filter(|name| *name != HELP).collect();
    let what = format!("`{}` needs a subcommand: {}", verb.get_name(), names.join(", "));
    verb.error(ErrorKind::MissingSubcommand, what)
}

/// Returns the error for an argument that is not valid UTF-8, which clap does not name.
fn not_text(command: &mut Command, args: &[OsString], verbs: &[&str], error: clap::Error) -> clap::Error {
    let Some(verb) = verb(command, args, verbs) else { return error };
    let mut before = &OsString::new();
    let mut wrong = None;
    for arg in args {
        if arg.to_str().is_none() {
            let text = arg.to_string_lossy();
            let (option, value) = match (text.split_once('='), text.strip_prefix('-')) {
                (Some((option, value)), Some(_)) if option.starts_with("--") => (option.to_owned(), value),
                (_, Some(short)) if short.chars().count() > 1 => {
                    let letter = short.chars().next().map_or(0, char::len_utf8);
                    (text[..=letter].to_owned(), &short[letter..])
                }
                _ => (before.to_string_lossy().into_owned(), &*text),
            };
            if takes_text(verb, &option) {
                wrong = Some(format!("the value of {option} must be UTF-8; it is '{value}'"));
                break;
            }
        }
        before = arg;
    }
    match wrong {
        Some(what) => verb.error(ErrorKind::InvalidUtf8, what),
        None => error,
    }
}

/// Reports whether an option, such as `-d` or `--tag`, has a value that must be UTF-8.
fn takes_text(verb: &Command, option: &str) -> bool {
    let is_named = |arg: &&Arg| match option.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => option.strip_prefix('-').is_some_and(|short| short.chars().eq(arg.get_short())),
    };
    verb.get_arguments().find(is_named).is_some_and(|arg| {
        let value = arg.get_value_parser().type_id();
        value != TypeId::of::<OsString>() && value != TypeId::of::<PathBuf>()
    })
}

/// Lists the global options below those of the verb; in a deferred verb, they would come before them.
pub(super) fn globals_last(verb: Command) -> Command {
    let globals = verb.get_arguments().filter(|arg| arg.is_global_set());
    let globals: Vec<Id> = globals.map(|arg| arg.get_id().clone()).collect();
    // A changed argument moves to the end.
    globals.into_iter().fold(verb, |verb, id| verb.mut_arg(id, |arg| arg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn usage_error_text(words: &[&str]) -> String {
        let args = std::iter::once("bgctl").chain(words.iter().copied()).map(OsString::from);
        cli::parse(args, false).unwrap_err().to_string()
    }

    #[test]
    fn help_ignores_words_that_would_be_a_command_of_the_verb() {
        for (words, name) in [
            (&["help", "submit", "make"][..], "submit"),
            (&["help", "run", "make"], "run"),
            (&["help", "wait", "x"], "block"),
            (&["help", "daemon", "stop"], "daemon stop"),
        ] {
            let text = usage_error_text(words);
            assert!(text.contains(&format!("bgctl {name} [OPTIONS]")), "{words:?}: {text}");
        }
    }

    #[test]
    fn cancel_without_task_suggests_all_option() {
        let without_task = usage_error_text(&["cancel"]);
        assert!(without_task.contains("no task given") && without_task.contains("--all"), "{without_task}");
        assert!(!usage_error_text(&["cancel", "--session", "s", "abcd"]).contains("no task given"));
        assert!(!usage_error_text(&["block"]).contains("--all"));
    }

    #[test]
    fn r113_verbs_without_task_explain_task_selection() {
        for verb in ["hold", "release", "pause", "continue", "rerun"] {
            let text = usage_error_text(&[verb]);
            assert!(text.contains("no task given: give task ids, @, or options that select tasks"), "{text}");
            assert!(text.contains(&format!("Usage: bgctl {verb} [OPTIONS] [ID]...")), "{text}");
        }
        let text = usage_error_text(&["signal"]);
        assert!(text.contains("no task and no signal given") && text.contains("<ID> <SIG>"), "{text}");
    }

    #[test]
    fn missing_subcommand_error_lists_subcommands_under_json() {
        for (verb, some) in
            [("daemon", "start, stop, restart"), ("session", "key, end"), ("group", "list, set")]
        {
            let text = usage_error_text(&["--json", verb]);
            assert!(text.starts_with(&format!("error: `{verb}` needs a subcommand: {some}")), "{text}");
            assert!(!text.lines().next().unwrap().contains("help"), "{text}");
            assert!(!usage_error_text(&[verb]).starts_with("error"), "people get the help");
        }
    }

    #[test]
    fn invalid_utf8_error_names_option_and_value() {
        use std::os::unix::ffi::OsStringExt as _;
        // A % stands for a byte that UTF-8 never has.
        let bytes = |word: &str| word.bytes().map(|byte| if byte == b'%' { 0xff } else { byte }).collect();
        for (line, wanted) in [
            ("submit -d a% true", "the value of -d must be UTF-8; it is 'a\u{fffd}'"),
            ("submit -da% true", "the value of -d must be UTF-8; it is 'a\u{fffd}'"),
            ("submit --tag=% true", "the value of --tag must be UTF-8; it is '\u{fffd}'"),
            ("submit --cwd /% --env A=% true", "the value of --env must be UTF-8; it is 'A=\u{fffd}'"),
        ] {
            let words = line.split(' ').map(|word| OsString::from_vec(bytes(word)));
            let text =
                cli::parse(std::iter::once("bgctl".into()).chain(words), false).unwrap_err().to_string();
            assert!(text.starts_with(&format!("error: {wanted}")), "{text}");
        }
        assert!(usage_error_text(&["submit", "--tag", "", "true"]).contains("--tag <TAG>"));
    }

    #[test]
    fn invalid_numbers_get_plain_error_messages() {
        for (words, wanted) in [
            (
                &["list", "--limit", "x"][..],
                "error: invalid value 'x' for '--limit <N>': not a whole number\n\nFor more",
            ),
            (&["output", "--tail=-1"], "': must not be negative\n"),
            (&["output", "--tail", "-1"], "': must not be negative\n"),
            (&["submit", "--time-limit", "0", "--", "true"], "': a limit must be longer than 0\n"),
            (
                &["submit", "--in", "5x", "--", "true"],
                "': that is not a duration; use 90s, 10m, 1h30m, 1.5h or 500ms; a plain number means seconds\n",
            ),
            (&["group", "set", "g", "--slots", "0"], "': 0 is not between 1 and 100000\n"),
            (&["edit", "3f2a", "--priority", "101"], "': 101 is not between -100 and 100\n"),
            (&["edit", "3f2a", "--priority", "x"], "': not a whole number\n"),
        ] {
            let text = usage_error_text(words);
            assert!(text.contains(wanted), "{words:?}: {text}");
            assert!(text.starts_with("error: ") && text.ends_with("try '--help'.\n"), "{words:?}: {text:?}");
        }
    }

    #[test]
    fn empty_value_is_named_as_empty_and_missing_one_as_missing() {
        for (line, option) in [
            ("submit --tag _ -- true", "--tag <TAG>"),
            ("submit --tag= -- true", "--tag <TAG>"),
            ("submit --key _ -- true", "--key <KEY>"),
            ("submit --channel _ -- true", "--channel <NAME>"),
            ("submit --cwd _ -- true", "--cwd <DIR>"),
            ("submit --group _ -- true", "--group <NAME>"),
            ("submit --on _ -- true", "--on <NAME>"),
            ("submit --on x --qos _ -- true", "--qos <NAME>"),
            ("submit --on x --option _ -- true", "--option <OPTION>"),
            ("submit --agent x --mode _ -d d p", "--mode <MODE>"),
            ("run --agent _ p", "--agent <NAME>"),
            ("list --session _", "--session <KEY>"),
            ("list --status _", "--status <STATUS>"),
            ("list --grep _", "--grep <TEXT>"),
            ("clear --tag _", "--tag <TAG>"),
            ("cancel --group _", "--group <NAME>"),
            ("edit 3f2a --group _", "--group <NAME>"),
            ("inbox --session _", "--session <KEY>"),
            ("handoff --pid 1 --channel _", "--channel <NAME>"),
            ("--socket _ list", "--socket <PATH>"),
        ] {
            let words: Vec<&str> = line.split(' ').map(|word| if word == "_" { "" } else { word }).collect();
            let text = usage_error_text(&words);
            assert!(
                text.starts_with(&format!("error: the value of '{option}' is empty\n")),
                "{line}: {text}"
            );
            assert!(text.ends_with("try '--help'.\n"), "{line}: {text:?}");
        }
        assert!(usage_error_text(&["submit", "--tag"]).contains("but none was supplied"));
        // Here it means none, or nothing in particular.
        for line in ["submit --session= true", "run --session= true", "submit -d= true"] {
            let args = std::iter::once("bgctl").chain(line.split(' ')).map(OsString::from);
            assert!(cli::parse(args, false).is_ok(), "{line}");
        }
    }

    #[test]
    fn pointers_apply_to_top_level_verbs_and_typos_get_nearest_spelling() {
        assert!(usage_error_text(&["lisst"]).contains("'list'"));
        assert!(!usage_error_text(&["daemon", "kill"]).contains("bgctl cancel"));
        assert!(usage_error_text(&["--json", "kill"]).contains("bgctl cancel"));
    }

    #[test]
    fn program_in_place_of_a_verb_is_to_be_submitted() {
        for (words, call) in [
            (&["sleep", "1000"][..], "`bgctl submit -- sleep 1000`"),
            (&["--", "sleep", "1000"], "`bgctl submit -- sleep 1000`"),
            (&["--json", "sh", "-c", "a b", "--json"], "`bgctl submit -- sh -c 'a b' --json`"),
            (&["A=1", "sh", "-c", "x"], "`bgctl submit --env A=1 -- sh -c x`"),
            (&["/bin/sh"], "`bgctl submit -- /bin/sh`"),
        ] {
            let text = usage_error_text(words);
            assert!(text.contains(call) && !text.contains("similar"), "{words:?}: {text}");
        }
        // Neither what begins like a verb, nor what is no program, nor a request for help.
        for words in [&["stat", "3f2a"][..], &["nosuchprogram"], &["help", "sleep"], &["A=1"], &["/etc"]] {
            assert!(!usage_error_text(words).contains("bgctl submit"), "{words:?}");
        }
    }

    #[test]
    fn r113_task_in_place_of_a_verb_gets_a_pointer_to_verbs() {
        for word in ["3f2a", "@", "@2", "724fede0-9209-4435-bc37-e308e63f1f21"] {
            let text = usage_error_text(&[word]);
            assert!(text.contains(&format!("`bgctl output {word}` prints")), "{text}");
        }
        assert!(usage_error_text(&["@9c1e"]).contains("`bgctl list --batch 9c1e` lists"));
    }

    #[test]
    fn r112_shell_line_for_items_is_to_be_given_as_command() {
        for words in [["--each", "x", "--shell", "echo {}"], ["--shell", "echo {}", "--each", "x"]] {
            let text = usage_error_text(&[&["submit"], &words[..]].concat());
            assert!(text.starts_with("error: --each cannot be used with --shell: "), "{text}");
            assert!(text.contains("-- sh -c LINE - {}`") && text.contains("-- sh -c {}`"), "{text}");
        }
        let other = usage_error_text(&["submit", "--each", "x", "--stdin", "y"]);
        assert!(other.contains("cannot be used with") && !other.contains("sh -c"), "{other}");
    }
}
