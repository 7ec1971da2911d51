//! What a job is submitted with: everything that a child of this shell would inherit.

use std::ffi::OsString;
use std::path::Path;

use bgd_shared::agent::AgentSettings;
use bgd_shared::request::SubmitParams;
use bgd_shared::rlimit;
use bgd_shared::text::{Env, OsText};
use nix::sys::stat::{Mode, umask};

use crate::cli::JobArgs;
use crate::exit::Code;
use crate::failure::Failure;
use crate::session;

/// The longest description made from a prompt, in characters.
const DESCRIPTION_CHARS: usize = 80;

/// What a job runs.
#[derive(Debug)]
pub enum Work {
    /// A program with its arguments.
    Argv(Vec<OsString>),
    /// A command line for the shell.
    Shell(OsString),
    /// A prompt for an agent.
    Prompt {
        /// `None` for the configured default.
        agent: Option<String>,
        /// The text of the prompt.
        prompt: String,
        /// Settings for the agent's session.
        settings: AgentSettings,
    },
}

/// Builds the submit parameters that all verbs share. `socket` is the daemon's socket if the command line named one.
///
/// # Errors
/// The folder can't be determined, or the command is empty.
pub fn params(args: JobArgs, work: Work, socket: Option<String>) -> Result<SubmitParams, Failure> {
    let mut set = args.env;
    if let Some(socket) = socket {
        // Calls that the task itself makes with bgctl go to the same daemon.
        set.push(("BGD_SOCKET".to_owned(), socket));
    }
    let terminal = session::terminal();
    let common = SubmitParams {
        description: args.description,
        session: session::key_at(args.session, terminal.as_ref()),
        channel: args.channel,
        terminal,
        cwd: Some(folder(args.cwd.as_deref())?.into()),
        env: Some(environment(set)),
        umask: Some(own_umask()),
        rlimits: rlimit::of_this_process(),
        time_limit_ms: args.time_limit,
        tags: args.tags,
        ..SubmitParams::default()
    };
    Ok(match work {
        Work::Argv(words) if words.first().is_none_or(|program| program.is_empty()) => {
            return Err(Failure::usage("no command given: the program name is empty"));
        }
        Work::Argv(words) => {
            SubmitParams { argv: Some(words.into_iter().map(OsText::from).collect()), ..common }
        }
        Work::Shell(line) => SubmitParams { shell: Some(line.into()), ..common },
        Work::Prompt { agent, prompt, settings } => {
            SubmitParams { agent, prompt: Some(prompt), settings, ..common }
        }
    })
}

/// Returns the beginning of a prompt as the description of its task.
pub fn beginning(prompt: &str) -> String {
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(DESCRIPTION_CHARS) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None => line.to_owned(),
    }
}

/// Returns the absolute folder to run in.
fn folder(named: Option<&Path>) -> Result<OsString, Failure> {
    let folder = match named {
        Some(named) if named.as_os_str().is_empty() => return Err(Failure::usage("--cwd is empty")),
        Some(named) => std::path::absolute(named),
        None => std::env::current_dir(),
    };
    folder.map(Into::into).map_err(|error| {
        Failure::new(Code::USAGE, "usage", format!("can't determine the current folder: {error}"))
            .hint("give another one with --cwd")
    })
}

/// Returns the environment of this process with the given variables set.
fn environment(set: Vec<(String, String)>) -> Env {
    let own = Env::of_this_process();
    if set.is_empty() {
        return own;
    }
    let mut all = own.0.into_vec();
    for (name, value) in set {
        all.retain(|(known, _)| **known != *name);
        all.push((name.into(), value.into()));
    }
    Env(all.into())
}

/// Returns the file mode creation mask. Reading it requires setting it; no other thread is running that could notice.
fn own_umask() -> u32 {
    let mask = umask(Mode::S_IRWXG | Mode::S_IRWXO);
    umask(mask);
    mask.bits() & 0o777
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(args: JobArgs, work: Work) -> SubmitParams {
        params(args, work, Some("/run/s".into())).unwrap()
    }

    #[test]
    fn a_command_stays_arguments_and_brings_everything_along() {
        let args = JobArgs {
            env: vec![("PATH".into(), "/only".into()), ("NEW".into(), "x=y".into())],
            cwd: Some("sub/./folder".into()),
            ..JobArgs::default()
        };
        let params = with(args, Work::Argv(vec!["printf".into(), "%s %s".into(), "a b".into()]));
        assert_eq!(params.argv.unwrap().len(), 3);
        assert_eq!(params.shell, None);
        let env = params.env.unwrap();
        assert_eq!(env.get("PATH"), Some(&"/only".into()));
        assert_eq!(env.get("NEW"), Some(&"x=y".into()));
        assert_eq!(env.get("BGD_SOCKET"), Some(&"/run/s".into()));
        assert_eq!(env.0.iter().filter(|(name, _)| &**name == "PATH").count(), 1);
        let cwd = params.cwd.unwrap();
        assert!(cwd.to_string_lossy().starts_with('/') && cwd.to_string_lossy().ends_with("sub/folder"));
        assert_eq!(params.rlimits.len(), 16);
        assert_eq!(params.umask, Some(own_umask()));
    }

    #[test]
    fn a_prompt_is_described_by_its_beginning() {
        assert_eq!(beginning("\n  why is this?\nmore"), "why is this?");
        assert_eq!(beginning(&"ä".repeat(80)), "ä".repeat(80));
        assert_eq!(beginning(&"ä".repeat(81)), "ä".repeat(80) + "…");
        assert_eq!(beginning(""), "");
    }

    #[test]
    fn a_prompt_brings_along_what_a_command_does() {
        let work = Work::Prompt {
            agent: Some("codex".into()),
            prompt: "explain this".into(),
            settings: AgentSettings::default(),
        };
        let params = with(JobArgs { description: Some("why".into()), ..JobArgs::default() }, work);
        assert_eq!((params.argv, params.shell), (None, None));
        assert_eq!(params.prompt.as_deref(), Some("explain this"));
        assert_eq!(params.agent.as_deref(), Some("codex"));
        assert!(params.cwd.is_some() && params.env.is_some() && params.umask.is_some());
        assert_eq!(params.rlimits.len(), 16);
    }
}
