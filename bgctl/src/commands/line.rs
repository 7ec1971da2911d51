//! `block --line`: waits until a task has written a matching line (R111).

use std::time::{Duration, Instant};

use bgd_shared::id::TaskRef;
use bgd_shared::request::{Encoding, IdParams, OutputParams, Stream, TaskGet, TaskOutput};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;
use regex::bytes::Regex;
use serde::Serialize;

use crate::cli::since::Since;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::output::lines::Line;
use crate::output::seek::{self, Found, LineQuery, Next, Stop, WaitEnd};
use crate::remark::say;
use crate::render::table::status;
use crate::render::wall::Clock;

/// Output of `--json`.
#[derive(Serialize)]
struct Printed {
    /// The line; null if none was found.
    line: Option<String>,
    /// Encoding of `line`.
    encoding: Option<Encoding>,
    /// Offset of the line.
    offset: Option<u64>,
    /// The stream of the line, if it is not the one of `task.output.path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<Stream>,
    /// The `--since` for continuing the search.
    next: u64,
    /// Its second part, if standard error is stored separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_stderr: Option<u64>,
    /// Whether the timeout expired first.
    timed_out: bool,
}

/// The line to wait for.
pub struct Wanted {
    pub id: TaskRef,
    /// The pattern that the line must match.
    pub pattern: Regex,
    pub since: Option<Since>,
    /// Timeout in milliseconds; `None` waits indefinitely.
    pub timeout_ms: Option<u64>,
}

/// Waits for the line, then prints it.
pub fn run(wanted: Wanted, context: &mut Context) -> Result<Code, Failure> {
    let until = wanted.timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
    let task = context.call::<TaskGet>(&IdParams { id: wanted.id })?.task;
    let id = task.id;
    let since = fixed(wanted.since.unwrap_or(Since::BEGIN), &task, context)?;
    context.link.remember();
    let reads_files = !context.link.is_remote();
    // Nothing was found before a connection was lost, so the search restarts where it began (R142).
    let outcome = loop {
        let pattern = wanted.pattern.clone();
        let query = LineQuery { id, pattern, since, until, answers_by: until, reads_files };
        match search_line(query, context) {
            // The timeout has expired. Reconnecting would only drop a connection that others share.
            Err(failure) if until.is_some_and(|until| until <= Instant::now()) => return Err(failure),
            Err(failure) => context.link.recover_until(failure, until)?,
            Ok(found) => break found,
        }
    };
    match outcome {
        Found::Line { line, is_stderr, next } => found(line, is_stderr, next, context),
        Found::Nothing { task, next, why } => not_found(&task, next, why == WaitEnd::Late, context),
    }
}

fn search_line(query: LineQuery, context: &mut Context) -> Result<Found, Failure> {
    let news = context.link.existing()?;
    seek::line(context.link.client()?, news, query, &Stop { descriptor: None, gives_up: |_| false })
}

/// Replaces offsets that count from the end by the absolute offsets that they mean now: after a lost connection they
/// would mean other places.
fn fixed(since: Since, task: &Task, context: &mut Context) -> Result<Since, Failure> {
    let output = fixed_in(None, &task.output.path, since.output, task, context)?;
    let stderr = match (since.stderr, &task.output.stderr_path) {
        (Some(since), Some(path)) => Some(fixed_in(Some(Stream::Stderr), path, since, task, context)?),
        (stderr, _) => stderr,
    };
    Ok(Since { output, stderr })
}

fn fixed_in(
    stream: Option<Stream>,
    path: &str,
    since: i64,
    task: &Task,
    context: &mut Context,
) -> Result<i64, Failure> {
    if since >= 0 {
        return Ok(since);
    }
    // Asking the daemon would count as retrieving the output.
    if !context.link.is_remote()
        && let Ok(file) = std::fs::metadata(path)
    {
        let length = i64::try_from(file.len()).unwrap_or(i64::MAX);
        return Ok(length.saturating_add(since).max(0));
    }
    let params = OutputParams { id: task.id.into(), offset: Some(since), limit: Some(0), stream };
    let begin = context.call::<TaskOutput>(&params)?.offset;
    Ok(i64::try_from(begin).unwrap_or(i64::MAX))
}

fn found(line: Line, is_stderr: bool, next: Next, context: &mut Context) -> Result<Code, Failure> {
    if context.json() {
        let (text, encoding) = Encoding::encode(line.bytes);
        context.print_json(&Printed {
            line: Some(text),
            encoding: Some(encoding),
            offset: Some(line.offset),
            stream: is_stderr.then_some(Stream::Stderr),
            next: next.output,
            next_stderr: next.stderr,
            timed_out: false,
        })?;
    } else {
        context.print_bytes(&line.bytes)?;
        context.print("\n")?;
    }
    Ok(Code::OK)
}

fn not_found(task: &Task, next: Next, timed_out: bool, context: &mut Context) -> Result<Code, Failure> {
    if context.json() {
        context.print_json(&Printed {
            line: None,
            encoding: None,
            offset: None,
            stream: None,
            next: next.output,
            // Unless the task has started, it was not looked for.
            next_stderr: next.stderr.filter(|_| task.output.stderr_path.is_some()),
            timed_out,
        })?;
    } else {
        let shown = status(task, &Clock::system(Timestamp::now()));
        let text = match (timed_out, task.status) {
            (true, Status::Pending) if !task.has_begun() => format!("has not started: {shown}"),
            (true, _) => "has not written a matching line yet".to_owned(),
            (false, _) => format!("ended without a matching line: {shown}"),
        };
        say(format_args!("bgctl: {} {text}", task.id));
    }
    Ok(if timed_out { Code::TIMED_OUT } else { Code::TASK_FAILED })
}
