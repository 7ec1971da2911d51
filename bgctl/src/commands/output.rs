//! `output`: prints the bytes that a task wrote, verbatim except on a terminal.
//!
//! Asks the daemon where the file is, which also records that the output was retrieved. The bytes then go from the
//! file to standard output without passing through the daemon, except some of those for a terminal.

use std::fs::{File, Metadata};
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use bgd_shared::error::ErrorKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{IdParams, OutputParams, Stream, TaskOutput, TaskResultOf};
use bgd_shared::task::{Kind, Status, Task};
use rustix::process::{Pid, getsid};
use rustix::termios::tcgetsid;

use crate::cli::OutputArgs;
use crate::commands::block::report_failure;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::Listener;
use crate::output::cleared::report_cleared;
use crate::output::copy::{Copier, ranges, report_loss, report_stderr};
use crate::output::follow;
use crate::output::remote::Remote;
use crate::output::replay::{Replay, shown};
use crate::output::tail::start_of_last_lines;
use crate::pick;
use crate::remark::say;

/// Why one of several tasks is skipped: it was cleared meanwhile, or its standard error is not stored separately.
const SKIPPED: [&str; 2] = [ErrorKind::TaskNotFound.as_str(), NOT_SPLIT];

const NOT_SPLIT: &str = "not_split";

/// The part of a task to print.
struct Wanted {
    id: TaskRef,
    stream: Option<Stream>,
    follow: bool,
    tail: Option<u64>,
    since: Option<i64>,
    result: bool,
}

/// Prints the output of one or more tasks, one after the other.
pub fn run(args: OutputArgs, context: &mut Context) -> Result<Code, Failure> {
    let stream = match (args.stdout, args.stderr) {
        (_, true) => Some(Stream::Stderr),
        (true, false) => Some(Stream::Stdout),
        (false, false) => None,
    };
    let OutputArgs { id, select, follow, tail, since, stdout: _, stderr: _, result } = args;
    let ids = pick::each(id, select, context)?;
    if follow && ids.len() > 1 {
        let message = format!("--follow takes one task, not {}", ids.len());
        return Err(Failure::usage(message).hint("`bgctl top` shows several as they run"));
    }
    let is_several = ids.len() > 1;
    let mut incomplete = None;
    pick::for_each(ids, &SKIPPED, |id, _| {
        let wanted = Wanted { id, stream, follow, tail, since, result };
        let silent = match print(wanted, context) {
            // The failure still decides the exit code.
            Err(failure) if is_several && failure.kind == ErrorKind::NotComplete.as_str() => {
                incomplete.get_or_insert(failure);
                return Ok(());
            }
            outcome => outcome?,
        };
        if let Some(task) = silent.filter(|_| stream.is_none() && !follow && io::stderr().is_terminal()) {
            report_nothing(&task);
        }
        Ok(())
    })?;
    incomplete.map_or(Ok(Code::OK), Err)
}

/// Reports whether the task has ended without having run or written anything: its output can't explain why.
fn never_ran(task: &Task) -> bool {
    !task.status.is_active() && task.started_at.is_none() && task.output.bytes == 0
}

/// Reports why a task has never run.
fn report_never_ran(task: &Task) {
    if task.error.is_some() {
        report_failure(task);
    } else {
        say(format_args!("bgctl: {} is {}, and never ran", task.id.short(), task.status));
    }
}

/// Notifies a user who sees no output that there is none.
fn report_nothing(task: &Task) {
    if task.output.bytes > 0 || never_ran(task) {
        return;
    }
    let id = task.id.short();
    if task.status.is_active() {
        say(format_args!(
            "bgctl: {id} is {} and has written nothing yet; `bgctl output --follow {id}` waits for it",
            task.status
        ));
    } else {
        say(format_args!("bgctl: {id} has written nothing"));
    }
}

/// Prints what was requested. Returns the task at that time, unless it is known to have written something.
fn print(args: Wanted, context: &mut Context) -> Result<Option<Task>, Failure> {
    if args.result {
        result(args, context)?;
        return Ok(None);
    }
    if context.json() {
        let args = &settled(args, context)?;
        if args.follow && !context.link.is_remote() {
            let task = look(args, context)?;
            must_not_feed_itself(&task, &path_of(&task, args.stream)?)?;
        }
        through_the_daemon(args, context)?;
        return Ok(None);
    }
    if context.link.is_remote() {
        return read(&settled(args, context)?, context).map(Some);
    }
    from_here(&args, context)
}

