//! Tests of the keeper's process, on a thread.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
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

fn say(socket: &OwnedFd, word: MessageKind, run: u32) -> io::Result<()> {
    let message = Message { word, key: key(run), ..Message::bare(word) };
    let null = fs::File::open("/dev/null")?;
    fds::send(socket, &message.encode(), &[null.as_fd()]).map(drop)
}

/// Returns the word of the next message and its run.
fn heard(socket: &OwnedFd) -> (MessageKind, u32) {
    let mut bytes = vec![0; HEAD_BYTES + MESSAGE_BYTES];
    let (count, _descriptors) = fds::receive(socket, &mut bytes).unwrap();
    let message = Message::decode(&bytes[..count]).unwrap();
    (message.word, message.key.run)
}

/// Returns a keeper without connections, with its socket in this folder.
fn keeper_in(folder: &Path) -> Keeper {
    let (path, listener) = (folder.join(SOCKET), seqpacket());
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, BACKLOG).unwrap();
    let number = fs::metadata(&path).unwrap().ino();
    Keeper::new(Place::new(path, Some(number)), listener)
}

/// Starts a process that ends when its input is closed, as by waiting for it.
fn cat() -> (Child, PidFd) {
    let process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let pidfd = PidFd::open(process.id().cast_signed()).unwrap();
    (process, pidfd)
}

/// A keeper running on a thread. [`RunningKeeper::with`] also returns the socket of its daemon.
struct RunningKeeper {
    folder: tempfile::TempDir,
    thread: thread::JoinHandle<()>,
}

impl RunningKeeper {
    fn with(process: Option<PidFd>) -> (Self, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut keeper = keeper_in(folder.path());
        keeper.connections.push(Connection { process, ..Connection::new(theirs, None, 0) });
        (Self { folder, thread: thread::spawn(|| keeper.live()) }, ours)
    }

    fn connect(&self) -> OwnedFd {
        let socket = seqpacket();
        connect(&socket, &SocketAddrUnix::new(self.folder.path().join(SOCKET)).unwrap()).unwrap();
        socket
    }

    fn end(self, last: &OwnedFd) {
        say(last, MessageKind::End, 0).unwrap();
        self.thread.join().unwrap();
    }
}

/// A process that a dead daemon was about to start has announced itself to this keeper, or does not run: the next
/// daemon starts it.
#[test]
fn r126_announcement_to_old_daemon_is_refused_after_the_next_connects() {
    let (keeper, ours) = RunningKeeper::with(None);
    say(&ours, MessageKind::Keep, 2).unwrap();
    say(&ours, MessageKind::Keep, 3).unwrap();
    let next = keeper.connect();
    assert_eq!(
        [heard(&next), heard(&next), heard(&next)],
        [(MessageKind::Keep, 2), (MessageKind::Keep, 3), (MessageKind::Done, 0)]
    );
    assert_eq!(say(&ours, MessageKind::Keep, 4).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    // An additional connection does not block the others.
    let other = keeper.connect();
    say(&next, MessageKind::Drop, 2).unwrap();
    say(&next, MessageKind::Keep, 5).unwrap();
    drop((next, ours));
    let deadline = Instant::now() + Duration::from_mins(1);
    let last = loop {
        assert!(Instant::now() < deadline, "what the one before has said is not heard");
        let last = keeper.connect();
        let mut all: Vec<_> =
            std::iter::from_fn(|| Some(heard(&last)).filter(|(word, _)| *word != MessageKind::Done))
                .collect();
        all.sort_by_key(|(_, run)| *run);
        // The process of the previous connection is alive, so this one is served as soon as it comes.
        if all == [(MessageKind::Keep, 3), (MessageKind::Keep, 5)] {
            break last;
        }
    };
    keeper.end(&last);
    drop(other);
}

/// The next daemon may assume that a keeper that is slow to start has ended.
#[test]
fn r126_empty_keeper_removes_only_its_own_socket() {
    for is_its_own in [true, false] {
        let (keeper, ours) = RunningKeeper::with(None);
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

/// Nobody could ever take over what it holds.
#[test]
fn r126_keeper_out_of_reach_ends_with_its_last_process() {
    let (keeper, ours) = RunningKeeper::with(None);
    let mut processes = [cat(), cat()];
    for (run, (_, pidfd)) in (2..).zip(&processes) {
        let keep = Message { key: key(run), ..Message::bare(MessageKind::Keep) };
        fds::send(&ours, &keep.encode(), &[pidfd.as_fd()]).unwrap();
    }
    let folder = keeper.folder.path();
    let moved = folder.with_extension("moved");
    fs::rename(folder, &moved).unwrap();
    drop(ours);
    processes[0].0.wait().unwrap();
    fs::rename(&moved, folder).unwrap();
    let next = keeper.connect();
    assert_eq!([heard(&next), heard(&next)], [(MessageKind::Keep, 2), (MessageKind::Keep, 3)]);
    fs::remove_dir_all(folder).unwrap();
    drop(next);
    assert!(!keeper.thread.is_finished(), "one of its processes still runs");
    processes[1].0.wait().unwrap();
    keeper.thread.join().unwrap();
}

#[test]
fn r126_keeper_whose_processes_have_ended_ends_when_its_socket_is_gone() {
    let removals: [fn(&Path); 3] = [
        |folder| fs::remove_dir_all(folder).unwrap(),
        |folder| {
            let moved = folder.with_extension("moved");
            fs::rename(folder, &moved).unwrap();
            fs::remove_dir_all(moved).unwrap();
        },
        // By the socket of another keeper.
        |folder| {
            let other = folder.join("other");
            fs::write(&other, "").unwrap();
            fs::rename(other, folder.join(SOCKET)).unwrap();
        },
    ];
    for remove in removals {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = keeper_in(folder.path());
        let (mut process, pidfd) = cat();
        let descriptors = vec![pidfd.as_fd().try_clone_to_owned().unwrap()];
        keeper.held.insert(key(2), Held { message: Vec::new(), descriptors, number: 1 });
        process.wait().unwrap();
        keeper.note_ends();
        assert!(!keeper.is_over(), "the next daemon can take over what it holds");
        remove(folder.path());
        // Nothing else wakes it.
        keeper.wait().unwrap();
        assert!(keeper.is_over());
    }
}

/// A daemon's locks are free before its process has ended, which can take long.
#[test]
fn r126_only_the_daemon_holding_the_locks_is_served() {
    let own = PidFd::open(std::process::id().cast_signed()).unwrap();
    let (keeper, ours) = RunningKeeper::with(Some(own));
    say(&ours, MessageKind::Keep, 2).unwrap();
    let next = keeper.connect();
    assert_eq!([heard(&next), heard(&next)], [(MessageKind::Keep, 2), (MessageKind::Done, 0)]);
    say(&ours, MessageKind::Keep, 3).unwrap();
    say(&next, MessageKind::Alone, 0).unwrap();
    assert_eq!(
        [heard(&next), heard(&next)],
        [(MessageKind::Keep, 3), (MessageKind::Done, 0)],
        "only what is new"
    );
    assert_eq!(say(&ours, MessageKind::Keep, 4).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let last = Reached::connect(keeper.folder.path()).unwrap().unwrap();
    let (all, _) = last.receive_all().unwrap();
    assert_eq!(all.iter().map(|kept| kept.key.run).collect::<Vec<_>>(), [2, 3]);
    keeper.end(&last.into_socket());
    drop((ours, next));
}
