//! The daemon's address: the directory, the lock and the socket by which clients find it, maintained for the daemon's
//! lifetime.
//!
//! A logout removes the runtime directory, and users clean up. A daemon without its socket would keep running with all
//! its tasks, unreachable. So missing parts are recreated at once, under the same rule as at startup: only the holder
//! of the lock may create the socket. A socket of a service manager is left to the manager.

use std::fs;
use std::io;
use std::num::NonZeroI32;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::fds;
use bgd_shared::holder::{Note, Phase};
use bgd_shared::mutex::Mutex;
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::{AsyncListener, listen};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tokio::sync::{mpsc, oneshot, watch};

use crate::carry::{CarriedFds, Fd, Obstacle};
use crate::os::lock::{FileId, ProcessLock};
use crate::os::path_watch::PathWatch;

/// How long to wait while a process that a killed daemon was about to start still serves the socket; and the interval
/// between checks.
const LETTING_GO: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

/// The delay before recreating something: removing a directory with its contents fails if it is refilled meanwhile.
const REST: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Address {
    socket: SocketPath,
    held: Arc<Mutex<Held>>,
    /// Delivers the lock once the other daemon that holds it has released it.
    turn: Option<oneshot::Receiver<io::Result<ProcessLock>>>,
}

/// The parts of the address that an upgrade carries; shared with [`Shown`].
#[derive(Debug)]
struct Held {
    lock: ProcessLock,
    note: Note,
    made: Made,
    /// The number of the listening descriptor of a socket that this program created.
    listener: Option<RawFd>,
}

/// Access to the lock and the socket's creator, for an upgrade in place.
#[derive(Clone, Debug)]
pub struct Shown(Arc<Mutex<Held>>);

impl Shown {
    /// Returns the lock, the note in it, the identity of the socket if this daemon created it, and whether a service
    /// manager did. `served` is the number of the descriptor at which the server listens.
    ///
    /// # Errors
    /// The server does not listen at the recreated socket yet.
    pub fn state(
        &self,
        served: RawFd,
        named: &mut CarriedFds,
    ) -> Result<(Fd, Note, Option<FileId>, bool), Obstacle> {
        let held = self.0.lock();
        if held.listener.is_some_and(|listener| listener != served) {
            return Err(Obstacle::passing("the socket is being recreated"));
        }
        let (socket, is_given) = match held.made {
            Made::Elsewhere => (None, true),
            Made::Here(file) => (file, false),
        };
        Ok((named.add(&held.lock), held.note.clone(), socket, is_given))
    }

    /// Returns a function that writes the daemon's phase into the lock file.
    pub fn phase_writer(self) -> Box<dyn Fn(Phase)> {
        Box::new(move |phase| {
            let held = self.0.lock();
            // Until its end is known, it may be killed before it has cancelled anything.
            let left = phase == Phase::Ending && held.note.durable;
            held.lock.write_note(&Note { phase, left, ..held.note.clone() });
        })
    }
}

/// The creator of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// A service manager, which maintains the socket.
    Elsewhere,
    /// This daemon. `None` if the file was gone before it could be identified.
    Here(Option<FileId>),
}

impl Made {
    fn is_at(self, path: &Path) -> bool {
        matches!(self, Self::Here(Some(file)) if Some(file) == FileId::of(path))
    }
}

