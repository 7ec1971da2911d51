//! The keeper's own process: the program `bgd` in a separate mode. It may use no part of the daemon except `os`, and it
//! must not end by itself while it holds anything for the next daemon, unless that can't reach it. When it ends because
//! it holds nothing, it removes its socket, so that the next daemon can distinguish this from a killed keeper.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bgd_shared::fds;
use bgd_shared::time::Timestamp;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{Shutdown, SocketFlags, accept_with, listen, shutdown};

use super::place::Place;
use super::{
    ARGUMENT, BACKLOG, HEAD_BYTES, Key, MESSAGE_BYTES, Message, MessageKind, NOBODY_ELSE,
    OTHERS_MAY_SAY_MORE, SOCKET, is_crowded, is_passing,
};
use crate::os::inherited;
use crate::os::pidfd::{self, PidFd};

/// How long the keeper holds ended processes if no daemon comes: as long as a durable daemon keeps finished tasks by
/// default.
const LONGEST: Duration = Duration::from_hours(30 * 24);

/// The interval between checks whether [`LONGEST`] has passed.
const LOOK: PollTimeout = PollTimeout::MAX;

/// The interval in milliseconds between checks whether a daemon can still connect, where no event reports that.
const LOOK_UNWATCHED: u16 = 60_000;

/// The delay in milliseconds before the keeper retries while it lacks descriptors, or too many are in flight: no event
/// reports when that changes.
const REST: u8 = 20;

/// Maximum number of connections: of the daemon, of earlier daemons that are not cut off yet, and of strangers.
const CONNECTIONS: usize = 64;

/// The content held under a key.
struct Held {
    message: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Increases with every message and change, to find later ones.
    number: u64,
}

impl Held {
    /// Replaces one of the descriptors by a copy of the pidfd, which closes it but keeps the positions of the others.
    fn close(&mut self, place: usize) {
        let copy = self.descriptors.first().map(|pidfd| fcntl_dupfd_cloexec(pidfd, 3));
        if let (Some(Ok(copy)), Some(fd)) = (copy, self.descriptors.get_mut(place)) {
            *fd = copy;
        }
    }
}

/// A connection: that of the daemon, or of an earlier one whose socket was copied to others, such as processes just
/// being started. No connection can block the others: the keeper waits for all of them at once.
struct Connection {
    socket: OwnedFd,
    /// The peer's process, unless it has ended.
    process: Option<PidFd>,
    /// The keys that are yet to be sent; `None` once everything was sent.
    to_give: Option<BTreeSet<Key>>,
    /// The number of the last message before the connection.
    since: u64,
    /// Whether the peer has the locks, so that no other peer is served.
    is_alone: bool,
    /// Whether this user has too many descriptors in flight to send more.
    is_crowded: bool,
}

/// The result of reading from a connection.
enum Heard {
    /// A message, or nothing yet.
    Something,
    /// The peer has the locks of the daemon before.
    Alone,
    /// Nothing more will arrive.
    Gone,
    /// The keeper must end.
    End,
}

struct Keeper {
    /// Where its socket is.
    place: Place,
    listener: OwnedFd,
    connections: Vec<Connection>,
    held: BTreeMap<Key, Held>,
    /// The number of the latest message or change.
    latest: u64,
    /// When the last connection was lost.
    alone_since: Option<Instant>,
    /// Whether a connection could not be accepted for lack of resources such as descriptors.
    is_short: bool,
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
    // The name would be that of `/proc/self/exe`; and an ending daemon spares processes with its own name. For a
    // non-dumpable process of the user, nothing but its name can be seen.
    let _ = nix::sys::prctl::set_name(c"bgd");
    // Signals from the terminal in which the daemon was started.
    let mut of_terminal = SigSet::empty();
    of_terminal.extend([Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT]);
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&of_terminal), None)?;
    let daemon = fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let listener = fcntl_dupfd_cloexec(io::stdout(), 3)?;
    let folder = std::env::args_os().nth(2).ok_or(io::ErrorKind::InvalidInput)?;
    let place = PathBuf::from(folder).join(SOCKET);
    let number = std::env::args_os().nth(3).and_then(|number| number.to_str()?.parse().ok());
    // The peer PID seen by connecting daemons is that of the last process that called this.
    listen(&listener, BACKLOG)?;
    let mut keeper = Keeper::new(Place::new(place, number), listener);
    keeper.connections.push(Connection::new(daemon, None, 0));
    keeper.live();
    Ok(())
}

impl Connection {
    fn new(socket: OwnedFd, to_give: Option<BTreeSet<Key>>, since: u64) -> Self {
        let process = fds::peer_pid(&socket).and_then(|pid| PidFd::open(pid).ok());
        Self { socket, process, to_give, since, is_alone: false, is_crowded: false }
    }

