//! Arguments of each verb, with the help texts and examples that users read.

use std::ffi::OsString;
use std::path::PathBuf;

use bgd_shared::ready::line_regex;
use bgd_shared::request::BlockUntil;
use bgd_shared::time::Timestamp;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Subcommand, ValueHint};
use regex::bytes::Regex;

use super::installed::ShellName;
use super::select::{SELECTORS, SelectArgs, none_named};
use crate::candidates::{active_tasks, finished_tasks, sessions, tasks};
use crate::cli::since::Since;
use crate::duration::{Timeout, parse_ms, parse_timeout};
use crate::name::Name;
use crate::render::columns::{Field, Sort};
use crate::when::parse_since;

/// Arguments of `list`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl list
  bgctl list --status running,pending
  bgctl list --session discord:4711 --all
  bgctl list --session .              tasks of the current session
  bgctl list --tag nightly --group gpu
  bgctl list --since yesterday --status failed
  bgctl list --since 2h --grep pytest
  bgctl list --tree                   show dependencies
  bgctl list --columns id,progress,group,description --sort -time
  bgctl list --columns id,cpu,memory,written,description --sort -cpu
  bgctl list --watch                  keep the table up to date; see also `bgctl top`
  bgctl list -q --status failed | xargs --no-run-if-empty bgctl clear
  bgctl -H build1,build2 list         tasks of two machines, asked at the same time

Prints a table on a terminal, otherwise tab-separated columns: id, status, age, \
run time, description; with several hosts the host comes first. -q prints every \
id unless --limit is given.

`(resumed)` after an id means that the task got a follow-up prompt. After `pending` \
comes the reason why a task has not started: `slot` or `2 slots of gpu` for free slots \
of its group, `turn` for tasks before it, `batch` for the limit of --jobs, the tasks it \
depends on, `held`, `gpu paused` for its group, the name of its executor, its start time, \
or the time of its next attempt. After `running`, `(paused)` marks a task stopped by \
`bgctl pause`. \
--tree shows a task below the one it depends on. --sort sorts only the tasks that are \
shown (see --limit). `progress` is read from the last line of a running task: `42%` or `3/8`. \
`cpu` is CPU time; `memory` is the current memory use of a running task and the peak of an \
ended one; `written`, the bytes written to disk, is known only once the task has ended. \
`tokens`, `context` and `cost` cover all runs of a task, for agents that report them. \
`(asks)` after a status: the agent waits for `bgctl answer`. `(stalled)`: the agent \
has been silent for a long time; its last output follows. `(suspect)`: the agent's \
answer looks like an error, or it ended its turn without an answer after its last tool call \
or question; `bgctl status` and `bgctl block` show why. With --json, `next` is set if there \
are more tasks than --limit.")]
pub struct ListArgs {
    /// Only tasks active or ended since this time: 2h (ago), 14:30, today, yesterday, 2026-03-01 or '2026-03-01 14:30'
    #[arg(long, value_name = "WHEN", value_parser = parse_since, allow_hyphen_values = true)]
    pub since: Option<Timestamp>,
    /// Only tasks with this text in their description, command, prompt or tags, ignoring case
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub grep: Option<String>,
    /// Show at most N tasks [default: 100]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Show all tasks
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Print only the full ids
    #[arg(short, long)]
    pub quiet: bool,
    /// Show dependencies as a tree
    #[arg(long, conflicts_with = "quiet")]
    pub tree: bool,
    /// Show these columns, in this order; if the terminal is too narrow, the last ones are left out
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', conflicts_with = "quiet")]
    pub columns: Vec<Field>,
    /// Sort by a column; -COLUMN reverses the order [default: newest first]
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true, conflicts_with = "tree")]
    pub sort: Option<Sort>,
    /// Keep the table up to date until Ctrl-C
    #[arg(long, conflicts_with_all = ["quiet", "all"])]
    pub watch: bool,
    /// Options that narrow the list.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl status 3f2a
  bgctl status 3f2a 91bc              two tasks, one after the other
  bgctl status @                      the latest task (the default on a terminal)
  bgctl status --group gpu --status pending
  bgctl --json status 3f2a | jq .task.exit

Selected tasks are shown oldest first.")]
pub struct StatusArgs {
    /// Task ids (4 characters of each are enough), or @ for the latest task [default on a terminal: @]
    #[arg(value_name = "ID", add = tasks(), conflicts_with_all = SELECTORS)]
    pub ids: Vec<Name>,
    /// Options that select the tasks, in place of their ids.
    #[command(flatten)]
    pub select: SelectArgs,
}

