//! The terminal's only loop: sleeps in `poll` until the daemon, a signal or one of the view's own sources is ready, and
//! notifies the view. It is independent of jobs, keyboards and screens.

use bgd_shared::client::{ClientError, PolledClient, Received};

use super::signals::{Caught, Signals};
use super::turn::{Ready, Wants};
use crate::failure::Failure;

/// The message about the job shown on the terminal when its daemon is gone: this process can't know more.
pub const DAEMON_ENDED: &str = "the daemon has ended: the next one ends the job";

/// A user of the terminal for a while.
pub trait View {
    type End;

    /// Returns the connection to the daemon.
    fn link(&mut self) -> &mut PolledClient;

    /// Returns the signals that the view handles.
    fn signals(&self) -> &Signals;

    /// Returns the events that the next turn waits for.
    fn wants(&self) -> Wants<'_>;

    /// Returns the result once nothing is left to do.
    fn end(&mut self) -> Option<Result<Self::End, Failure>>;

    /// Reports whether the view accepts more messages from the daemon.
    fn is_listening(&self) -> bool {
        true
    }

    /// Does pending work before the next wait; this may end the view.
    ///
    /// # Errors
    /// Passed to [`Self::fail`], as for all steps.
    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Handles a signal.
    ///
    /// # Errors
    /// See [`Self::prepare`].
    fn signal(&mut self, caught: Caught) -> Result<(), Failure>;

    /// Handles the view's own sources; the loop handles the connection and signals.
    ///
    /// # Errors
    /// See [`Self::prepare`].
    fn ready(&mut self, _ready: Ready) -> Result<(), Failure> {
        Ok(())
    }

    /// Handles a message from the daemon.
    ///
    /// # Errors
    /// See [`Self::prepare`].
    fn received(&mut self, received: Received) -> Result<(), Failure>;

    /// Converts the error of a broken connection into a failure for the user.
    fn lost(&self, error: ClientError) -> Failure;

    /// Handles a failed step. The loop ends with the returned error; a view that has to clean up first returns `Ok`
    /// and ends through [`Self::end`].
    ///
    /// # Errors
    /// The failure itself, unless the view keeps it.
    fn fail(&mut self, failure: Failure) -> Result<(), Failure> {
        Err(failure)
    }
}

/// Runs a view until it ends.
///
/// # Errors
/// The failure that the view ends with.
pub fn run<V: View>(view: &mut V) -> Result<V::End, Failure> {
    // Messages may have arrived together with earlier answers, so that the connection has nothing left to poll for.
    hear(view)?;
    loop {
        // Check for the end afterwards: if this step ends the view, nothing may wake the next wait.
        settle(view, V::prepare)?;
        if let Some(end) = view.end() {
            return end;
        }
        turn(view)?;
    }
}

fn turn<V: View>(view: &mut V) -> Result<(), Failure> {
    let ready = match view.wants().wait() {
        Ok(ready) => ready,
        Err(error) => return view.fail(Failure::io("can't wait", &error)),
    };
    while let Some(caught) = view.signals().next_caught() {
        settle(view, |view| view.signal(caught))?;
    }
    settle(view, |view| view.ready(ready))?;
    let tended = ready.tend(view.link());
    settle(view, |view| tended.map_err(|error| view.lost(error)))?;
    if ready.reads_link {
        let read = view.link().read();
        // First handle the messages that the daemon sent before it went away.
        hear(view)?;
        settle(view, |view| read.map_err(|error| view.lost(error)))?;
    }
    Ok(())
}

/// Passes on all received messages.
fn hear<V: View>(view: &mut V) -> Result<(), Failure> {
    while view.is_listening() {
        match view.link().next_received() {
            Ok(Some(received)) => settle(view, |view| view.received(received))?,
            Ok(None) => break,
            Err(error) => view.fail(error.into())?,
        }
    }
    Ok(())
}

fn settle<V: View>(view: &mut V, step: impl FnOnce(&mut V) -> Result<(), Failure>) -> Result<(), Failure> {
    step(view).or_else(|failure| view.fail(failure))
}
