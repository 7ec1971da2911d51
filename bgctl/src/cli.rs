//! The arguments of every verb; the source of help texts, man pages and completions.
//!
//! A verb's arguments are defined only when that verb is used (`Command::defer`), and if the command line starts with a
//! verb, the other verbs are not even named: defining and building all of them would cost each call more than the rest
//! of its work. [`plain`] reads the most frequent lines without any.

mod agent;
mod args;
mod console;
mod doctor;
mod each;
mod elsewhere;
mod foreign;
mod handoff;
mod installed;
mod job;
mod mcp;
mod news;
mod order;
pub mod plain;
mod queue;
mod run;
mod select;
mod shell_prompt;
pub mod since;
mod submit;
mod top;
mod words;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum as _};

use crate::render::list_format::Colours;

pub use self::agent::*;
pub use self::args::*;
pub use self::console::ConsoleArgs;
pub use self::doctor::DoctorArgs;
pub use self::each::EachArgs;
pub use self::elsewhere::{ElsewhereArgs, ExecutorsArgs};
pub use self::handoff::HandoffArgs;
pub use self::installed::{CompletionsArgs, CompletionsVerb, ManArgs, ShellName};
pub use self::job::{JobArgs, SettingArgs};
pub use self::mcp::McpArgs;
pub use self::news::{EventsArgs, InboxArgs, Since};
pub use self::order::{AfterName, OrderArgs, parse_after};
pub use self::queue::{
    ContinueArgs, EditArgs, GroupArgs, GroupVerb, HoldArgs, NewAfter, PauseArgs, ReleaseArgs, RerunArgs,
};
pub use self::run::{AttachArgs, RunArgs};
pub use self::select::SelectArgs;
pub use self::shell_prompt::ShellPromptArgs;
pub use self::submit::SubmitArgs;
pub use self::top::TopArgs;

