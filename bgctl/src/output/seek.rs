//! Waits until a task has written a matching line (R111). The caller decides what to do with the outcome.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::Instant;

use bgd_shared::client::Client;
use bgd_shared::id::TaskId;
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::{IdParams, OutputParams, Stream, TaskGet, TaskOutput};
use bgd_shared::task::Task;
use regex::bytes::Regex;

pub use crate::cli::since::Since;
use crate::failure::Failure;
use crate::link::{Heard, Listener, sleep, time_left};
use crate::output::copy::{Chunk, Growing, report_dropped};
use crate::output::lines::{Line, Search};
use crate::watch::Changes;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;

/// The line to wait for.
#[derive(Debug)]
pub struct LineQuery {
    pub id: TaskId,
    /// The pattern that the line must match.
    pub pattern: Regex,
    pub since: Since,
    /// Deadline; `None` waits indefinitely.
    pub until: Option<Instant>,
    /// When to give up a host that has fallen silent, shortly after this; `None` grants it as long as any other call.
    pub answers_by: Option<Instant>,
    /// Whether the output may be read from its file, which requires the daemon on this machine.
    pub reads_files: bool,
}

/// Where a later search can resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    pub output: u64,
    /// `None` if standard error is part of the output, or is not searched.
    pub stderr: Option<u64>,
}

impl From<Next> for Since {
    fn from(next: Next) -> Self {
        let signed = |offset| i64::try_from(offset).unwrap_or(i64::MAX);
        Self { output: signed(next.output), stderr: next.stderr.map(signed) }
    }
}

/// How a wait ended.
#[derive(Debug)]
pub enum Found {
    /// The line was found.
    Line {
        line: Line,
        /// Whether it is in the standard error of a task with `split`.
        is_stderr: bool,
        next: Next,
    },
    /// No line was found.
    Nothing {
        /// The task at that time.
        task: Box<Task>,
        next: Next,
        /// Why the wait ended.
        why: WaitEnd,
    },
}

/// Why a wait ended without a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The task ended.
    Ended,
    /// The timeout expired.
    Late,
    /// [`Stop::descriptor`] became readable.
    Stopped,
    /// [`Stop::gives_up`] returned true.
    Rejected,
}

/// Conditions that end a wait early.
pub struct Stop<'a> {
    /// Becomes readable, or is closed by its peer, when the line is no longer wanted.
    pub descriptor: Option<BorrowedFd<'a>>,
    /// Reports whether to stop waiting for a task in this state.
    pub gives_up: fn(&Task) -> bool,
}

/// The source of a stream.
enum Source {
    /// Not open yet.
    Nothing,
    /// The file.
    File(Growing, Changes),
    /// The daemon, if the file can't be opened here.
    Daemon {
        /// Offset of the next byte.
        next: i64,
        /// Whether the bytes before it were read, so that they must still be there.
        has_read: bool,
    },
}

/// The search of a stream.
struct Side {
    /// `None` for the output, which with `split` is standard output.
    stream: Option<Stream>,
    since: i64,
    source: Source,
    search: Search,
}

impl Side {
    fn new(stream: Option<Stream>, since: i64, pattern: Regex) -> Self {
        // A negative offset counts from the end, so only the first chunk shows where that is.
        let search = Search::new(pattern, u64::try_from(since).ok());
        Self { stream, since, source: Source::Nothing, search }
    }

    /// Opens the stream of a task that has started.
    fn open(&mut self, task: &Task, reads_files: bool) -> Result<(), Failure> {
        let output = &task.output;
        let path = match self.stream {
            Some(Stream::Stderr) => output.stderr_path.as_ref(),
            Some(Stream::Stdout) | None => Some(&output.path),
        };
        self.source = match path.filter(|_| reads_files) {
            Some(path) => open(path.as_ref(), self.since)?,
            None => Source::Daemon { next: self.since, has_read: false },
        };
        Ok(())
    }

    fn is_open(&self) -> bool {
        !matches!(self.source, Source::Nothing)
    }

    fn changes(&self) -> Option<&Changes> {
        if let Source::File(_, changes) = &self.source { Some(changes) } else { None }
    }
}

/// The searches of a task's streams.
struct Sides {
    output: Side,
    stderr: Option<Side>,
}

impl Sides {
    fn new(since: Since, pattern: &Regex) -> Self {
        let side = |stream, since| Side::new(stream, since, pattern.clone());
        let stderr = since.stderr.map(|since| side(Some(Stream::Stderr), since));
        Self { output: side(None, since.output), stderr }
    }