/// Describes an obstacle at the socket's path that must not be removed.
#[derive(Debug)]
pub struct Obstruction(&'static str);

impl Address {
    /// Creates the address of a daemon that holds the lock. Records in the lock file that the daemon is starting,
    /// keeping the rest of a dead daemon's note.
    pub fn new(socket: SocketPath, lock: ProcessLock) -> Self {
        let note = Note { phase: Phase::Starting, ..lock.note() };
        lock.write_note(&note);
        Self::holding(socket, Held { lock, note, made: Made::Elsewhere, listener: None })
    }

    /// Restores the address of the program before an upgrade; `socket_file` and `is_given` are from [`Shown::state`].
    pub fn take_over(
        socket: SocketPath,
        lock: ProcessLock,
        note: Note,
        (socket_file, is_given): (Option<FileId>, bool),
    ) -> Self {
        let made = if is_given { Made::Elsewhere } else { Made::Here(socket_file) };
        Self::holding(socket, Held { lock, note, made, listener: None })
    }

    fn holding(socket: SocketPath, held: Held) -> Self {
        Self { socket, held: Arc::new(Mutex::new(held)), turn: None }
    }

    /// Returns access to the carried parts, for an upgrade.
    pub fn shown(&self) -> Shown {
        Shown(Arc::clone(&self.held))
    }

    /// Returns the note in the lock file: that of the previous daemon, until [`Self::write_note`] replaces it.
    pub fn note(&self) -> Note {
        self.held.lock().note.clone()
    }

    /// Writes this daemon's note into the lock file.
    pub fn write_note(&mut self, note: Note) {
        let mut held = self.held.lock();
        held.note = note;
        held.lock.write_note(&held.note);
    }

    /// Waits, for a moment at most, until no process serves the socket. The socket of a killed daemon may be served a
    /// little longer: a process that it was about to start has all its descriptors until it executes its program, and
    /// no event reports when it does.
    pub fn wait_until_let_go(&self) {
        let (end, before) = (Instant::now() + LETTING_GO, self.note().pid);
        while is_served(self.socket.as_path(), before) && Instant::now() < end {
            thread::sleep(LOOK);
        }
    }

    /// Creates the socket. Removes the socket of a dead daemon first, but nothing else.
    ///
    /// # Errors
    /// A system call fails. The inner error describes an obstacle at the path.
    pub fn listen(&mut self) -> io::Result<Result<AsyncListener, Obstruction>> {
        let path = self.socket.as_path();
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(meta) if !meta.file_type().is_socket() => return Ok(Err(Obstruction("is not a socket"))),
            Ok(_) if is_served(path, self.note().pid) => {
                return Ok(Err(Obstruction("is the socket of another program")));
            }
            Ok(_) => fs::remove_file(path)?,
        }
        let listener = listen(&self.socket)?;
        let mut held = self.held.lock();
        (held.made, held.listener) = (Made::Here(FileId::of(path)), Some(listener.as_fd().as_raw_fd()));
        drop(held);
        Ok(Ok(listener))
    }

    /// Maintains the address until `ends` changes. Sends recreated sockets to the server.
    pub async fn keep(
        mut self,
        listeners: mpsc::Sender<AsyncListener>,
        mut ends: watch::Receiver<bool>,
    ) -> Self {
        let mut last_error = String::new();
        while !self.is_given() {
            // Watch before checking, so that no change in between is missed.
            let missing = PathWatch::of(self.socket.as_path());
            match self.restore() {
                Ok(None) => last_error.clear(),
                Ok(Some(listener)) => {
                    tracing::warn!(socket = %self.socket.as_path().display(), "the socket was removed and has \
                         been recreated");
                    if listeners.send(listener).await.is_err() {
                        break;
                    }
                    continue;
                }
                Err(why) if why == last_error => {}
                Err(why) => {
                    tracing::error!(%why, "this daemon can't be reached: it can't recreate its socket yet");
                    last_error = why;
                }
            }
            tokio::select! {
                _ = ends.changed() => break,
                lock = turn(&mut self.turn) => self.take_turn(lock),
                () = missing.changed() => tokio::time::sleep(REST).await,
            }
        }
        if self.is_given() {
            let _ = ends.changed().await;
        }
        self
    }

    /// Recreates missing parts: directory, lock, socket. Returns the socket if it was recreated.
    fn restore(&mut self) -> Result<Option<AsyncListener>, String> {
        let lock = self.socket.beside("lock");
        let (has_socket, has_lock) = {
            let held = self.held.lock();
            (held.made.is_at(self.socket.as_path()), held.lock.is_at(&lock))
        };
        if has_socket && has_lock {
            return Ok(None);
        }
        self.socket.prepare_folder().map_err(|error| error.to_string())?;
        if !has_lock {
            let taken = || format!("another daemon holds {}", lock.display());
            if self.turn.is_some() {
                return Err(taken());
            }
            match ProcessLock::try_take(&lock) {
                Ok(Some(own)) => self.own(own),
                Ok(None) => {
                    self.turn = Some(wait_for_turn(lock.clone()));
                    return Err(taken());
                }
                Err(error) => return Err(format!("{}: {error}", lock.display())),
            }
        }
        if has_socket {
            return Ok(None);
        }
        let path = self.socket.as_path().display().to_string();
        match self.listen() {
            Ok(Ok(listener)) => Ok(Some(listener)),
            Ok(Err(Obstruction(what))) => Err(format!("{path} {what}")),
            Err(error) => Err(format!("{path}: {error}")),
        }
    }

    fn is_given(&self) -> bool {
        self.held.lock().made == Made::Elsewhere
    }

    fn own(&mut self, lock: ProcessLock) {
        let mut held = self.held.lock();
        lock.write_note(&held.note);
        held.lock = lock;
    }

    /// Handles the result of waiting for another daemon's lock.
    fn take_turn(&mut self, lock: io::Result<ProcessLock>) {
        self.turn = None;
        match lock {
            // The lock file may have been removed meanwhile; the next round then takes another one.
            Ok(lock) if lock.is_at(&self.socket.beside("lock")) => self.own(lock),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot wait for the lock"),
        }
    }

    /// Removes the socket if this daemon created it.
    pub fn leave(&self) {
        let path = self.socket.as_path();
        if self.held.lock().made.is_at(path)
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(%error, "cannot remove the socket");
        }
    }
}

