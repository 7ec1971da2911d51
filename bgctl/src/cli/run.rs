//! What the verbs of foreground jobs take: `run` and `attach`.

use std::ffi::OsString;

use bgd_shared::foreground::Key;
use clap::Args;
use clap::error::ErrorKind;

use super::job::{JobArgs, SettingArgs, one_prompt};
use super::select::{SELECTORS, SelectArgs, none_named};
use crate::name::Name;

/// Arguments of `run`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl run -- make -j8               as `make -j8`; Ctrl-B moves it to the background
  bgctl run --shell 'make 2>&1 | tee log'
  bgctl run --key ctrl-] -- vim       another key, as vim has a use for Ctrl-B itself
  bgctl run --direct -- top           in this terminal itself, with no key at all
  bgctl run -- sort < names > sorted  without a terminal: files and pipes as they are
  bgctl run --agent opencode 'why does the build fail?'

If standard output is a terminal, the job runs in a terminal of the same size, so
that colours and full-screen programs work, and Ctrl-C, Ctrl-\\ and Ctrl-Z do what
they do in a shell. Ctrl-B (--key, else `background_key` of the configuration)
gives the prompt back while the job goes on: `bgctl output -f ID` shows what it
writes, `bgctl attach ID` is back in its terminal. What was typed right behind the
key, before the prompt is back, is kept for the shell if it can be: further presses
never are, and what came together with the key is dropped.

Else, and with --direct, it gets bgctl's own standard input, output and error as they
are, and the signals that bgctl gets. There is no key then, bgctl reads nothing of
what is typed, and `bgctl output` has nothing of what it writes. Such a job has no
/dev/tty, which a program that asks for a password there needs: use --key none. Of a
terminal as standard input nothing is given while bgctl is in the background of its shell.

If the terminal or bgctl is gone before the job was moved to the background, it gets
SIGHUP, and after the grace SIGKILL, with all its processes.

An agent's text is printed as it comes; its questions are shown, and `bgctl answer`
answers them. Ctrl-C cancels it.

With --json the task is printed as it ended, or as it was moved to the background,
on standard error: standard output is the job's own.

EXIT CODES:
  the job's own, or 128 + the signal that ended it
    0  also: it was moved to the background
    1  the agent failed or was cancelled; or a command was cancelled and
       ended with 0
   70  it could not be started for another reason than these, or nobody knows its code
  124  its time limit was over
  126  the program was found, but can't be run; or the folder (--cwd)
       can't be entered
  127  there is no such program
  129  the terminal was closed
  130  the agent was cancelled by Ctrl-C")]
#[command(override_usage = "\
bgctl run [OPTIONS] [--] <CMD> [ARG]...
       bgctl run [OPTIONS] --shell <LINE>
       bgctl run [OPTIONS] --agent <NAME> <PROMPT>")]
pub struct RunArgs {
    /// What every job is given.
    #[command(flatten)]
    pub job: JobArgs,
    /// The key that moves it to the background: ctrl-b, ctrl-], …, or none [default: as configured]
    #[arg(long, value_name = "KEY")]
    pub key: Option<Key>,
    /// It can't be moved to the background: it has this terminal itself, and every key is its own
    #[arg(long, conflicts_with = "key")]
    pub direct: bool,
    /// A line for /bin/sh, in place of a command
    #[arg(long, value_name = "LINE", conflicts_with = "command", allow_hyphen_values = true)]
    pub shell: Option<OsString>,
    /// The agent that is given PROMPT, in place of a command
    #[arg(long, value_name = "NAME", add = crate::candidates::agents(), conflicts_with = "shell")]
    pub agent: Option<String>,
    /// What is set in the agent's session.
    #[command(flatten)]
    pub settings: SettingArgs,
    /// The program and its arguments; with --agent the PROMPT
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present_any = ["shell", "agent"],
        add = crate::candidates::commands())]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// Whether a prompt is one argument.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
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
  bgctl attach                        to this session's latest task
  bgctl attach --tag shell            to the one active task with this label
  bgctl attach --key ctrl-] 3f2a

Shows the terminal of a task that has one, as it is now, and gives it what is typed.
Ctrl-B (--key, else `background_key` of the configuration) leaves again; the task
goes on. Every other key is the task's; press Ctrl-C, Ctrl-D, Ctrl-Z or Ctrl-\\ three
times in a row, and a line tells which key leaves. Several may be attached at once:
all see the same, in the size that fits into the smallest of their terminals.

Of a task without a terminal the output is shown, from its beginning; the same key
leaves, and so does Ctrl-C, which is not the task's here. If standard output is no
terminal, or with --json, it is followed as by `bgctl output -f`.

EXIT CODES:
    0  left by the key
   65  the task has ended already
  128 + the signal, if one ended bgctl: the task goes on
  as those of `bgctl run`, if the task has ended meanwhile")]
pub struct AttachArgs {
    /// The key that leaves: ctrl-b, ctrl-], …, or none [default: as configured]
    #[arg(long, value_name = "KEY")]
    pub key: Option<Key>,
    /// The task: its id, or the first 4 characters of it or more, or @ [default on a terminal: @]
    #[arg(value_name = "ID", add = crate::candidates::active_tasks(), conflicts_with_all = SELECTORS)]
    pub id: Option<Name>,
    /// Which task.
    #[command(flatten)]
    pub select: SelectArgs,
}

impl AttachArgs {
    /// Whether a task is named, or a person types.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn check(&self, is_interactive: bool) -> Result<(), (ErrorKind, String)> {
        none_named(self.id.is_none() && self.select.is_empty(), is_interactive)
    }
}
