//! The params that a job is submitted with: everything that a child of this shell would inherit.

use std::ffi::OsString;
use std::path::Path;

use bgd_shared::agent::{AgentListParams, AgentSettings};
use bgd_shared::mutex::Mutex;
use bgd_shared::request::{Chosen, SubmitParams};
use bgd_shared::rlimit;
use bgd_shared::text::{Env, OsText};
use nix::sys::stat::{Mode, umask};

use crate::cli::JobArgs;
use crate::exit::Code;
use crate::failure::Failure;
use crate::label;
use crate::link::Link;
use crate::session;

/// Maximum length of a description made from a prompt, in characters.
const DESCRIPTION_CHARS: usize = 80;

/// The work of a job.
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
        prompt: String,
        settings: AgentSettings,
    },
}

impl Work {
    /// Returns the work of a command line for the shell.
    ///
    /// # Errors
    /// The line is blank, as with an unset variable in a script.
    pub fn shell(line: OsString) -> Result<Self, Failure> {
        if line.as_encoded_bytes().iter().all(u8::is_ascii_whitespace) {
            return Err(Failure::usage("no command given: the line for --shell is empty"));
        }
        Ok(Self::Shell(line))
    }
}

/// The machine on which a job runs.
#[derive(Clone, Debug)]
pub enum Machine {
    /// This machine, with the daemon's socket if the command line gave it.
    This(Option<String>),
    Another,
}

impl Machine {
    /// Returns the daemon's machine.
    ///
    /// # Errors
    /// The socket path is invalid.
    pub fn of(link: &Link) -> Result<Self, Failure> {
        Ok(if link.is_remote() { Self::Another } else { Self::This(link.named_socket()?) })
    }
}

/// Returns the params of a submit, without those that only one verb has. A task on this machine inherits everything
/// from this process; one on a remote machine inherits it from `bgctl dial` there, and starts in the home folder.
///
/// # Errors
/// The folder or the parent session can't be determined, no command was given, or a label is too long.
pub fn params(args: JobArgs, work: Work, machine: Machine) -> Result<SubmitParams, Failure> {
    label::check("--description", &args.description)?;
    label::check("--tag", &args.tags)?;
    label::check("--channel", &args.channel)?;
    label::check("--session", &args.session)?;
    let common = SubmitParams {
        description: args.description,
        channel: args.channel,
        time_limit_ms: args.time_limit,
        tags: args.tags,
        ..SubmitParams::default()
    };
    let common = match machine {
        Machine::Another => SubmitParams {
            session: session::key(args.session, true)?,
            inherit: true,
            cwd: args.cwd.map(|folder| OsString::from(folder).into()),
            env: (!args.env.is_empty()).then(|| Env(args.env.into_iter().map(variable).collect())),
            ..common
        },
        Machine::This(socket) => {
            let mut set = args.env;
            if let Some(socket) = socket {
                // If the task itself calls bgctl, it reaches the same daemon.
                set.push(("BGD_SOCKET".to_owned(), socket));
                set.push(("BGD_HOST".to_owned(), String::new()));
            }
            let terminal = session::terminal();
            SubmitParams {
                session: session::key_at(args.session, terminal.as_ref())?,
                terminal,
                cwd: Some(folder(args.cwd.as_deref())?.into()),
                env: Some(environment(set)),
                umask: Some(own_umask()),
                rlimits: rlimit::of_this_process(),
                ..common
            }
        }
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

/// Returns the params of a list of agents that shows what a job submitted from here would find: on a remote machine,
/// in the environment of `bgctl dial` there.
pub fn agents(is_remote: bool) -> AgentListParams {
    let env = (!is_remote).then(Env::of_this_process);
    AgentListParams { inherit: is_remote, env, ..AgentListParams::default() }
}

/// Returns which parts of a job's environment the user chose.
pub fn chosen(args: &JobArgs) -> Chosen {
    Chosen { cwd: args.cwd.is_some(), env: args.env.iter().map(|(name, _)| name.clone()).collect() }
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
        all.push(variable((name, value)));
    }
    Env(all.into())
}

fn variable((name, value): (String, String)) -> (Box<str>, OsText) {
    (name.into(), value.into())
}

/// Returns the file mode creation mask. Reading it requires setting it for a moment: a file that another thread creates
/// then is private.
fn own_umask() -> u32 {
    // Another thread must not read what this one has set.
    static READING: Mutex<()> = Mutex::new(());
    let _reading = READING.lock();
    let mask = umask(Mode::S_IRWXG | Mode::S_IRWXO);
    umask(mask);
    mask.bits() & 0o777
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r140_command_for_remote_machine_inherits_remote_environment() {
        let args = JobArgs {
            env: vec![("NEW".into(), "x=y".into())],
            cwd: Some("sub/./folder".into()),
            ..JobArgs::default()
        };
        let params = params(args, Work::Shell("make".into()), Machine::Another).unwrap();
        assert!(
            params.inherit
                && params.terminal.is_none()
                && params.umask.is_none()
                && params.rlimits.is_empty()
        );
        assert_eq!(params.cwd, Some("sub/./folder".into()));
        assert_eq!(params.env.unwrap().0.to_vec(), [("NEW".into(), "x=y".into())]);
    }

    fn with(args: JobArgs, work: Work) -> SubmitParams {
        params(args, work, Machine::This(Some("/run/s".into()))).unwrap()
    }

    #[test]
    fn command_keeps_argv_and_carries_caller_context() {
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
    fn blank_shell_line_is_refused() {
        for line in ["", " ", "\t\n"] {
            let failure = Work::shell(line.into()).unwrap_err();
            assert_eq!(
                (failure.code, &*failure.message),
                (Code::USAGE, "no command given: the line for --shell is empty")
            );
        }
        assert!(matches!(Work::shell(":".into()), Ok(Work::Shell(line)) if line == ":"));
    }

    #[test]
    fn prompt_description_is_its_beginning() {
        assert_eq!(beginning("\n  why is this?\nmore"), "why is this?");
        assert_eq!(beginning(&"ä".repeat(80)), "ä".repeat(80));
        assert_eq!(beginning(&"ä".repeat(81)), "ä".repeat(80) + "…");
        assert_eq!(beginning(""), "");
    }

    #[test]
    fn prompt_carries_caller_context_like_a_command() {
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
