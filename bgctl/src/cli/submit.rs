//! What `submit` takes: a command, a line for a shell, or a prompt for an agent.

use std::ffi::OsString;

use clap::Args;
use clap::error::ErrorKind;

use super::each::EachArgs;
use super::job::{JobArgs, SettingArgs, one_prompt};
use super::order::{ORDER, OrderArgs};
use crate::name::Name;

/// Arguments of `submit`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl submit -- make -j8
  bgctl submit -d 'nightly backup' --time-limit 2h -- restic backup /home
  bgctl submit --shell 'dmesg | grep -i error > errors.txt'
  bgctl submit --stdin -- sort < names.txt
  bgctl submit --agent opencode -d 'fix the build' 'make fails: find out why'
  bgctl submit --agent opencode -d review - < prompt.txt
  bgctl submit --agent codex --mode read-only --config reasoning_effort=high -d audit - < audit.txt
  bgctl submit --prompt 'summarise NEWS.md' -d news
  bgctl submit --resume 3f2a 'now add a test for it'
  id=$(bgctl submit --key build-42 -- ./build) && bgctl block \"$id\"
  bgctl submit --group gpu --slots 2 --priority 10 -- ./train.sh
  bgctl submit --after @ -- make install          once this session's latest has completed
  bgctl submit --after @:fail --agent opencode -d mend 'make failed, mend it: {after.output}'
  bgctl submit --at 03:00 --retry 3 --retry-delay 1m..15m -- restic backup /home
  bgctl submit --restart on-failure --ready tcp:8080 -- ./server
  find . -name '*.wav' -print0 | bgctl submit --each - -0 --jobs 4 -- flac {} -o {.}.flac
  batch=$(bgctl submit --each seeds.txt --max-fails 3 -- ./train --seed {}) && bgctl block @$batch

The command runs with your environment, folder, umask and resource limits,
whoever started the daemon. Its arguments are passed on as they are; only
--shell is read by a shell. Its standard input is empty unless --stdin or
--stdin-pipe is given.

A PROMPT is one argument, so quote it; `-` reads it from standard input. Options
stand in front of it. An agent works in your folder, with your environment, and
`bgctl agents` shows which ones there are. --resume gives a completed agent task
a follow-up, with all of its conversation so far; the task keeps everything else,
so that --agent and -d are not looked at.

A task starts when all of this holds: nobody holds it (--hold), its time has come
(--in, --at), every --after has come true, and its group, which is not paused, has
--slots free for it. In a group higher --priority starts first, then who came first;
nobody overtakes a task whose slots are not free yet. An --after that can't come true
any more cancels the task at once, and those that come after it. A process has
$BGD_GROUP, $BGD_SLOT (the lowest of its slots, from 1) and $BGD_SLOTS; and of the
tasks that it starts after $BGD_AFTER, their ids, and $BGD_AFTER_FILE_<N>, with N
from 1, the files of their outputs. In a prompt {after.result}, {after.output} (the last
32 KiB), {after.file} and {after.status} stand for those of the first one,
{after.2.result} and so on for those of the second; a result is cut like an output.

--retry tries a failed task again, under the same id, after a random delay below
--retry-delay; not if it was cancelled, was over its time limit or could not be
started. --restart keeps a server alive: it starts again after 1 s, doubled up to a
minute, until it is cancelled, is over its time limit, or has ended ten times in a row
within a minute each. One that was not ready in time, or could not be started again,
counts as such an end; one that could not be started at first has failed.