/// Declares the verbs once: name, arguments, and the line that `bgctl --help` shows.
macro_rules! verbs {
    ($($(#[$doc:meta])+ $verb:ident($args:ty) = $name:literal $(| $alias:literal)*, $about:literal;)+) => {
        /// A verb with its arguments.
        #[derive(Debug)]
        pub enum Verb {
            $($(#[$doc])+ $verb($args),)+
        }

        impl Verb {
            pub const NAMES: &'static [&'static str] = &[$($name),+];
            pub const ALIASES: &'static [(&'static str, &'static [&'static str])] = &[$(($name, &[$($alias),*])),+];

            /// Returns the verb's name on the command line.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$verb(_) => $name,)+
                }
            }

            fn define(root: Command) -> Command {
                root$(.subcommand(
                    Command::new($name)
                        .about($about)
                        $(.visible_alias($alias))*
                        .defer(|verb| words::globals_last(<$args as Args>::augment_args(verb).about($about))),
                ))+
            }

            /// Defines only the verb of this name; `None` if there is none.
            fn define_only(root: Command, name: &str) -> Option<Command> {
                let verb = match name {
                    $($name $(| $alias)* => <$args as Args>::augment_args(
                        Command::new($name).about($about)$(.visible_alias($alias))*,
                    ),)+
                    _ => return None,
                };
                Some(root.subcommand(verb))
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
    /// Submits a command or a prompt. Boxed because it has the most arguments by far.
    Submit(Box<SubmitArgs>) = "submit", "Run a command or an AI agent in the background and print the task's id";
    /// Runs a job in the foreground.
    Run(Box<RunArgs>) = "run", "Run a command or an AI agent in the foreground; Ctrl-B moves it to the background";
    /// Sends a follow-up prompt.
    Resume(ResumeArgs) = "resume", "Send a follow-up prompt to the agent of a completed task";
    /// Shows tasks.
    List(ListArgs) = "list" | "ls" | "ps" | "jobs", "List tasks, newest first";
    /// Shows tasks live.
    Top(TopArgs) = "top", "Show the tasks live, with their output; keys answer, cancel, attach and more";
    /// Shows one task.
    Status(StatusArgs) = "status" | "show", "Show the details of a task";
    /// Prints a task's output.
    Output(OutputArgs) = "output" | "logs", "Print the output of a task";
    /// Attaches to a task's terminal.
    Attach(AttachArgs) = "attach" | "fg", "Attach to the terminal of a task";
    /// Waits for tasks.
    Block(BlockArgs) = "block" | "wait", "Wait for tasks to end";
    /// Cancels tasks.
    Cancel(CancelArgs) = "cancel", "Cancel tasks, ending all their processes";
    /// Removes finished tasks.
    Clear(ClearArgs) = "clear", "Delete finished tasks and their output";
    /// Submits tasks again.
    Rerun(RerunArgs) = "rerun", "Submit ended tasks again";
    /// Holds pending tasks.
    Hold(HoldArgs) = "hold", "Keep pending tasks from starting";
    /// Releases held tasks.
    Release(ReleaseArgs) = "release", "Allow held tasks to start";
    /// Pauses running tasks.
    Pause(PauseArgs) = "pause", "Pause running tasks and all their processes until `continue`";
    /// Continues paused tasks.
    Continue(ContinueArgs) = "continue", "Continue paused tasks";
    /// Changes what a pending task waits for.
    Edit(EditArgs) = "edit", "Change what a pending task waits for";
    /// Shows and changes groups.
    Group(GroupArgs) = "group" | "groups", "Show, create, pause or remove task groups, each with its own slots";
    /// Opens an interactive prompt.
    Console(ConsoleArgs) = "console", "Open a prompt that runs each line in the foreground; Ctrl-B moves it to the background";
    /// Serves tools to AI agents.
    Mcp(McpArgs) = "mcp", "Serve background-task tools to AI agents (an MCP server on stdio)";
    /// Hands a process over to the daemon.
    Handoff(HandoffArgs) = "handoff", "Hand a running child process over to the daemon";
    /// Sends a signal.
    Signal(SignalArgs) = "signal", "Send a signal to a running task";
    /// Writes to a task's standard input.
    Write(WriteArgs) = "write", "Write to a task's standard input";
    /// Shows agents.
    Agents(AgentsArgs) = "agents", "List the AI agents";
    /// Lists where tasks can run.
    Executors(ExecutorsArgs) = "executors", "List where tasks can run: other machines and clusters";
    /// Answers an agent.
    Answer(AnswerArgs) = "answer", "Show or answer the question of a task's agent";
    /// Prints events.
    Events(EventsArgs) = "events", "Print events, one JSON object per line";
    /// Prints the notifications of a parent session.
    Inbox(InboxArgs) = "inbox", "Print a session's notifications about its tasks";
    /// Shows or ends parent sessions.
    Session(SessionArgs) = "session", "Print the current parent session, or end one";
    /// Joins standard input and output to the daemon's socket.
    Dial(DialArgs) = "dial", "Join standard input and output to the daemon's socket (what -H runs on the other machine)";
    /// Starts, stops or inspects the daemon.
    Daemon(DaemonArgs) = "daemon", "Start, stop or inspect the daemon";
    /// Checks the setup.
    Doctor(DoctorArgs) = "doctor", "Check the setup, and say how to fix what does not work";
    /// Prints or installs shell completions.
    Completions(CompletionsArgs) = "completions", "Print or install a completion script for a shell";
    /// Prints or installs the manual pages.
    Man(ManArgs) = "man", "Print or install the manual pages";
    /// Prints a shell integration script.
    ShellInit(ShellInitArgs) = "shell-init", "Print a script that binds a shell key to run the current line through bgctl";
    /// Prints a summary for a shell prompt.
    ShellPrompt(ShellPromptArgs) = "shell-prompt", "Print a summary of running and failed tasks for a shell prompt";
}

/// Options that every verb accepts.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Print JSON, one object per line; errors too
    #[arg(long, global = true)]
    pub json: bool,
    /// Socket of the daemon [default: $BGD_SOCKET, else $XDG_RUNTIME_DIR/bgd/bgd.sock, else /tmp/bgd-UID/bgd.sock]
    #[arg(long, global = true, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
    /// Use the daemon of another machine, over ssh; `list` and `top` accept several (a,b) [default: $BGD_HOST, else this machine]
    #[arg(short = 'H', long, global = true, value_name = "[USER@]HOST", conflicts_with = "socket", add = crate::candidates::machines())]
    pub host: Option<String>,
    /// With --host: give up if it can't be reached within this time [default: 30s; 5s for each of several hosts]
    #[arg(long, global = true, value_name = "TIME", value_parser = crate::duration::parse_ms)]
    pub connect_timeout: Option<u64>,
    /// With --host: if bgctl is not installed there, copy bgctl and bgd to that machine's cache folder
    #[arg(long, global = true)]
    pub bootstrap: bool,
    /// Do not start a daemon if none is running
    #[arg(long, global = true)]
    pub no_start: bool,
    /// Colour lists: auto (on a terminal), always (for `watch --color` and `less -R`) or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    pub color: Colours,
}

