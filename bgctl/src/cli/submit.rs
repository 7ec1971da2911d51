//! What `submit` takes: a command, a line for a shell, or a prompt for an agent.

use std::ffi::OsString;
use std::path::PathBuf;

use bgd_shared::id::TaskRef;
use clap::Args;
use clap::error::ErrorKind;

use crate::duration::parse_ms;

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

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
  bgctl submit --prompt 'summarise NEWS.md' -d news
  bgctl submit --resume 3f2a 'now add a test for it'
  id=$(bgctl submit --key build-42 -- ./build) && bgctl block \"$id\"

The command runs with your environment, folder, umask and resource limits,
whoever started the daemon. Its arguments are passed on as they are; only
--shell is read by a shell. Its standard input is empty unless --stdin or
--stdin-pipe is given.

A PROMPT is one argument, so quote it; `-` reads it from standard input. Options
stand in front of it. An agent works in your folder, with your environment, and
`bgctl agents` shows which ones there are. --resume gives a completed agent task
a follow-up, with all of its conversation so far; the task keeps everything else,
so that --agent and -d are not looked at.")]
#[command(override_usage = "\
bgctl submit [OPTIONS] [--] <CMD> [ARG]...
       bgctl submit [OPTIONS] --shell <LINE>
       bgctl submit [OPTIONS] --agent <NAME> -d <TEXT> <PROMPT>
       bgctl submit [OPTIONS] --prompt <PROMPT> -d <TEXT>
       bgctl submit --resume <ID> <PROMPT>")]
pub struct SubmitArgs {
    /// What lists show for it [default: the command; a prompt needs one]
    #[arg(short, long, value_name = "TEXT")]
    pub description: Option<String>,
    /// The parent session it belongs to [default: $BGD_SESSION]
    #[arg(long, value_name = "KEY")]
    pub session: Option<String>,
    /// Where news of it is delivered
    #[arg(long, value_name = "NAME")]
    pub channel: Option<String>,
    /// The folder to run in [default: this one]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub cwd: Option<PathBuf>,
    /// A label of your own; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Submitting again with the same key gives the same task, whatever the command, until it is cleared
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// End it as failed when it has run for so long (90s, 10m, 1h30m)
    #[arg(long, value_name = "DURATION", value_parser = parse_ms)]
    pub time_limit: Option<u64>,
    /// Keep stdout and stderr apart; their order against each other is lost
    #[arg(long)]
    pub split: bool,
    /// Hand over bgctl's own standard input, which must not be a terminal
    #[arg(long, conflicts_with = "stdin_pipe")]
    pub stdin: bool,
    /// Give it a pipe as standard input, which `bgctl write` writes to
    #[arg(long)]
    pub stdin_pipe: bool,
    /// Set a variable of its environment; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub env: Vec<(String, String)>,
    /// A line for /bin/sh, in place of a command
    #[arg(long, value_name = "LINE", conflicts_with = "command", allow_hyphen_values = true)]
    pub shell: Option<OsString>,
    /// The agent that is given PROMPT, in place of a command
    #[arg(long, value_name = "NAME", conflicts_with_all = ["shell", "split", "stdin", "stdin_pipe"])]
    pub agent: Option<String>,
    /// A prompt, in place of a command; without --agent it goes to the configured default_agent
    #[arg(long, value_name = "PROMPT", allow_hyphen_values = true,
        conflicts_with_all = ["shell", "split", "stdin", "stdin_pipe"])]
    pub prompt: Option<OsString>,
    /// The completed agent task whose conversation PROMPT goes on with
    #[arg(long, value_name = "ID", conflicts_with_all = ["shell", "split", "stdin", "stdin_pipe", "session",
        "channel", "cwd", "tags", "key", "time_limit", "env"])]
    pub resume: Option<TaskRef>,
    /// The program and its arguments; with --agent or --resume the PROMPT
    #[arg(value_name = "CMD", trailing_var_arg = true,
        required_unless_present_any = ["shell", "agent", "prompt", "resume"],
        value_hint = clap::ValueHint::CommandWithArguments)]
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
            (None, None, None) => return Ok(()),
        };
        one_prompt(option, self.prompt.is_some(), &self.command)?;
        if self.resume.is_none() && self.description.is_none() {
            let what = format!(
                "{option} needs a description, which lists show in place of the prompt: \
                 add -d TEXT in front of the prompt"
            );
            return Err((ErrorKind::MissingRequiredArgument, what));
        }
        Ok(())
    }
}

/// A prompt is exactly one argument. Joining several would lose what stood between them.
fn one_prompt(option: &str, named: bool, words: &[OsString]) -> Result<(), (ErrorKind, String)> {
    match (named, words) {
        (true, []) | (false, [_]) => Ok(()),
        (true, [word, ..]) => {
            let word = word.to_string_lossy();
            let what =
                format!("--prompt has the whole prompt, but `{word}` stands there too: quote the prompt");
            Err((ErrorKind::ArgumentConflict, what))
        }
        (false, []) => {
            let what = format!(
                "{option} needs a PROMPT: give it as the last argument, or `-` to read it from standard input"
            );
            Err((ErrorKind::MissingRequiredArgument, what))
        }
        (false, words) => Err((ErrorKind::TooManyValues, too_many(words.len()))),
    }
}

/// What is said where a prompt came in several arguments.
pub(super) fn too_many(words: usize) -> String {
    format!("PROMPT must be one argument, but here are {words}: quote it, and put options in front of it")
}
