//! A job on a remote machine that uses this terminal and outlives the connection (R142): it continues there in the
//! background until a new connection brings it back to the foreground, with its output of the meantime.

use std::io::{self, Write as _};

use bgd_shared::error::ErrorKind;
use bgd_shared::foreground::Key;
use bgd_shared::id::{TaskId, made_up_key};
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::{
    AttachParams, IdParams, OutputParams, SubmitParams, TaskAttach, TaskGet, TaskOutput, TaskSubmit,
};
use bgd_shared::task::Task;

use super::begin::{ask_for_key, await_key, hold_signals};
use crate::context::Context;
use crate::failure::Failure;
use crate::link::{UNREACHABLE, is_lost, may_be_older};
use crate::output::filter::{TextFilter, attempt_starts};
use crate::remark::report;
use crate::terminal::{self, AttachmentEnd, Screen, ScreenView, Seen};

/// The state of the job, as far as it is known.
#[derive(Default)]
struct Job {
    /// `None` until an answer has arrived.
    id: Option<TaskId>,
    /// The output shown by previous connections.
    seen: Seen,
    /// Whether there was a previous connection.
    is_again: bool,
}

/// Runs the job until it ends or is moved to the background. `None` if the remote daemon is too old for this, and has
/// started nothing.
pub(super) fn run(
    params: &SubmitParams,
    key: Option<Key>,
    context: &mut Context,
) -> Result<Option<AttachmentEnd>, Failure> {
    // The key identifies the job after a lost connection, so that it is never started twice.
    let params = SubmitParams { stays: true, key: Some(made_up_key()), ..params.clone() };
    let mut job = Job::default();
    loop {
        hold_signals(context, terminal::SHOWN)?;
        let failure = match show(&params, key, &mut job, context) {
            Ok(left) => return Ok(Some(left)),
            Err(failure) => failure,
        };
        // Nothing reads the signals while there is no connection: Ctrl-C gives up.
        terminal::release_signals(terminal::SHOWN)?;
        // The daemon may be too old to support jobs that stay.
        if job.id.is_none() && may_be_older(&failure) {
            return Ok(None);
        }
        if let Some(id) = job.id.filter(|_| is_lost(&failure)) {
            // A user who gives up now needs the id.
            report(&format!("job {} keeps running there", id.short()));
        }
        context.link.recover(failure).map_err(|failure| job.stays(failure, context))?;
        job.is_again = true;
        if job.seen.lacks_typed {
            report("the last input may not have reached the job");
        }
    }
}

impl Job {
    /// Adds to a failure that the job continues, and how to get back to it.
    fn stays(&self, failure: Failure, context: &Context) -> Failure {
        let Some((id, host)) = self.id.zip(context.link.host()) else { return failure };
        // With any other failure, the host no longer has the job.
        if !is_lost(&failure) && failure.kind != UNREACHABLE {
            return failure;
        }
        failure.hint(format!(
            "job {id} keeps running there; return to it with: bgctl -H {host} attach {}",
            id.short()
        ))
    }
}

/// Shows the job on one connection, after submitting it or bringing it back to the foreground.
fn show(
    params: &SubmitParams,
    key: Option<Key>,
    job: &mut Job,
    context: &mut Context,
) -> Result<AttachmentEnd, Failure> {
    if let Some(id) = job.id {
        // The next call may have to reconnect, and Ctrl-C gives up on that.
        terminal::release_signals(terminal::SHOWN)?;
        // The key is forgotten once the task is cleared.
        let task = context.link.call::<TaskGet>(&IdParams { id: id.into() })?.task;
        if !task.status.is_active() {
            return print_remaining_output(task, job.seen, context);
        }
        terminal::hold_signals(terminal::SHOWN)?;
    }
    let screen = Screen::open()?;
    let size = screen.size();
    let params = SubmitParams { pty: Some(size), ..params.clone() };
    let (key, task) = context.link.exchange(|client| {
        let asked = ask_for_key(client, key)?;
        let call = client.send::<TaskSubmit>(&params, &[])?;
        let key = await_key(client, asked)?;
        Ok((key, client.answer::<TaskSubmit>(call)?.task))
    })?;
    let id = *job.id.insert(task.id);
    let mut is_drawn = job.is_again;
    if job.is_again {
        let attach = AttachParams { id: id.into(), rows: Some(size.rows), cols: Some(size.cols) };
        match context.link.exchange(|client| client.call::<TaskAttach>(&attach)) {
            Err(failure) if failure.kind == ErrorKind::NotRunning.as_str() => {
                let task = context.link.call::<TaskGet>(&IdParams { id: id.into() })?.task;
                if !task.status.is_active() {
                    return print_remaining_output(task, job.seen, context);
                }
                // The job is just starting, or waiting to be started again; this connection then gets all its output.
                is_drawn = false;
            }
            attached => drop(attached?),
        }
    }
    ScreenView::resumable(context.link.polled()?, id, key, screen, size, &mut job.seen, is_drawn)
}

/// Shows the rest of the output of a job that has ended.
fn print_remaining_output(task: Task, seen: Seen, context: &mut Context) -> Result<AttachmentEnd, Failure> {
    // Ctrl-C ends this process, as nothing reads the keys.
    terminal::release_signals(terminal::SHOWN)?;
    let mut next = terminal::latest(seen.upto, task.output.bytes);
    if let Some(text) = terminal::left_out(seen.upto, next) {
        report(&text);
    }
    let mut filter = TextFilter::new(seen.is_alternate, seen.upto);
    let mut out = io::stdout().lock();
    loop {
        let mut part = context.link.call::<TaskOutput>(&OutputParams {
            id: task.id.into(),
            offset: i64::try_from(next).ok(),
            limit: Some(OUTPUT_CHUNK_BYTES),
            stream: None,
        })?;
        if part.next <= next {
            break;
        }
        next = part.next;
        let data = std::mem::take(&mut part.data);
        let bytes = part.encoding.decode(data).map_err(Failure::unreadable_output)?;
        out.write_all(filter.push_at(part.offset, &bytes, &attempt_starts(&part)).as_bytes())?;
    }
    out.flush()?;
    Ok(AttachmentEnd::Ended(Box::new(task)))
}
