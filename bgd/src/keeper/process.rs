//! The keeper's own process: the program `bgd` in a mode of its own. It may use nothing of the daemon but `os`, and it must
//! not end by itself while it holds something that a daemon may come for. When it ends as it holds nothing, it removes its
//! socket: so the next daemon can tell that from a keeper that was killed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bgd_shared::fds;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, accept_with};

use super::{ARGUMENT, HEAD_BYTES, Key, MESSAGE_BYTES, Message, SOCKET, Word};
use crate::os::inherited;

/// How long it holds what has ended if no daemon comes for it: as long as a durable daemon keeps finished tasks by default.
const LONGEST: Duration = Duration::from_hours(30 * 24);

/// How long it waits before it looks again whether [`LONGEST`] is over.
const LOOK: PollTimeout = PollTimeout::MAX;

/// How long a daemon may take to receive a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is held under a key.
struct Held {
    message: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Held {
    /// Closes one of the descriptors. The others keep their places, so a copy of that of the process takes it.
    fn close(&mut self, place: usize) {
        let copy = self.descriptors.first().map(|pidfd| fcntl_dupfd_cloexec(pidfd, 3));
        if let (Some(Ok(copy)), Some(fd)) = (copy, self.descriptors.get_mut(place)) {
            *fd = copy;
        }
    }
}

/// The state of a keeper.
struct Keeper {
    /// Where its socket is.
    place: PathBuf,
    listener: OwnedFd,
    /// The daemon, while one lives.
    daemon: Option<OwnedFd>,
    held: BTreeMap<Key, Held>,
    /// When the daemon was lost.
    alone_since: Option<Instant>,
}

/// Runs a keeper. Its standard input is a socket to the daemon, its standard output the socket that the next daemon
/// connects to.
pub fn main() -> ExitCode {
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write as _;
            let _ = writeln!(io::stderr(), "bgd: {ARGUMENT} is for internal use only: {error}");
            ExitCode::from(2)
        }
    }
}

fn begin() -> io::Result<()> {
    inherited::close_all_but(None)?;
    // Executed as `/proc/self/exe`, it has another one; and a daemon spares its like at its end. Of a user's process that is
    // not dumpable nothing but the name shows what it is.
    let _ = nix::sys::prctl::set_name(c"bgd");
    // Those of a terminal that the daemon was started in.
    let mut of_terminal = SigSet::empty();
    of_terminal.extend([Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT]);
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&of_terminal), None)?;
    let daemon = fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let listener = fcntl_dupfd_cloexec(io::stdout(), 3)?;
    let folder = std::env::args_os().nth(2).ok_or(io::ErrorKind::InvalidInput)?;
    let place = PathBuf::from(folder).join(SOCKET);
    let (held, alone_since) = (BTreeMap::new(), None);
    Keeper { place, listener, daemon: Some(daemon), held, alone_since }.live();
    Ok(())
}

impl Keeper {
    fn live(mut self) {
        loop {
            let (fd, timeout) = match &self.daemon {
                Some(daemon) => (daemon.as_fd(), PollTimeout::NONE),
                None => (self.listener.as_fd(), LOOK),
            };
            match readable(fd, timeout) {
                Ok(true) if self.daemon.is_some() => {
                    if self.hear().is_none() {
                        return;
                    }
                }
                Ok(true) => self.welcome(),
                Ok(false) => {
                    if self.is_forgotten() {
                        return;
                    }
                }
                // Nothing can be waited for, so nobody is served any more.
                Err(_) => return,
            }
        }
    }

    /// Whether everything has ended, and no daemon has come for it.
    fn is_forgotten(&self) -> bool {
        let has_ended = |held: &Held| held.descriptors.first().is_none_or(|pidfd| has_ended(pidfd.as_fd()));
        self.alone_since.is_some_and(|since| since.elapsed() > LONGEST) && self.held.values().all(has_ended)
    }

    /// Handles one message of the daemon. Returns `None` if there is nothing left to do.
    fn hear(&mut self) -> Option<()> {
        let mut bytes = vec![0; HEAD_BYTES + MESSAGE_BYTES];
        let daemon = self.daemon.as_ref()?;
        let received = match fds::receive(daemon, &mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Some(()),
            received => received,
        };
        let Ok((count @ 1.., descriptors)) = received else {
            self.daemon = None;
            self.alone_since = Some(Instant::now());
            // Another one without descriptors only says something of those with some.
            if self.held.iter().any(|(key, held)| *key == Key::OF_EVENTS || !held.descriptors.is_empty()) {
                return Some(());
            }
            if self.held.is_empty() {
                let _ = fs::remove_file(&self.place);
            }
            return None;
        };
        bytes.truncate(count);
        match Message::decode(&bytes) {
            Some(Message { word: Word::Keep, key, .. }) => {
                bytes.shrink_to_fit();
                self.held.insert(key, Held { message: bytes, descriptors });
            }
            Some(Message { word: Word::Drop, key, .. }) => _ = self.held.remove(&key),
            Some(Message { word: Word::Part, key, text, .. }) => {
                if let (Some(held), [place]) = (self.held.get_mut(&key), text) {
                    held.close(usize::from(*place));
                }
            }
            Some(Message { word: Word::End, .. }) => return None,
            // A later daemon may say more.
            Some(Message { word: Word::Done, .. }) | None => {}
        }
        Some(())
    }

    /// Gives all that is held to a new daemon, of the same user, and goes on holding it.
    fn welcome(&mut self) {
        let Ok(daemon) = accept_with(&self.listener, SocketFlags::CLOEXEC) else { return };
        let own = nix::unistd::Uid::effective().as_raw();
        if fds::peer_uid(&daemon).is_ok_and(|uid| uid == own) && self.give(&daemon).is_ok() {
            (self.daemon, self.alone_since) = (Some(daemon), None);
        }
    }

    fn give(&self, daemon: &OwnedFd) -> io::Result<()> {
        set_socket_timeout(daemon, Timeout::Send, Some(PATIENCE))?;
        for held in self.held.values() {
            let descriptors: Vec<_> = held.descriptors.iter().map(AsFd::as_fd).collect();
            fds::send(daemon, &held.message, &descriptors)?;
        }
        let done = Message { pid: std::process::id().cast_signed(), ..Message::bare(Word::Done) };
        fds::send(daemon, &done.encode(), &[]).map(drop)
    }
}

fn readable(fd: BorrowedFd<'_>, timeout: PollTimeout) -> io::Result<bool> {
    match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    readable(pidfd, PollTimeout::ZERO).unwrap_or(true)
}
