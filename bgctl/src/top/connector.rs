//! Connects to a host's daemon, at the start or again, beside everything else: on a thread of its own, as that may wait
//! for long.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use bgd_shared::client::PolledClient;

use crate::failure::Failure;
use crate::link::{DaemonWatch, Link, REFUSED};

/// The pauses between attempts where nothing tells when it is worth one: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

/// What became of an attempt.
pub enum Attempt {
    /// There is a connection: it was the last attempt.
    Made(Box<PolledClient>),
    /// There is none; another attempt follows.
    Failed(Failure),
}

/// A connection that is being made. Dropped, it makes no further attempt.
pub struct Connector {
    attempts: mpsc::Receiver<Attempt>,
    /// Readable when an attempt has ended.
    woken: UnixStream,
    nudge: mpsc::Sender<()>,
}

impl Connector {
    /// Begins to connect until a daemon is there. Starts one only in its first attempt, and only if `starts` and the
    /// link agree: whoever has stopped a daemon does not want one.
    ///
    /// # Errors
    /// There can be no more threads or descriptors.
    pub fn begin(link: Link, starts: bool) -> Result<Self, Failure> {
        let cannot = |error: io::Error| Failure::io("can't connect", &error);
        let (woken, wakes) = UnixStream::pair().map_err(cannot)?;
        woken.set_nonblocking(true).map_err(cannot)?;
        wakes.set_nonblocking(true).map_err(cannot)?;
        let (attempt, attempts) = mpsc::channel();
        let (nudge, nudged) = mpsc::channel();
        let report = Report { attempt, wakes };
        thread::Builder::new()
            .name("connect".to_owned())
            .spawn(move || connect(link, starts, report, &nudged))
            .map_err(cannot)?;
        Ok(Self { attempts, woken, nudge })
    }

    /// Readable when an attempt has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// The latest attempt that has ended since the last call.
    pub fn latest(&self) -> Option<Attempt> {
        let mut bytes = [0; 64];
        while (&self.woken).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        self.attempts.try_iter().last()
    }

    /// Ends the pause before the next attempt.
    pub fn nudge(&self) {
        // A thread that is gone has made its last attempt.
        let _ = self.nudge.send(());
    }
}

/// The thread's end.
struct Report {
    attempt: mpsc::Sender<Attempt>,
    wakes: UnixStream,
}

impl Report {
    /// Returns whether anybody still waits for the connection.
    fn tell(&mut self, attempt: Attempt) -> bool {
        let is_heard = self.attempt.send(attempt).is_ok();
        // A socket that is full wakes as well.
        let _ = self.wakes.write(b".");
        is_heard
    }
}

/// Makes attempts until one succeeds, or nobody waits for that any more.
fn connect(mut link: Link, mut starts: bool, mut report: Report, nudged: &mpsc::Receiver<()>) {
    let [first, longest] = PAUSES;
    let mut pause = first;
    loop {
        // Watched first, so that no daemon comes unseen in between.
        let watch = link.socket().and_then(DaemonWatch::new);
        let failure = match connected(&mut link, std::mem::take(&mut starts)) {
            Ok(client) => {
                report.tell(Attempt::Made(Box::new(client)));
                return;
            }
            Err(failure) => failure,
        };
        let is_refused = failure.kind == REFUSED;
        if !report.tell(Attempt::Failed(failure)) {
            return;
        }
        if watch.is_ok_and(|watch| watch.wait().is_ok()) {
            continue;
        }
        // Nothing tells when a host is back, or a removed folder. One that does not let this user in would take more
        // attempts for an attack.
        let waited = if is_refused {
            nudged.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            nudged.recv_timeout(pause)
        };
        pause = match waited {
            Ok(()) => first,
            Err(RecvTimeoutError::Timeout) => longest.min(pause * 2),
            Err(RecvTimeoutError::Disconnected) => return,
        };
    }
}

/// Connects once; to another machine, for as long as that may take.
fn connected(link: &mut Link, starts: bool) -> Result<PolledClient, Failure> {
    if starts {
        return link.polled();
    }
    if link.is_remote() {
        link.connect_again()?;
        return link.polled();
    }
    Ok(link.existing()?.into())
}