impl Globals {
    /// Returns the options as command-line words for another `bgctl`. `$BGD_HOST` and `$BGD_SOCKET` are passed on in
    /// the environment.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        words.extend(self.socket.iter().flat_map(|path| ["--socket".into(), path.clone().into()]));
        words.extend(self.host.iter().flat_map(|host| ["--host".into(), host.into()]));
        let within = self.connect_timeout.iter();
        words.extend(within.flat_map(|ms| ["--connect-timeout".into(), format!("{ms}ms").into()]));
        let flags = [(self.bootstrap, "--bootstrap"), (self.no_start, "--no-start")];
        words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.into()));
        let colours = self.color.to_possible_value();
        words.extend(colours.iter().flat_map(|when| ["--color".into(), when.get_name().into()]));
        words
    }
}

const ROOT_EXAMPLES: &str = "\
EXAMPLES:
  bgctl run -- make -j8               run it here; Ctrl-B moves it to the background
  bgctl submit -- make -j8            run it in the background, print its id
  bgctl list                          list the tasks
  bgctl output -f 3f2a                follow its output; 4 characters of an id are enough
  bgctl block 3f2a && echo built      wait for it (at most 60 s), then check how it ended
  bgctl cancel 3f2a                   cancel it and end all its processes
  bgctl submit --agent opencode -d 'find the leak' 'why does it grow?'
  bgctl resume 3f2a 'now fix it'      continue the conversation with an agent

If no daemon is running, bgctl starts one.";

/// Defines the whole command line; man pages and completions are generated from it.
pub fn command() -> Command {
    let root = Globals::augment_args(Command::new("bgctl"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Run long jobs in the background, for your shell, your scripts and your AI agents")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .after_help(ROOT_EXAMPLES)
        .after_long_help(long_help());
    Verb::define(root).subcommand(words::help())
}

fn long_help() -> String {
    let codes = crate::exit::TABLE.iter().map(|(code, meaning)| format!("  {:>3}  {meaning}\n", code.0));
    format!("{ROOT_EXAMPLES}\n\nEXIT CODES:\n{}", codes.collect::<String>())
}

/// Parses the command line. Interactively, some verbs default to the latest task.
///
/// # Errors
/// Wrong usage; requests for help and the version are also returned as errors.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    is_interactive: bool,
) -> Result<(Globals, Verb), clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    // Errors and help need the complete definitions, so they are built only if this fails.
    if let Some(mut command) = command_of_verb(&args)
        && let Ok(parsed) = parse_as(&mut command, &args, is_interactive)
    {
        return Ok(parsed);
    }
    parse_as(&mut command(), &args, is_interactive)
}

