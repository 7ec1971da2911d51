//! `attach`: reattaches to the terminal of a task. If the task has none, shows its output; the same key leaves both.

use std::io::{self, IsTerminal as _};

use bgd_shared::client::ClientError;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::foreground::{Can, Foreground, Key};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{AttachParams, IdParams, Stream, TaskAttach, TaskGet};
use bgd_shared::task::Status;

use super::output;
use super::run::{ask_for_key, await_key, report_end, report_interrupted};
use crate::cli::{AttachArgs, OutputArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::name::Name;
use crate::output::copy::report_stderr;
use crate::output::remote::Remote;
use crate::pick;
use crate::remark::report;
use crate::render::list_format::is_dumb;
use crate::terminal::{
    AttachmentEnd, Role, SHOWN, Screen, ScreenView, Subject, TextShown, TextView, release_signals,
};

/// Shows the task's terminal or output until the task ends or the key is pressed.
pub fn run(args: AttachArgs, context: &mut Context) -> Result<Code, Failure> {
    let id = pick::only(args.id, args.select.or_active(), context)?;
    if !io::stdout().is_terminal() || context.json() {
        return follow(id, context);
    }
    if is_dumb() {
        report("showing only the output: this terminal can't move its cursor (TERM is unset or `dumb`)");
        return follow(id, context);
    }
    let key = args.key;
    let id = pick::whole(id, context)?;
    context.link.remember();
    let (mut text, mut is_back) = (None, false);
    loop {
        match attach(&id, key, &mut text, context) {
            Err(failure) if failure.kind == ErrorKind::NotRunning.as_str() => {
                let task = context.call::<TaskGet>(&IdParams { id })?.task;
                if task.status == Status::Pending {
                    let id = task.id.short();
                    let hint = format!("it is still to start: `bgctl status {id}` shows what it waits for");
                    return Err(failure.hint(hint));
                }
                if task.status.is_active() {
                    return Err(failure);
                }
                // It has ended in the meantime.
                if is_back {
                    return report_end(task, context);
                }
                return Err(failure.hint("`bgctl output` shows what it wrote"));
            }
            Err(failure) => {
                // Nothing reads the signals while there is no connection.
                release_signals(SHOWN)?;
                context.link.recover(failure)?;
                is_back = true;
            }
            left => return left,
        }
    }
}

/// Attaches on one connection. If the task has no terminal, shows its output, continuing after what `text` says was
/// shown, and stores in `text` what was.
fn attach(
    id: &TaskRef,
    key: Option<Key>,
    text: &mut Option<TextShown>,
    context: &mut Context,
) -> Result<Code, Failure> {
    let screen = Screen::open()?;
    let size = screen.size();
    let params = AttachParams { id: id.clone(), rows: Some(size.rows), cols: Some(size.cols) };
    // If the task has ended since, the rest of its output is shown.
    let is_text = |error: &RpcError| match error.kind() {
        ErrorKind::Unsupported => true,
        ErrorKind::NotRunning => text.is_some(),
        _ => false,
    };
    let attached = context.link.exchange(|client| {
        let asked = ask_for_key(client, key)?;
        let call = client.send::<TaskAttach>(&params, &[])?;
        let key = await_key(client, asked)?;
        match client.answer::<TaskAttach>(call) {
            Ok(attached) => Ok((key, Some(attached.task))),
            Err(ClientError::Rpc(error)) if is_text(&error) => Ok((key, None)),
            Err(error) => Err(error),
        }
    });
    let (key, task) = match attached {
        Ok((key, Some(task))) => (key, task),
        Ok((key, None)) => {
            let task = context.call::<TaskGet>(&IdParams { id: id.clone() })?.task;
            return show_output(task.id, key, text.get_or_insert_default(), context);
        }
        Err(failure) => return Err(failure),
    };
    let news = task.attempt.map(|_| context.link.existing()).transpose()?;
    let mut link = context.link.polled()?;
    let mut jobs = Foreground::new(key);
    jobs.started(task.id, Can::Yes);
    let subject = Subject { link: &mut link, host: &mut jobs, task: task.id, role: Role::Attached, key };
    report_left(ScreenView::attached(subject, &task, news, screen, size)?.run()?, context)
}

/// Shows the output of a task without a terminal after what was shown, which it advances, until the task ends or the
/// key is pressed.
fn show_output(id: TaskId, key: Key, shown: &mut TextShown, context: &mut Context) -> Result<Code, Failure> {
    let news = context.link.existing()?;
    let left = TextView::alone(context.link.polled()?, news, (id, Role::Attached, key), shown)?;
    if let AttachmentEnd::Ended(task) = &left
        && task.output.stderr_path.is_some()
    {
        let stderr = Remote { id: &id.into(), stream: Some(Stream::Stderr) };
        report_stderr(task, stderr.size(context).unwrap_or(0));
    }
    report_left(left, context)
}

fn report_left(left: AttachmentEnd, context: &mut Context) -> Result<Code, Failure> {
    match left {
        AttachmentEnd::Ended(task) | AttachmentEnd::Cancelled(task, _) => report_end(*task, context),
        AttachmentEnd::Interrupted(task, signal) => report_interrupted(*task, signal, context),
        AttachmentEnd::Signalled(code) => Ok(context.end_by_signal(code)),
        // The last two can only happen to foreground jobs.
        AttachmentEnd::Detached | AttachmentEnd::Backgrounded(_) | AttachmentEnd::Stopped(_) => Ok(Code::OK),
    }
}

/// Prints the task's existing and new output until it ends.
fn follow(id: TaskRef, context: &mut Context) -> Result<Code, Failure> {
    let args = OutputArgs {
        id: Some(Name::Id(id)),
        select: SelectArgs::default(),
        follow: true,
        tail: None,
        since: None,
        stdout: false,
        stderr: false,
        result: false,
    };
    output::run(args, context)
}
