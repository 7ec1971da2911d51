//! Shows users on a terminal how far a wait is: its reason, a bar, a percentage.

pub mod bar;
pub mod percent;

use std::io::{self, IsTerminal as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::remark::say;
use crate::render::signs::ellipsis;

/// Prints the reason for a wait at intervals until dropped.
pub struct Progress {
    /// Dropping the sender ends the thread.
    _end: Option<mpsc::Sender<()>>,
}

/// The delay before the first message, and the interval between later ones.
const FIRST_REMARK: Duration = Duration::from_secs(2);
const REMARK_INTERVAL: Duration = Duration::from_secs(10);

impl Progress {
    /// Starts reporting a wait for `what`; does nothing unless standard error is a terminal.
    pub fn begin(what: &str) -> Self {
        if !io::stderr().is_terminal() {
            return Self { _end: None };
        }
        let (end, ends) = mpsc::channel();
        let what = what.to_owned();
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(move || {
            let mut waited = FIRST_REMARK;
            let mut pause = FIRST_REMARK;
            while ends.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                say(format_args!("bgctl: waiting for {what}, {} s so far {}", waited.as_secs(), ellipsis()));
                waited += REMARK_INTERVAL;
                pause = REMARK_INTERVAL;
            }
        });
        Self { _end: thread.is_ok().then_some(end) }
    }
}
