//! Words that users type from habit: `help VERB`, and names that other tools use for what a verb does here. Names
//! with the same arguments are aliases of the verb; for the others an error suggests the verb.

use std::ffi::OsString;

use bgd_shared::show;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, Id};

/// The word in front of a verb that asks for its help.
pub const HELP: &str = "help";

/// What to suggest for a word that is not a verb.
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
        "`bgctl top` shows all tasks live, `bgctl list --watch` keeps the list true, `bgctl output -f ID` follows \
         the output of one task, `bgctl events` prints events",
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

/// The verb `help`.
pub fn help() -> Command {
    let verb =
        Arg::new("verb").value_name("VERB").num_args(0..=2).help("Verb, such as `submit` or `daemon stop`");
    Command::new(HELP).about("Print this help, or the help of a verb").arg(verb)
}

/// The command line that `help VERB` stands for.
pub fn asks_for_help(matches: &ArgMatches) -> Vec<OsString> {
    let verb = matches.get_many::<String>("verb").into_iter().flatten().map(OsString::from);
    std::iter::once("bgctl".into()).chain(verb).chain(std::iter::once("--help".into())).collect()
}

/// The error for the command line. For a word known from other tools it suggests the right verb, as the nearest
/// spelling would be something else. `verbs` are the names of all verbs.
pub fn answered(command: &mut Command, args: &[OsString], verbs: &[&str], error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::MissingRequiredArgument && args.iter().any(|arg| arg == "cancel") {
        return without_ids(command, error);
    }
    if error.kind() == ErrorKind::ValueValidation {
        return in_plain_words(error);
    }
    let word = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) => word.clone(),
        _ => return error,
    };
    // After a verb such as `daemon` the word means something else.
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

/// The error for a wrong value, if a library worded it.
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

/// Words that a number is out of its range, which clap writes as Rust does: `0 is not in 1..=9`.
fn between(message: &str) -> Option<String> {
    let (before, rest) = message.split_once(" is not in ")?;
    let (least, rest) = rest.split_once("..=")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (most, after) = rest.split_at(digits);
    least.parse::<i64>().ok()?;
    Some(format!("{before} is not between {least} and {most}{after}"))
}

/// The error for a `cancel` without a task.
fn without_ids(command: &mut Command, error: clap::Error) -> clap::Error {
    let is_of_ids = matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::Strings(args)) if args.iter().any(|arg| arg.contains("<ID>")));
    match command.find_subcommand_mut("cancel").filter(|_| is_of_ids) {
        Some(verb) => verb.error(
            ErrorKind::MissingRequiredArgument,
            "no task given: give task ids, or --all for every active task",
        ),
        None => error,
    }
}

/// Lists the global options below those of the verb: those of a verb that is deferred come after them.
pub(super) fn globals_last(verb: Command) -> Command {
    let globals = verb.get_arguments().filter(|arg| arg.is_global_set());
    let globals: Vec<Id> = globals.map(|arg| arg.get_id().clone()).collect();
    // What is changed comes last.
    globals.into_iter().fold(verb, |verb, id| verb.mut_arg(id, |arg| arg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Verb};

    fn told(words: &[&str]) -> String {
        let args = std::iter::once("bgctl").chain(words.iter().copied()).map(OsString::from);
        cli::parse(args, false).unwrap_err().to_string()
    }

    #[test]
    fn a_verb_of_another_tool_is_an_alias_or_is_answered_with_the_right_one() {
        let known = cli::command();
        let names: Vec<&str> =
            known.get_subcommands().flat_map(|verb| verb.get_name_and_visible_aliases()).collect();
        for (words, _) in ANSWERS {
            for word in *words {
                assert!(!names.contains(word), "{word} works");
                let text = told(&[word, "3f2a"]);
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
    fn a_cancel_of_nothing_is_told_of_all() {
        let told_nothing = told(&["cancel"]);
        assert!(told_nothing.contains("no task given") && told_nothing.contains("--all"), "{told_nothing}");
        assert!(!told(&["cancel", "--session", "s", "abcd"]).contains("no task given"));
        assert!(!told(&["block"]).contains("--all"));
    }

    #[test]
    fn a_wrong_number_is_told_in_plain_words() {
        for (words, wanted) in [
            (
                &["list", "--limit", "x"][..],
                "error: invalid value 'x' for '--limit <N>': not a whole number\n\nFor more",
            ),
            (&["output", "--tail=-1"], "': must not be negative\n"),
            (&["output", "--tail", "-1"], "': must not be negative\n"),
            (&["submit", "--time-limit", "0", "--", "true"], "': a limit must be longer than 0\n"),
            (&["submit", "--in", "5x", "--", "true"], "': that is not a duration; use 90s, 10m or 1h30m\n"),
            (&["group", "set", "g", "--slots", "0"], "': 0 is not between 1 and 100000\n"),
            (&["edit", "3f2a", "--priority", "101"], "': 101 is not between -100 and 100\n"),
            (&["edit", "3f2a", "--priority", "x"], "': not a whole number\n"),
        ] {
            let text = told(words);
            assert!(text.contains(wanted), "{words:?}: {text}");
            assert!(text.starts_with("error: ") && text.ends_with("try '--help'.\n"), "{words:?}: {text:?}");
        }
    }

    #[test]
    fn every_verb_in_an_answer_is_one() {
        for (_, answer) in ANSWERS {
            for call in answer.split('`').skip(1).step_by(2) {
                let verb = call.split_once("bgctl ").unwrap().1.split(' ').next().unwrap();
                assert!(Verb::NAMES.contains(&verb), "{call}");
            }
        }
    }

    #[test]
    fn other_words_get_the_nearest_spelling_and_parts_of_verbs_their_own() {
        assert!(told(&["lisst"]).contains("'list'"));
        assert!(!told(&["daemon", "kill"]).contains("bgctl cancel"));
        assert!(told(&["--json", "kill"]).contains("bgctl cancel"));
    }
}
