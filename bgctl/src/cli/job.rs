//! Arguments of every command or prompt, in the background (`submit`) or the foreground (`run`).

use std::ffi::OsString;
use std::path::PathBuf;

use bgd_shared::agent::{AgentSettings, Setting};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;

use crate::candidates::{sessions, tags};
use crate::duration::parse_limit;

fn parse_variable(text: &str) -> Result<(String, String), String> {
    pair(text, "NAME=VALUE")
}

fn parse_option(text: &str) -> Result<(String, String), String> {
    pair(text, "KEY=VALUE")
}

fn pair(text: &str, form: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("write it as {form}")),
    }
}

/// Settings of an agent's session.
#[derive(Args, Debug, Default)]
pub struct SettingArgs {
    /// Mode of the agent's session, as the agent names it [default: as configured]
    #[arg(long, value_name = "MODE", value_parser = NonEmptyStringValueParser::new())]
    pub mode: Option<String>,
    /// Model to use [default: as configured]
    #[arg(long, value_name = "MODEL", value_parser = NonEmptyStringValueParser::new())]
    pub model: Option<String>,
    /// Set another option of the agent's session; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE", value_parser = parse_option)]
    pub config: Vec<(String, String)>,
}

impl SettingArgs {
    /// Converts the settings to their wire form.
    pub fn settings(&self) -> AgentSettings {
        let config =
            self.config.iter().map(|(key, value)| (key.clone(), Setting::Text(value.clone()))).collect();
        AgentSettings { mode: self.mode.clone(), model: self.model.clone(), config }
    }

    /// Rejects these options for a command, which has no session. `how` is the option that makes it a prompt.
    pub(super) fn refuse(&self, how: &str) -> Result<(), (ErrorKind, String)> {
        match self.settings().first() {
            Some(key) => {
                let what = format!("--{key} requires a prompt for an agent, not a command: add {how}");
                Err((ErrorKind::MissingRequiredArgument, what))
            }
            None => Ok(()),
        }
    }
}

/// Arguments of every job.
#[derive(Args, Debug, Default)]
pub struct JobArgs {
    /// Description for lists [default: the command; with `run`, the first line of a prompt]
    #[arg(short, long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Parent session [default: $BGD_SESSION, else the terminal, see `bgctl session`]
    #[arg(long, value_name = "KEY", add = sessions())]
    pub session: Option<String>,
    /// Where to deliver notifications: desktop, tty, inbox, a configured channel, or none
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub channel: Option<String>,
    /// Folder to run in [default: the current one]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub cwd: Option<PathBuf>,
    /// Add a tag of your choice; may be repeated
    #[arg(long = "tag", value_name = "TAG", add = tags(), value_parser = NonEmptyStringValueParser::new())]
    pub tags: Vec<String>,
    /// Fail the task if it runs longer than this (90s, 10m, 1h30m)
    #[arg(long, value_name = "DURATION", value_parser = parse_limit, allow_hyphen_values = true)]
    pub time_limit: Option<u64>,
    /// Set an environment variable; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub env: Vec<(String, String)>,
}

/// Checks that a prompt is exactly one argument. Joining several would lose the separators between them.
pub(super) fn one_prompt(option: &str, named: bool, words: &[OsString]) -> Result<(), (ErrorKind, String)> {
    match (named, words) {
        (true, []) | (false, [_]) => Ok(()),
        (true, [word, ..]) => {
            let word = word.to_string_lossy();
            let what = format!("unexpected argument `{word}` in addition to --prompt: quote the prompt");
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

/// Returns the error message for a prompt of several arguments.
pub(super) fn too_many(words: usize) -> String {
    format!("PROMPT must be one argument, not {words}: quote it, and put options before it")
}
