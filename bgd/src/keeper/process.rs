//! The keeper's own process: the program `bgd` in a mode of its own. It may use nothing of the daemon but `os`, and it must
//! not end by itself while it holds something that a daemon may come for. When it ends as it holds nothing, it removes its
//! socket: so the next daemon can tell that from a keeper that was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bgd_shared::fds;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{Shutdown, SocketFlags, accept_with, listen, shutdown};

use super::{
    ARGUMENT, BACKLOG, HEAD_BYTES, Key, MESSAGE_BYTES, Message, NOBODY_ELSE, OTHERS_MAY_SAY_MORE, SOCKET,
    Word,
};
use crate::os::inherited;
use crate::os::pidfd::PidFd;

/// How long it holds what has ended if no daemon comes for it: as long as a durable daemon keeps finished tasks by default.
const LONGEST: Duration = Duration::from_hours(30 * 24);

/// How long it waits before it looks again whether [`LONGEST`] is over.
const LOOK: PollTimeout = PollTimeout::MAX;

/// How long it waits before it gives more while too many descriptors are on their way: no event tells when there are less.
const REST: u8 = 20;

/// How many may be connected at a time: the daemon, those before it that are not cut off yet, and strangers.
const CONNECTIONS: usize = 64;

/// What is held under a key.
struct Held {
    message: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Its place in the order in which everything came or was changed.
    number: u64,
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

/// Whoever has connected: the daemon, or one before it of whose socket others have copies, as processes do that are just
/// being started. None of them can hold up the others: nothing is waited for but all of them at once.
struct Connection {
    socket: OwnedFd,
    /// Its process, unless it has ended.
    process: Option<PidFd>,
    /// What it is yet to be given. `None` once it has everything.
    to_give: Option<BTreeSet<Key>>,
    /// The number of the last that came before it had connected.
    since: u64,
    /// Whether nobody else is heard since it has said that it has the locks.
    is_alone: bool,
    /// Whether too many descriptors of this user are on their way to be given more.
    is_crowded: bool,
}

/// What has come of listening to a connection.
enum Heard {
    /// A message, or nothing yet.
    Something,
    /// It has the locks of the daemon before.
    Alone,
    /// Nothing more comes from it.
    Gone,
    /// There is nothing left to do.
    End,
}

/// The state of a keeper.
struct Keeper {
    /// Where its socket is.
    place: PathBuf,
    /// The number of that file. One with another number is the next daemon's, which takes this one for ended.
    number: Option<u64>,
    listener: OwnedFd,
    connections: Vec<Connection>,
    held: BTreeMap<Key, Held>,
    /// The number of what came last.
    latest: u64,
    /// When the last connection was lost.
    alone_since: Option<Instant>,
    /// Whether no descriptor was left for one that wants to connect.
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
    let number = std::env::args_os().nth(3).and_then(|number| number.to_str()?.parse().ok());
    // Whoever connects learns the pid of the one that has done this last.
    listen(&listener, BACKLOG)?;
    let mut keeper = Keeper::new(place, number, listener);
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

