//! Words that users type from habit: `help VERB`, and the names that other tools use for actions of bgctl. Names with
//! the same arguments are aliases of the verb; for the others, an error suggests the verb.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

use bgd_shared::show;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, Id};

/// The word in front of a verb that requests its help.
pub const HELP: &str = "help";

/// Suggestions for words that are not verbs.
const ANSWERS: &[(&[&str], &str)] = &[
    (&["kill"], "`bgctl cancel ID` ends a task and all its processes; `bgctl signal ID SIG` sends a signal"),
    (
        &["stop"],
        "`bgctl cancel ID` ends a task, `bgctl pause ID` pauses it; `bgctl daemon stop` stops the daemon",
    ),
    (
        &["rm", "remove", "delete"],
        "`bgctl clear ID` deletes a finished task, `bgctl cancel ID` ends a running one",
    ),
    (
        &["tail", "follow"],
        "`bgctl output --tail 20 ID` prints the last lines, `bgctl output -f ID` follows the output",
    ),
    (&["log", "cat"], "`bgctl output ID` prints the output of a task"),
    (
        &["restart", "retry"],
        "`bgctl rerun ID` submits an ended task again; `bgctl submit --retry N` retries it when it fails, and \
         --restart keeps it alive. `bgctl resume ID PROMPT` sends an agent a follow-up; `bgctl daemon \
         restart` restarts the daemon",
    ),
    (&["last"], "`bgctl list --limit 1` shows the newest task"),
    (
        &["watch"],
        "`bgctl top` shows all tasks live, `bgctl list --watch` keeps the list up to date, `bgctl output -f ID` \
         follows the output of one task, `bgctl events` prints events",
    ),
    (
        &["add", "exec", "start", "bg"],
        "`bgctl submit -- CMD` runs a command in the background; `bgctl daemon start` starts the daemon",
    ),
    (&["unpause"], "`bgctl continue ID` continues a paused task"),
    (&["stash"], "`bgctl hold ID` keeps a pending task from starting, `bgctl release ID` allows it to start"),
    (
        &["enqueue"],
        "`bgctl release ID` allows a held task to start; `bgctl submit -- CMD` runs a command in the background",
    ),
    (
        &["switch", "priority"],
        "`bgctl edit ID --priority N` changes the priority of a pending task; higher starts first",
    ),
    (&["parallel"], "`bgctl group set NAME --slots N` sets how many tasks of a group run at once"),
    (
        &["send"],
        "`bgctl write ID TEXT` writes to the standard input of a task, `bgctl signal ID SIG` sends a signal",
    ),
    (&["clean"], "`bgctl clear` deletes finished tasks"),
    (&["info", "get"], "`bgctl status ID` shows the details of a task"),
];

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

/// Returns the error for the command line. For a word known from other tools, it suggests the right verb, as the
/// nearest spelling would be something else. `verbs` are the names of all verbs.
pub fn answered(command: &mut Command, args: &[OsString], verbs: &[&str], error: clap::Error) -> clap::Error {
    match error.kind() {
        ErrorKind::MissingRequiredArgument => return without_ids(command, args, verbs, error),
        ErrorKind::ValueValidation => return in_plain_words(error),
        ErrorKind::InvalidValue => return empty_value(args, error),
        ErrorKind::InvalidUtf8 => return not_text(command, args, verbs, error),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if args.iter().any(|arg| arg == "--json") => {
            return without_subcommand(command, args, verbs, error);
        }
        _ => {}
    }
    let word = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) => word.clone(),
        _ => return error,
    };
    // After a verb such as `daemon`, the word means something else.
    let is_verb = |arg: &OsString| verbs.iter().any(|name| arg == name);
    if args.iter().take_while(|arg| **arg != *word).any(is_verb) {
        return error;
    }
    let answer = ANSWERS.iter().find(|(words, _)| words.contains(&word.as_str()));
    match answer {
        Some((_, answer)) => {
            command.error(ErrorKind::InvalidSubcommand, format!("unknown verb `{word}`: {answer}"))
        }
        None => error,
    }
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
    use crate::cli::{self, Verb};

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
    fn verbs_of_other_tools_are_aliases_or_get_a_pointer_to_the_right_verb() {
        let known = cli::command();
        let names: Vec<&str> =
            known.get_subcommands().flat_map(|verb| verb.get_name_and_visible_aliases()).collect();
        for (words, _) in ANSWERS {
            for word in *words {
                assert!(!names.contains(word), "{word} works");
                let text = usage_error_text(&[word, "3f2a"]);
                assert!(text.contains("`bgctl ") && !text.contains("similar"), "{word}: {text}");
            }
        }
        for word in "ps kill stop rm wait logs tail fg jobs show restart rerun last top watch".split(' ') {
            assert!(
                names.contains(&word) || ANSWERS.iter().any(|(words, _)| words.contains(&word)),
                "{word}"
            );
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
    fn pointers_name_only_existing_verbs() {
        for (_, answer) in ANSWERS {
            for call in answer.split('`').skip(1).step_by(2) {
                let verb = call.split_once("bgctl ").unwrap().1.split(' ').next().unwrap();
                assert!(Verb::NAMES.contains(&verb), "{call}");
            }
        }
    }

    #[test]
    fn pointers_apply_to_top_level_verbs_and_typos_get_nearest_spelling() {
        assert!(usage_error_text(&["lisst"]).contains("'list'"));
        assert!(!usage_error_text(&["daemon", "kill"]).contains("bgctl cancel"));
        assert!(usage_error_text(&["--json", "kill"]).contains("bgctl cancel"));
    }
}