    fn has_process(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.has_ended())
    }

    /// Sends as much as there is room for.
    fn give(&mut self, all: &BTreeMap<Key, Held>) {
        let Some(keys) = &mut self.to_give else { return };
        self.is_crowded = false;
        while let Some(key) = keys.first().copied() {
            if let Some(held) = all.get(&key) {
                let descriptors: Vec<_> = held.descriptors.iter().map(AsFd::as_fd).collect();
                match fds::send_now(&self.socket, &held.message, &descriptors) {
                    Err(error) if is_passing(&error) => return,
                    Err(error) if is_crowded(&error) => return self.is_crowded = true,
                    // The peer is gone, and its earlier messages are yet to be read; or it is alive and must not wait
                    // for the rest.
                    Err(_) => {
                        let _ = shutdown(&self.socket, Shutdown::Write);
                        return self.to_give = None;
                    }
                    Ok(_) => {}
                }
            }
            keys.remove(&key);
        }
        let text = if self.is_alone { NOBODY_ELSE } else { OTHERS_MAY_SAY_MORE };
        let done =
            Message { pid: std::process::id().cast_signed(), text, ..Message::bare(MessageKind::Done) };
        if !fds::send_now(&self.socket, &done.encode(), &[]).is_err_and(|error| is_passing(&error)) {
            self.to_give = None;
        }
    }
}

impl Keeper {
    fn new(place: Place, listener: OwnedFd) -> Self {
        Self {
            place,
            listener,
            connections: Vec::new(),
            held: BTreeMap::new(),
            latest: 0,
            alone_since: None,
            is_short: false,
        }
    }

