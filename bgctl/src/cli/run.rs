//! Arguments of the verbs for foreground jobs: `run` and `attach`.

use std::ffi::OsString;

use bgd_shared::foreground::Key;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;

use super::job::{JobArgs, SettingArgs, one_prompt};
use super::select::{SELECTORS, SelectArgs, none_named};
use crate::name::Name;

/// Arguments of `run`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl run -- make -j8               like `make -j8`; Ctrl-B moves it to the background
  bgctl run --shell 'make 2>&1 | tee log'
  bgctl run --key ctrl-] -- vim       another key, as vim uses Ctrl-B itself
  bgctl run --direct -- top           directly in this terminal, without a key
  bgctl run -- sort < names > sorted  without a terminal: uses the files and pipes given
  bgctl run --agent opencode 'why does the build fail?'

If standard output is a terminal, the job runs in a new terminal of the same size, so \
that colours and full-screen programs work, and Ctrl-C, Ctrl-\\ and Ctrl-Z work as in a \
shell. Ctrl-B (--key, or `background_key` in the configuration) returns to the prompt \
while the job keeps running: `bgctl output -f ID` follows its output, `bgctl attach ID` \
returns to its terminal. Text typed after the key, before the prompt is back, goes to \
the shell where possible; repeated presses of the key, and text that arrives together \
with it, are dropped.

Otherwise, or with --direct, the job gets bgctl's own standard input, output and error, \
and the signals sent to bgctl; SIGTERM and SIGHUP reach all of its processes. There is no \
key, bgctl reads no input, and `bgctl output` has no output of the job. Ctrl-Z stops it, \
but not a program that reads Ctrl-Z as a key and stops itself, such as vim: run that \
without --direct. Such a job has no /dev/tty, so a program that reads a password from \
there needs --key none instead. If standard input is a terminal, a job that was started \
in the background of the shell gets no input; one that was moved there later, with \
Ctrl-Z and `bg`, still reads the terminal.

If the terminal closes or bgctl ends before the job is moved to the background, the job \
and all its processes get SIGHUP, and SIGKILL after the grace period.

An agent's text is printed as it arrives, including its questions; answer them with \
`bgctl answer`. Ctrl-C cancels the agent.

With --json the task is printed on standard error when it has ended or was moved to the \
background; standard output belongs to the job.

EXIT CODES:
  the job's own, or 128 + the signal that ended it; SIGINT, as of Ctrl-C,
  ends bgctl too, so that a shell leaves the loop or script around it
    0  also: moved to the background
    1  the agent failed or was cancelled; or a command was cancelled and
       exited with 0
   69  the daemon can't be started or reached, or has ended
   70  the job could not be started for any other reason, its exit code is unknown, or
       with -H its input could not be read here or its output not be written
  124  time limit exceeded
  126  the program was found, but can't be run; or the folder (--cwd)
       can't be entered
  127  program not found
  129  the terminal was closed
  130  the agent was cancelled by Ctrl-C")]
#[command(override_usage = "\
bgctl run [OPTIONS] [--] <CMD> [ARG]...
       bgctl run [OPTIONS] --shell <LINE>
       bgctl run [OPTIONS] --agent <NAME> <PROMPT>")]
pub struct RunArgs {
    /// Arguments of every job.
    #[command(flatten)]
    pub job: JobArgs,
    /// Key that moves the job to the background: ctrl-b, ctrl-] and so on, or none [default: as configured]
    #[arg(long, value_name = "KEY")]
    pub key: Option<Key>,
    /// Further environment variables, as a JSON object in this variable; for a daemon that runs an agent elsewhere
    #[arg(long, value_name = "NAME", hide = true)]
    pub env_from: Option<String>,
    /// Run directly in this terminal: the job gets every key and can't be moved to the background
    #[arg(long, conflicts_with = "key")]
    pub direct: bool,
    /// Command line for /bin/sh, instead of CMD
    #[arg(long, value_name = "LINE", conflicts_with = "command", allow_hyphen_values = true)]
    pub shell: Option<OsString>,
    /// Send PROMPT to this agent, instead of running a command
    #[arg(long, value_name = "NAME", add = crate::candidates::agents(), conflicts_with = "shell", value_parser = NonEmptyStringValueParser::new())]
    pub agent: Option<String>,
    /// Settings of the agent's session.
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Program and its arguments; with --agent, the PROMPT
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present_any = ["shell", "agent"],
        add = crate::candidates::commands())]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// Checks that a prompt is one argument.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
    pub fn check(&self) -> Result<(), (ErrorKind, String)> {
        match self.agent {
            Some(_) => one_prompt("--agent", false, &self.command),
            None => self.settings.refuse("--agent NAME"),
        }
    }
}

/// Arguments of `attach`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl attach 3f2a
  bgctl attach                        to the latest task of this session
  bgctl attach --tag shell            to the only active task with this tag
  bgctl attach --key ctrl-] 3f2a

Shows the terminal of a task and forwards your input to it. Ctrl-B (--key, or \
`background_key` in the configuration) detaches; the task keeps running. All other \
keys go to the task; after Ctrl-C, Ctrl-D, Ctrl-Z or Ctrl-\\ three times in a row, a \
line shows which key detaches. Several terminals can be attached at once; the smallest \
size is used. All show the same screen; in a wider terminal, lines still end where the \
narrowest one does. Each attempt of a task (--retry, --restart) has a terminal of its own: \
the next one is shown when it begins. A paused task stays paused until `bgctl continue`.

For a task without a terminal, its output is shown from the start, as text, colours and \
the redrawing of lines; the same key detaches, and so does Ctrl-C, which is not sent to \
the task. If standard output is not a terminal, or one that can't move its cursor (TERM \
is unset or `dumb`), or with --json, the output is followed and the exit code is 0, as \
with `bgctl output -f`, also if the task has already ended.

EXIT CODES on a terminal:
    0  detached by the key
   65  the task does not run: it has ended, or has not started; or attach
       runs in the task's terminal, directly or through another task
  128 + the signal that ended bgctl; the task keeps running
  as `bgctl run`, if the task ended meanwhile; SIGINT, as of Ctrl-C, ends
  bgctl too")]
pub struct AttachArgs {
    /// Key that detaches: ctrl-b, ctrl-] and so on, or none [default: as configured]
    #[arg(long, value_name = "KEY")]
    pub key: Option<Key>,
    /// Task id (at least its first 4 characters), or @ for the latest task [default on a terminal: @]
    #[arg(value_name = "ID", add = crate::candidates::active_tasks(), conflicts_with_all = SELECTORS)]
    pub id: Option<Name>,
    /// Options that select the task, in place of its id.
    #[command(flatten)]
    pub select: SelectArgs,
}

impl AttachArgs {
    /// Checks that a task is given, or that the terminal is interactive.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
    pub fn check(&self, is_interactive: bool) -> Result<(), (ErrorKind, String)> {
        none_named(self.id.is_none() && self.select.is_empty(), is_interactive)
    }
}
