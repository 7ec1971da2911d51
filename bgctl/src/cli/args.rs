//! What each verb takes, with the help texts and examples that users read.

use std::ffi::OsString;

use bgd_shared::ready::line_regex;
use bgd_shared::request::BlockUntil;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use regex::bytes::Regex;

use super::select::{SELECTORS, SelectArgs, none_named};
use crate::candidates::{active_tasks, finished_tasks, sessions, tasks};
use crate::duration::{Timeout, parse_ms, parse_timeout};
use crate::name::Name;

/// Arguments of `list`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl list
  bgctl list --status running,pending
  bgctl list --session discord:4711 --all
  bgctl list --session .              what was submitted from here
  bgctl list --tag nightly --group gpu
  bgctl list --tree                   what starts after what
  bgctl list -q --status failed | xargs --no-run-if-empty bgctl clear

On a terminal it is a table, else columns with tabs between them: id, status,
age, run time, description. -q prints every id unless --limit is given.

`(resumed)` behind an id: the task was given more prompts than its first one.
Behind `pending` is why a task has not started, unless it waits for a free slot:
the tasks that it starts after, `held`, `gpu paused` for its group, a time, or the
time of its next attempt. Behind `running`, `(paused)` is what `bgctl pause` has stopped.
--tree puts a task below the one that it starts after.
`(asks)` behind a status: its agent waits for `bgctl answer`. `(stalled)`: its
agent has been silent for long, with what it last said. `(suspect)`: the agent's answer
looks like an error; `bgctl status` says why.")]
pub struct ListArgs {
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Show so many at most [default: 100]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Show all of them
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Print nothing but the complete ids
    #[arg(short, long)]
    pub quiet: bool,
    /// Draw which task starts after which
    #[arg(long, conflicts_with = "quiet")]
    pub tree: bool,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl status 3f2a
  bgctl status @                      this session's latest task, which needs no @ here
  bgctl status --group gpu --status pending
  bgctl --json status 3f2a | jq .task.exit

Of several tasks the pages come one after the other, the oldest first.")]
pub struct StatusArgs {
    /// The task: its id, or the first 4 characters of it or more, or @ [default on a terminal: @]
    #[arg(value_name = "ID", add = tasks(), conflicts_with_all = SELECTORS)]
    pub id: Option<Name>,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
}

impl StatusArgs {
    /// Whether a task is named, or a person types.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn check(&self, is_interactive: bool) -> Result<(), (ErrorKind, String)> {
        none_named(self.id.is_none() && self.select.is_empty(), is_interactive)
    }
}

/// Arguments of `output`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl output 3f2a                   all of it so far
  bgctl output -f 3f2a                and what comes, until the task ends
  bgctl output @2                     of the task before this session's latest
  bgctl output --tail 1 --tag nightly of several, one after the other
  bgctl output --tail 20 3f2a         the last 20 lines
  bgctl output --since -4096 3f2a     the last 4096 bytes
  bgctl output --result 3f2a          only if the task has completed, else exit code 65

The output of an agent's task is what the agent says while it works; its --result
is the final answer alone. -f ends when the task does, also if it is resumed later.

The bytes come out exactly as the task wrote them. With --json one object of the
wire is printed; its `next` is the --since to go on with.")]
pub struct OutputArgs {
    /// The task: its id, or the first 4 characters of it or more, or @ [default on a terminal: @]
    #[arg(value_name = "ID", add = tasks(), conflicts_with_all = SELECTORS)]
    pub id: Option<Name>,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Go on until the task has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Begin with the last N lines
    #[arg(long, value_name = "N", conflicts_with = "since")]
    pub tail: Option<u64>,
    /// Begin at this byte; a negative number counts from the end
    #[arg(long, value_name = "OFFSET", allow_negative_numbers = true)]
    pub since: Option<i64>,
    /// Standard output, of a task submitted with --split (this is the default)
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Standard error, of a task submitted with --split
    #[arg(long)]
    pub stderr: bool,
    /// The result of a completed task; an error if it has not completed
    #[arg(long, conflicts_with_all = ["follow", "tail", "since", "stderr"])]
    pub result: bool,
}

impl OutputArgs {
    /// Whether a task is named, or a person types.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn check(&self, is_interactive: bool) -> Result<(), (ErrorKind, String)> {
        none_named(self.id.is_none() && self.select.is_empty(), is_interactive)
    }
}