    /// Gives as much as there is room for.
    fn give(&mut self, all: &BTreeMap<Key, Held>) {
        let Some(keys) = &mut self.to_give else { return };
        self.is_crowded = false;
        while let Some(key) = keys.first().copied() {
            if let Some(held) = all.get(&key) {
                let descriptors: Vec<_> = held.descriptors.iter().map(AsFd::as_fd).collect();
                match fds::send_now(&self.socket, &held.message, &descriptors) {
                    Err(error) if is_passing(&error) => return,
                    Err(error) if error.raw_os_error() == Some(Errno::ETOOMANYREFS as i32) => {
                        return self.is_crowded = true;
                    }
                    // Nobody is there any more, and what was said before is yet to be heard; or one that is there must
                    // not wait for the rest.
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
        let done = Message { pid: std::process::id().cast_signed(), text, ..Message::bare(Word::Done) };
        if !fds::send_now(&self.socket, &done.encode(), &[]).is_err_and(|error| is_passing(&error)) {
            self.to_give = None;
        }
    }
}

/// Whether there is just no room now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Keeper {
    fn new(place: PathBuf, number: Option<u64>, listener: OwnedFd) -> Self {
        Self {
            place,
            number,
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
                // Nothing can be waited for, so nobody is served any more.
                Err(_) => return,
            };
            self.is_short = false;
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

    /// Waits until there is something to do. Returns the events of the listener, and of each connection.
    fn wait(&self) -> Result<Vec<PollFlags>, Errno> {
        let timeout = match &self.connections[..] {
            _ if self.is_short => PollTimeout::from(REST),
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
        let mut all: Vec<PollFd<'_>> =
            [PollFd::new(self.listener.as_fd(), of_listener)].into_iter().chain(of_connections).collect();
        poll(&mut all, timeout)?;
        Ok(all.iter().map(|one| one.revents().unwrap_or(PollFlags::POLLIN)).collect())
    }

    /// Whether nobody is there, and nobody is to come for anything.
    fn is_over(&mut self) -> bool {
        if !self.connections.is_empty() {
            self.alone_since = None;
            return false;
        }
        let since = *self.alone_since.get_or_insert_with(Instant::now);
        // Another one without descriptors only says something of those with some.
        if self.held.iter().any(|(key, held)| *key == Key::OF_EVENTS || !held.descriptors.is_empty()) {
            let has_ended =
                |held: &Held| held.descriptors.first().is_none_or(|pidfd| has_ended(pidfd.as_fd()));
            return since.elapsed() > LONGEST && self.held.values().all(has_ended);
        }
        let is_own = |meta: fs::Metadata| self.number.is_none_or(|number| meta.ino() == number);
        if self.held.is_empty() && fs::metadata(&self.place).is_ok_and(is_own) {
            let _ = fs::remove_file(&self.place);
        }
        true
    }

    /// Handles one message.
    fn hear(&mut self, socket: &OwnedFd) -> Heard {
        let mut bytes = vec![0; HEAD_BYTES + MESSAGE_BYTES];
        let (count, descriptors) = match fds::receive(socket, &mut bytes) {
            Ok((0, _)) => return Heard::Gone,
            Ok(received) => received,
            // One that has ended without having read everything is told first; what it has said follows.
            Err(error) if is_passing(&error) || error.kind() == io::ErrorKind::ConnectionReset => {
                return Heard::Something;
            }
            Err(_) => return Heard::Gone,
        };
        bytes.truncate(count);
        match Message::decode(&bytes) {
            Some(Message { word: Word::Keep, key, .. }) => {
                bytes.shrink_to_fit();
                self.latest += 1;
                self.held.insert(key, Held { message: bytes, descriptors, number: self.latest });
            }
            Some(Message { word: Word::Drop, key, .. }) => _ = self.held.remove(&key),
            Some(Message { word: Word::Part, key, text, .. }) => {
                if let (Some(held), [place]) = (self.held.get_mut(&key), text) {
                    held.close(usize::from(*place));
                    self.latest += 1;
                    held.number = self.latest;
                }
            }
            Some(Message { word: Word::End, .. }) => return Heard::End,
            Some(Message { word: Word::Alone, .. }) => return Heard::Alone,
            // A later daemon may say more.
            Some(Message { word: Word::Done, .. }) | None => {}
        }
        Heard::Something
    }

    /// Takes a new connection, of the same user, which is to be given all that is held. Returns false if there is nothing
    /// left to do.
    fn welcome(&mut self) -> bool {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(error) => {
                // It is still there, and would be asked for without end.
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

    /// Takes no more from daemons that have ended, after what they and what they have started have said. Returns false if
    /// there is nothing left to do.
    fn cut_off_the_dead(&mut self) -> bool {
        let (living, dead) =
            std::mem::take(&mut self.connections).into_iter().partition(Connection::has_process);
        self.connections = living;
        self.cut_off(dead)
    }

    /// Takes no more from anybody but the daemon that has the locks, and gives it what the others have said since it
    /// connected. The one before has lost its locks, but its process may be long in ending. Returns false if there is
    /// nothing left to do.
    fn hear_only(&mut self, mut next: Connection) -> bool {
        let others = std::mem::take(&mut self.connections);
        let is_on = self.cut_off(others);
        let new = self.held.iter().filter(|(_, held)| held.number > next.since).map(|(key, _)| *key);
        next.to_give.get_or_insert_default().extend(new);
        next.is_alone = true;
        self.connections.push(next);
        is_on
    }

    /// Takes no more from these, after what they and what they have started have said. Whatever would announce itself later
    /// can't, and so does not run its program: the next daemon starts it. Returns false if there is nothing left to do.
    fn cut_off(&mut self, all: Vec<Connection>) -> bool {
        for Connection { socket, .. } in all {
            // From now on a send fails, and a receive has an end.
            let _ = shutdown(&socket, Shutdown::Read);
            loop {
                match self.hear(&socket) {
                    // The locks are of one that has connected later.
                    Heard::Something | Heard::Alone => {}
                    Heard::Gone => break,
                    Heard::End => return false,
                }
            }
        }
        true
    }
}

fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(pidfd, PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, socket_with, socketpair};

    use super::super::reach::Reached;
    use super::*;

    fn seqpacket() -> OwnedFd {
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn key(run: u32) -> Key {
        Key { run, ..Key::OF_EVENTS }
    }

    fn say(socket: &OwnedFd, word: Word, run: u32) -> io::Result<()> {
        let message = Message { word, key: key(run), ..Message::bare(word) };
        let null = fs::File::open("/dev/null")?;
        fds::send(socket, &message.encode(), &[null.as_fd()]).map(drop)
    }

    /// Returns the word of the next message, and its run.
    fn heard(socket: &OwnedFd) -> (Word, u32) {
        let mut bytes = vec![0; HEAD_BYTES + MESSAGE_BYTES];
        let (count, _descriptors) = fds::receive(socket, &mut bytes).unwrap();
        let message = Message::decode(&bytes[..count]).unwrap();
        (message.word, message.key.run)
    }

    /// A keeper that lives on a thread, and the socket of a daemon that it knows.
    struct Lives {
        folder: tempfile::TempDir,
        thread: thread::JoinHandle<()>,
    }

    impl Lives {
        fn with(process: Option<PidFd>) -> (Self, OwnedFd) {
            let folder = tempfile::tempdir().unwrap();
            let (place, listener) = (folder.path().join(SOCKET), seqpacket());
            bind(&listener, &SocketAddrUnix::new(&place).unwrap()).unwrap();
            listen(&listener, BACKLOG).unwrap();
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let number = fs::metadata(&place).unwrap().ino();
            let mut keeper = Keeper::new(place, Some(number), listener);
            keeper.connections.push(Connection { process, ..Connection::new(theirs, None, 0) });
            (Self { folder, thread: thread::spawn(|| keeper.live()) }, ours)
        }

        fn connect(&self) -> OwnedFd {
            let socket = seqpacket();
            connect(&socket, &SocketAddrUnix::new(self.folder.path().join(SOCKET)).unwrap()).unwrap();
            socket
        }

        fn end(self, last: &OwnedFd) {
            say(last, Word::End, 0).unwrap();
            self.thread.join().unwrap();
        }
    }

    /// What a dead daemon was about to start has announced itself to this keeper, or does not run: the next daemon starts it.
    #[test]
    fn r126_what_announces_itself_after_the_next_daemon_has_come_is_refused() {
        let (keeper, ours) = Lives::with(None);
        say(&ours, Word::Keep, 2).unwrap();
        say(&ours, Word::Keep, 3).unwrap();
        let next = keeper.connect();
        assert_eq!(
            [heard(&next), heard(&next), heard(&next)],
            [(Word::Keep, 2), (Word::Keep, 3), (Word::Done, 0)]
        );
        assert_eq!(say(&ours, Word::Keep, 4).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        // Another one that is connected holds up nobody.
        let other = keeper.connect();
        say(&next, Word::Drop, 2).unwrap();
        say(&next, Word::Keep, 5).unwrap();
        drop((next, ours));
        let deadline = Instant::now() + Duration::from_mins(1);
        let last = loop {
            assert!(Instant::now() < deadline, "what the one before has said is not heard");
            let last = keeper.connect();
            let mut all: Vec<_> =
                std::iter::from_fn(|| Some(heard(&last)).filter(|(word, _)| *word != Word::Done)).collect();
            all.sort_by_key(|(_, run)| *run);
            // The process of the one before lives, so this one is served as soon as it comes.
            if all == [(Word::Keep, 3), (Word::Keep, 5)] {
                break last;
            }
        };
        keeper.end(&last);
        drop(other);
    }

    /// The next daemon may take one that is slow to begin for ended.
    #[test]
    fn r126_a_keeper_that_held_nothing_removes_no_other_ones_socket() {
        for is_its_own in [true, false] {
            let (keeper, ours) = Lives::with(None);
            let place = keeper.folder.path().join(SOCKET);
            if !is_its_own {
                let other = keeper.folder.path().join("other");
                fs::write(&other, "").unwrap();
                fs::rename(other, &place).unwrap();
            }
            drop(ours);
            keeper.thread.join().unwrap();
            assert_eq!(place.exists(), !is_its_own);
        }
    }

    /// Its locks are free before its process has ended, which can be long in doing so.
    #[test]
    fn r126_the_daemon_with_the_locks_is_the_only_one_that_is_heard_though_the_one_before_has_not_ended() {
        let own = PidFd::open(std::process::id().cast_signed()).unwrap();
        let (keeper, ours) = Lives::with(Some(own));
        say(&ours, Word::Keep, 2).unwrap();
        let next = keeper.connect();
        assert_eq!([heard(&next), heard(&next)], [(Word::Keep, 2), (Word::Done, 0)]);
        say(&ours, Word::Keep, 3).unwrap();
        say(&next, Word::Alone, 0).unwrap();
        assert_eq!([heard(&next), heard(&next)], [(Word::Keep, 3), (Word::Done, 0)], "only what is new");
        assert_eq!(say(&ours, Word::Keep, 4).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let last = Reached::connect(keeper.folder.path()).unwrap().unwrap();
        let (all, _) = last.receive_all().unwrap();
        assert_eq!(all.iter().map(|kept| kept.key.run).collect::<Vec<_>>(), [2, 3]);
        keeper.end(&last.into_socket());
        drop((ours, next));
    }
}
