//! `submit`: hands a command or a prompt to the daemon, with everything that a child of this shell would
//! inherit.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use bgd_shared::request::{Stdin, SubmitParams, TaskSubmit};
use bgd_shared::rlimit;
use bgd_shared::text::{Env, OsText};
use nix::sys::stat::{Mode, umask};

use crate::cli::SubmitArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::prompt;

/// Submits, and prints the id.
pub fn run(args: SubmitArgs, context: &mut Context) -> Result<Code, Failure> {
    let hands_over = args.stdin;
    if hands_over && io::stdin().is_terminal() {
        return Err(Failure::usage("--stdin hands over a terminal, which the shell needs itself")
            .hint("give it a file or a pipe (`< file`), or use --stdin-pipe and `bgctl write`"));
    }
    let mut args = args;
    if let Some(socket) = context.named_socket()? {
        // What the task itself asks bgctl for goes to the same daemon.
        args.env.push(("BGD_SOCKET".to_owned(), socket));
    }
    let prompt = match given_prompt(&mut args) {
        Some(given) => Some(prompt::read(given, context)?),
        None => None,
    };
    let params = params(args, prompt)?;
    let input = io::stdin();
    let descriptors: &[_] = if hands_over { &[input.as_fd()] } else { &[] };
    let result = context.call_with_fds::<TaskSubmit>(&params, descriptors)?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&format!("{}\n", result.task.id))?;
    }
    Ok(Code::OK)
}

/// What was given as the prompt, if this is one: by its option, or in place of a command.
fn given_prompt(args: &mut SubmitArgs) -> Option<OsString> {
    let in_place = args.agent.is_some() || args.resume.is_some();
    // The command line was checked to have exactly one.
    args.prompt.take().or_else(|| if in_place { args.command.pop() } else { None })
}

fn params(args: SubmitArgs, prompt: Option<String>) -> Result<SubmitParams, Failure> {
    if let Some(id) = args.resume {
        // The task keeps all that it was submitted with (R37).
        return Ok(SubmitParams { resume: Some(id), prompt, ..SubmitParams::default() });
    }
    let stdin = match (args.stdin, args.stdin_pipe) {
        (true, _) => Some(Stdin::Fd),
        (false, true) => Some(Stdin::Pipe),
        (false, false) => None,
    };
    let session = args.session.or_else(|| std::env::var("BGD_SESSION").ok()).filter(|key| !key.is_empty());
    let (words, shell) = match (args.shell, &prompt) {
        (Some(line), _) => (None, Some(line.into())),
        (None, Some(_)) => (None, None),
        (None, None) => (Some(args.command.into_iter().map(OsText::from).collect()), None),
    };
    Ok(SubmitParams {
        argv: words,
        shell,
        prompt,
        agent: args.agent,
        description: args.description,
        session,
        channel: args.channel,
        cwd: Some(folder(args.cwd.as_deref())?.into()),
        env: Some(environment(args.env)),
        umask: Some(own_umask()),
        rlimits: rlimit::of_this_process(),
        stdin,
        split: args.split,
        time_limit_ms: args.time_limit,
        tags: args.tags,
        key: args.key,
        ..SubmitParams::default()
    })
}

/// The folder to run in, absolute.
fn folder(named: Option<&Path>) -> Result<OsString, Failure> {
    let folder = match named {
        Some(named) if named.as_os_str().is_empty() => return Err(Failure::usage("--cwd is empty")),
        Some(named) => std::path::absolute(named),
        None => std::env::current_dir(),
    };
    folder.map(Into::into).map_err(|error| {
        Failure::new(Code::USAGE, "usage", format!("the folder that this runs in can't be found: {error}"))
            .hint("name another one with --cwd")
    })
}

/// The environment of this process with these variables set.
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

/// The file mode creation mask. It can only be read by setting it; there is no other thread to see that.
fn own_umask() -> u32 {
    let mask = umask(Mode::S_IRWXG | Mode::S_IRWXO);
    umask(mask);
    mask.bits() & 0o777
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_arguments_and_brings_everything_along() {
        let args = SubmitArgs {
            command: vec!["printf".into(), "%s %s".into(), "a b".into()],
            env: vec![("PATH".into(), "/only".into()), ("NEW".into(), "x=y".into())],
            cwd: Some("sub/./folder".into()),
            ..SubmitArgs::default()
        };
        let params = params(args, None).unwrap();
        assert_eq!(params.argv.unwrap().len(), 3);
        assert_eq!(params.shell, None);
        let env = params.env.unwrap();
        assert_eq!(env.get("PATH"), Some(&"/only".into()));
        assert_eq!(env.get("NEW"), Some(&"x=y".into()));
        assert_eq!(env.0.iter().filter(|(name, _)| &**name == "PATH").count(), 1);
        let cwd = params.cwd.unwrap();
        assert!(cwd.to_string_lossy().starts_with('/') && cwd.to_string_lossy().ends_with("sub/folder"));
        assert_eq!(params.rlimits.len(), 16);
        assert_eq!(params.umask, Some(own_umask()));
    }

    #[test]
    fn a_prompt_brings_along_what_a_command_does() {
        let mut args = SubmitArgs {
            agent: Some("codex".into()),
            description: Some("why".into()),
            command: vec!["explain this".into()],
            ..SubmitArgs::default()
        };
        assert_eq!(given_prompt(&mut args), Some("explain this".into()));
        let params = params(args, Some("explain this".into())).unwrap();
        assert_eq!((params.argv, params.shell), (None, None));
        assert_eq!(params.prompt.as_deref(), Some("explain this"));
        assert_eq!(params.agent.as_deref(), Some("codex"));
        assert!(params.cwd.is_some() && params.env.is_some() && params.umask.is_some());
        assert_eq!(params.rlimits.len(), 16);
    }

    #[test]
    fn only_the_option_makes_a_prompt_without_an_agent() {
        let mut args = SubmitArgs { prompt: Some("do".into()), ..SubmitArgs::default() };
        assert_eq!(given_prompt(&mut args), Some("do".into()));
        let mut args = SubmitArgs { command: vec!["make".into()], ..SubmitArgs::default() };
        assert_eq!(given_prompt(&mut args), None);
        assert_eq!(args.command.len(), 1);
    }

    #[test]
    fn r37_a_resume_sends_the_prompt_and_nothing_else() {
        let id: bgd_shared::id::TaskRef = "3f2a".parse().unwrap();
        let args = SubmitArgs {
            resume: Some(id.clone()),
            agent: Some("other".into()),
            description: Some("other".into()),
            ..SubmitArgs::default()
        };
        let sent = params(args, Some("go on".into())).unwrap();
        let only = SubmitParams { resume: Some(id), prompt: Some("go on".into()), ..SubmitParams::default() };
        assert_eq!(sent, only);
    }
}