/// Prints the output of a task on this machine, from its file if that can be opened. Returns the task at that time,
/// unless it has written something.
fn from_here(args: &Wanted, context: &mut Context) -> Result<Option<Task>, Failure> {
    let mut task = look(args, context)?;
    let args = &Wanted { id: task.id.into(), ..*args };
    if args.follow {
        context.link.remember();
    }
    while args.follow && !is_there(&task) {
        match next_look(args, task.id, context) {
            Err(failure) if failure.is_of_missing_task() => {
                report_cleared(&task);
                return Ok(None);
            }
            looked => task = looked?,
        }
    }
    let path = path_of(&task, args.stream)?;
    if never_ran(&task) {
        report_never_ran(&task);
        return Ok(None);
    }
    if args.follow {
        must_not_feed_itself(&task, &path)?;
    }
    if depends_on_screen(args, &task) {
        return read(args, context).map(Some);
    }
    match File::open(&path) {
        Ok(file) => Ok((!from_file(args, context, &task, file, &path)?).then_some(task)),
        Err(_) => match read(args, context) {
            // Just after it was looked at.
            Err(failure) if args.follow && failure.is_of_missing_task() => {
                report_cleared(&task);
                Ok(None)
            }
            read => read.map(Some),
        },
    }
}

/// Reports whether a task has begun, so that it may have an output.
fn is_there(task: &Task) -> bool {
    task.status != Status::Pending || task.has_begun()
}

/// Waits until a task has begun, or the connection is lost, and looks at the task.
fn next_look(args: &Wanted, id: TaskId, context: &mut Context) -> Result<Task, Failure> {
    let existing = context.link.existing();
    if let Err(failure) = existing.and_then(|news| Listener::until(news, id, is_there)) {
        context.link.recover(failure)?;
    }
    look(args, context)
}

/// Refuses to follow an output into itself, as a job would that follows its own: everything shown would be shown again,
/// without end.
fn must_not_feed_itself(task: &Task, path: &Path) -> Result<(), Failure> {
    if !is_stdout(path) && !is_shown_in(task) {
        return Ok(());
    }
    let message = format!("the output of task {} would be written to itself", task.id.short());
    Err(Failure::new(Code::WRONG_STATE, ErrorKind::OwnTerminal.as_str(), message)
        .hint("follow it from outside of the task, or write to another file"))
}

/// Reports whether this file is standard output.
fn is_stdout(path: &Path) -> bool {
    let out = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let number = |file: Metadata| (file.dev(), file.ino());
    let written = out.and_then(|out| out.metadata()).map(number);
    matches!((written, path.metadata().map(number)), (Ok(one), Ok(other)) if one == other)
}

/// Reports whether standard output is the terminal of this task.
fn is_shown_in(task: &Task) -> bool {
    let Some(job) = task.pid.filter(|_| task.pty).and_then(Pid::from_raw) else { return false };
    matches!((tcgetsid(io::stdout()), getsid(Some(job))), (Ok(one), Ok(other)) if one == other)
}

/// Reports whether what is shown depends on the state of the task's terminal, and so on more than the bytes to show:
/// those before, and where an attempt, which has a terminal of its own, begins. The daemon reports both.
fn depends_on_screen(args: &Wanted, task: &Task) -> bool {
    let is_part = args.tail.is_some() || args.since.is_some();
    task.pty && (is_part || task.attempt.is_some()) && io::stdout().is_terminal()
}

/// Prints the output where its file can't be opened, or does not suffice. Returns the task at that time.
fn read(args: &Wanted, context: &mut Context) -> Result<Task, Failure> {
    let task = through_the_daemon(args, context)?;
    if never_ran(&task) {
        report_never_ran(&task);
    }
    if args.stream.is_none() && task.output.stderr_path.is_some() {
        context.flush()?;
        let stderr = Remote { id: &args.id, stream: Some(Stream::Stderr) };
        report_stderr(&task, stderr.size(context).unwrap_or(0));
    }
    Ok(task)
}

/// Replaces a prefix by the whole id, as it could match a later task as well before everything is printed. Fails if
/// standard error is wanted of a task that has none of its own: the daemon would send the combined output.
fn settled(args: Wanted, context: &mut Context) -> Result<Wanted, Failure> {
    if args.id.exact().is_some() && args.stream != Some(Stream::Stderr) {
        return Ok(args);
    }
    let task = look(&args, context)?;
    path_of(&task, args.stream)?;
    Ok(Wanted { id: task.id.into(), ..args })
}

/// Returns the current state of the task, without any output.
fn look(args: &Wanted, context: &mut Context) -> Result<Task, Failure> {
    let params = OutputParams { id: args.id.clone(), offset: None, limit: Some(0), stream: args.stream };
    Ok(context.call::<TaskOutput>(&params)?.task)
}

fn path_of(task: &Task, stream: Option<Stream>) -> Result<PathBuf, Failure> {
    match stream {
        Some(Stream::Stdout) | None => Ok(PathBuf::from(&task.output.path)),
        Some(Stream::Stderr) => task.output.stderr_path.as_ref().map(PathBuf::from).ok_or_else(|| {
            let message = format!("task {} has no separate standard error", task.id);
            Failure::new(Code::WRONG_STATE, NOT_SPLIT, message)
                .hint("`bgctl submit --split` separates them; without it `bgctl output` prints both")
        }),
    }
}

