//! Connects to a host's daemon, initially or again, in the background: on a separate thread, as connecting may take
//! long.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use bgd_shared::client::PolledClient;
use bgd_shared::pauses::next_pause;

use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{DaemonWatch, Link, REFUSED};

/// The first and the longest pause between attempts, for when no event indicates that another attempt is worthwhile.
pub const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

/// When to make the first attempt, and whether that may start a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// At once. Starts a daemon if the link's options allow it.
    Starts,
    /// At once, without starting a daemon: a user who has stopped it does not want another.
    AtOnce,
    /// After this pause, without starting a daemon: the previous connection was made, but then refused.
    After(Duration),
}

/// The outcome of an attempt.
pub enum Attempt {
    /// Connected. This was the last attempt.
    Made(Box<PolledClient>),
    /// Not connected. Another attempt follows.
    Failed(Failure),
}

/// A connection in progress. Dropping it prevents further attempts.
pub struct Connector {
    attempts: mpsc::Receiver<Attempt>,
    /// Readable when an attempt has ended.
    woken: UnixStream,
    nudge: mpsc::Sender<()>,
}

impl Connector {
    /// Starts connecting, with repeated attempts until a daemon is there. Only the first attempt may start a daemon.
    ///
    /// # Errors
    /// Out of threads or file descriptors.
    pub fn begin(link: Link, first: First) -> Result<Self, Failure> {
        let cannot = |error: io::Error| Failure::io("can't connect", &error);
        let (woken, wakes) = UnixStream::pair().map_err(cannot)?;
        woken.set_nonblocking(true).map_err(cannot)?;
        wakes.set_nonblocking(true).map_err(cannot)?;
        let (attempt, attempts) = mpsc::channel();
        let (nudge, nudged) = mpsc::channel();
        let report = Report { attempt, wakes };
        thread::Builder::new()
            .name("connect".to_owned())
            .spawn(move || connect(link, first, report, &nudged))
            .map_err(cannot)?;
        Ok(Self { attempts, woken, nudge })
    }

    /// Returns a descriptor that is readable when an attempt has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Returns the latest attempt that has ended since the last call.
    pub fn latest(&self) -> Option<Attempt> {
        let mut bytes = [0; 64];
        while (&self.woken).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        self.attempts.try_iter().last()
    }

    /// Ends the pause before the next attempt.
    pub fn nudge(&self) {
        // If the thread is gone, there are no more attempts.
        let _ = self.nudge.send(());
    }
}

/// The thread's end of the channel.
struct Report {
    attempt: mpsc::Sender<Attempt>,
    wakes: UnixStream,
}

impl Report {
    /// Reports an attempt. Returns whether the connection is still awaited.
    fn report(&mut self, attempt: Attempt) -> bool {
        let is_heard = self.attempt.send(attempt).is_ok();
        // A full socket wakes the receiver as well.
        let _ = self.wakes.write(b".");
        is_heard
    }
}

/// Makes attempts until one succeeds or the connection is no longer awaited.
fn connect(mut link: Link, first: First, mut report: Report, nudged: &mpsc::Receiver<()>) {
    let mut starts = first == First::Starts;
    let mut pause = PAUSES[0];
    if let First::After(before) = first {
        match nudged.recv_timeout(before) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => pause = next_pause(before, PAUSES),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
    loop {
        // Start watching first, so that a daemon that starts in between is not missed.
        let watch = link.socket().and_then(DaemonWatch::new);
        let failure = match connected(&mut link, std::mem::take(&mut starts)) {
            Ok(client) => {
                report.report(Attempt::Made(Box::new(client)));
                return;
            }
            Err(failure) => failure,
        };
        let is_refused = failure.kind == REFUSED;
        // A daemon that does not answer, or refuses at the moment, creates no new socket.
        let is_absent = failure.kind == "no_daemon" && failure.code == Code::NO_DAEMON;
        if !report.report(Attempt::Failed(failure)) {
            return;
        }
        if is_absent && watch.is_ok_and(|watch| watch.wait().is_ok()) {
            continue;
        }
        // There is no event for the return of a host, of a removed folder or of a stopped daemon. A host that refuses
        // this user would take more attempts for an attack.
        let waited = if is_refused {
            nudged.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            nudged.recv_timeout(pause)
        };
        pause = match waited {
            Ok(()) => PAUSES[0],
            Err(RecvTimeoutError::Timeout) => next_pause(pause, PAUSES),
            Err(RecvTimeoutError::Disconnected) => return,
        };
    }
}

/// Connects once. Connecting to another machine may take long.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use nix::errno::Errno;
    use nix::poll::{PollFd, PollFlags, poll};
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
    };

    use crate::link::{Options, Target};

    /// Timeout for events that are expected at once.
    const PATIENCE: Duration = Duration::from_mins(1);

    fn next(connector: &Connector) -> Attempt {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(attempt) = connector.latest() {
                return attempt;
            }
            let left = crate::link::poll_timeout(until);
            let mut sources = [PollFd::new(connector.descriptor(), PollFlags::POLLIN)];
            assert_ne!(poll(&mut sources, left), Ok(0), "no attempt has ended");
        }
    }

    /// Returns a link to the daemon with a socket in this folder.
    fn link(folder: &std::path::Path) -> Link {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        Link::new(Options {
            target: Target::Local(Some(folder.join("socket"))),
            starts: false,
            reports: false,
            asks: false,
            bootstraps: false,
            connect_timeout: PATIENCE,
        })
    }

    #[test]
    fn connector_reconnects_when_a_full_backlog_drains() {
        let folder = tempfile::tempdir().unwrap();
        let stream = || socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
        let (listener, address) = (stream(), UnixAddr::new(&folder.path().join("socket")).unwrap());
        bind(std::os::fd::AsRawFd::as_raw_fd(&listener), &address).unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let mut held = Vec::new();
        loop {
            let client = stream();
            match connect(std::os::fd::AsRawFd::as_raw_fd(&client), &address) {
                Ok(()) => held.push(client),
                Err(errno) => break assert_eq!(errno, Errno::EAGAIN),
            }
        }
        let connector = Connector::begin(link(folder.path()), First::AtOnce).unwrap();
        match next(&connector) {
            Attempt::Failed(failure) => assert_eq!(failure.kind, "no_answer"),
            Attempt::Made(_) => panic!("its backlog is full"),
        }
        let listener = UnixListener::from(listener);
        for _ in &held {
            listener.accept().unwrap();
        }
        assert!(matches!(next(&connector), Attempt::Made(_)));
    }

    #[test]
    fn connector_pauses_before_an_attempt_unless_nudged() {
        let folder = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let (begun, pause) = (Instant::now(), Duration::from_millis(50));
        let connector = Connector::begin(link(folder.path()), First::After(pause)).unwrap();
        assert!(matches!(next(&connector), Attempt::Made(_)));
        assert!(begun.elapsed() >= pause);
        let connector = Connector::begin(link(folder.path()), First::After(PATIENCE * 10)).unwrap();
        connector.nudge();
        assert!(matches!(next(&connector), Attempt::Made(_)));
    }
}
