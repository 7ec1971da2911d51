//! The one loop of the terminal: it sleeps in `poll` until the daemon, a signal or a source of the view's own has
//! something, and tells the view. It knows no job, no keyboard and no screen.

use bgd_shared::client::{ClientError, PolledClient, Received};

use super::signals::{Caught, Signals};
use super::turn::{Ready, Wants};
use crate::failure::Failure;

/// What has the terminal for a while.
pub trait View {
    /// What it ends with.
    type End;

    /// The connection to the daemon.
    fn link(&mut self) -> &mut PolledClient;

    /// The signals that it takes.
    fn signals(&self) -> &Signals;

    /// What the next turn waits for.
    fn wants(&self) -> Wants<'_>;

    /// How it ended, once nothing is left to be done.
    fn end(&mut self) -> Option<Result<Self::End, Failure>>;

    /// Whether it takes more of what the daemon has said.
    fn is_listening(&self) -> bool {
        true
    }

    /// Does what is due before the next wait. It may end by that.
    ///
    /// # Errors
    /// Passed to [`Self::fail`], as those of all steps are.
    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// A signal came.
    ///
    /// # Errors
    /// See [`Self::prepare`].
    fn signal(&mut self, caught: Caught) -> Result<(), Failure>;

    /// Something came from the sources that are the view's own; connection and signals are dealt with by the loop.
    ///
    /// # Errors
    /// See [`Self::prepare`].
    fn ready(&mut self, _ready: Ready) -> Result<(), Failure> {
        Ok(())
    }

    /// The daemon said something.
    ///
    /// # Errors
    /// See [`Self::prepare`].
    fn received(&mut self, received: Received) -> Result<(), Failure>;

    /// What a broken connection means to the user.
    fn lost(&self, error: ClientError) -> Failure;

    /// A step failed. The loop ends with what this returns; a view that has something to put in order before
    /// returns `Ok`, and ends by [`Self::end`].
    ///
    /// # Errors
    /// The failure itself, unless the view keeps it.
    fn fail(&mut self, failure: Failure) -> Result<(), Failure> {
        Err(failure)
    }
}

/// Runs a view to its end.
///
/// # Errors
/// What the view ends with.
pub fn run<V: View>(view: &mut V) -> Result<V::End, Failure> {
    // It may have come together with the answers before, so that the connection has nothing to wait for.
    hear(view)?;
    loop {
        // It may end by this, and then nothing would end the wait.
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
        // What the daemon said before it went comes first.
        hear(view)?;
        settle(view, |view| read.map_err(|error| view.lost(error)))?;
    }
    Ok(())
}

/// Passes on all that has come from the daemon.
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