impl StatusArgs {
    /// Checks that a task is given, or that the terminal is interactive.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
    pub fn check(&self, is_interactive: bool) -> Result<(), (ErrorKind, String)> {
        none_named(self.ids.is_empty() && self.select.is_empty(), is_interactive)
    }
}

/// Arguments of `output`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl output 3f2a                   all output so far
  bgctl output -f 3f2a                follow it until the task ends
  bgctl output @2                     output of the second-latest task of this session
  bgctl output --tail 1 --tag nightly of several tasks, one after the other
  bgctl output --tail 20 3f2a         the last 20 lines
  bgctl output --since -4096 3f2a     the last 4096 bytes
  bgctl output --result 3f2a          the result; exit code 65 if the task has not completed

The output of an agent task is everything the agent says while it works; --result \
prints only the final answer. -f ends with the task, even if the task is resumed later, \
or when the task is cleared.

In a pipe or a file, output is printed byte for byte as the task wrote it; on a terminal, \
as text, colours and the redrawing of lines, or on a dumb one as text only. With --json \
one object is printed; pass its `next` as --since to continue from there.

Of an output larger than limits.output_bytes, the first 64 KiB and the end are kept. The line \
that is cut there is ended, the rest of the one with which the end begins is left out, and \
standard error says how many bytes are missing.")]
pub struct OutputArgs {
    /// Task id (at least its first 4 characters), or @ for the latest task [default on a terminal: @]
    #[arg(value_name = "ID", add = tasks(), conflicts_with_all = SELECTORS)]
    pub id: Option<Name>,
    /// Follow the output until the task ends
    #[arg(short, long)]
    pub follow: bool,
    /// Start with the last N lines
    #[arg(long, value_name = "N", conflicts_with = "since", allow_negative_numbers = true)]
    pub tail: Option<u64>,
    /// Start at this byte; a negative number counts from the end
    #[arg(long, value_name = "OFFSET", allow_negative_numbers = true)]
    pub since: Option<i64>,
    /// Print standard output of a task submitted with --split (the default)
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Print standard error of a task submitted with --split
    #[arg(long)]
    pub stderr: bool,
    /// Print the result of a completed task; fail if it has not completed
    #[arg(long, conflicts_with_all = ["follow", "tail", "since", "stderr"])]
    pub result: bool,
    /// Options that select the task, in place of its id.
    #[command(flatten)]
    pub select: SelectArgs,
}

impl OutputArgs {
    /// Checks that a task is given, or that the terminal is interactive.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
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
  bgctl block 3f2a 91bc               wait for both, at most 60 s
  bgctl block --timeout none 3f2a     wait without a time limit
  bgctl block --any 3f2a 91bc         wait until one of them has ended
  bgctl block --group gpu             wait for the whole group, including ended tasks
  bgctl block --group gpu --status running --status pending
                                      only tasks of the group that are pending or running now
  bgctl block @                       the latest task (the default on a terminal)
  bgctl block --exit-code 3f2a        exit with the exit code of the command
  bgctl block --line 'listening on port (\\d+)' 3f2a
                                      wait for a matching line and print it
  bgctl block --until ready 3f2a      wait for a server submitted with --ready

On a terminal it shows progress: for one task its run time and last line; for several \
how many have ended, failed and are running, and an estimate of the time left.

--line searches complete lines from the start of the output, or from --since, with \
terminal escape sequences removed; the last line counts when the task ends. Only the \
first 64 KiB of a line are searched. With --json, pass `next` as --since to continue \
after the matching line. Of a task with --split both streams are searched: `stream` is \
stderr for a line of standard error, and --since takes `next,next_stderr`; with `next` \
alone, only standard output is searched.

EXIT CODES:
    0  all tasks completed (with --any: those that have ended); --line: found;
       --until ready: all tasks are, or were, ready
    1  at least one task failed or was cancelled; of a batch, also if it was cleared
       since; --line: the task ended without it; --until ready: a task ended without
       being ready
   66  no task matches (0 with --status)
   75  timed out; some tasks are still running

With --exit-code the task's own exit code is returned instead: 124 if it exceeded its \
time limit, 128 + N if signal N ended it, 1 if it never started, or exited with 0 but \
did not complete (a command that was cancelled, for example). Scripts that must tell \
these apart from the task's own codes should use --json. An agent task has no exit code \
of its own: 0 if it completed, 1 if it failed or was cancelled.")]
pub struct BlockArgs {
    /// Task ids (4 characters of each are enough), or @ for the latest task [default on a terminal: @]
    #[arg(value_name = "ID", add = tasks(), conflicts_with_all = SELECTORS)]
    pub ids: Vec<Name>,
    /// Maximum time to wait: 90s, 10m, or none
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_timeout, allow_hyphen_values = true)]
    pub timeout: Timeout,
    /// Return when any one of them has ended
    #[arg(long)]
    pub any: bool,
    /// Exit with the task's exit code, or 128 + the signal that ended it; requires a single ID
    #[arg(long)]
    pub exit_code: bool,
    /// State to wait for: ended or ready
    #[arg(long, value_name = "STATE", value_parser = until_parser(), default_value = "ended",
        hide_default_value = true, conflicts_with = "exit_code")]
    pub until: BlockUntil,
    /// Wait until the task writes a matching line, and print it; requires a single task
    #[arg(long, value_name = "REGEX", value_parser = line_regex, allow_hyphen_values = true,
        conflicts_with_all = ["any", "exit_code", "until"])]
    pub line: Option<Regex>,
    /// With --line: start at this byte (with --split: of stdout, or of both: N,M); a negative number counts from the end
    #[arg(long, value_name = "OFFSET", allow_hyphen_values = true, requires = "line",
        value_parser = crate::cli::since::parse)]
    pub since: Option<Since>,
    /// Options that select tasks, in place of ids.
    #[command(flatten)]
    pub select: SelectArgs,
}

