//! `task.submit`: a command, or a prompt for an agent.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bgd_shared::error::RpcError;
use bgd_shared::long_env;
use bgd_shared::params::shortened;
use bgd_shared::ready::Ready;
use bgd_shared::request::{LOCAL_EXECUTOR, Stdin, SubmitParams};
use bgd_shared::text::{Env, OsText};

use super::agent::resume;
use super::body::Body;
use super::checks::{
    check_label, check_ms, check_no_nul, check_settings, check_size, check_tags, invalid, prompt_required,
};
use super::submission::{PromptRequest, Submission};
use super::{inherit, order};
use crate::core::{Command, PlanRequest, Work};
use crate::exec::messages::Inherited;
use crate::remotes::OnRequest;

/// Takes the named descriptors in the order in which they were sent; any further ones are closed.
fn take_inherited(
    params: &SubmitParams,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Inherited, RpcError> {
    let mut take = |name: &str, is_named: bool| match (is_named, is_named.then(|| fds.next()).flatten()) {
        (true, None) => Err(missing(&format!("`{name}` is \"fd\""))),
        (_, fd) => Ok(fd),
    };
    let stdin = take("stdin", params.stdin == Some(Stdin::Fd))?;
    let outputs = [take("stdout", params.stdout.is_some())?, take("stderr", params.stderr.is_some())?];
    Ok(Inherited { stdin, outputs })
}

fn missing(what: &str) -> RpcError {
    invalid(format!("{what}, but the line came without a descriptor"))
        .hint("send it by SCM_RIGHTS together with the first byte of the line")
}

/// Returns the environment, from the line or from a file whose descriptor was sent with it.
pub fn environment(
    env: Option<Env>,
    env_fd: bool,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Option<Env>, RpcError> {
    match (env, env_fd) {
        (env, false) => Ok(env),
        (Some(_), true) => Err(invalid("`env` and `env_fd` can't be combined: give one of them")),
        // Not on a worker thread: the file is in memory and no larger than a few lines, and the client's next request
        // must not overtake this one.
        (None, true) => long_env::take(fds.next().ok_or_else(|| missing("`env_fd` is true"))?).map(Some),
    }
}

/// Parses both modes of a submission (R37): a new task, or a prompt that continues an earlier conversation.
pub fn submitted(params: SubmitParams, fds: Vec<OwnedFd>, peer: Option<i32>) -> Result<Body, RpcError> {
    let mut params = inherit::complete(params, peer)?;
    if let Some(id) = params.resume {
        return resume(id, params.prompt.unwrap_or_default(), params.settings).map(Body::Core);
    }
    if params.prompt.is_none() && params.agent.is_some() && params.argv.is_none() && params.shell.is_none() {
        return Err(prompt_required());
    }
    let plan = order::plan(&params)?;
    let (agent, mut fds) = (params.agent.take(), fds.into_iter());
    if params.prompt.is_none() {
        if agent.is_some() {
            return Err(invalid("`agent` requires `prompt`, not a command"));
        }
        if !params.settings.is_empty() {
            return Err(invalid("`settings` requires `prompt`, not a command"));
        }
        let inherited = take_inherited(&params, &mut fds)?;
        params.env = environment(params.env.take(), params.env_fd, &mut fds)?;
        let on = on_request(&mut params)?;
        return Ok(Body::Submit(Box::new(submit(params, plan)?), inherited, Box::new(on)));
    }
    check_prompt(&params)?;
    params.env = environment(params.env.take(), params.env_fd, &mut fds)?;
    check_settings(&params.settings)?;
    check(&params)?;
    let prompt = params.prompt.take().unwrap_or_default().into();
    let settings = Arc::new(std::mem::take(&mut params.settings));
    Ok(Body::Prompt(Box::new(PromptRequest {
        agent,
        prompt,
        settings,
        task: Submission::new(params, plan)?,
    })))
}

/// Checks that a prompt has everything it needs, and nothing that only a command can have.
fn check_prompt(params: &SubmitParams) -> Result<(), RpcError> {
    if params.prompt.as_deref().is_none_or(|prompt| prompt.trim().is_empty()) {
        return Err(prompt_required());
    }
    if params.argv.is_some() || params.shell.is_some() {
        return Err(invalid("`prompt` and a command can't be combined: give one of them"));
    }
    if params.description.as_deref().is_none_or(|text| text.trim().is_empty()) {
        return Err(invalid("`description` is missing: it is required with `prompt`"));
    }
    if params.stdin.is_some() || params.split || params.stdout.is_some() || params.stderr.is_some() {
        return Err(invalid("`stdin`, `stdout`, `stderr` and `split` require a command, not `prompt`"));
    }
    if params.ready.is_some() {
        return Err(invalid("`ready` requires a command, not `prompt`: an agent never becomes ready")
            .hint("`after` waits for the end of its turn"));
    }
    if params.retry.as_ref().is_some_and(|retry| retry.signal || !retry.codes.is_empty()) {
        return Err(invalid(
            "`retry.codes` and `retry.signal` require a command, not `prompt`: an agent's turn has no exit code",
        ));
    }
    if params.on.is_some() || !params.resources.is_empty() {
        return Err(invalid("`on` and `resources` require a command, not `prompt`")
            .hint("set `on` in [agents.NAME]: its program then runs there"));
    }
    if params.pty.is_some() {
        return Err(invalid("`pty` requires a command, not `prompt`: an agent has no terminal"));
    }
    Ok(())
}

/// Takes the params that determine where a command runs.
pub fn on_request(params: &mut SubmitParams) -> Result<OnRequest, RpcError> {
    check_label("on", params.on.as_deref())?;
    let resources = std::mem::take(&mut params.resources);
    resources.check().map_err(|(name, what)| invalid(format!("`resources.{name}` {what}")))?;
    let chosen = std::mem::take(&mut params.chosen);
    if let Some(name) = chosen.env.iter().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        let name = shortened(name);
        return Err(invalid(format!("`chosen.env`: {name:?} is not a valid variable name")));
    }
    // `executor.list` names this machine, too.
    let name = params.on.take().filter(|name| name != LOCAL_EXECUTOR);
    Ok(OnRequest { name, resources, chosen })
}

/// Builds the command that all tasks of a batch have in common.
pub fn common(params: SubmitParams) -> Result<Command, RpcError> {
    let plan = order::plan(&params)?;
    submit(params, plan)
}

fn submit(mut params: SubmitParams, plan: PlanRequest) -> Result<Command, RpcError> {
    check(&params)?;
    let work = work(params.argv.take(), params.shell.take())?;
    Ok(Submission::new(params, plan)?.command(work, None))
}

/// Checks the params that are read before the work.
fn check(params: &SubmitParams) -> Result<(), RpcError> {
    check_rlimits(&params.rlimits)?;
    check_streams(params)?;
    check_labels(params)?;
    check_ms("time_limit_ms", params.time_limit_ms)?;
    check_ready(params)
}

/// Checks that the stream and terminal parameters are compatible.
fn check_streams(params: &SubmitParams) -> Result<(), RpcError> {
    let has_given = params.stdout.is_some() || params.stderr.is_some();
    if params.split && (has_given || params.pty.is_some()) {
        return Err(invalid("`split` can't be combined with `stdout`, `stderr` or `pty`"));
    }
    if params.pty.is_some() && params.stdin.is_some_and(Stdin::is_pipe) {
        return Err(invalid(
            "`pty` and `stdin: \"pipe\"` can't be combined: `task.write` goes to the terminal",
        ));
    }
    if params.direct && !params.foreground {
        return Err(invalid("`direct` requires `foreground`"));
    }
    if params.stays && (!params.foreground || params.direct || params.pty.is_none()) {
        return Err(invalid("`stays` requires `foreground` and `pty`, and no `direct`"));
    }
    if params.foreground && params.key.is_some() && !params.stays {
        return Err(invalid("`key` can't be combined with `foreground` without `stays`"));
    }
    params.pty.map_or(Ok(()), check_size)
}

/// Checks that the readiness parameters can be satisfied.
fn check_ready(params: &SubmitParams) -> Result<(), RpcError> {
    check_ms("ready_timeout_ms", params.ready_timeout_ms)?;
    if let Some(ready) = &params.ready {
        ready.check().map_err(|error| invalid(format!("`ready`: {error}")))?;
    }
    match (&params.ready, params.ready_timeout_ms) {
        (None, Some(_)) => Err(invalid("`ready_timeout_ms` requires `ready`")),
        (Some(_), Some(0)) => Err(invalid("`ready_timeout_ms` is 0: the task could not become ready")),
        (Some(Ready::Line(_)), _) if params.stdout.is_some() && params.stderr.is_some() => Err(invalid(
            "`ready` waits for a line, but the daemon gets no output of the task: omit `stdout` or `stderr`",
        )),
        _ => Ok(()),
    }
}

fn work(argv: Option<Vec<OsText>>, shell: Option<OsText>) -> Result<Work, RpcError> {
    match (argv, shell) {
        (Some(argv), None) => {
            if argv.first().is_none_or(|program| program.as_bytes().is_empty()) {
                return Err(invalid("`argv` has no program"));
            }
            argv.iter().try_for_each(|text| check_no_nul("argv", text))?;
            Ok(Work::Argv(argv.into()))
        }
        (None, Some(line)) => {
            check_no_nul("shell", &line)?;
            Ok(Work::Shell(line))
        }
        (None, None) => Err(invalid("nothing to do: give `argv`, `shell`, or `prompt`")),
        (Some(_), Some(_)) => Err(invalid("`argv` and `shell` can't be combined: give one of them")),
    }
}

fn check_labels(params: &SubmitParams) -> Result<(), RpcError> {
    check_label("session", params.session.as_deref())?;
    check_label("channel", params.channel.as_deref())?;
    check_label("key", params.key.as_deref())?;
    check_label("description", params.description.as_deref().filter(|text| !text.is_empty()))?;
    check_tags(&params.tags)
}

fn check_rlimits(rlimits: &bgd_shared::rlimit::Rlimits) -> Result<(), RpcError> {
    let known = bgd_shared::rlimit::RESOURCES;
    for name in rlimits.keys() {
        if !known.iter().any(|(resource, _)| resource == name) {
            let names: Vec<_> = known.iter().map(|(resource, _)| *resource).collect();
            let (name, names) = (shortened(name), names.join(", "));
            return Err(invalid(format!("`rlimits`: {name:?} is not one of {names}")));
        }
    }
    Ok(())
}
