//! The events that the console waits for while no job has the terminal: a line, or the answer to a call.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bgd_shared::client::{ClientError, PolledClient, Received};
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::request::{CancelParams, TaskCancel};
use nix::sys::signal::Signal;
use serde_json::value::RawValue;

use super::editor::{Editor, Heard};
use super::jobs::Jobs;
use crate::exit::Code;
use crate::failure::Failure;
use crate::terminal::{Caught, Host as _, Signals, View, Wants};

/// How long a call is still awaited after a signal has asked to leave: a daemon that works answers sooner.
const LEAVES: Duration = Duration::from_secs(1);

/// The outcome of waiting at the prompt.
pub enum Typed {
    Line(String),
    /// The end of input.
    End,
    /// A signal or the end of the terminal, with the code to exit with.
    Signal(Code),
    /// The connection for notifications was lost.
    NewsLost,
}

pub struct Prompt<'a> {
    /// The connection that owns the console's jobs.
    pub link: &'a mut PolledClient,
    pub jobs: &'a mut Jobs,
    pub editor: &'a mut Editor,
    pub signals: &'a Signals,
    /// The code to exit with, if a signal has asked for it.
    pub ends_with: &'a mut Option<Code>,
}

/// A call that waits for its answer. Typed input waits meanwhile.
pub struct Asking<'a> {
    /// The connection that owns the console's jobs.
    pub link: &'a mut PolledClient,
    pub jobs: &'a mut Jobs,
    pub signals: &'a Signals,
    /// The code to exit with, if a signal has asked for it. Recorded here, but acted on at the next prompt.
    pub ends_with: &'a mut Option<Code>,
    /// The number of the call.
    pub call: u64,
    /// The task that the call waits for, if any. Ctrl-C and signals that ask to leave cancel it; without a task they end
    /// the wait, as the daemon may be stopped.
    pub task: Option<TaskId>,
    /// Whether cancelling the task was requested.
    pub is_cancelled: bool,
    /// When to give up a call without a task, as a signal asks to leave.
    pub until: Option<Instant>,
    /// The answer, once it has arrived.
    pub outcome: Option<Result<Box<RawValue>, RpcError>>,
}

/// A hand-over in flight whose answer is awaited. Typed input waits meanwhile.
pub struct Moving<'a> {
    /// The connection that owns the console's jobs.
    pub link: &'a mut PolledClient,
    pub jobs: &'a mut Jobs,
    pub signals: &'a Signals,
    /// The code to exit with, if a signal has asked for it. Recorded here, but acted on at the next prompt.
    pub ends_with: &'a mut Option<Code>,
}

/// Returns the code to exit with, if this signal asks to leave. Signals from keys are for jobs, and there is none.
fn ends_with(caught: Caught) -> Option<Code> {
    matches!(caught.signal, Signal::SIGHUP | Signal::SIGTERM).then(|| Code(caught.shell_code()))
}

/// Records whether a signal asks to leave. Returns whether the signal ends the current wait, as Ctrl-C does, too.
pub fn gives_up(caught: Caught, code: &mut Option<Code>) -> bool {
    *code = ends_with(caught).or(*code);
    matches!(caught.signal, Signal::SIGHUP | Signal::SIGINT | Signal::SIGTERM)
}

/// Creates the failure of something that such a signal has ended.
pub fn interrupted(what: &str) -> Failure {
    Failure::new(Code::INTERRUPTED, "interrupted", format!("{what}: interrupted"))
}

fn no_answer() -> Failure {
    interrupted("the daemon has not answered")
}

impl Prompt<'_> {
    /// Handles the messages of the reading and printing threads, then a press that arrived as a signal.
    fn hear_editor(&mut self) -> Result<Option<Typed>, Failure> {
        while let Some(heard) = self.editor.next_heard() {
            match heard {
                Heard::Line(text) => {
                    self.jobs.line_taken();
                    return Ok(Some(Typed::Line(text)));
                }
                // The end of input may also mean that the terminal was closed.
                Heard::End | Heard::Broken(_) if !io::stdout().is_terminal() => {
                    return Ok(Some(Typed::Signal(Code::HUNG_UP)));
                }
                Heard::End => return Ok(Some(Typed::End)),
                Heard::Broken(why) => {
                    return Err(Failure::new(Code::INTERNAL, "io", format!("can't read lines: {why}")));
                }
                Heard::Pressed => self.jobs.pressed(self.link)?,
                Heard::News(news) => self.editor.print(&news),
                Heard::NewsLost => return Ok(Some(Typed::NewsLost)),
                Heard::Printed => {}
            }
        }
        self.jobs.act_on_press(self.link)?;
        Ok(None)
    }
}

fn lost(error: ClientError) -> Failure {
    Failure::of_link(error, "the daemon has ended, and the foreground jobs with it")
}

