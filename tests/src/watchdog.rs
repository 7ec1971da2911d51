//! The deadline of a whole test. A single wait has its own ([`crate::wait::PATIENCE`]), but a test also waits for
//! programs to end, and nothing bounds that. When a test takes too long, the watchdog kills all processes of its home:
//! the test's wait then ends, and the test fails by itself, reporting all its findings.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::process::processes_of;

/// Maximum duration of a test. The longest one takes a tenth of it on an idle machine.
pub const LIFETIME: Duration = Duration::from_mins(15);

/// How often to kill processes that were started in the meantime.
const AGAIN: Duration = Duration::from_secs(1);

/// Watches over the processes of a home until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    _stop: Sender<()>,
}

impl Watchdog {
    /// Starts a watchdog, but only in a test; a bench may take as long as it likes.
    pub fn over(home: &Path) -> Option<Self> {
        let test = thread::current().name().unwrap_or("main").to_owned();
        (test != "main").then(|| Self::new(home, test, LIFETIME))
    }

    fn new(home: &Path, test: String, lifetime: Duration) -> Self {
        let home = home.to_owned();
        let (stop, stopped) = channel();
        thread::spawn(move || {
            let mut left = lifetime;
            while stopped.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                for process in processes_of(&home) {
                    eprintln!("{test} takes longer than {lifetime:?}: {process:?} is killed");
                    // The process may have ended meanwhile.
                    let _ = process.signal(Signal::KILL);
                }
                left = AGAIN;
            }
        });
        Self { _stop: stop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    #[test]
    fn watchdog_kills_processes_after_timeout() {
        let home = tempfile::tempdir().unwrap();
        let mut sleeps = Command::new("sleep").arg("1000").current_dir(home.path()).spawn().unwrap();
        let watchdog = Watchdog::new(home.path(), "this test".to_owned(), Duration::from_millis(1));
        assert_eq!(sleeps.wait().unwrap().signal(), Some(9));
        drop(watchdog);
    }
}