With --each a task is submitted for each line, all of them or none, and what is printed
is the id of the batch: @ID stands for its tasks. {} is the line, {#} its number, {.} the
line without its suffix, {/} what is behind its last slash; without any of them the line is
the last word. Each is one word of the command, whatever is in it: no shell reads it.

--ready says from when on a server can be used, for `--after ID:ready` and `bgctl block
--until ready`.

--mode, --model and --config set what an agent with protocol acp offers in its
sessions, before it gets the prompt, and win over the configuration. The names are
the agent's own: where it has none of that name, the task fails and says which ones
there are. They hold for the follow-ups of the task, too, until one names others.")]
#[command(override_usage = "\
bgctl submit [OPTIONS] [--] <CMD> [ARG]...
       bgctl submit [OPTIONS] --shell <LINE>
       bgctl submit [OPTIONS] --each <FILE> [--] <CMD> [ARG]...
       bgctl submit [OPTIONS] --agent <NAME> -d <TEXT> <PROMPT>
       bgctl submit [OPTIONS] --prompt <PROMPT> -d <TEXT>
       bgctl submit --resume <ID> <PROMPT>")]
pub struct SubmitArgs {
    /// What every job is given.
    #[command(flatten)]
    pub job: JobArgs,
    /// Submitting again with the same key gives the same task, whatever the command, until it is cleared
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Keep stdout and stderr apart; their order against each other is lost
    #[arg(long)]
    pub split: bool,
    /// Hand over bgctl's own standard input, which must not be a terminal
    #[arg(long, conflicts_with = "stdin_pipe")]
    pub stdin: bool,
    /// Give it a pipe as standard input, which `bgctl write` writes to
    #[arg(long)]
    pub stdin_pipe: bool,
    /// Give it a terminal of 24 lines of 80 characters, for `bgctl attach`
    #[arg(long, conflicts_with_all = ["split", "stdin_pipe"])]
    pub pty: bool,
    /// A line for /bin/sh, in place of a command
    #[arg(long, value_name = "LINE", conflicts_with = "command", allow_hyphen_values = true)]
    pub shell: Option<OsString>,
    /// The agent that is given PROMPT, in place of a command
    #[arg(long, value_name = "NAME", add = crate::candidates::agents(),
        conflicts_with_all = ["shell", "split", "pty", "stdin", "stdin_pipe"])]
    pub agent: Option<String>,
    /// A prompt, in place of a command; without --agent it goes to the configured default_agent
    #[arg(long, value_name = "PROMPT", allow_hyphen_values = true,
        conflicts_with_all = ["shell", "split", "pty", "stdin", "stdin_pipe"])]
    pub prompt: Option<OsString>,
    /// What is set in the agent's session.
    #[command(flatten)]
    pub settings: SettingArgs,
    /// When it starts, and when again.
    #[command(flatten)]
    pub order: OrderArgs,
    /// A task for each item.
    #[command(flatten)]
    pub each: EachArgs,
    /// The completed agent task whose conversation PROMPT goes on with
    #[arg(long, value_name = "ID", add = crate::candidates::finished_tasks(),
        conflicts_with_all = ["shell", "split", "pty", "stdin", "stdin_pipe", "session",
        "channel", "cwd", "tags", "key", "time_limit", "env"], conflicts_with_all = ORDER)]
    pub resume: Option<Name>,
    /// The program and its arguments; with --agent or --resume the PROMPT
    #[arg(value_name = "CMD", trailing_var_arg = true,
        required_unless_present_any = ["shell", "agent", "prompt", "resume"],
        add = crate::candidates::commands())]
    pub command: Vec<OsString>,
}

impl SubmitArgs {
    /// Whether what is wrong with a prompt can be told better than by the definitions above: they know
    /// no argument that is a command or a prompt, depending on an option.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn check(&self) -> Result<(), (ErrorKind, String)> {
        let option = match (&self.resume, &self.agent, &self.prompt) {
            (Some(_), _, _) => "--resume",
            (None, Some(_), _) => "--agent",
            (None, None, Some(_)) => "--prompt",
            (None, None, None) => return self.settings.refuse("--agent NAME or --prompt PROMPT"),
        };
        one_prompt(option, self.prompt.is_some(), &self.command)?;
        if self.resume.is_none() && self.job.description.is_none() {
            let what = format!(
                "{option} needs a description, which lists show in place of the prompt: \
                 add -d TEXT in front of the prompt"
            );
            return Err((ErrorKind::MissingRequiredArgument, what));
        }
        Ok(())
    }
}
