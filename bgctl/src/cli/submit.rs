//! Arguments of `submit`: a command, a shell command line, or a prompt for an agent.

use std::ffi::OsString;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;

use super::each::EachArgs;
use super::elsewhere::{ELSEWHERE, ElsewhereArgs};
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
  bgctl submit --after @ -- make install          after the latest task of this session has completed
  bgctl submit --after @:fail --agent opencode -d fix 'make failed, fix it: {after.output}'
  bgctl submit --at 03:00 --retry 3 --retry-delay 1m..15m -- restic backup /home
  bgctl submit --restart on-failure --ready tcp:8080 -- ./server
  find . -name '*.wav' -print0 | bgctl submit --each - -0 --jobs 4 -- flac {} -o {.}.flac
  bgctl submit --on cluster --cpus 4 --memory 8G --gpus 1 --time-limit 2h -- ./train.sh
  bgctl submit --each commands.txt -- sh -c {}
  batch=$(bgctl submit --each seeds.txt --max-fails 3 -- ./train --seed {}) && bgctl block --batch $batch

The command runs with your environment, folder, umask and resource limits, whoever \
started the daemon. Its arguments are passed on unchanged; only --shell is interpreted \
by a shell. Its standard input is empty unless --stdin or --stdin-pipe is given. Its \
priority and CPUs are the daemon's: set others with `bgctl submit -- nice -n 10 make`, \
or with ionice, chrt or taskset. No limit can exceed the hard limits of the daemon.

A PROMPT is a single argument, so quote it; `-` reads it from standard input. Put options \
before it. An agent works in your folder, with your environment; `bgctl agents` lists \
the agents. --resume sends a follow-up to a completed agent task, which keeps its \
conversation and everything else; --agent and -d are ignored.

A task starts when all of these hold: it is not held (--hold), its start time has come \
(--in, --at), every --after is fulfilled, and its group is not paused and has --slots \
free. Within a group, tasks start by --priority, then in the order of submission; no task \
overtakes one that is waiting for its slots. If an --after can no longer be fulfilled, the \
task and its dependents are cancelled at once; a task that could not be started has failed, \
and one that was cancelled while it was pending fulfils neither `any` nor `fail`. The \
environment of a process has $BGD_GROUP, $BGD_SLOT (its lowest slot, from 1), \
$BGD_SLOT_LIST (all its slots, separated by commas) and $BGD_SLOTS (how many it has); and, \
for the tasks in --after, $BGD_AFTER (their ids) and $BGD_AFTER_FILE_<N>, with N from 1 \
(their output files, which tasks that never started may lack). In a prompt, \
{after.result}, {after.output} (the last 32 KiB), {after.file} and {after.status} are \
replaced by those of the first --after task, {after.2.result} etc. by those of the second; \
a result is truncated like output.

--retry runs a failed task again, with the same id, after a random delay up to \
--retry-delay; not if it was cancelled, exceeded its time limit or could not be started. \
--restart keeps a server alive: it restarts after 1 s, doubling up to a minute, until it \
is cancelled, exceeds its time limit, or has ended ten times in a row within a minute \
each. Not being ready in time, or failing to start again, counts as such an end; if the \
first start fails, the task fails.