    fn open(&mut self, task: &Task, reads_files: bool) -> Result<(), Failure> {
        self.stderr.take_if(|_| task.output.stderr_path.is_none());
        self.each().try_for_each(|side| side.open(task, reads_files))
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Side> {
        std::iter::once(&mut self.output).chain(&mut self.stderr)
    }

    fn next(&self) -> Next {
        let stderr = self.stderr.as_ref().map(|side| side.search.position());
        Next { output: self.output.search.position(), stderr }
    }
}

/// Waits for a matching line. Makes calls on `client` and receives events on `news`.
///
/// # Errors
/// The task or the daemon is gone, or the output can't be read.
pub fn line(client: &mut Client, news: Client, query: LineQuery, stop: &Stop<'_>) -> Result<Found, Failure> {
    let LineQuery { id, pattern, since, until, answers_by, reads_files } = query;
    let mut news = Listener::of(news, &[id])?;
    // The task may have ended before the subscription began.
    let mut task = current(id, answers_by, client)?;
    let mut sides = Sides::new(since, &pattern);
    let mut is_stopped = false;
    loop {
        if !sides.output.is_open() && task.has_begun() {
            sides.open(&task, reads_files)?;
        }
        let has_ended = !task.status.is_active();
        let mut found = None;
        for side in sides.each() {
            let mut line = look(side, (id, answers_by), client)?;
            if has_ended && line.is_none() {
                line = side.search.finish();
            }
            if let Some(line) = line {
                found = Some((line, side.stream.is_some()));
                break;
            }
        }
        let next = sides.next();
        if let Some((line, is_stderr)) = found {
            return Ok(Found::Line { line, is_stderr, next });
        }
        let why = match () {
            () if has_ended => Some(WaitEnd::Ended),
            () if (stop.gives_up)(&task) => Some(WaitEnd::Rejected),
            () if is_stopped => Some(WaitEnd::Stopped),
            () if until.is_some_and(|until| until <= Instant::now()) => Some(WaitEnd::Late),
            () => None,
        };
        if let Some(why) = why {
            return Ok(Found::Nothing { task: Box::new(task), next, why });
        }
        let has_news;
        [has_news, is_stopped] = wait(&news, &sides, stop.descriptor, until)?;
        if has_news {
            for heard in news.heard()? {
                match heard {
                    Heard::Event(event) => task = event.task,
                    Heard::Gap => task = current(id, answers_by, client)?,
                }
            }
        }
    }
}

/// Opens a stream's file.
fn open(path: &Path, since: i64) -> Result<Source, Failure> {
    let Ok(file) = File::open(path) else {
        return Ok(Source::Daemon { next: since, has_read: false });
    };
    let unreadable = |error: io::Error| Failure::io(path.display(), &error);
    let length = file.metadata().map_err(unreadable)?.len();
    let start = u64::try_from(since).unwrap_or_else(|_| length.saturating_sub(since.unsigned_abs()));
    let changes = Changes::of(path).map_err(unreadable)?;
    Ok(Source::File(Growing::new(file, start), changes))
}

/// Returns the task as it is now.
fn current(id: TaskId, answers_by: Option<Instant>, client: &mut Client) -> Result<Task, Failure> {
    Ok(client.call_within::<TaskGet>(&IdParams { id: id.into() }, answers_by.map(time_left))?.task)
}

/// Searches the bytes of a stream that have not been searched yet, up to its current end: the task may write faster than
/// this can search.
fn look(
    side: &mut Side,
    (id, answers_by): (TaskId, Option<Instant>),
    client: &mut Client,
) -> Result<Option<Line>, Failure> {
    let Side { stream, source, search, .. } = side;
    match source {
        Source::Nothing => Ok(None),
        Source::File(growing, _) => {
            let unreadable = |error: io::Error| Failure::io("can't read the output", &error);
            let end = growing.length().map_err(unreadable)?;
            let mut buffer = vec![0; PIECE];
            loop {
                let Chunk { count, dropped, is_restart: _ } =
                    growing.read(&mut buffer).map_err(unreadable)?;
                if dropped > 0 {
                    report_dropped(dropped);
                }
                let line = search.push(growing.position() - count as u64, &buffer[..count]);
                if count == 0 || line.is_some() || growing.position() >= end {
                    return Ok(line);
                }
            }
        }
        Source::Daemon { next, has_read } => {
            let mut ask = |offset, limit| {
                let params =
                    OutputParams { id: id.into(), offset: Some(offset), limit: Some(limit), stream: *stream };
                client.call_within::<TaskOutput>(&params, answers_by.map(time_left))
            };
            let mut end = None;
            loop {
                let chunk = ask(*next, OUTPUT_CHUNK_BYTES)?;
                // The daemon answers from the end of a file that has become shorter.
                let is_truncated = u64::try_from(*next).is_ok_and(|next| chunk.offset < next);
                if std::mem::replace(has_read, true) && is_truncated {
                    *next = 0;
                    continue;
                }
                *next = i64::try_from(chunk.next).unwrap_or(i64::MAX);
                let bytes = chunk.encoding.decode(chunk.data).map_err(Failure::unreadable_output)?;
                let line = search.push(chunk.offset, &bytes);
                if bytes.is_empty() || line.is_some() {
                    return Ok(line);
                }
                let end = match end {
                    Some(end) => end,
                    // An offset beyond the end means the end.
                    None => *end.insert(ask(i64::MAX, 0)?.next),
                };
                if chunk.next >= end {
                    return Ok(None);
                }
            }
        }
    }
}

/// Sleeps until there may be news or more output, or until the deadline. Returns whether there is news, and whether
/// the caller stopped waiting.
fn wait(
    news: &Listener,
    sides: &Sides,
    stop: Option<BorrowedFd<'_>>,
    until: Option<Instant>,
) -> Result<[bool; 2], Failure> {
    let changes = [sides.output.changes(), sides.stderr.as_ref().and_then(Side::changes)];
    let [output, stderr] = changes.map(|changes| changes.and_then(Changes::descriptor));
    let looks = changes.iter().flatten().filter_map(|changes| changes.next_look());
    let until = until.into_iter().chain(looks).min();
    let [has_news, output, stderr, is_stopped] = sleep([Some(news.as_fd()), output, stderr, stop], until)?;
    for (changes, has_grown) in changes.into_iter().zip([output, stderr]) {
        if let Some(changes) = changes.filter(|_| has_grown) {
            changes.take()?;
        }
    }
    Ok([has_news, is_stopped])
}