impl Default for BlockArgs {
    /// The values without any argument.
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            timeout: Timeout(Some(60_000)),
            any: false,
            exit_code: false,
            until: BlockUntil::Ended,
            line: None,
            since: None,
            select: SelectArgs::default(),
        }
    }
}

impl BlockArgs {
    /// Checks that a task is given, or that the terminal is interactive.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
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
  bgctl cancel --all --session .      all active tasks of the current session
  bgctl cancel --tag nightly --status pending
  bgctl cancel @9c1e                  the active tasks of a batch

Sends the signal first, then SIGKILL when the grace period is over. bgctl returns \
when the task has ended. A pending task never starts. If a task has already ended, \
its remaining processes are ended.")]
pub struct CancelArgs {
    /// Task ids (4 characters of each are enough), or @ for the latest task
    #[arg(value_name = "ID", add = active_tasks(), conflicts_with = "all", conflicts_with_all = SELECTORS,
        required_unless_present_any = ["all", "tags", "group", "batch", "session", "status"])]
    pub ids: Vec<Name>,
    /// Cancel every active task
    #[arg(long)]
    pub all: bool,
    /// First signal to send, by name or number [default: TERM]
    #[arg(long, value_name = "SIG", allow_hyphen_values = true)]
    pub signal: Option<String>,
    /// Grace period before SIGKILL [default: as configured, 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
    pub grace: Option<u64>,
    /// Options that select tasks, in place of ids.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// Arguments of `clear`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl clear                         finished tasks of the current session
  bgctl clear 3f2a 91bc               only these tasks
  bgctl clear -- $ids                 for scripts: fails if the list is empty
  bgctl clear --session discord:4711  finished tasks of another parent session
  bgctl clear --all-sessions          finished tasks of all sessions, and of none
  bgctl clear --tag nightly           those of the current session with this tag
  bgctl clear --batch 9c1e            those of a batch
  bgctl clear --all                   running tasks too; cancels them first

Without IDs it deletes the finished tasks of the current parent session (see \
`bgctl session key`), except `lingering` ones, whose processes are still running, or may \
be. Give their ids, or --all, to end these processes first if possible. --tag, --group and --status \
narrow the selection, while in other verbs they cover every session, as --batch and ids do here; \
add --all-sessions for that. A pending task that comes after a cleared one starts without its output.")]
pub struct ClearArgs {
    /// Ids of finished tasks (4 characters of each are enough), or @ for the latest task
    #[arg(value_name = "ID", add = finished_tasks(), conflicts_with_all = SELECTORS, conflicts_with = "all_sessions")]
    pub ids: Vec<Name>,
    /// Include active tasks; they are cancelled first
    #[arg(long)]
    pub all: bool,
    /// Include tasks of every parent session, and those without one
    #[arg(long, conflicts_with = "session")]
    pub all_sessions: bool,
    /// Options that select tasks, in place of ids.
    #[command(flatten)]
    pub select: SelectArgs,
}

