//! `run`: runs a job in the foreground as if the shell had started it; Ctrl-B moves it to the background.

mod begin;
mod remote_terminal;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use bgd_shared::foreground::Key;
use bgd_shared::request::{
    DetachResult, Given, Hello, HelloParams, Stdin, SubmitParams, TaskResult, TaskSubmit,
};
use bgd_shared::task::{Exit, Task};
use nix::sys::signal::Signal;
use rustix::stdio::{dup2_stdin, dup2_stdout};
use serde::Serialize;

use self::begin::submit_held;
pub(super) use self::begin::{ask_for_key, await_key};
use crate::cli::{JobArgs, RunArgs};
use crate::context::Context;
use crate::ending;
use crate::exit::Code;
use crate::failure::Failure;
use crate::job::{self, Machine, Work};
use crate::link::{Given as Lent, Streams};
use crate::remark::{report, say, warn};
use crate::render::{json, survivors};
use crate::terminal::{
    self, AttachmentEnd, Caught, Role, Screen, ScreenView, TextShown, TextView, is_in_foreground,
    pass_signals, signal_group,
};
use crate::{precheck, prompt};

/// How long the streams of a job on a remote machine are carried on after the job's end, if it left processes running.
const LINGERING: Duration = Duration::from_secs(1);

/// Runs the job until it ends or is moved to the background.
pub fn run(mut args: RunArgs, context: &mut Context) -> Result<Code, Failure> {
    if let Some(agent) = args.agent.take() {
        return with_agent(agent, args, context);
    }
    if let Some(name) = &args.env_from {
        args.job.env.extend(variables(name)?);
    }
    let work = match args.shell {
        Some(line) => Work::shell(line)?,
        None => Work::Argv(args.command),
    };
    let params = SubmitParams {
        foreground: true,
        direct: args.direct,
        ..job::params(args.job, work, Machine::of(&context.link)?)?
    };
    precheck::folder(&params)?;
    // Only a quoted command line is refused here: any other problem shows soon, as the job starts at once.
    precheck::check(&params, "run", Code::NOT_FOUND)?;
    // The job's failure does not say why a variable or a builtin of the shell is no program.
    let warning = precheck::missing_descriptor(&params).or_else(|| precheck::only_in_shells(&params, "run"));
    if let Some(warning) = warning {
        warn(&warning);
    }
    // A job started directly by the user reads the terminal itself: input that it leaves unread is for the shell.
    if io::stdout().is_terminal() && !params.direct {
        on_terminal(params, args.key, context)
    } else {
        with_own_streams(params, context)
    }
}