impl Obstruction {
    /// Describes the obstacle, as the end of a sentence that begins with the path.
    pub fn what(&self) -> &'static str {
        self.0
    }
}

/// Reports whether a process listens on the socket, even if its queue is full. Sockets of the daemon with the PID
/// `before`, whose lock this process now has, do not count: a process that was just being started has copies of its
/// daemon's descriptors until its program was read, and the daemon's own process may take long to end.
fn is_served(path: &Path, before: Option<NonZeroI32>) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let connected = UnixAddr::new(path).and_then(|address| {
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &address).map(|()| socket)
    });
    match connected {
        Ok(socket) => before.is_none_or(|before| fds::peer_pid(&socket) != Some(before.get())),
        Err(errno) => errno == Errno::EAGAIN,
    }
}

/// Waits for a lock on a thread, as the kernel offers no other notification. The thread ends with the process.
fn wait_for_turn(path: std::path::PathBuf) -> oneshot::Receiver<io::Result<ProcessLock>> {
    let (sender, receiver) = oneshot::channel();
    if let Err(error) = ProcessLock::take_on_thread(path, move |lock| drop(sender.send(lock))) {
        tracing::warn!(%error, "cannot wait for the lock");
    }
    receiver
}

async fn turn(turn: &mut Option<oneshot::Receiver<io::Result<ProcessLock>>>) -> io::Result<ProcessLock> {
    match turn {
        Some(receiver) => receiver.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r122_recreated_socket_is_not_carried_before_it_is_served() {
        let home = tempfile::tempdir().unwrap();
        let socket = SocketPath::new(home.path().join("run/bgd.sock")).unwrap();
        socket.prepare_folder().unwrap();
        let lock = ProcessLock::try_take(&socket.beside("lock")).unwrap().unwrap();
        let mut address = Address::new(socket.clone(), lock);
        let state = |address: &Address, served: &AsyncListener| {
            address.shown().state(served.as_fd().as_raw_fd(), &mut CarriedFds::default())
        };
        let first = address.listen().unwrap().unwrap();
        assert!(state(&address, &first).is_ok());
        fs::remove_file(socket.as_path()).unwrap();
        let second = address.restore().unwrap().expect("it was removed");
        assert_eq!(state(&address, &first), Err(Obstacle::passing("the socket is being recreated")));
        assert!(state(&address, &second).is_ok());
    }
}
