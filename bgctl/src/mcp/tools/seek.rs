//! `background_block` with `line` (R117): waits for a line of a task on a separate thread, using the code of `bgctl
//! block --line`.

use std::io::{self, PipeReader};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::task::{Kind, Task};
use regex::bytes::Regex;
use tokio::task::JoinError;
use tokio::time::Instant;

use super::progress::{self, Progress};
use crate::failure::Failure;
use crate::link::{DaemonAddress, is_lost};
use crate::mcp::refusal::Refusal;
use crate::mcp::shared::Shared;
use crate::mcp::words;
use crate::output::seek::{self, Found, LineQuery, Since, Stop, WaitEnd};

/// Interval at which a wait without a permit checks the tasks.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The outcome of a wait for a line.
#[derive(Debug)]
pub(super) enum Sighting {
    Line(String),
    /// The line can't come any more.
    Never,
    /// The line may still come.
    NotYet,
    /// The connection was lost, or the daemon was about to end.
    Lost(Failure),
}

impl Sighting {
    /// Returns the line, if it was found.
    pub(super) fn line(self) -> Option<String> {
        if let Self::Line(line) = self { Some(line) } else { None }
    }
}

impl Shared {
    /// Waits until a task has printed a matching line or has ended, asks its user a question, the deadline passes, or
    /// `stop` completes.
    pub(super) async fn seek(
        self: &Arc<Self>,
        id: TaskId,
        pattern: Regex,
        deadline: Instant,
        progress: &mut Option<Progress>,
        stop: impl Future<Output = ()>,
    ) -> Result<Sighting, Refusal> {
        let mut stop = std::pin::pin!(stop);
        let mut since = Since::BEGIN;
        // All permits may be in use by long waits; the line may be printed meanwhile.
        let turn = loop {
            let until = deadline.min(Instant::now() + LOOK_EVERY);
            tokio::select! {
                turn = self.link.turn(until) => if turn.is_some() || until == deadline { break turn },
                () = &mut stop => return Ok(Sighting::NotYet),
            }
            let found = tokio::select! {
                found = self.glance(id, pattern.clone(), since) => found?,
                () = &mut stop => return Ok(Sighting::NotYet),
            };
            match found {
                Ok(Found::Nothing { why: WaitEnd::Late, next, .. }) => {
                    since = next.into();
                }
                found => return concluded(found),
            }
        };
        let pipe = io::pipe().map_err(|error| Failure::io("can't create a pipe", &error))?;
        // The thread ends when the write end of its pipe is dropped.
        let (reader, mut writer) = (pipe.0, Some(pipe.1));
        let address = Arc::clone(self.link.address());
        // No permit means that the deadline has passed, so the thread checks only once.
        let line_query = query(&address, id, pattern, since, deadline);
        let mut seeking = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            look_for(&address, line_query, Some(&reader))
        });
        let mut ticks = progress::ticks();
        loop {
            tokio::select! {
                found = &mut seeking => {
                    return match found.map_err(interrupted)? {
                        // The answer is no longer awaited.
                        Err(failure) if is_daemon_gone(&failure) && writer.is_none() => Ok(Sighting::NotYet),
                        found => concluded(found),
                    };
                }
                () = &mut stop, if writer.is_some() => drop(writer.take()),
                _ = ticks.tick() => {
                    if let Some(progress) = progress {
                        progress.notify("no matching line yet").await;
                    }
                }
            }
        }
    }

    /// Searches the output once, from this offset, without a permit; only a few such searches run at a time.
    async fn glance(
        self: &Arc<Self>,
        id: TaskId,
        pattern: Regex,
        since: Since,
    ) -> Result<Result<Found, Failure>, Refusal> {
        let glance = self.link.glance().await;
        let address = Arc::clone(self.link.address());
        let line_query = query(&address, id, pattern, since, Instant::now());
        let seeking = tokio::task::spawn_blocking(move || {
            let _glance = glance;
            look_for(&address, line_query, None)
        });
        seeking.await.map_err(interrupted)
    }
}

fn query(address: &DaemonAddress, id: TaskId, pattern: Regex, since: Since, until: Instant) -> LineQuery {
    let reads_files = address.host().is_none();
    LineQuery { id, pattern, since, until: Some(until.into_std()), answers_by: None, reads_files }
}

fn look_for(
    address: &DaemonAddress,
    line_query: LineQuery,
    stop: Option<&PipeReader>,
) -> Result<Found, Failure> {
    let (mut calls, news) = (address.client()?, address.client()?);
    let stop = Stop { descriptor: stop.map(PipeReader::as_fd), gives_up: asks };
    seek::line(&mut calls, news, line_query, &stop)
}

#[allow(clippy::needless_pass_by_value, reason = "it converts an error")]
fn interrupted(error: JoinError) -> Refusal {
    Refusal::new(format!("The wait was interrupted: {error}."))
}

fn concluded(found: Result<Found, Failure>) -> Result<Sighting, Refusal> {
    match found {
        Err(failure) if is_daemon_gone(&failure) => Ok(Sighting::Lost(failure)),
        found => Ok(sighting(found?)),
    }
}

/// Reports whether the daemon has gone, possibly to come back.
fn is_daemon_gone(failure: &Failure) -> bool {
    is_lost(failure) || [ErrorKind::ShuttingDown.as_str(), "no_daemon"].contains(&failure.kind)
}

fn asks(task: &Task) -> bool {
    task.status.is_active() && task.progress.needs_input.is_some()
}

fn sighting(found: Found) -> Sighting {
    match found {
        Found::Line { line, .. } => {
            let text = String::from_utf8_lossy(&line.bytes);
            Sighting::Line(words::excerpt(&text, words::LINE_BYTES, Kind::Agent).text)
        }
        Found::Nothing { why: WaitEnd::Ended, .. } => Sighting::Never,
        Found::Nothing { .. } => Sighting::NotYet,
    }
}
