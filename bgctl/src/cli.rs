//! The arguments of every verb. Help texts, man pages and completions come from here.
//!
//! A verb's arguments are defined only when that verb is used (`Command::defer`): defining all of them
//! would cost each call more than its parsing.

mod args;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};

pub use self::args::*;

/// Declares the verbs once: name, arguments, and the line that `bgctl --help` shows.
macro_rules! verbs {
    ($($(#[$doc:meta])+ $verb:ident($args:ty) = $name:literal $(| $alias:literal)?, $about:literal;)+) => {
        /// A verb with its arguments.
        #[derive(Debug)]
        pub enum Verb {
            $($(#[$doc])+ $verb($args),)+
        }

        impl Verb {
            /// The names of all verbs.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            fn define(root: Command) -> Command {
                root.subcommands([$(
                    Command::new($name)
                        .about($about)
                        $(.visible_alias($alias))?
                        .defer(|verb| <$args as Args>::augment_args(verb).about($about)),
                )+])
            }

            fn read(name: &str, matches: &ArgMatches) -> Result<Self, clap::Error> {
                match name {
                    $($name => <$args>::from_arg_matches(matches).map(Self::$verb),)+
                    _ => Err(clap::Error::new(clap::error::ErrorKind::InvalidSubcommand)),
                }
            }
        }
    };
}

verbs! {
    /// Hands over a command.
    Submit(SubmitArgs) = "submit", "Run a command in the background and print its id";
    /// Shows tasks.
    List(ListArgs) = "list" | "ls", "List tasks, the newest first";
    /// Shows one task.
    Status(StatusArgs) = "status", "Show everything about one task";
    /// Prints a task's output.
    Output(OutputArgs) = "output", "Print the output of a task";
    /// Waits for tasks.
    Block(BlockArgs) = "block", "Wait until tasks have ended";
    /// Ends tasks.
    Cancel(CancelArgs) = "cancel", "End tasks with all their processes";
    /// Removes finished tasks.
    Clear(ClearArgs) = "clear", "Remove finished tasks and their output";
    /// Sends a signal.
    Signal(SignalArgs) = "signal", "Send a signal to a running task";
    /// Writes to a task's standard input.
    Write(WriteArgs) = "write", "Write to the standard input of a task";
    /// Prints events.
    Events(EventsArgs) = "events", "Print what happens, one JSON object a line";
    /// Parent sessions.
    Session(SessionArgs) = "session", "End a parent session";
    /// The daemon itself.
    Daemon(DaemonArgs) = "daemon", "Start, stop or look at the daemon";
    /// Shell completions.
    Completions(CompletionsArgs) = "completions", "Print a completion script for a shell";
}

/// Options that every verb takes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of every verb")]
pub struct Globals {
    /// Print the object of the wire on one line, errors too
    #[arg(long, global = true)]
    pub json: bool,
    /// The daemon's socket [default: $BGD_SOCKET, else $XDG_RUNTIME_DIR/bgd/bgd.sock, else /tmp/bgd-UID/bgd.sock]
    #[arg(long, global = true, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
    /// Do not start a daemon if none runs
    #[arg(long, global = true)]
    pub no_start: bool,
}

const ROOT_EXAMPLES: &str = "\
EXAMPLES:
  bgctl submit -- make -j8            run it in the background, print its id
  bgctl list                          what is there
  bgctl output -f 3f2a                follow its output; an id may be cut to 4 characters
  bgctl block 3f2a && echo built      wait for it (60 s at most), decide by how it went
  bgctl cancel 3f2a                   end it and all its processes

If no daemon runs, bgctl starts one.";

/// The whole command line; man pages and completions are generated from it.
pub fn command() -> Command {
    let root = Globals::augment_args(Command::new("bgctl"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("The background for your shell, your scripts and your agents")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .after_help(ROOT_EXAMPLES)
        .after_long_help(long_help());
    Verb::define(root)
}

fn long_help() -> String {
    let codes = crate::exit::TABLE.iter().map(|(code, meaning)| format!("  {:>3}  {meaning}\n", code.0));
    format!("{ROOT_EXAMPLES}\n\nEXIT CODES:\n{}", codes.collect::<String>())
}

/// Reads the command line.
///
/// # Errors
/// Wrong usage; help and version come this way too.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<(Globals, Verb), clap::Error> {
    let matches = command().try_get_matches_from(args)?;
    let globals = Globals::from_arg_matches(&matches)?;
    let (name, matches) =
        matches.subcommand().ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))?;
    Ok((globals, Verb::read(name, matches)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::task::Status;

    fn read(words: &[&str]) -> Result<(Globals, Verb), clap::Error> {
        parse(std::iter::once("bgctl").chain(words.iter().copied()).map(OsString::from))
    }

    #[test]
    fn the_definitions_are_sound_and_every_verb_has_examples() {
        let mut command = command();
        command.build();
        command.clone().debug_assert();
        for name in Verb::NAMES {
            let verb = command.find_subcommand(name).expect("every verb is there");
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("EXAMPLES:"), "{name} has no examples");
            assert!(verb.get_about().is_some(), "{name} has no description");
        }
    }

    #[test]
    fn what_follows_the_command_belongs_to_it() {
        for words in [&["submit", "make", "--json", "-j8"][..], &["submit", "--", "make", "--json", "-j8"]] {
            let (globals, verb) = read(words).unwrap();
            let Verb::Submit(args) = verb else { panic!("{words:?}") };
            assert!(!globals.json);
            assert_eq!(args.command, ["make", "--json", "-j8"]);
        }
    }

    #[test]
    fn global_options_stand_anywhere() {
        for words in [["--json", "list", "--no-start"], ["list", "--json", "--no-start"]] {
            let (globals, verb) = read(&words).unwrap();
            assert!(globals.json && globals.no_start && matches!(verb, Verb::List(_)));
        }
        assert!(matches!(read(&["ls"]).unwrap().1, Verb::List(_)));
    }

    #[test]
    fn wrong_usage_is_exit_code_2() {
        for words in [
            &[][..],
            &["submit"],
            &["submit", "--shell", "a", "b"],
            &["submit", "--bogus", "x"],
            &["status", "abc"],
            &["cancel"],
            &["cancel", "--all", "abcd"],
            &["cancel", "--session", "s", "abcd"],
            &["list", "--status", "done"],
            &["output", "abcd", "--tail", "1", "--since", "2"],
            &["block"],
            &["resume", "abcd"],
        ] {
            assert_eq!(read(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn statuses_come_with_commas_or_one_by_one() {
        let Verb::List(args) =
            read(&["list", "--status", "running,failed", "--status", "pending"]).unwrap().1
        else {
            panic!("not a list")
        };
        assert_eq!(args.status, [Status::Running, Status::Failed, Status::Pending]);
    }

    #[test]
    fn offsets_may_be_negative() {
        let Verb::Output(args) = read(&["output", "--since", "-10", "abcd"]).unwrap().1 else {
            panic!("not an output")
        };
        assert_eq!(args.since, Some(-10));
    }
}