fn until_parser() -> impl TypedValueParser<Value = BlockUntil> {
    PossibleValuesParser::new(["ended", "ready"])
        .map(|text| if text == "ready" { BlockUntil::Ready } else { BlockUntil::Ended })
}

/// Arguments of `block`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl block 3f2a 91bc               both, 60 s at most
  bgctl block --timeout none 3f2a     as long as it takes
  bgctl block --any 3f2a 91bc         until one of them has ended
  bgctl block --group gpu             all of the group; what has ended counts, too
  bgctl block --group gpu --status running --status pending
                                      all that wait or run there now
  bgctl block @                       this session's latest task, which needs no @ here
  bgctl block --exit-code 3f2a        and exit as the command did
  bgctl block --line 'listening on port (\\d+)' 3f2a
                                      until it has written such a line, which is printed
  bgctl block --until ready 3f2a      a server that was submitted with --ready

On a terminal it shows how far they are: of one the time and its last line, of several
how many have ended, failed and run, and about how long the others take.

--line looks from the beginning of the output, or from --since on, at lines that have
ended, and at the last one when the task has, without the escape sequences of
terminals. Of a longer line the first 64 KiB count.
With --json `next` is the --since that goes on behind the line.

EXIT CODES:
    0  all of them completed (with --any: all that have ended); --line: it is there;
       --until ready: all of them are, or were
    1  at least one failed or was cancelled; --line: the task ended without it;
       --until ready: one ended and never was
   66  no task matches; with --status that is 0
   75  the timeout came first; some still run

With --exit-code the task's own code takes their place: 124 if its time limit
ended it, 128 + the signal if a signal did, 1 if it was never started. A script
that must tell these from codes of the task reads --json. The task of an agent has
no code of its own: 0 if it completed, 1 if it failed or was cancelled.")]
pub struct BlockArgs {
    /// The tasks: ids, or the first 4 characters of them or more, or @ [default on a terminal: @]
    #[arg(value_name = "ID", add = tasks(), conflicts_with_all = SELECTORS)]
    pub ids: Vec<Name>,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
    /// How long to wait at most: 90s, 10m, or none
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_timeout, allow_hyphen_values = true)]
    pub timeout: Timeout,
    /// Wait for one of them only
    #[arg(long)]
    pub any: bool,
    /// Exit with the task's own exit code, or 128 + the signal that ended it; takes one ID
    #[arg(long)]
    pub exit_code: bool,
    /// Wait until they have ended, or until they are ready
    #[arg(long, value_name = "STATE", value_parser = until_parser(), default_value = "ended",
        hide_default_value = true, conflicts_with = "exit_code")]
    pub until: BlockUntil,
    /// Wait until the task has written a line that matches, and print it; takes one task
    #[arg(long, value_name = "REGEX", value_parser = line_regex, allow_hyphen_values = true,
        conflicts_with_all = ["any", "exit_code", "until"])]
    pub line: Option<Regex>,
    /// With --line: begin at this byte; a negative number counts from the end
    #[arg(long, value_name = "OFFSET", allow_negative_numbers = true, requires = "line")]
    pub since: Option<i64>,
}

impl BlockArgs {
    /// Whether a task is named, or a person types.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn check(&self, is_interactive: bool) -> Result<(), (ErrorKind, String)> {
        none_named(self.ids.is_empty() && self.select.is_empty(), is_interactive)
    }
}

/// Arguments of `cancel`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl cancel 3f2a
  bgctl cancel --signal INT --grace 30s 3f2a
  bgctl cancel --all --session discord:4711
  bgctl cancel --all --session .      those that were submitted from here
  bgctl cancel --tag nightly --status pending
  bgctl cancel @9c1e                  what is left of a batch

A task gets the signal first, and SIGKILL when the grace is over. bgctl returns
when it has ended. A task that is still pending is never started. Of one that
has ended already, the processes that live on are ended.")]
pub struct CancelArgs {
    /// The tasks: ids, or the first 4 characters of them or more, or @
    #[arg(value_name = "ID", add = active_tasks(), conflicts_with = "all", conflicts_with_all = SELECTORS,
        required_unless_present_any = ["all", "tags", "group", "batch", "session", "status"])]
    pub ids: Vec<Name>,
    /// Every task that has not ended
    #[arg(long)]
    pub all: bool,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
    /// The first signal: a name or a number [default: TERM]
    #[arg(long, value_name = "SIG", allow_hyphen_values = true)]
    pub signal: Option<String>,
    /// How long they have to end before SIGKILL [default: the configured one, 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
    pub grace: Option<u64>,
}