/// Returns whether there was anything to print.
fn from_file(
    args: &Wanted,
    context: &mut Context,
    task: &Task,
    file: File,
    path: &Path,
) -> Result<bool, Failure> {
    let unreadable = |error: io::Error| Failure::io(path.display(), &error);
    let dropped = match args.stream {
        Some(Stream::Stderr) => task.output.stderr_dropped_bytes,
        Some(Stream::Stdout) | None => task.output.dropped_bytes,
    };
    // `output.bytes` counts both streams of a split task, so take the length from the file.
    let length = file.metadata().map_err(unreadable)?.len();
    let start = match (args.tail, args.since) {
        (Some(lines), _) => start_of_last_lines(lines, &ranges(0, length, dropped), |range| {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
            file.read_exact_at(&mut bytes, range.start)?;
            Ok(bytes)
        })
        .map_err(unreadable)?,
        (None, Some(since)) => match u64::try_from(since) {
            Ok(offset) => offset,
            Err(_) => length.saturating_sub(since.unsigned_abs()),
        },
        (None, None) => 0,
    };
    let mut copier = Copier::new(file, context.raw_stdout()?, start);
    if args.follow {
        let ended = match follow_file(args, context, (task.id, path), &mut copier) {
            Err(failure) if failure.is_of_missing_task() => {
                copier.finish()?;
                report_cleared(task);
                return Ok(copier.position() > start);
            }
            ended => ended?,
        };
        copier.finish()?;
        let ended = ended.as_ref().unwrap_or(task);
        report_loss(&ended.output);
        if never_ran(ended) {
            report_never_ran(ended);
        }
        report_stderr(task, separate_bytes(task, args.stream));
        return Ok(copier.position() > start);
    }
    if task.status.is_active() || task.lingering {
        copier.copy_growing()?;
    } else {
        copier.copy_ended(length, dropped)?;
    }
    copier.finish()?;
    report_loss(&task.output);
    report_stderr(task, separate_bytes(task, args.stream));
    Ok(copier.position() > start)
}

/// Follows the file, across lost connections, until the task has ended.
///
/// # Errors
/// The task was cleared, which removes its file, maybe while there was no connection; or the file or the daemon fails.
fn follow_file(
    args: &Wanted,
    context: &mut Context,
    (id, path): (TaskId, &Path),
    copier: &mut Copier,
) -> Result<Option<Task>, Failure> {
    context.recovering(|context| {
        let followed = follow::follow(context.link.client()?, id, path, copier);
        if followed.is_err() && matches!(path.try_exists(), Ok(false)) {
            // It is still open here.
            copier.copy_growing()?;
            if let Err(failure) = look(args, context)
                && failure.is_of_missing_task()
            {
                return Err(failure);
            }
        }
        followed
    })
}

/// Returns how much standard error a split task has written, if the user asked for no particular stream and therefore
/// got standard output only.
fn separate_bytes(task: &Task, stream: Option<Stream>) -> u64 {
    let path = task.output.stderr_path.as_ref().filter(|_| stream.is_none());
    path.and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.len())
}

/// Prints the output through the daemon: for `--json`, and where the file can't be opened. Returns the task at that
/// time.
fn through_the_daemon(args: &Wanted, context: &mut Context) -> Result<Task, Failure> {
    let remote = Remote { id: &args.id, stream: args.stream };
    let offset = match (args.tail, args.since) {
        (Some(lines), _) => remote.tail(context, lines)?,
        (None, since) => since.unwrap_or(0),
    };
    match (args.follow, context.json()) {
        (true, _) => remote.follow(context, offset),
        (false, true) => remote.print_one(context, offset),
        (false, false) => remote.print_all(context, offset),
    }
}

/// `--result`: fails unless the task has completed (R07).
fn result(args: Wanted, context: &mut Context) -> Result<(), Failure> {
    let result = context.call::<TaskResultOf>(&IdParams { id: args.id })?;
    let args = &Wanted { id: result.task.id.into(), ..args };
    if context.json() {
        context.print_json(&result)?;
        return Ok(());
    }
    // The wire carries only the end of a long output; the file has all of it. An agent's result is its answer, which
    // is transferred completely and is only the end of what the file contains.
    let is_cut = result.task.kind == Kind::Process && result.truncated_bytes > 0;
    if depends_on_screen(args, &result.task) || is_cut && context.link.is_remote() {
        return read(args, context).map(drop);
    }
    if is_cut
        && let Ok(path) = path_of(&result.task, None)
        && let Ok(file) = File::open(&path)
    {
        return from_file(args, context, &result.task, file, &path).map(drop);
    }
    let bytes = result.encoding.decode(result.result).map_err(|error| {
        Failure::new(
            Code::INTERNAL,
            "garbled",
            format!("can't parse the result that the daemon sent: {error}"),
        )
    })?;
    context.print_bytes(&shown(&mut Replay::onto_stdout(), &bytes))?;
    report_loss(&result.task.output);
    // An answer may lack a final newline; on a terminal the shell prompt would follow on the same line. What is shown
    // may end with a sequence that switches the colours off.
    if result.task.kind == Kind::Agent && !bytes.ends_with(b"\n") && io::stdout().is_terminal() {
        context.print_bytes(b"\n")?;
    }
    Ok(())
}
