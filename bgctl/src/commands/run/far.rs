//! A job on another machine that has this terminal, and outlives the connection (R142): it goes on there, in the
//! background, until a new connection takes it to the foreground again, with what it wrote meanwhile.

use std::io::{self, Write as _};

use bgd_shared::error::ErrorKind;
use bgd_shared::foreground::Key;
use bgd_shared::id::TaskId;
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::{
    AttachParams, IdParams, OutputParams, SubmitParams, TaskAttach, TaskGet, TaskOutput, TaskSubmit,
};
use bgd_shared::task::Task;

use super::begin::{ask_for_key, await_key, hold_signals};
use crate::context::Context;
use crate::failure::Failure;
use crate::link::{UNREACHABLE, is_lost, may_be_older};
use crate::remark::report;
use crate::terminal::{self, Left, Screen, ScreenView, Seen, TextFilter};

/// The job, as far as it is known.
#[derive(Default)]
struct Job {
    /// Its id, once an answer has come.
    id: Option<TaskId>,
    /// What the connection before has shown.
    seen: Seen,
    /// Whether there was one before.
    is_again: bool,
}

/// Runs the job until it ends or is moved to the background. `None`: the daemon over there is older than this, and has
/// started nothing.
pub(super) fn run(
    params: &SubmitParams,
    key: Option<Key>,
    context: &mut Context,
) -> Result<Option<Left>, Failure> {
    // By its key it is found again, so never started twice.
    let params = SubmitParams { stays: true, key: Some(TaskId::random().to_string()), ..params.clone() };
    let mut job = Job::default();
    loop {
        hold_signals(context, terminal::SHOWN)?;
        let failure = match show(&params, key, &mut job, context) {
            Ok(left) => return Ok(Some(left)),
            Err(failure) => failure,
        };
        // Nothing reads them while there is no connection: Ctrl-C gives up.
        terminal::release_signals(terminal::SHOWN)?;
        // It may be older than jobs that stay.
        if job.id.is_none() && may_be_older(&failure) {
            return Ok(None);
        }
        if let Some(id) = job.id.filter(|_| is_lost(&failure)) {
            // Who gives up now must know its id.
            report(&format!("job {} goes on there meanwhile", id.short()));
        }
        context.link.recover(failure).map_err(|failure| job.stays(failure, context))?;
        job.is_again = true;
        if job.seen.lacks_typed {
            report("what was typed last may not have reached the job");
        }
    }
}

impl Job {
    /// Says in a failure what becomes of the job, and how to get back to it.
    fn stays(&self, failure: Failure, context: &Context) -> Failure {
        let Some((id, host)) = self.id.zip(context.link.host()) else { return failure };
        // Whoever answers otherwise does not have it any more.
        if !is_lost(&failure) && failure.kind != UNREACHABLE {
            return failure;
        }
        failure
            .hint(format!("job {id} goes on there; back to it with: bgctl -H {host} attach {}", id.short()))
    }
}

/// Shows the job on one connection, after submitting it or taking it to the foreground again.
fn show(
    params: &SubmitParams,
    key: Option<Key>,
    job: &mut Job,
    context: &mut Context,
) -> Result<Left, Failure> {
    if let Some(id) = job.id {
        // It may have to connect again, and Ctrl-C gives that up.
        terminal::release_signals(terminal::SHOWN)?;
        // Its key is forgotten with the task.
        let task = context.link.call::<TaskGet>(&IdParams { id: id.into() })?.task;
        if !task.status.is_active() {
            return rest(task, job.seen, context);
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
                    return rest(task, job.seen, context);
                }
                // It is just being started, or waits for that again; then this connection has all that it writes.
                is_drawn = false;
            }
            attached => drop(attached?),
        }
    }
    ScreenView::resumable(context.link.polled()?, id, key, screen, size, &mut job.seen, is_drawn)
}

/// Shows what is left of the output of a job that has ended.
fn rest(task: Task, seen: Seen, context: &mut Context) -> Result<Left, Failure> {
    // Ctrl-C ends it, as nothing reads the keys.
    terminal::release_signals(terminal::SHOWN)?;
    let mut next = terminal::latest(seen.upto, task.output.bytes);
    if let Some(text) = terminal::left_out(seen.upto, next) {
        report(&text);
    }
    let mut filter = TextFilter::new(seen.is_alternate);
    let mut out = io::stdout().lock();
    loop {
        let part = context.link.call::<TaskOutput>(&OutputParams {
            id: task.id.into(),
            offset: i64::try_from(next).ok(),
            limit: Some(OUTPUT_CHUNK_BYTES),
            stream: None,
        })?;
        if part.next <= next {
            break;
        }
        next = part.next;
        let bytes = part.encoding.decode(part.data).map_err(Failure::unreadable_output)?;
        out.write_all(filter.push(&bytes).as_bytes())?;
    }
    out.flush()?;
    Ok(Left::Ended(Box::new(task)))
}