/// Arguments of `clear`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl clear                         finished tasks of the current session
  bgctl clear 3f2a 91bc               these
  bgctl clear -- $ids                 in scripts: an error if there are none, never all
  bgctl clear --session discord:4711  those of another parent session
  bgctl clear --all-sessions          those of every session, and of none
  bgctl clear --tag nightly           those of the current session with this label
  bgctl clear --batch 9c1e            those of a batch
  bgctl clear --all                   running tasks too: cancels them first

Without IDs it removes the finished tasks of the current parent session, as
`bgctl session key` prints it, except those with processes that are still running
(`lingering`): named, or with --all, these are ended first. --tag, --group and --status
leave some of these out; --batch looks at every session, as ids do.")]
pub struct ClearArgs {
    /// Finished tasks: ids, or the first 4 characters of them or more, or @
    #[arg(value_name = "ID", add = finished_tasks(), conflicts_with_all = SELECTORS, conflicts_with = "all_sessions")]
    pub ids: Vec<Name>,
    /// Active tasks too: they are cancelled first
    #[arg(long)]
    pub all: bool,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Tasks of every parent session, and those that belong to none
    #[arg(long, conflicts_with = "session")]
    pub all_sessions: bool,
}

impl ClearArgs {
    /// Whether the ids that were announced are there: `clear -- $(…)` whose list is empty means no task, and not the
    /// many that `clear` alone stands for.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn check(&self, is_empty_list: bool) -> Result<(), (ErrorKind, String)> {
        if is_empty_list && self.ids.is_empty() {
            let what = "the list of ids behind `--` is empty: name tasks, or leave out `--` to clear the finished \
                        tasks of the current session";
            return Err((ErrorKind::TooFewValues, what.to_owned()));
        }
        Ok(())
    }
}

/// Arguments of `signal`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl signal 3f2a HUP
  bgctl signal 3f2a USR1 --tree
  bgctl signal --tag web HUP          to all running tasks with this label

Named by its id a task must be running, else the exit code is 65; of those that are
selected only the running ones get the signal. `bgctl pause` stops a task for a while.")]
#[command(override_usage = "\
bgctl signal [OPTIONS] <ID> <SIG>
       bgctl signal [OPTIONS] --tag <TAG> <SIG>")]
pub struct SignalArgs {
    /// The task: its id, or the first 4 characters of it or more, or @; left out where options select tasks
    #[arg(value_name = "ID", add = active_tasks())]
    pub id: String,
    /// The signal: a name, with or without SIG, or a number
    #[arg(value_name = "SIG")]
    pub signal: Option<String>,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
    /// All its processes, not just the first one
    #[arg(long)]
    pub tree: bool,
}

impl SignalArgs {
    /// The task that is named, if none are selected, and the signal.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn words(&self) -> Result<(Option<Name>, String), (ErrorKind, String)> {
        match (self.select.is_empty(), &self.signal) {
            (true, Some(signal)) => {
                let name = self.id.parse().map_err(|error| (ErrorKind::ValueValidation, error))?;
                Ok((Some(name), signal.clone()))
            }
            (false, None) => Ok((None, self.id.clone())),
            (true, None) => {
                let what = format!(
                    "`{}` stands alone: name a task and a signal, as in `bgctl signal 3f2a HUP`",
                    self.id
                );
                Err((ErrorKind::MissingRequiredArgument, what))
            }
            (false, Some(_)) => {
                let what =
                    format!("`{}` names a task, and options select others: leave out one of them", self.id);
                Err((ErrorKind::ArgumentConflict, what))
            }
        }
    }
}

/// Arguments of `write`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl write 3f2a -n yes             a line
  bgctl write 3f2a --eof              no more input
  bgctl write 3f2a < answers.txt      a file, and then no more input
  bgctl write 3f2a --no-eof < part1   a file, and more may come

The task must have been submitted with --stdin-pipe. TEXT is written as it is.")]
pub struct WriteArgs {
    /// The task: its id, or the first 4 characters of it or more, or @
    #[arg(value_name = "ID", add = active_tasks())]
    pub id: Name,
    /// What to write [default: standard input, to its end]
    #[arg(value_name = "TEXT")]
    pub text: Option<OsString>,
    /// Put a newline behind TEXT
    #[arg(short, long, requires = "text")]
    pub newline: bool,
    /// End the task's input behind it; without TEXT nothing is read or written
    #[arg(long, conflicts_with = "no_eof")]
    pub eof: bool,
    /// Do not end the task's input with the end of standard input
    #[arg(long, conflicts_with = "text")]
    pub no_eof: bool,
}

