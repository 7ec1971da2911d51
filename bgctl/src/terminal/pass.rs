//! A job that has bgctl's own standard streams, and so needs nothing of it but its signals.

use std::os::fd::AsFd as _;

use bgd_shared::client::{PolledClient, Protocol, Received};
use bgd_shared::id::TaskId;
use bgd_shared::request::{BlockMode, BlockParams, SignalParams, TaskBlock, TaskSignal};
use bgd_shared::task::Task;
use nix::sys::signal::Signal;

use super::answers;
use super::signals::{Caught, Signals, stop_here};
use super::turn::Wants;
use crate::failure::Failure;

/// The signals that are passed on.
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

/// Passes on signals until the job has ended, and gives it as it was then. `meanwhile` is done while the
/// daemon is at work already.
///
/// # Errors
/// The daemon is gone, or says what makes no sense; or `meanwhile` failed.
pub fn pass_signals(
    link: PolledClient,
    task: TaskId,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Result<Task, Failure> {
    let mut link = link;
    let block = BlockParams {
        ids: vec![task.into()],
        timeout_ms: None,
        mode: BlockMode::All,
        ..BlockParams::default()
    };
    let block = link.call::<TaskBlock>(&block)?;
    let signals = Signals::take(SIGNALS)?;
    meanwhile()?;
    let mut passing = Passing { link, task, signals, stop: None };
    loop {
        while let Some(caught) = passing.signals.next_caught() {
            passing.signal(caught)?;
        }
        while let Some(received) = passing.link.next_received()? {
            if let Received::Answer { call, outcome } = received {
                if call == block {
                    return answers::ended(Protocol::result::<TaskBlock>(outcome));
                }
                if passing.stop == Some(call) {
                    passing.stop()?;
                }
            }
        }
        passing.wait()?;
    }
}

struct Passing {
    link: PolledClient,
    task: TaskId,
    signals: Signals,
    /// The call that stops the job; this process stops behind it.
    stop: Option<u64>,
}

impl Passing {
    fn wait(&mut self) -> Result<(), Failure> {
        let wants = Wants {
            link: Some(self.link.as_fd()),
            reads_link: true,
            writes_link: self.link.wants_write(),
            link_until: self.link.until(),
            ..Wants::new(self.signals.as_fd())
        };
        let ready = wants.wait().map_err(|error| Failure::io("can't wait", &error))?;
        ready.tend(&mut self.link)?;
        if ready.reads_link {
            let message = "the daemon is gone, and the job with it";
            self.link.read().map_err(|error| Failure::of_link(error, message))?;
        }
        Ok(())
    }

    fn signal(&mut self, caught: Caught) -> Result<(), Failure> {
        match caught.signal {
            // Not SIGTSTP: the job has no terminal of its own, so that the kernel would not stop it.
            Signal::SIGTSTP => self.stop = Some(self.send("STOP", true)?),
            Signal::SIGCONT => drop(self.send("CONT", true)?),
            _ => drop(self.send(caught.name(), caught.by_terminal)?),
        }
        Ok(())
    }

    fn send(&mut self, signal: &str, tree: bool) -> Result<u64, Failure> {
        let params = SignalParams { id: self.task.into(), signal: signal.to_owned(), tree };
        Ok(self.link.call::<TaskSignal>(&params)?)
    }

    /// Stops this process as the job was, until its shell lets both go on.
    fn stop(&mut self) -> Result<(), Failure> {
        self.stop = None;
        stop_here();
        while let Some(caught) = self.signals.next_caught() {
            if caught.signal != Signal::SIGCONT {
                self.signal(caught)?;
            }
        }
        self.send("CONT", true).map(drop)
    }
}