/// Parses environment variables from a JSON object in a variable of this process.
fn variables(name: &str) -> Result<BTreeMap<String, String>, Failure> {
    let text = std::env::var(name).map_err(|error| Failure::usage(format!("--env-from {name}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| Failure::usage(format!("--env-from {name}: {error}")))
}

/// Gives the job its own terminal in place of each stream that is a terminal here, and passes on the other streams.
fn on_terminal(params: SubmitParams, key: Option<Key>, context: &mut Context) -> Result<Code, Failure> {
    let (input, errors) = (io::stdin(), io::stderr());
    let (gives_input, gives_errors) = (!input.is_terminal(), !errors.is_terminal());
    if context.link.is_remote()
        && !gives_input
        && !gives_errors
        && let Some(left) = remote_terminal::run(&params, key, context)?
    {
        return report_left(left, context);
    }
    let screen = Screen::open()?;
    let size = screen.size();
    let params = SubmitParams {
        pty: Some(size),
        stdin: gives_input.then_some(Stdin::Fd),
        stderr: gives_errors.then_some(Given::Fd),
        ..params
    };
    let streams = [gives_input.then(|| input.as_fd()), gives_errors.then(|| errors.as_fd())];
    let streams: Vec<BorrowedFd<'_>> = streams.into_iter().flatten().collect();
    let mut carried = lend(Lent { input: gives_input, output: false, errors: gives_errors }, context)?;
    let streams = if carried.is_some() { &[] } else { &streams[..] };
    let (key, task) =
        submit_held(context, terminal::SHOWN, |context| submit(&params, streams, key, context))?;
    // Carried streams end with this process, so the job can't continue without it.
    let key = if carried.is_some() { Key::NONE } else { key };
    begin(carried.as_mut())?;
    if gives_input {
        let_go(&[Stream::Input])?;
    }
    let left = ScreenView::alone(context.link.polled()?, task.id, key, screen, size)?;
    if let (Some(carried), AttachmentEnd::Ended(task) | AttachmentEnd::Interrupted(task, _)) =
        (carried, &left)
        && let Some(caught) = outlast(&carried, task)?
    {
        return Ok(context.end_by_signal(caught.shell_code()));
    }
    report_left(left, context)
}

/// Passes all three streams to the job.
fn with_own_streams(params: SubmitParams, context: &mut Context) -> Result<Code, Failure> {
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    // A job in the background of a shell must not read the terminal.
    let gives_input = !input.is_terminal() || is_in_foreground(&input);
    let params = SubmitParams {
        stdin: gives_input.then_some(Stdin::Fd),
        stdout: Some(Given::Fd),
        stderr: Some(Given::Fd),
        ..params
    };
    let mut streams = vec![output.as_fd(), errors.as_fd()];
    if gives_input {
        streams.insert(0, input.as_fd());
    }
    let mut carried = lend(Lent { input: gives_input, output: true, errors: true }, context)?;
    let streams = if carried.is_some() { &[] } else { &streams[..] };
    let submit = |context: &mut Context| context.link.call_with_fds::<TaskSubmit>(&params, streams);
    let task = submit_held(context, terminal::PASSED, submit)?.task;
    begin(carried.as_mut())?;
    let task = pass_signals(context.link.polled()?, task.id, || let_go(&[Stream::Input, Stream::Output]))?;
    if let Some(carried) = carried
        && let Some(caught) = outlast(&carried, &task)?
    {
        return Ok(context.end_by_signal(caught.shell_code()));
    }
    report_end(task, context)
}

/// Lends streams of this process to a job on a remote machine. `None` if the job gets no streams, or accepts
/// descriptors.
fn lend(given: Lent, context: &mut Context) -> Result<Option<Streams>, Failure> {
    let Lent { input, output, errors } = given;
    let is_needed = context.link.is_remote() && (input || output || errors);
    is_needed.then(|| context.link.lend(given)).transpose()
}

/// Starts carrying the streams. The job's signals must be held by now.
fn begin(carried: Option<&mut Streams>) -> Result<(), Failure> {
    carried.map_or(Ok(()), Streams::begin)
}

/// Waits until all output of an ended job has been passed on. Returns the signal that ended the wait, if one did.
///
/// # Errors
/// Some of the job's input or output is lost.
fn outlast(carried: &Streams, task: &Task) -> Result<Option<Caught>, Failure> {
    let Some(done) = carried.done() else { return Ok(None) };
    // Processes left by the job may hold the streams open forever.
    let until = task.lingering.then(|| Instant::now() + LINGERING);
    let caught = terminal::outlast(done, until)?;
    match carried.take_lost() {
        Some(failure) if caught.is_none() => Err(failure),
        _ => Ok(caught),
    }
}

/// Runs an agent, which gets a prompt instead of streams; its text is printed here.
fn with_agent(agent: String, args: RunArgs, context: &mut Context) -> Result<Code, Failure> {
    // The command line is checked to have exactly one argument.
    let given = args.command.into_iter().next().unwrap_or_default();
    let prompt = prompt::read(given, context)?;
    let description = args.job.description.or_else(|| Some(job::beginning(&prompt)));
    let work = Work::Prompt { agent: Some(agent), prompt, settings: args.settings.settings() };
    let params = SubmitParams {
        foreground: true,
        direct: args.direct,
        ..job::params(JobArgs { description, ..args.job }, work, Machine::of(&context.link)?)?
    };
    let (key, task) =
        submit_held(context, terminal::TALKED, |context| submit(&params, &[], args.key, context))?;
    let news = context.link.existing()?;
    let role = if params.direct { Role::Direct } else { Role::Foreground };
    let shown = &mut TextShown::default();
    report_left(TextView::alone(context.link.polled()?, news, (task.id, role, key), shown)?, context)
}

/// Reports how the job was left, and returns the exit code.
fn report_left(left: AttachmentEnd, context: &mut Context) -> Result<Code, Failure> {
    match left {
        AttachmentEnd::Ended(task) => {
            let remark = remark_on_lingering(&task, context);
            let code = report_end(*task, context)?;
            if let Some(remark) = remark {
                report(&remark);
            }
            Ok(code)
        }
        AttachmentEnd::Interrupted(task, signal) => report_interrupted(*task, signal, context),
        AttachmentEnd::Cancelled(task, code) => {
            if context.json() {
                report_json(&TaskResult { task: *task })?;
            }
            Ok(context.end_by_signal(code))
        }
        AttachmentEnd::Backgrounded(result) => report_move(&result, context),
        AttachmentEnd::Signalled(code) => Ok(context.end_by_signal(code)),
        // `Detached` only happens to attachments, `Stopped` only to jobs of a host with several jobs.
        AttachmentEnd::Detached | AttachmentEnd::Stopped(_) => Ok(Code::OK),
    }
}

/// Returns a remark for the user about processes that the job has left on this machine: what they write is no longer
/// shown. Scripts get none.
fn remark_on_lingering(task: &Task, context: &Context) -> Option<String> {
    let is_left = task.lingering && survivors(task).is_none();
    let is_shown = io::stderr().is_terminal() && !context.json() && !context.link.is_remote();
    (is_left && is_shown).then(|| {
        // `output --follow` would return at once, as the task has ended.
        let id = task.id.short();
        format!(
            "processes of the job still run: `bgctl output {id}` shows what they write, \
             `bgctl cancel {id}` ends them"
        )
    })
}

/// Submits the job and asks for the background key in one exchange.
fn submit(
    params: &SubmitParams,
    streams: &[BorrowedFd<'_>],
    key: Option<Key>,
    context: &mut Context,
) -> Result<(Key, Task), Failure> {
    let submitted = context.link.exchange(|client| {
        let mut asked = ask_for_key(client, key)?;
        if !streams.is_empty() {
            // An unresponsive daemon would hold on to the descriptors: make sure that it answers first.
            asked = match asked {
                Ok(key) => client.call::<Hello>(&HelloParams::default()).map(|_| Ok(key))?,
                Err(call) => await_key(client, Err(call)).map(Ok)?,
            };
        }
        let call = client.send::<TaskSubmit>(params, streams)?;
        let key = await_key(client, asked)?;
        Ok((key, client.answer::<TaskSubmit>(call)?.task))
    });
    submitted.map_err(|failure| prompt::blamed(failure, params.prompt.as_deref(), params))
}

enum Stream {
    Input,
    Output,
}

/// Closes this process's copies of the job's streams, so that the peer of a pipe sees the end of the job and not that
/// of bgctl.
fn let_go(streams: &[Stream]) -> Result<(), Failure> {
    let nothing = File::options().read(true).write(true).open("/dev/null");
    let replaced = nothing.and_then(|nothing| {
        for stream in streams {
            match stream {
                Stream::Input => dup2_stdin(&nothing)?,
                Stream::Output => dup2_stdout(&nothing)?,
            }
        }
        Ok(())
    });
    replaced.map_err(|error| Failure::io("can't release a standard stream", &error))
}

/// Reports that the job continues in the background (R61).
fn report_move(result: &DetachResult, context: &mut Context) -> Result<Code, Failure> {
    if context.json() {
        report_json(result)?;
    } else {
        context.print(&format!("{}\n", result.message))?;
    }
    Ok(Code::OK)
}

/// Like [`report_end`], for a job that the signal of a key has ended. Sends that also to the rest of the pipeline and to
/// the script around it: the keypress only reached the job's own terminal.
pub(super) fn report_interrupted(task: Task, signal: Signal, context: &mut Context) -> Result<Code, Failure> {
    signal_group(signal);
    report_end(task, context)
}

/// Returns the job's exit code, and reports how the job ended if the code doesn't tell.
pub(super) fn report_end(task: Task, context: &mut Context) -> Result<Code, Failure> {
    let code = match ending::code(&task) {
        Code(code) if task.exit == Some(Exit::Signal(Signal::SIGINT as i32)) => context.end_by_signal(code),
        code => code,
    };
    if context.json() {
        report_json(&TaskResult { task })?;
    } else if let Some(remark) = ending::remark(&task) {
        say(format_args!("bgctl: {remark}"));
    }
    Ok(code)
}

/// Prints JSON to standard error, as standard output belongs to the job.
pub(super) fn report_json(value: &impl Serialize) -> Result<(), Failure> {
    let _ = io::stderr().write_all(&json::line(value)?);
    Ok(())
}
