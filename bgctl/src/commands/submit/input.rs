//! `submit --stdin` for a task on a remote machine: its input is sent over the connection (R141). A task that can't get
//! all of it is cancelled, so that it does not mistake a part for the whole.

use std::io;
use std::os::fd::AsFd as _;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::News;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    CancelParams, Encoding, EventsSubscribe, Hello, HelloParams, IdParams, Method, SubscribeParams,
    TaskCancel, TaskGet, TaskWrite, WriteParams,
};
use bgd_shared::task::Status;
use rustix::io::Errno;

use crate::chunks::chunk_bytes;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::terminal::{Caught, ENDING, Signals, Wants, hold_signals};

/// Why the transfer ended before all of the input was sent.
enum Stop {
    /// The task accepts no more, or has ended. How much it reads is the task's own business.
    Closed,
    /// A signal ended the transfer.
    Signalled(Caught),
    /// Something failed.
    Failed(Failure),
}

impl From<ClientError> for Stop {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Rpc(error) if error.kind() == ErrorKind::NotRunning => Self::Closed,
            error => Self::Failed(error.into()),
        }
    }
}

/// Holds the signals for [`send`], which acts on them.
///
/// # Errors
/// A system error.
pub fn hold() -> Result<(), Failure> {
    hold_signals(ENDING)
}

/// Sends all of standard input to a task with an input pipe, once the task has started.
///
/// # Errors
/// The input can't be read, or the connection is lost; the task is then cancelled, if possible.
pub fn send(id: TaskId, context: &mut Context) -> Result<Code, Failure> {
    let signals = Signals::take(ENDING)?;
    match (Sending { id, signals: &signals, context }).all() {
        Ok(()) | Err(Stop::Closed) => Ok(Code::OK),
        Err(Stop::Signalled(caught)) => {
            cancel(id, context)?;
            Ok(context.end_by_signal(caught.shell_code()))
        }
        Err(Stop::Failed(failure)) => Err(fail(&failure, id, context)),
    }
}

/// Cancels the task after a failure, and reports that.
fn fail(failure: &Failure, id: TaskId, context: &mut Context) -> Failure {
    // If the connection is what failed, cancelling needs a new one.
    let is_back = context.link.recover(failure.clone());
    let done = if is_back.is_ok() || context.link.is_connected() { cancel(id, context) } else { is_back };
    let message = match &done {
        Ok(()) => {
            format!("task {id} was cancelled, as only a part of its input was sent: {}", failure.message)
        }
        Err(_) => format!("only a part of the input of task {id} was sent: {}", failure.message),
    };
    let failure = Failure::new(failure.code, "input_lost", message);
    if done.is_ok() { failure } else { failure.hint(format!("it waits for the rest: `bgctl cancel {id}`")) }
}

fn cancel(id: TaskId, context: &mut Context) -> Result<(), Failure> {
    context.call::<TaskCancel>(&CancelParams { ids: vec![id.into()], ..CancelParams::default() }).map(drop)
}

struct Sending<'a> {
    id: TaskId,
    signals: &'a Signals,
    context: &'a mut Context,
}

impl Sending<'_> {
    fn all(&mut self) -> Result<(), Stop> {
        self.await_start()?;
        let limits = self.call::<Hello>(&HelloParams::default())?.limits;
        let mut buffer = vec![0; chunk_bytes(limits.frame_bytes)];
        loop {
            let source = io::stdin();
            let wants = Wants { changes: Some(source.as_fd()), ..Wants::new(self.signals.as_fd()) };
            while !wait(&wants, self.signals)? {}
            // Not through the buffer of `Stdin`: what it holds back makes no descriptor readable.
            match rustix::io::read(&source, &mut buffer) {
                Ok(0) => return self.write(Vec::new(), true),
                Ok(count) => self.write(buffer[..count].to_vec(), false)?,
                // Another process may have read what was there.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => {
                    return Err(Stop::Failed(Failure::io("can't read standard input", &error.into())));
                }
            }
        }
    }

    /// Waits until the task has its pipe.
    fn await_start(&mut self) -> Result<(), Stop> {
        self.subscribe()?;
        loop {
            let task = self.call::<TaskGet>(&IdParams { id: self.id.into() })?.task;
            if task.has_begun() || task.status != Status::Pending {
                return Ok(());
            }
            if !self.takes_news()? {
                self.until_readable()?;
                self.takes_news()?;
            }
        }
    }

    fn subscribe(&mut self) -> Result<(), Stop> {
        let params = SubscribeParams { ids: vec![self.id.into()], ..SubscribeParams::default() };
        self.call::<EventsSubscribe>(&params).map(drop)
    }

    /// Drops the events that have arrived, as the task is looked up after each. Returns whether there were any.
    fn takes_news(&mut self) -> Result<bool, Stop> {
        let mut has_some = false;
        while let Some(params) = self.client()?.received_news()? {
            has_some = true;
            // This client read too slowly, so its subscription has ended.
            if matches!(params.news, News::Gap(gap) if gap.ended) {
                self.subscribe()?;
            }
        }
        Ok(has_some)
    }

    fn write(&mut self, bytes: Vec<u8>, eof: bool) -> Result<(), Stop> {
        let (data, encoding) = Encoding::encode(bytes);
        // The answer arrives when the task's pipe has accepted all of the data.
        self.call::<TaskWrite>(&WriteParams { id: self.id.into(), data, encoding, eof })?;
        self.takes_news().map(drop)
    }

    /// Makes a call, and watches for signals until the answer arrives.
    fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Stop> {
        let call = self.client()?.send::<M>(params, &[])?;
        loop {
            self.until_readable()?;
            if let Some(result) = self.client()?.answered::<M>(call)? {
                return Ok(result);
            }
        }
    }

    fn client(&mut self) -> Result<&mut Client, Stop> {
        self.context.link.client().map_err(Stop::Failed)
    }

    fn until_readable(&mut self) -> Result<(), Stop> {
        loop {
            let signals = self.signals;
            let client = self.client()?;
            let until = client.until();
            let wants = Wants { changes: Some(client.as_fd()), until, ..Wants::new(signals.as_fd()) };
            if wait(&wants, signals)? {
                return Ok(());
            }
            client.keep_up()?;
        }
    }
}

/// Waits for one source. Returns whether it is ready.
fn wait(wants: &Wants<'_>, signals: &Signals) -> Result<bool, Stop> {
    let ready = wants.wait().map_err(|error| Stop::Failed(Failure::io("can't wait", &error)))?;
    match signals.next_caught() {
        Some(caught) => Err(Stop::Signalled(caught)),
        None => Ok(ready.changes),
    }
}