impl ClearArgs {
    /// Checks that ids follow `--`: `clear -- $(…)` with an empty list must not clear all the tasks that `clear` alone
    /// would.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
    pub fn check(&self, is_empty_list: bool) -> Result<(), (ErrorKind, String)> {
        if is_empty_list && self.ids.is_empty() {
            let what = "no ids after `--`: give task ids, or omit `--` to clear the finished tasks of the current \
                        session";
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
  bgctl signal --tag web HUP          to all running tasks with this tag

A task given by its id must be running, otherwise the exit code is 65. When options \
select tasks, only the running ones get the signal; if no pending or running task \
matches, the exit code is 66, and if none of them is running, 65. To pause a task, use \
`bgctl pause`.")]
#[command(override_usage = "\
bgctl signal [OPTIONS] <ID> <SIG>
       bgctl signal [OPTIONS] --tag <TAG> <SIG>")]
pub struct SignalArgs {
    /// Task id (at least its first 4 characters), or @ for the latest task; omit it when options select tasks
    #[arg(value_name = "ID", add = active_tasks())]
    pub id: String,
    /// Signal: a name, with or without SIG, or a number
    #[arg(value_name = "SIG")]
    pub signal: Option<String>,
    /// Signal all its processes, not just the main one
    #[arg(long)]
    pub tree: bool,
    /// Options that select tasks, in place of ids.
    #[command(flatten)]
    pub select: SelectArgs,
}

impl SignalArgs {
    /// Returns the task, unless options select tasks, and the signal.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
    pub fn words(&self) -> Result<(Option<Name>, String), (ErrorKind, String)> {
        match (self.select.is_empty(), &self.signal) {
            (true, Some(signal)) => {
                let name = self.id.parse().map_err(|error| (ErrorKind::ValueValidation, error))?;
                Ok((Some(name), signal.clone()))
            }
            (false, None) => Ok((None, self.id.clone())),
            (true, None) => {
                let what = format!(
                    "`{}` is not enough: give a task and a signal, as in `bgctl signal 3f2a HUP`",
                    self.id
                );
                Err((ErrorKind::MissingRequiredArgument, what))
            }
            (false, Some(_)) => {
                let what = format!(
                    "task `{}` can't be combined with options that select tasks: omit one of them",
                    self.id
                );
                Err((ErrorKind::ArgumentConflict, what))
            }
        }
    }
}

/// Arguments of `write`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl write 3f2a -n yes             write a line
  bgctl write 3f2a --eof              close its standard input
  bgctl write 3f2a < answers.txt      write a file, then close its standard input
  bgctl write 3f2a --no-eof < part1   write a file, leave its standard input open

The task must have been submitted with --stdin-pipe. TEXT is written unchanged.")]
pub struct WriteArgs {
    /// Task id (at least its first 4 characters), or @ for the latest task
    #[arg(value_name = "ID", add = active_tasks())]
    pub id: Name,
    /// Text to write [default: all of standard input]
    #[arg(value_name = "TEXT")]
    pub text: Option<OsString>,
    /// Append a newline to TEXT
    #[arg(short, long, requires = "text")]
    pub newline: bool,
    /// Close the task's standard input afterwards; without TEXT, write nothing
    #[arg(long, conflicts_with = "no_eof")]
    pub eof: bool,
    /// Leave the task's standard input open when bgctl's own ends
    #[arg(long, conflicts_with = "text")]
    pub no_eof: bool,
}

/// Arguments of `session`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl session key                   print the current session
  bgctl session end discord:4711
  bgctl session end .                 end the current session
  BGD_SESSION=$(uuidgen) make-plans   put all tasks of a program in one session

A parent session is whatever submits tasks: a chat, a terminal, an agent, a script. \
Its key is any string. If unset, it is derived from the terminal: tmux:%3@312 for a \
tmux pane (the number is the pid of its server), ssh:192.0.2.7:51514 for an SSH login, \
otherwise tty:/dev/pts/4@81512 (the number is the start time of the shell). $BGD_SESSION overrides that, and --session overrides \
both; an empty key means no session.")]
pub struct SessionArgs {
    /// The action to take.
    #[command(subcommand)]
    pub verb: SessionVerb,
}

/// Actions on a parent session.
#[derive(Subcommand, Debug)]
pub enum SessionVerb {
    /// Print the key of the current parent session; exit code 2 if there is none
    Key,
    /// Cancel its active tasks and delete all its tasks and notifications
    End {
        /// Key of the parent session; `.` is the current one
        #[arg(value_name = "KEY", add = sessions())]
        key: String,
    },
}

/// Arguments of `daemon`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl daemon status
  bgctl daemon status --openmetrics >bgd.new && mv bgd.new bgd.prom   in node_exporter's folder
  bgctl daemon reload                 apply a changed configuration
  bgctl daemon stop --grace 30s       cancel all tasks and wait until all processes have ended
  bgctl daemon stop --cancel          cancel what runs, even with `durable = true`; pending tasks stay
  bgctl daemon upgrade                switch to a newly installed version; cancels nothing
  bgctl daemon restart                if the upgrade is refused; prints how many tasks it cancels
  bgctl daemon install                have systemd listen on the socket and start the daemon
  bgctl daemon uninstall              remove what `daemon install` has written")]
pub struct DaemonArgs {
    /// The action to take.
    #[command(subcommand)]
    pub verb: DaemonVerb,
}

/// Actions on the daemon.
#[derive(Subcommand, Debug)]
pub enum DaemonVerb {
    /// Start the daemon unless it is running
    Start,
    /// Stop the daemon and cancel all tasks; a durable daemon leaves its tasks running
    Stop {
        /// Grace period before SIGKILL [default: as configured, 5s]
        #[arg(long, value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
        grace: Option<u64>,
        /// Also cancel the running tasks of a durable daemon; pending ones stay
        #[arg(long)]
        cancel: bool,
    },
    /// Stop the daemon and start it again; prints how many tasks this cancels or leaves running
    Restart {
        /// Grace period before SIGKILL [default: as configured, 5s]
        #[arg(long, value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
        grace: Option<u64>,
    },
    /// Replace the running daemon with a new version of its program; tasks and clients carry on
    Upgrade {
        /// Another program [default: the path that the running one was started from]
        #[arg(long, value_name = "PATH", value_hint = ValueHint::ExecutablePath)]
        binary: Option<PathBuf>,
    },
    /// Show the daemon's status; exit code 69 if it is not running
    Status {
        /// Print metrics in the OpenMetrics format, e.g. for Prometheus
        #[arg(long)]
        openmetrics: bool,
    },
    /// Reload the configuration
    Reload,
    /// Write systemd units that start the daemon when it is needed; prints the command that enables them
    Install,
    /// Remove the systemd units that `daemon install` has written; prints the command that stops them
    Uninstall,
}

/// Arguments of `dial`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  ssh far bgctl dial                  a connection to the daemon of the machine far

`bgctl -H far VERB` runs this over there. It starts a daemon if none is running, then \
carries requests and answers, one JSON object per line (bgd-protocol(7)), until one of \
the two sides closes the connection.")]
pub struct DialArgs {
    /// Close the connection when standard input ends, instead of waiting for the answers to all requests: the client is
    /// gone, and its foreground job ends with it
    #[arg(long, hide = true)]
    pub hang_up: bool,
    /// Check the configuration that a daemon would start with, and do nothing else
    #[arg(long, hide = true)]
    pub check_config: bool,
    /// Lend the standard streams to the `dial` that names the same token, instead of connecting to the daemon
    #[arg(long, value_name = "TOKEN", hide = true, conflicts_with = "borrow")]
    pub lend: Option<String>,
    /// Pass the standard streams lent by the `dial` with this token along with the first submit
    #[arg(long, value_name = "TOKEN", hide = true)]
    pub borrow: Option<String>,
}

/// Arguments of `shell-init`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  eval \"$(bgctl shell-init bash)\"                 in ~/.bashrc
  eval \"$(bgctl shell-init zsh)\"                  in ~/.zshrc, after compinit
  bgctl shell-init fish | source                  in ~/.config/fish/config.fish
  bgctl shell-init nushell | save -f ~/.config/nushell/autoload/bgctl.nu    once, in nu
  eval \"$(bgctl shell-init bash --bind '\\e\\r')\"   another key: Alt-Enter

Binds Ctrl-X Ctrl-R (in Nushell Alt-R) to run the current command line through `bgctl \
run`, so that Ctrl-B can move it to the background later, and installs the completions. The line \
runs in a new shell of the same kind, without the aliases and functions of this one.

To see in the prompt what runs and what has failed, see `bgctl shell-prompt --help`.")]
pub struct ShellInitArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: ShellName,
    /// Key, in the notation of the shell's `bind` or `bindkey`; for Nushell modifier and keycode, such as `alt char_r`
    /// [default: Ctrl-X Ctrl-R; Nushell: Alt-R]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub bind: Option<String>,
    /// Bind no key; only install the completions
    #[arg(long, conflicts_with = "bind")]
    pub no_bind: bool,
}