/// Reports whether a word begins like an option.
pub fn is_option(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

/// Parses a command line that has at most global options and no verb. `None` if it has more than those, asks for help,
/// the version or JSON, or is invalid.
pub fn parse_without_verb(args: &[OsString]) -> Option<Globals> {
    // Most command lines begin with their verb: skip building any definitions for them.
    if args.get(1).is_some_and(|first| !is_option(first)) {
        return None;
    }
    let command = Globals::augment_args(Command::new("bgctl")).version("");
    let globals = Globals::from_arg_matches(&command.try_get_matches_from(args).ok()?).ok()?;
    (!globals.json).then_some(globals)
}

/// Defines the command line with only the verb that it begins with; `None` if it does not begin with one.
fn command_of_verb(args: &[OsString]) -> Option<Command> {
    let name = args.get(1)?.to_str()?;
    Verb::define_only(Globals::augment_args(Command::new("bgctl")), name)
}

fn parse_as(
    command: &mut Command,
    args: &[OsString],
    is_interactive: bool,
) -> Result<(Globals, Verb), clap::Error> {
    // As with an empty `$(…)` after it: nothing was chosen there, so the latest task is not meant.
    let ends_in_dashes = args.last().is_some_and(|last| last == "--");
    let matches = match command.try_get_matches_from_mut(args) {
        Ok(matches) => matches,
        Err(error) => return Err(words::answered(command, args, Verb::NAMES, error)),
    };
    let globals = Globals::from_arg_matches(&matches)?;
    let (name, matches) =
        matches.subcommand().ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))?;
    if name == words::HELP {
        let mut all = self::command();
        all.build();
        return parse(words::asks_for_help(matches, &all), is_interactive);
    }
    let verb = Verb::read(name, matches)?;
    let checked = match &verb {
        Verb::Submit(args) => args.check(),
        Verb::Run(args) => args.check(),
        Verb::Resume(args) => args.check(),
        Verb::Clear(args) => args.check(ends_in_dashes),
        Verb::Status(args) => args.check(is_interactive && !ends_in_dashes),
        Verb::Output(args) => args.check(is_interactive && !ends_in_dashes),
        Verb::Attach(args) => args.check(is_interactive && !ends_in_dashes),
        Verb::Block(args) => args.check(is_interactive && !ends_in_dashes),
        Verb::Edit(args) => args.check(),
        Verb::Signal(args) => args.words().map(drop),
        Verb::Completions(args) => args.check(),
        _ => Ok(()),
    };
    match (checked, command.find_subcommand_mut(name)) {
        (Ok(()), _) => Ok((globals, verb)),
        (Err((kind, what)), Some(of_verb)) => Err(of_verb.error(kind, what)),
        (Err((kind, what)), None) => Err(command.error(kind, what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::order::Retry;

    fn read(words: &[&str]) -> Result<(Globals, Verb), clap::Error> {
        parse(std::iter::once("bgctl").chain(words.iter().copied()).map(OsString::from), false)
    }

    #[test]
    fn clap_definitions_are_valid_and_every_verb_has_examples() {
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
    fn help_lists_own_options_first_and_global_options_last() {
        let mut command = command();
        command.build();
        for name in Verb::NAMES {
            let verb = command.find_subcommand(name).expect("every verb is there");
            let options = verb.get_opts().filter(|option| !option.is_hide_set() && option.get_id() != "help");
            let mut headings: Vec<_> = options.map(clap::Arg::get_help_heading).collect();
            headings.dedup();
            assert!(!headings[1..].contains(&None), "{name}: {headings:?}");
            assert_eq!(headings.last(), Some(&Some("Global options")), "{name}: {headings:?}");
        }
    }

    #[test]
    fn words_after_command_belong_to_command() {
        for words in [&["submit", "make", "--json", "-j8"][..], &["submit", "--", "make", "--json", "-j8"]] {
            let (globals, verb) = read(words).unwrap();
            let Verb::Submit(args) = verb else { panic!("{words:?}") };
            assert!(!globals.json);
            assert_eq!(args.command, ["make", "--json", "-j8"]);
        }
    }

    #[test]
    fn global_options_are_accepted_before_and_after_verb() {
        for words in [["--json", "list", "--no-start"], ["list", "--json", "--no-start"]] {
            let (globals, verb) = read(&words).unwrap();
            assert!(globals.json && globals.no_start && matches!(verb, Verb::List(_)));
        }
        for name in ["ls", "ps", "jobs"] {
            assert!(matches!(read(&[name]).unwrap().1, Verb::List(_)), "{name}");
        }
    }

    #[test]
    fn global_options_are_passed_unchanged_to_another_bgctl() {
        let given =
            ["--host", "h", "--connect-timeout", "2000ms", "--bootstrap", "--no-start", "--color", "never"];
        assert_eq!(read(&[&given[..], &["list"]].concat()).unwrap().0.words(), given);
    }

    #[test]
    fn usage_errors_exit_with_code_2() {
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
            &["resume", "abcd", "two", "words"],
            &["resume", "nope!", "prompt"],
            &["agents", "--bogus"],
            &["answer"],
            &["answer", "abcd", "allow", "deny"],
            &["answer", "abcd", "--request", "first"],
            &["clear", ""],
            &["clear", "--"],
            &["clear", "--all", "--"],
            &["clear", "--all-sessions", "abcd"],
            &["clear", "--all-sessions", "--session", "s"],
            &["inbox", "--limit", "0"],
            &["inbox", "--follow", "--wait", "5s"],
            &["inbox", "--wait", "soon"],
            &["events", "--since", "-1"],
            &["events", "--since", "x:"],
            &["session"],
            &["status"],
            &["output", "--follow"],
            &["attach"],
            &["cancel", "@", "--all"],
            &["cancel", "--tag", "t", "abcd"],
            &["block", "abcd", "--group", "g"],
            &["status", "@0"],
            &["list", "--tree", "-q"],
            &["hold"],
            &["release", "abcd", "--status", "pending"],
            &["edit", "abcd"],
            &["edit", "abcd", "--in", "1s", "--at", "14:00"],
            &["edit", "abcd", "--after", "none", "--after", "3f2a"],
            &["edit", "abcd", "--priority", "101"],
            &["group"],
            &["group", "set", "gpu"],
            &["group", "set", "gpu", "--slots", "0"],
            &["submit", "--priority", "-101", "x"],
            &["submit", "--slots", "-1", "x"],
            &["submit", "--slots", "100001", "x"],
            &["submit", "--after", "3f2a:done", "x"],
            &["submit", "--in", "1s", "--at", "14:00", "x"],
            &["submit", "--at", "25:00", "x"],
            &["submit", "--retry", "1001", "x"],
            &["submit", "--retry-delay", "1s", "x"],
            &["submit", "--retry", "1", "--restart", "always", "x"],
            &["submit", "--restart", "never", "x"],
        ] {
            assert_eq!(read(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn r113_missing_id_means_latest_task_in_interactive_use_only() {
        let words = |verb: &str| ["bgctl", verb].map(OsString::from);
        for verb in ["status", "output", "attach", "block"] {
            parse(words(verb), true).unwrap();
            let error = parse(words(verb), false).unwrap_err();
            assert!(error.to_string().contains("no task given"), "{error}");
        }
        for verb in ["cancel", "hold", "edit", "signal"] {
            assert_eq!(parse(words(verb), true).unwrap_err().exit_code(), 2, "{verb}");
        }
    }

    #[test]
    fn r100_to_r109_scheduling_options_are_parsed() {
        let line = "submit --group gpu --priority -5 --slots 0 --after @ --after 3f2a:any --in 10m --hold --retry 3 \
                    --retry-delay 1s..5m --retry-on 1,signal -- make --after x";
        let Verb::Submit(args) = read(&line.split_whitespace().collect::<Vec<_>>()).unwrap().1 else {
            panic!("not a submit")
        };
        let order = &args.order;
        assert_eq!((order.group.as_deref(), order.priority, order.slots), (Some("gpu"), Some(-5), Some(0)));
        assert_eq!((order.after.len(), order.delay, order.hold), (2, Some(600_000), true));
        let retry = Retry {
            times: 3,
            delay_ms: Some(1000),
            max_delay_ms: Some(300_000),
            codes: vec![1],
            signal: true,
        };
        assert_eq!(order.retry(), Some(retry));
        assert_eq!(args.command, ["make", "--after", "x"]);
    }

    #[test]
    fn since_option_accepts_negative_offsets() {
        let Verb::Output(args) = read(&["output", "--since", "-10", "abcd"]).unwrap().1 else {
            panic!("not an output")
        };
        assert_eq!(args.since, Some(-10));
    }

    fn wrong(words: &[&str]) -> String {
        let error = read(words).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{words:?}");
        error.to_string()
    }

    #[test]
    fn prompt_is_one_argument_after_the_options() {
        for words in [
            &["submit", "--agent", "codex", "-d", "why", "explain this"][..],
            &["submit", "-d", "why", "--agent", "codex", "--time-limit", "5m", "--", "explain this"],
        ] {
            let Verb::Submit(args) = read(words).unwrap().1 else { panic!("{words:?}") };
            assert_eq!(args.agent.as_deref(), Some("codex"));
            assert_eq!(args.command, ["explain this"]);
        }
        let Verb::Submit(args) = read(&["submit", "--prompt", "- one", "-d", "why"]).unwrap().1 else {
            panic!("not a submit")
        };
        assert_eq!(args.prompt, Some("- one".into()));
        let Verb::Submit(args) = read(&["submit", "--resume", "abcd", "-"]).unwrap().1 else {
            panic!("not a submit")
        };
        assert_eq!(args.command, ["-"]);
        // R37: options that repeat what the task already has are accepted and ignored.
        read(&["submit", "--resume", "abcd", "--agent", "codex", "-d", "why", "go on"]).unwrap();
        let Verb::Resume(args) = read(&["resume", "abcd", "--", "-O3 is slower"]).unwrap().1 else {
            panic!("not a resume")
        };
        assert_eq!(args.prompt, "-O3 is slower");
    }

    #[test]
    fn prompt_usage_errors_give_advice() {
        for (words, advice) in [
            (&["submit", "--agent", "x", "-d", "y", "two", "words"][..], "not 2: quote it"),
            (&["submit", "--agent", "x", "prompt", "-d", "y"], "put options before it"),
            (&["submit", "--agent", "x", "prompt"], "--agent needs a description"),
            (&["submit", "--prompt", "p"], "--prompt needs a description"),
            (&["submit", "--prompt", "two", "words", "-d", "y"], "unexpected argument `words`"),
            (&["submit", "--agent", "x", "-d", "y"], "--agent needs a PROMPT"),
            (&["submit", "--resume", "abcd"], "--resume needs a PROMPT"),
            (&["submit", "--resume", "abcd", "two", "words"], "not 2"),
            (&["resume", "abcd", "two", "words"], "not 2"),
        ] {
            let text = wrong(words);
            assert!(text.starts_with("error: ") && text.contains("Usage: bgctl "), "{text}");
            assert!(text.contains(advice), "{advice} is not in\n{text}");
        }
    }

    #[test]
    fn options_meaningless_for_agent_or_resume_are_refused() {
        for option in ["--stdin", "--stdin-pipe", "--split", "--shell=x"] {
            for mode in
                [&["--agent", "x", "-d", "y"][..], &["--prompt", "p", "-d", "y"], &["--resume", "abcd"]]
            {
                let text = wrong(&[&["submit", option][..], mode].concat());
                assert!(text.contains("cannot be used with"), "{text}");
            }
        }
        for option in
            ["--session=s", "--channel=c", "--cwd=/", "--tag=t", "--key=k", "--time-limit=1s", "--env=A=b"]
        {
            assert!(wrong(&["submit", option, "--resume", "abcd", "p"]).contains("cannot be used with"));
            read(&["submit", option, "--agent", "x", "-d", "y", "p"]).unwrap();
        }
    }

    #[test]
    fn agents_and_answer_verbs_parse_their_arguments() {
        let Verb::Agents(args) = read(&["agents", "codex", "--check", "opencode"]).unwrap().1 else {
            panic!("not agents")
        };
        assert_eq!((args.names.len(), args.check), (2, true));
        let Verb::Answer(args) = read(&["answer", "abcd", "allow", "--request", "7"]).unwrap().1 else {
            panic!("not an answer")
        };
        assert_eq!((args.option.as_deref(), args.request), (Some("allow"), Some(7)));
    }
}