    fn live(mut self) {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                // Without polling, no connection can be served any more.
                Err(_) => return,
            };
            self.is_short = false;
            if self.connections.is_empty() {
                self.note_ends();
            }
            let is_asked = ready[0].contains(PollFlags::POLLIN);
            let connections = std::mem::take(&mut self.connections);
            let mut alone = None;
            for (connection, events) in connections.into_iter().zip(&ready[1..]) {
                let heard = if (*events - PollFlags::POLLOUT).is_empty() {
                    Heard::Something
                } else {
                    self.hear(&connection.socket)
                };
                match heard {
                    Heard::Something => self.connections.push(connection),
                    Heard::Alone => alone = Some(connection),
                    Heard::Gone => {}
                    Heard::End => return,
                }
            }
            if let Some(connection) = alone
                && !self.hear_only(connection)
            {
                return;
            }
            if is_asked && !self.welcome() {
                return;
            }
            self.connections.iter_mut().for_each(|connection| connection.give(&self.held));
            if self.is_over() {
                return;
            }
        }
    }

    /// Waits for something to do. Returns the events of the listener and of each connection, followed by others.
    fn wait(&self) -> Result<Vec<PollFlags>, Errno> {
        let timeout = match &self.connections[..] {
            _ if self.is_short => PollTimeout::from(REST),
            [] if self.place.changes().is_none() => PollTimeout::from(LOOK_UNWATCHED),
            [] => LOOK,
            some if some.iter().any(|one| one.is_crowded) => PollTimeout::from(REST),
            _ => PollTimeout::NONE,
        };
        let wanted = |one: &Connection| match one.to_give {
            Some(_) if !one.is_crowded => PollFlags::POLLIN | PollFlags::POLLOUT,
            Some(_) | None => PollFlags::POLLIN,
        };
        let of_connections = self.connections.iter().map(|one| PollFd::new(one.socket.as_fd(), wanted(one)));
        let of_listener = if self.is_short { PollFlags::empty() } else { PollFlags::POLLIN };
        // Without a daemon, the keeper notes when processes end.
        let is_alone = self.connections.is_empty();
        let processes = self.without_note().filter(|_| is_alone);
        let of_processes = processes.map(|(_, process)| PollFd::new(process.as_fd(), PollFlags::POLLIN));
        let of_listener = PollFd::new(self.listener.as_fd(), of_listener);
        let of_place = self.place.changes().map(|changes| PollFd::new(changes, PollFlags::POLLIN));
        let others = of_processes.chain(of_place);
        let mut all: Vec<PollFd<'_>> =
            [of_listener].into_iter().chain(of_connections).chain(others).collect();
        poll(&mut all, timeout)?;
        Ok(all.iter().map(|one| one.revents().unwrap_or(PollFlags::POLLIN)).collect())
    }

    /// Returns the processes of whose end there is no note.
    fn without_note(&self) -> impl Iterator<Item = (Key, &OwnedFd)> {
        let all = self.held.iter().filter_map(|(key, held)| Some((*key, held.descriptors.first()?)));
        all.filter(|(key, _)| !self.held.contains_key(&key.of_end()))
    }

    /// Notes for the next daemon which processes have ended since there is none. Each is noted once.
    fn note_ends(&mut self) {
        let ended = self.without_note().filter(|(_, process)| pidfd::has_ended(process));
        let ended: Vec<Key> = ended.map(|(key, _)| key).collect();
        let now = Timestamp::now().unix_ms().to_le_bytes();
        for key in ended.into_iter().map(Key::of_end) {
            self.latest += 1;
            let message = Message { key, text: &now, ..Message::bare(MessageKind::Keep) };
            let note = Held { message: message.encode(), descriptors: Vec::new(), number: self.latest };
            self.held.insert(key, note);
        }
    }

    /// Reports whether there is no connection, and nothing is held for the next daemon.
    fn is_over(&mut self) -> bool {
        if !self.connections.is_empty() {
            self.alone_since = None;
            self.place.ignore();
            return false;
        }
        self.place.watch();
        let since = *self.alone_since.get_or_insert_with(Instant::now);
        // Entries without descriptors only qualify others.
        if self.held.iter().any(|(key, held)| *key == Key::OF_EVENTS || !held.descriptors.is_empty()) {
            let has_ended = |held: &Held| held.descriptors.first().is_none_or(pidfd::has_ended);
            let all_ended = self.held.values().all(has_ended);
            return all_ended && (since.elapsed() > LONGEST || self.place.is_lost());
        }
        if self.held.is_empty() {
            self.place.remove();
        }
        true
    }

    /// Handles one message.
    fn hear(&mut self, socket: &OwnedFd) -> Heard {
        let mut bytes = vec![0; HEAD_BYTES + MESSAGE_BYTES];
        let (count, descriptors) = match fds::receive(socket, &mut bytes) {
            Ok((0, _)) => return Heard::Gone,
            Ok(received) => received,
            // The peer has ended without reading everything: this error comes first, its messages follow.
            Err(error) if is_passing(&error) || error.kind() == io::ErrorKind::ConnectionReset => {
                return Heard::Something;
            }
            // Its descriptors exceed the limit of this process: the daemon replaces a keeper that leaves it. Until
            // then, the next daemon must not take what is missing here for a process that has not started.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let message = Message::bare(MessageKind::Keep);
                self.latest += 1;
                let doubt = Held { message: message.encode(), descriptors: Vec::new(), number: self.latest };
                self.held.insert(message.key, doubt);
                return Heard::Gone;
            }
            Err(_) => return Heard::Gone,
        };
        bytes.truncate(count);
        match Message::decode(&bytes) {
            Some(Message { word: MessageKind::Keep, key, .. }) => {
                bytes.shrink_to_fit();
                self.held.remove(&key.of_end());
                self.latest += 1;
                self.held.insert(key, Held { message: bytes, descriptors, number: self.latest });
            }
            Some(Message { word: MessageKind::Drop, key, .. }) => {
                self.held.remove(&key);
                self.held.remove(&key.of_end());
            }
            Some(Message { word: MessageKind::Part, key, text, .. }) => {
                if let (Some(held), [place]) = (self.held.get_mut(&key), text) {
                    held.close(usize::from(*place));
                    self.latest += 1;
                    held.number = self.latest;
                }
            }
            Some(Message { word: MessageKind::End, .. }) => return Heard::End,
            Some(Message { word: MessageKind::Alone, .. }) => return Heard::Alone,
            // Possibly a message of a later daemon.
            Some(Message { word: MessageKind::Done, .. }) | None => {}
        }
        Heard::Something
    }

    /// Accepts a connection of the same user, which will be sent everything held. Returns false if the keeper must end.
    fn welcome(&mut self) -> bool {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(error) => {
                // The connection is still waiting and would be reported endlessly.
                self.is_short = matches!(
                    Errno::from_raw(error.raw_os_error()),
                    Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS
                );
                return true;
            }
        };
        let own = nix::unistd::Uid::effective().as_raw();
        if !fds::peer_uid(&socket).is_ok_and(|uid| uid == own) {
            return true;
        }
        let is_on = self.cut_off_the_dead();
        if self.connections.len() >= CONNECTIONS {
            return is_on;
        }
        let all = self.held.keys().copied().collect();
        self.connections.push(Connection::new(socket, Some(all), self.latest));
        is_on
    }

    /// Closes the connections of ended daemons, after reading what they and the processes that they started have sent.
    /// Returns false if the keeper must end.
    fn cut_off_the_dead(&mut self) -> bool {
        let (living, dead) =
            std::mem::take(&mut self.connections).into_iter().partition(Connection::has_process);
        self.connections = living;
        self.cut_off(dead)
    }

    /// Closes all connections but that of the daemon that has the locks, and queues for it everything that arrived
    /// since it connected. The previous daemon has lost its locks, but its process may take long to end. Returns false
    /// if the keeper must end.
    fn hear_only(&mut self, mut next: Connection) -> bool {
        let others = std::mem::take(&mut self.connections);
        let is_on = self.cut_off(others);
        let new = self.held.iter().filter(|(_, held)| held.number > next.since).map(|(key, _)| *key);
        next.to_give.get_or_insert_default().extend(new);
        next.is_alone = true;
        self.connections.push(next);
        is_on
    }

    /// Closes connections, after reading what the peers and the processes that they started have sent. A process that
    /// has yet to announce itself can't any more and so does not run its program: the next daemon starts it. Returns
    /// false if the keeper must end.
    fn cut_off(&mut self, all: Vec<Connection>) -> bool {
        for Connection { socket, .. } in all {
            // From now on sending to the keeper fails, and reading reaches an end.
            let _ = shutdown(&socket, Shutdown::Read);
            loop {
                match self.hear(&socket) {
                    // A later connection has the locks.
                    Heard::Something | Heard::Alone => {}
                    Heard::Gone => break,
                    Heard::End => return false,
                }
            }
        }
        true
    }
}