impl View for Prompt<'_> {
    type End = Typed;

    fn link(&mut self) -> &mut PolledClient {
        self.link
    }

    fn signals(&self) -> &Signals {
        self.signals
    }

    fn wants(&self) -> Wants<'_> {
        Wants {
            reads_link: self.editor.has_room(),
            changes: Some(self.editor.as_fd()),
            ..Wants::of_link(self.link, self.signals)
        }
    }

    fn end(&mut self) -> Option<Result<Typed, Failure>> {
        match self.hear_editor() {
            Ok(None) => self.ends_with.map(|code| Ok(Typed::Signal(code))),
            heard => heard.transpose(),
        }
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        let said = self.jobs.take_output();
        self.editor.print(&said);
        self.jobs.undo(self.link).map_err(lost)
    }

    fn signal(&mut self, caught: Caught) -> Result<(), Failure> {
        *self.ends_with = ends_with(caught).or(*self.ends_with);
        // The hint is shown before the prompt reads keys; until then, the terminal makes a signal of some.
        self.jobs.caught(caught);
        Ok(())
    }

    fn received(&mut self, received: Received) -> Result<(), Failure> {
        Ok(self.jobs.received(received)?)
    }

    fn lost(&self, error: ClientError) -> Failure {
        lost(error)
    }
}

impl Asking<'_> {
    /// Cancels the task that the call waits for.
    fn cancel(&mut self) -> Result<(), Failure> {
        let Some(task) = self.task else { return Ok(()) };
        self.is_cancelled = true;
        let params = CancelParams { ids: vec![task.into()], ..CancelParams::default() };
        self.link.call::<TaskCancel>(&params).map(drop).map_err(lost)
    }
}

impl View for Asking<'_> {
    type End = Result<Box<RawValue>, RpcError>;

    fn link(&mut self) -> &mut PolledClient {
        self.link
    }

    fn signals(&self) -> &Signals {
        self.signals
    }

    fn wants(&self) -> Wants<'_> {
        Wants { until: self.until, ..Wants::of_link(self.link, self.signals) }
    }

    fn end(&mut self) -> Option<Result<Self::End, Failure>> {
        self.outcome.take().map(Ok)
    }

    fn is_listening(&self) -> bool {
        self.outcome.is_none()
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        // A command that was given up must not run unseen beside the next one.
        self.jobs.undo(self.link).map_err(lost)?;
        // The signal may have arrived before the call.
        if self.ends_with.is_none() || self.is_cancelled || self.outcome.is_some() {
            return Ok(());
        }
        if self.task.is_some() {
            return self.cancel();
        }
        let until = *self.until.get_or_insert_with(|| Instant::now() + LEAVES);
        if until <= Instant::now() { Err(no_answer()) } else { Ok(()) }
    }

    fn signal(&mut self, caught: Caught) -> Result<(), Failure> {
        self.jobs.caught(caught);
        if !gives_up(caught, self.ends_with) {
            return Ok(());
        }
        match self.task {
            Some(_) if !self.is_cancelled => self.cancel(),
            // Don't wait for a task that can't be ended, such as one on a dead disk.
            Some(_) => Err(interrupted("cd")),
            None => Err(no_answer()),
        }
    }

    fn received(&mut self, received: Received) -> Result<(), Failure> {
        match received {
            Received::Answer { call, outcome } if call == self.call => self.outcome = Some(outcome),
            other => self.jobs.received(other)?,
        }
        Ok(())
    }

    fn lost(&self, error: ClientError) -> Failure {
        lost(error)
    }
}

impl View for Moving<'_> {
    type End = ();

    fn link(&mut self) -> &mut PolledClient {
        self.link
    }

    fn signals(&self) -> &Signals {
        self.signals
    }

    fn wants(&self) -> Wants<'_> {
        Wants::of_link(self.link, self.signals)
    }

    fn end(&mut self) -> Option<Result<(), Failure>> {
        (!self.jobs.is_handing_over()).then_some(Ok(()))
    }

    fn is_listening(&self) -> bool {
        self.jobs.is_handing_over()
    }

    fn signal(&mut self, caught: Caught) -> Result<(), Failure> {
        self.jobs.caught(caught);
        if gives_up(caught, self.ends_with) { Err(interrupted("fg")) } else { Ok(()) }
    }

    fn received(&mut self, received: Received) -> Result<(), Failure> {
        Ok(self.jobs.received(received)?)
    }

    fn lost(&self, error: ClientError) -> Failure {
        lost(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use bgd_shared::client::Client;
    use bgd_shared::foreground::Key;

    #[test]
    fn signal_before_a_call_ends_the_wait_for_a_daemon_that_does_not_answer() {
        let (here, _daemon) = UnixStream::pair().unwrap();
        let mut link = PolledClient::from(Client::over(OwnedFd::from(here).into()));
        let (mut jobs, signals) = (Jobs::new(Key::NONE), Signals::take(&[]).unwrap());
        let mut asking = Asking {
            link: &mut link,
            jobs: &mut jobs,
            signals: &signals,
            ends_with: &mut Some(Code(143)),
            call: 1,
            task: None,
            is_cancelled: false,
            until: None,
            outcome: None,
        };
        let failure = crate::terminal::run(&mut asking).unwrap_err();
        assert_eq!(failure.code, Code::INTERRUPTED);
    }
}