/// Arguments of `session`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl session key                   what --session is for a task submitted here
  bgctl session end discord:4711
  bgctl session end .                 this one
  BGD_SESSION=$(uuidgen) make-plans   all that a program submits belongs together

A parent session is whoever asks for tasks: a chat, a terminal, an agent, a script.
It is named by any text. In a terminal one is found: tmux:%3 for a pane of tmux,
ssh:192.0.2.7:51514 for a login, else tty:/dev/pts/4@81512 with the start of its shell.
$BGD_SESSION wins over that, and --session over both; an empty one is none.")]
pub struct SessionArgs {
    /// What to do with it.
    #[command(subcommand)]
    pub verb: SessionVerb,
}

/// What can be done with a parent session.
#[derive(Subcommand, Debug)]
pub enum SessionVerb {
    /// Print the key of the parent session that this is; exit code 2 if there is none
    Key,
    /// Cancel its active tasks and remove all of them, with what it was told
    End {
        /// The parent session; `.` is this one
        #[arg(value_name = "KEY", add = sessions())]
        key: String,
    },
}

/// Arguments of `daemon`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl daemon status
  bgctl daemon status --openmetrics > /var/lib/node-exporter/bgd.prom
  bgctl daemon reload                 after the configuration was changed
  bgctl daemon stop --grace 30s       cancels all tasks; returns when nothing of it is left
  bgctl daemon restart                after an upgrade: says which tasks that ends, and does it")]
pub struct DaemonArgs {
    /// What to do with it.
    #[command(subcommand)]
    pub verb: DaemonVerb,
}

/// What can be done with the daemon.
#[derive(Subcommand, Debug)]
pub enum DaemonVerb {
    /// Start it; nothing happens if it runs
    Start,
    /// Cancel all tasks and end it
    Stop {
        /// How long tasks have to end before SIGKILL [default: the configured one, 5s]
        #[arg(long, value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
        grace: Option<u64>,
    },
    /// Stop it and start another one; tells first how many tasks that ends
    Restart {
        /// How long tasks have to end before SIGKILL [default: the configured one, 5s]
        #[arg(long, value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
        grace: Option<u64>,
    },
    /// Show how it is; exit code 69 if none runs
    Status {
        /// Print its figures as OpenMetrics text, for Prometheus and its kind
        #[arg(long)]
        openmetrics: bool,
    },
    /// Read the configuration again
    Reload,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Verbs, options, ids of tasks with their descriptions, and names of agents are
completed; the script asks bgctl for them, so it stays true after an upgrade.

EXAMPLES:
  mkdir -p ~/.local/share/bash-completion/completions ~/.config/fish/completions
  bgctl completions bash > ~/.local/share/bash-completion/completions/bgctl
  bgctl completions fish > ~/.config/fish/completions/bgctl.fish
  bgctl completions zsh > ~/.zfunc/_bgctl     (a folder of your $fpath)")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: ShellName,
}

/// A shell that completions can be made for.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShellName {
    /// GNU bash.
    Bash,
    /// Z shell.
    Zsh,
    /// fish.
    Fish,
}

/// Arguments of `shell-init`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  eval \"$(bgctl shell-init bash)\"                 in ~/.bashrc
  eval \"$(bgctl shell-init zsh)\"                  in ~/.zshrc, behind compinit
  bgctl shell-init fish | source                  in ~/.config/fish/config.fish
  eval \"$(bgctl shell-init bash --bind '\\e\\r')\"   another key: Alt-Enter

It makes Ctrl-X Ctrl-R run the line that is typed through `bgctl run`, so that
Ctrl-B can send it to the background later; and it brings the completions along.
The line is read by a new shell of the same kind, which knows no aliases and no
functions of this one.")]
pub struct ShellInitArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: ShellName,
    /// The key, as the shell's own `bind` or `bindkey` writes it [default: Ctrl-X Ctrl-R]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub bind: Option<String>,
    /// Bind no key: only the completions
    #[arg(long, conflicts_with = "bind")]
    pub no_bind: bool,
}
