//! The first steps of every foreground job: its signals are held, and the daemon is asked for the key. Submits nothing.

use bgd_shared::client::{Client, ClientError};
use bgd_shared::foreground::Key;
use bgd_shared::request::{Hello, HelloParams};
use nix::sys::signal::Signal;

use crate::context::Context;
use crate::failure::Failure;
use crate::terminal;

/// Blocks the signals that are meant for the job, as the job may be running before the daemon's answer arrives.
pub fn hold_signals(context: &mut Context, signals: &[Signal]) -> Result<(), Failure> {
    // Connect first: starting a daemon may take a while and must remain interruptible.
    context.link.client()?;
    terminal::hold_signals(signals)
}

/// Submits the job while these signals are held; once more if the daemon is about to end.
pub fn submit_held<T>(
    context: &mut Context,
    signals: &[Signal],
    submit: impl Fn(&mut Context) -> Result<T, Failure>,
) -> Result<T, Failure> {
    hold_signals(context, signals)?;
    match submit(context) {
        Err(failure) if context.link.may_begin_again(&failure) => {
            // The end of the daemon may take a while, too.
            terminal::release_signals(signals)?;
            context.link.await_end()?;
            hold_signals(context, signals)?;
            submit(context)
        }
        outcome => outcome,
    }
}

/// Asks the daemon for the configured key unless one was given. Returns the call without waiting for its answer.
pub fn ask_for_key(client: &mut Client, named: Option<Key>) -> Result<Result<Key, u64>, ClientError> {
    match named {
        Some(key) => Ok(Ok(key)),
        None => client.send::<Hello>(&HelloParams::default(), &[]).map(Err),
    }
}

/// Returns the given key, or waits for the configured one.
pub fn await_key(client: &mut Client, asked: Result<Key, u64>) -> Result<Key, ClientError> {
    match asked {
        Ok(key) => Ok(key),
        Err(call) => Ok(client.answer::<Hello>(call)?.background_key),
    }
}
