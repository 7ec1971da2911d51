//! Waits until a task has written a matching line (R111). The caller decides what to do with the outcome.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bgd_shared::client::Client;
use bgd_shared::id::TaskId;
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::{IdParams, OutputParams, TaskGet, TaskOutput};
use bgd_shared::task::Task;
use regex::bytes::Regex;

use crate::copy::Growing;
use crate::failure::Failure;
use crate::lines::{Line, Search};
use crate::link::{Heard, Listener, sleep};
use crate::watch::Changes;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;

/// The line to wait for.
#[derive(Debug)]
pub struct LineQuery {
    pub id: TaskId,
    /// The pattern that the line must match.
    pub pattern: Regex,
    /// Offset in bytes to start at; a negative one counts from the end of the output at the time when the search opens
    /// it.
    pub since: i64,
    /// Deadline; `None` waits indefinitely.
    pub until: Option<Instant>,
    /// When to give up a host that has fallen silent, shortly after this; `None` grants it as long as any other call.
    pub answers_by: Option<Instant>,
    /// Whether the output may be read from its file, which requires the daemon on this machine.
    pub reads_files: bool,
}

/// How a wait ended.
#[derive(Debug)]
pub enum Found {
    /// The line was found.
    Line(Line),
    /// No line was found.
    Nothing {
        /// The task at that time.
        task: Box<Task>,
        /// Offset from which a later search can resume.
        next: u64,
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

/// The source of the output.
enum Source {
    /// Not open yet.
    Nothing,
    /// The output file.
    File(Growing, Changes),
    /// The daemon, if the file can't be opened here; with the offset of the next byte.
    Daemon(i64),
}

/// Waits for a matching line. Makes calls on `client` and receives events on `news`.
///
/// # Errors
/// The task or the daemon is gone, or the output can't be read.
pub fn line(client: &mut Client, news: Client, sought: LineQuery, stop: &Stop<'_>) -> Result<Found, Failure> {
    let LineQuery { id, pattern, since, until, answers_by, reads_files } = sought;
    let mut news = Listener::of(news, &[id])?;
    // The task may have ended before the subscription began.
    let mut task = current(id, answers_by, client)?;
    let mut source = Source::Nothing;
    let mut search = Search::new(pattern, u64::try_from(since).unwrap_or(0));
    let mut is_stopped = false;
    loop {
        if matches!(source, Source::Nothing) && task.has_begun() {
            source = if reads_files { open(&task, since)? } else { Source::Daemon(since) };
        }
        let has_ended = !task.status.is_active();
        let mut line = look(&mut source, &mut search, (id, answers_by), client)?;
        if has_ended && line.is_none() {
            line = search.finish();
        }
        let next = search.position();
        if let Some(line) = line {
            return Ok(Found::Line(line));
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
        [has_news, is_stopped] = wait(&news, &source, stop.descriptor, until)?;
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

/// Opens the output of a task that has started.
fn open(task: &Task, since: i64) -> Result<Source, Failure> {
    let path = PathBuf::from(&task.output.path);
    let Ok(file) = File::open(&path) else { return Ok(Source::Daemon(since)) };
    let unreadable = |error: io::Error| Failure::io(path.display(), &error);
    let length = file.metadata().map_err(unreadable)?.len();
    let start = u64::try_from(since).unwrap_or_else(|_| length.saturating_sub(since.unsigned_abs()));
    let changes = Changes::of(&path).map_err(unreadable)?;
    Ok(Source::File(Growing::new(file, start), changes))
}

/// Returns the task as it is now.
fn current(id: TaskId, answers_by: Option<Instant>, client: &mut Client) -> Result<Task, Failure> {
    Ok(client.call_within::<TaskGet>(&IdParams { id: id.into() }, left(answers_by))?.task)
}

/// Returns the time left.
fn left(by: Option<Instant>) -> Option<Duration> {
    by.map(|by| by.saturating_duration_since(Instant::now()))
}

/// Searches the output that has not been searched yet, up to its current end: the task may write faster than this can
/// search.
fn look(
    source: &mut Source,
    search: &mut Search,
    (id, answers_by): (TaskId, Option<Instant>),
    client: &mut Client,
) -> Result<Option<Line>, Failure> {
    match source {
        Source::Nothing => Ok(None),
        Source::File(growing, _) => {
            let unreadable = |error: io::Error| Failure::io("can't read the output", &error);
            let end = growing.length().map_err(unreadable)?;
            let mut buffer = vec![0; PIECE];
            loop {
                let count = growing.read(&mut buffer).map_err(unreadable)?;
                let line = search.push(growing.position() - count as u64, &buffer[..count]);
                if count == 0 || line.is_some() || growing.position() >= end {
                    return Ok(line);
                }
            }
        }
        Source::Daemon(next) => {
            let mut ask = |offset, limit| {
                let params =
                    OutputParams { id: id.into(), offset: Some(offset), limit: Some(limit), stream: None };
                client.call_within::<TaskOutput>(&params, left(answers_by))
            };
            let mut end = None;
            loop {
                let chunk = ask(*next, OUTPUT_CHUNK_BYTES)?;
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
    source: &Source,
    stop: Option<BorrowedFd<'_>>,
    until: Option<Instant>,
) -> Result<[bool; 2], Failure> {
    let changes = if let Source::File(_, changes) = source { Some(changes) } else { None };
    let grows = changes.and_then(Changes::descriptor);
    let until = until.into_iter().chain(changes.and_then(Changes::next_look)).min();
    let [has_news, has_grown, is_stopped] = sleep([Some(news.as_fd()), grows, stop], until)?;
    if let Some(changes) = changes.filter(|_| has_grown) {
        changes.take()?;
    }
    Ok([has_news, is_stopped])
}