With --each, one task per line is submitted, all or none, and the id of the batch is \
printed: @ID stands for its tasks. Empty lines are skipped, and a carriage return at the \
end of a line is removed; with -0, items are passed on unchanged. {} is the item, {#} its \
number (skipped lines do not count), {.} the item without its suffix, {/} the part after \
its last slash, {/.} the same without its suffix, {//} the part before that slash (or `.`); \
without any of these the item is appended as the last argument. Each is part of a single \
argument, whatever it contains: no shell interprets it. If the items are whole command \
lines, have a shell run them: `-- sh -c {}`.

--on runs the task on another machine or on a Slurm cluster (bgd-executors(7)); you list it, \
wait for it and cancel it here like any other, and are notified here. On another machine it \
uses that machine's environment and home folder; only --cwd and --env are passed on.

--ready says how to tell that a server is ready, for `--after ID:ready` and `bgctl block \
--until ready`.

--mode, --model and --config set options that an agent with protocol acp offers, before \
it gets the prompt; they override the configuration. The names are the agent's own: if it \
has no such option, the task fails and lists those it has. They also apply to follow-ups, \
until one of these changes them.")]
#[command(override_usage = "\
bgctl submit [OPTIONS] [--] <CMD> [ARG]...
       bgctl submit [OPTIONS] --shell <LINE>
       bgctl submit [OPTIONS] --each <FILE> [--] <CMD> [ARG]...
       bgctl submit [OPTIONS] --agent <NAME> -d <TEXT> <PROMPT>
       bgctl submit [OPTIONS] --prompt <PROMPT> -d <TEXT>
       bgctl submit --resume <ID> <PROMPT>")]
pub struct SubmitArgs {
    /// Arguments of every job.
    #[command(flatten)]
    pub job: JobArgs,
    /// Idempotency key: submitting it again in the same session (see --session) returns the same task, whatever the
    /// command, until the task is cleared; with --each, the same batch, whatever the items
    #[arg(long, value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    pub key: Option<String>,
    /// Store stdout and stderr separately; their relative order is lost
    #[arg(long)]
    pub split: bool,
    /// Pass on bgctl's own standard input, which must not be a terminal
    #[arg(long, conflicts_with = "stdin_pipe")]
    pub stdin: bool,
    /// Use a pipe as standard input, for `bgctl write`
    #[arg(long)]
    pub stdin_pipe: bool,
    /// Run it in a terminal of 80x24 characters, for `bgctl attach`
    #[arg(long, conflicts_with_all = ["split", "stdin_pipe"])]
    pub pty: bool,
    /// Command line for /bin/sh, instead of CMD
    #[arg(long, value_name = "LINE", conflicts_with = "command", allow_hyphen_values = true)]
    pub shell: Option<OsString>,
    /// Send PROMPT to this agent, instead of running a command
    #[arg(long, value_name = "NAME", add = crate::candidates::agents(),
        conflicts_with_all = ["shell", "split", "pty", "stdin", "stdin_pipe"], value_parser = NonEmptyStringValueParser::new())]
    pub agent: Option<String>,
    /// Prompt, instead of a command; without --agent it goes to the configured default_agent
    #[arg(long, value_name = "PROMPT", allow_hyphen_values = true,
        conflicts_with_all = ["shell", "split", "pty", "stdin", "stdin_pipe"])]
    pub prompt: Option<OsString>,
    /// Settings of the agent's session.
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Continue the conversation of this completed agent task with PROMPT
    #[arg(long, value_name = "ID", add = crate::candidates::finished_tasks(),
        conflicts_with_all = ["shell", "split", "pty", "stdin", "stdin_pipe", "session",
        "channel", "cwd", "tags", "key", "time_limit", "env"], conflicts_with_all = ORDER,
        conflicts_with_all = ELSEWHERE)]
    pub resume: Option<Name>,
    /// Program and its arguments; with --agent or --resume, the PROMPT
    #[arg(value_name = "CMD", trailing_var_arg = true,
        required_unless_present_any = ["shell", "agent", "prompt", "resume"],
        add = crate::candidates::commands())]
    pub command: Vec<OsString>,
    /// When the task starts, and when it starts again.
    #[command(flatten)]
    pub order: OrderArgs,
    /// Where the task runs.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
    /// One task per item.
    #[command(flatten)]
    pub each: EachArgs,
}

impl SubmitArgs {
    /// Checks a prompt. The definitions above can't: to them, CMD is one argument, whether it is a command or a prompt.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
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
                "{option} needs a description, which lists show instead of the prompt: \
                 add -d TEXT before the prompt"
            );
            return Err((ErrorKind::MissingRequiredArgument, what));
        }
        Ok(())
    }
}
