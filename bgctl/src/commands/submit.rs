//! `submit`: submits a command or a prompt to the daemon.

mod each;
mod input;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use bgd_shared::id::TaskRef;
use bgd_shared::request::{LOCAL_EXECUTOR, Stdin, SubmitParams, SubmitResult, TaskSubmit, TerminalSize};
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;

use self::each::{Each, Separator};
use crate::cli::{EachArgs, SubmitArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::job::{self, Machine, Work};
use crate::link::may_be_older;
use crate::remark::{report, warn};
use crate::render::clean;
use crate::render::table::status;
use crate::render::wall::Clock;
use crate::{label, pick, precheck, prompt};

/// Submits the job, then prints its id.
pub fn run(args: SubmitArgs, context: &mut Context) -> Result<Code, Failure> {
    let hands_over = args.stdin;
    if hands_over && args.key.is_some() {
        // Nothing indicates whether the task with this key has already got its input.
        context.link.only_here("--stdin with --key")?;
    }
    if hands_over && (args.order.retry().is_some() || args.order.restart.is_some()) {
        let message = "--stdin can't be combined with --retry or --restart: the input can be read only once";
        return Err(Failure::usage(message).hint("let the task read a file: --shell \"COMMAND < file\""));
    }
    if hands_over && io::stdin().is_terminal() {
        return Err(Failure::usage("--stdin can't pass on a terminal: the shell needs it")
            .hint("give it a file or a pipe (`< file`), or use --stdin-pipe and `bgctl write`"));
    }
    let mut args = args;
    if let Some(file) = args.each.each.take() {
        return each_of(file, args, context);
    }
    let prompt = match given_prompt(&mut args) {
        Some(given) => Some(prompt::read(given, context)?),
        None => None,
    };
    let names_channel = args.job.channel.is_some();
    let resumed = args.resume.take().map(|name| pick::one(name, context)).transpose()?;
    let after = pick::after(std::mem::take(&mut args.order.after), context)?;
    let params = SubmitParams { after, ..params(args, resumed, prompt, Machine::of(&context.link)?)? };
    let mut params = params;
    let names_key = params.key.is_some();
    if context.link.is_remote() && params.key.is_none() && params.resume.is_none() {
        // A submit whose answer was lost is sent again, and must not run twice (R142).
        params.key = Some(bgd_shared::id::made_up_key());
    }
    let warnings = precheck::check(&params, "submit", Code::USAGE)?;
    let sends_input = hands_over && context.link.is_remote();
    if sends_input {
        params.stdin = Some(Stdin::Sent);
        // Connecting must remain interruptible.
        context.link.client()?;
        input::hold()?;
    }
    let input = io::stdin();
    let descriptors: &[_] = if hands_over && !sends_input { &[input.as_fd()] } else { &[] };
    let mut result = match submit(&params, descriptors, context) {
        // The daemon may be too old to know what becomes of a task whose input is sent.
        Err(failure) if sends_input && may_be_older(&failure) => {
            params.stdin = Some(Stdin::Pipe);
            submit(&params, descriptors, context)?
        }
        outcome => outcome?,
    };
    let id = result.task.id;
    // After a repetition, it may be the task of the first call.
    result.existing &= names_key && !context.link.has_repeated();
    if context.json() {
        context.print_json(&result)?;
    } else {
        let older_key = params.key.filter(|_| result.existing);
        print_submitted(result.task, older_key, &warnings, names_channel, context)?;
    }
    context.flush()?;
    if sends_input { input::send(id, context) } else { Ok(Code::OK) }
}

/// Submits the task; also after its answer was lost, if its key makes that safe.
fn submit(
    params: &SubmitParams,
    descriptors: &[BorrowedFd<'_>],
    context: &mut Context,
) -> Result<SubmitResult, Failure> {
    let submitted = context.link.begin(|link| {
        if params.key.is_some() {
            link.call_repeatable::<TaskSubmit>(params, descriptors)
        } else {
            link.call_with_fds::<TaskSubmit>(params, descriptors)
        }
    });
    submitted.map_err(|failure| prompt::blamed(failure, params.prompt.as_deref(), params))
}

/// Prints the id of a task, and anything that deserves attention. `older_key` is the key of a task that already
/// existed.
fn print_submitted(
    task: Task,
    older_key: Option<String>,
    warnings: &[String],
    names_channel: bool,
    context: &mut Context,
) -> Result<(), Failure> {
    context.print(&format!("{}\n", task.id))?;
    // Print the id before anything else can fail.
    context.flush()?;
    if let Some(key) = older_key {
        // Nothing was started, so there is nothing to warn about.
        report(&format!(
            "a task with the key {} already exists: {}",
            clean(&key),
            status(&task, &Clock::system(Timestamp::now()))
        ));
        return Ok(());
    }
    for warning in warnings {
        warn(warning);
    }
    if let Some(warning) = &task.warning {
        warn(&clean(warning));
    }
    warn_if_ended(&task);
    // Checking the channel costs a call: skip it for scripts that don't name one.
    if let Some(channel) = task.channel.filter(|_| names_channel || io::stderr().is_terminal())
        && let Ok(Some(problem)) = precheck::channel(&channel, context)
    {
        warn(&problem);
    }
    Ok(())
}

/// Warns of a task that has ended at once, for example because a task that had to complete first has already failed.
pub(super) fn warn_if_ended(task: &Task) {
    if let Some(error) = task.error.as_ref().filter(|_| !task.status.is_active()) {
        warn(&format!("the task is already {}: {}", task.status, clean(error)));
    }
}

/// Submits one task per item, then prints the batch id.
fn each_of(file: OsString, mut args: SubmitArgs, context: &mut Context) -> Result<Code, Failure> {
    let EachArgs { null, jobs, max_fails, .. } = args.each;
    let each = Each { file, end: if null { Separator::Nul } else { Separator::Newline }, jobs, max_fails };
    // Read all items before asking the daemon for anything.
    let parts = each::parts(&each, &args.command)?;
    let unreplaced = unreplaced(&args);
    let after = pick::after(std::mem::take(&mut args.order.after), context)?;
    let common = SubmitParams { after, ..params(args, None, None, Machine::of(&context.link)?)? };
    let warnings = each::check(&common, &each, &parts)?;
    let common = SubmitParams { argv: None, ..common };
    let submitted = each::submit(&common, &each, &parts, context)?;
    if context.json() {
        context.print_json(&submitted)?;
        return Ok(Code::OK);
    }
    context.print(&format!("{}\n", submitted.batch))?;
    context.flush()?;
    if let Some(key) = common.key.filter(|_| submitted.existing) {
        report(&format!("a batch with the key {} already exists; nothing was submitted", clean(&key)));
        return Ok(Code::OK);
    }
    for warning in unreplaced.iter().chain(&warnings) {
        warn(warning);
    }
    Ok(Code::OK)
}

/// Returns a warning for each option with a placeholder, which is replaced only in the command.
fn unreplaced(args: &SubmitArgs) -> Vec<String> {
    let job = &args.job;
    let folder = job.cwd.as_deref().map(Path::to_string_lossy);
    let ready = args.order.ready.as_ref().map(ToString::to_string);
    let options: [(&str, Vec<&str>); 7] = [
        ("--description", job.description.as_deref().into_iter().collect()),
        ("--tag", job.tags.iter().map(String::as_str).collect()),
        ("--env", job.env.iter().map(|(_, value)| value.as_str()).collect()),
        ("--cwd", folder.as_deref().into_iter().collect()),
        ("--key", args.key.as_deref().into_iter().collect()),
        ("--ready", ready.as_deref().into_iter().collect()),
        ("--option", args.elsewhere.options.iter().map(String::as_str).collect()),
    ];
    let warning = |(option, texts): (&str, Vec<&str>)| {
        let place = texts.into_iter().find_map(each::placeholder)?;
        Some(format!("{place} is replaced only in the command, not in {option}"))
    };
    options.into_iter().filter_map(warning).collect()
}

/// Returns the prompt, if there is one: from its option, or in place of the command.
fn given_prompt(args: &mut SubmitArgs) -> Option<OsString> {
    let in_place = args.agent.is_some() || args.resume.is_some();
    // The command line is checked to have exactly one argument.
    args.prompt.take().or_else(|| if in_place { args.command.pop() } else { None })
}

/// Builds the submit parameters, except for `after`.
fn params(
    args: SubmitArgs,
    resumed: Option<TaskRef>,
    prompt: Option<String>,
    machine: Machine,
) -> Result<SubmitParams, Failure> {
    if let Some(id) = resumed {
        // The task keeps everything else that it was submitted with (R37).
        let settings = args.settings.settings();
        return Ok(SubmitParams { resume: Some(id), prompt, settings, ..SubmitParams::default() });
    }
    let stdin = match (args.stdin, args.stdin_pipe) {
        (true, _) => Some(Stdin::Fd),
        (false, true) => Some(Stdin::Pipe),
        (false, false) => None,
    };
    let work = match (args.shell, prompt) {
        (Some(line), _) => Work::shell(line)?,
        (None, Some(prompt)) => {
            Work::Prompt { agent: args.agent, prompt, settings: args.settings.settings() }
        }
        (None, None) => Work::Argv(args.command),
    };
    label::check("--key", &args.key)?;
    label::check("--on", &args.elsewhere.on)?;
    let resources = args.elsewhere.resources();
    let on = args.elsewhere.on.filter(|on| on != LOCAL_EXECUTOR);
    let chosen = on.as_ref().map(|_| job::chosen(&args.job)).unwrap_or_default();
    Ok(SubmitParams {
        chosen,
        resources,
        on,
        stdin,
        pty: args.pty.then_some(TerminalSize { rows: 24, cols: 80 }),
        split: args.split,
        key: args.key,
        retry: args.order.retry(),
        group: args.order.group,
        priority: args.order.priority,
        slots: args.order.slots,
        delay_ms: args.order.delay,
        start_at: args.order.at,
        hold: args.order.hold,
        restart: args.order.restart,
        ready: args.order.ready,
        ready_timeout_ms: args.order.ready_timeout,
        ..job::params(args.job, work, machine)?
    })
}

#[cfg(test)]
mod tests {
    use bgd_shared::agent::{AgentSettings, Setting};

    use super::*;
    use crate::cli::{JobArgs, SettingArgs};

    #[test]
    fn command_is_a_prompt_only_with_agent_option() {
        let mut args = SubmitArgs { prompt: Some("do".into()), ..SubmitArgs::default() };
        assert_eq!(given_prompt(&mut args), Some("do".into()));
        let mut args = SubmitArgs { command: vec!["make".into()], ..SubmitArgs::default() };
        assert_eq!(given_prompt(&mut args), None);
        assert_eq!(args.command.len(), 1);
        let mut args =
            SubmitArgs { agent: Some("codex".into()), command: vec!["do".into()], ..SubmitArgs::default() };
        assert_eq!(given_prompt(&mut args), Some("do".into()));
    }

    #[test]
    fn r37_resume_sends_only_prompt_and_agent_settings() {
        let id: TaskRef = "3f2a".parse().unwrap();
        let args = SubmitArgs {
            job: JobArgs { description: Some("other".into()), ..JobArgs::default() },
            agent: Some("other".into()),
            settings: SettingArgs { config: vec![("fast".into(), "a=b".into())], ..SettingArgs::default() },
            ..SubmitArgs::default()
        };
        let sent = params(args, Some(id.clone()), Some("go on".into()), Machine::Another).unwrap();
        let settings = AgentSettings {
            config: [("fast".into(), Setting::Text("a=b".into()))].into(),
            ..AgentSettings::default()
        };
        let only = SubmitParams {
            resume: Some(id),
            prompt: Some("go on".into()),
            settings,
            ..SubmitParams::default()
        };
        assert_eq!(sent, only);
    }
}
