//! A job that uses bgctl's own standard streams, so that only signals need forwarding.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use bgd_shared::client::{ClientError, PolledClient, Protocol, Received};
use bgd_shared::id::TaskId;
use bgd_shared::request::{BlockParams, SignalParams, TaskBlock, TaskSignal};
use bgd_shared::task::Task;
use nix::sys::signal::Signal;

use super::answers;
use super::signals::{Caught, Signals, stop_here};
use super::turn::Wants;
use super::view::{self, DAEMON_ENDED, View};
use crate::failure::Failure;

/// The signals to forward.
pub const SIGNALS: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// Forwards signals until the job has ended, then returns it. `meanwhile` runs while the daemon is already working.
///
/// # Errors
/// The daemon is gone or sent an invalid message, or `meanwhile` failed.
pub fn pass_signals(
    link: PolledClient,
    task: TaskId,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Result<Task, Failure> {
    let mut link = link;
    let block = link.call::<TaskBlock>(&BlockParams::until_ended(task))?;
    let signals = Signals::take(SIGNALS)?;
    meanwhile()?;
    view::run(&mut Passing { link, task, signals, block, stop: None, ended: None })
}

/// The signals that end this process when there is no job to forward them to.
pub const ENDING: &[Signal] = &[Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Waits until `source` is readable, such as for the end of something that a job has left behind, but not beyond this
/// time. Returns the signal that ended the wait, if one did. The signals of [`SIGNALS`] must be blocked.
///
/// # Errors
/// A system call fails.
pub fn outlast(source: BorrowedFd<'_>, until: Option<Instant>) -> Result<Option<Caught>, Failure> {
    let signals = Signals::take(SIGNALS)?;
    loop {
        let wants = Wants { changes: Some(source), until, ..Wants::new(signals.as_fd()) };
        let ready = wants.wait().map_err(|error| Failure::io("can't wait", &error))?;
        let caught =
            std::iter::from_fn(|| signals.next_caught()).find(|caught| ENDING.contains(&caught.signal));
        let is_late = until.is_some_and(|until| until <= Instant::now());
        if caught.is_some() || ready.changes || is_late {
            return Ok(caught);
        }
    }
}

struct Passing {
    link: PolledClient,
    task: TaskId,
    signals: Signals,
    /// The call that is answered when the job has ended.
    block: u64,
    /// The call that stops the job. Once it is answered, this process stops too.
    stop: Option<u64>,
    ended: Option<Task>,
}

impl Passing {
    fn pass(&mut self, caught: Caught) -> Result<(), Failure> {
        match caught.signal {
            // Not SIGTSTP: the job has no terminal of its own, so the kernel would not stop it.
            Signal::SIGTSTP => self.stop = Some(self.send("STOP", true)?),
            Signal::SIGCONT => {
                // As in the kernel, it cancels a stop that has not happened yet.
                self.stop = None;
                self.send("CONT", true)?;
            }
            _ => drop(self.send(caught.name(), caught.is_for_all())?),
        }
        Ok(())
    }

    fn send(&mut self, signal: &str, tree: bool) -> Result<u64, Failure> {
        let params = SignalParams { id: self.task.into(), signal: signal.to_owned(), tree };
        Ok(self.link.call::<TaskSignal>(&params)?)
    }

    /// Stops this process, like the job, until the shell continues it; then continues the job.
    fn stop(&mut self) -> Result<(), Failure> {
        self.stop = None;
        stop_here();
        while let Some(caught) = self.signals.next_caught() {
            if caught.signal != Signal::SIGCONT {
                self.pass(caught)?;
            }
        }
        self.send("CONT", true).map(drop)
    }
}

impl View for Passing {
    type End = Task;

    fn link(&mut self) -> &mut PolledClient {
        &mut self.link
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn wants(&self) -> Wants<'_> {
        Wants::of_link(&self.link, &self.signals)
    }

    fn end(&mut self) -> Option<Result<Task, Failure>> {
        self.ended.take().map(Ok)
    }

    fn is_listening(&self) -> bool {
        self.ended.is_none()
    }

    fn signal(&mut self, caught: Caught) -> Result<(), Failure> {
        self.pass(caught)
    }

    fn received(&mut self, received: Received) -> Result<(), Failure> {
        if let Received::Answer { call, outcome } = received {
            if call == self.block {
                self.ended = Some(answers::ended(Protocol::result::<TaskBlock>(outcome))?);
            } else if self.stop == Some(call) {
                self.stop()?;
            }
        }
        Ok(())
    }

    fn lost(&self, error: ClientError) -> Failure {
        Failure::of_link(error, DAEMON_ENDED)
    }
}
