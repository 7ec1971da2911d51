//! Tells people on a terminal what is waited for, once it takes long.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Says what is waited for, again and again, until it is dropped.
pub struct Progress {
    /// Dropped at the end, which the thread hears.
    _end: Option<mpsc::Sender<()>>,
}

/// When it is told first, and how often then.
const FIRST_TOLD: Duration = Duration::from_secs(2);
const TOLD_EVERY: Duration = Duration::from_secs(10);

impl Progress {
    /// Begins to wait for that.
    pub fn begin(what: &str) -> Self {
        if !io::stderr().is_terminal() {
            return Self { _end: None };
        }
        let (end, ends) = mpsc::channel();
        let what = what.to_owned();
        let told = thread::Builder::new().name("progress".to_owned()).spawn(move || {
            let mut waited = FIRST_TOLD;
            let mut pause = FIRST_TOLD;
            while ends.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Standard error may be closed; the exit code tells how it went.
                let _ = writeln!(io::stderr(), "bgctl: waiting for {what}, {} s so far …", waited.as_secs());
                waited += TOLD_EVERY;
                pause = TOLD_EVERY;
            }
        });
        Self { _end: told.is_ok().then_some(end) }
    }
}
