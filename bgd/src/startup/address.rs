//! The daemon's address: the folder, the lock and the socket by which clients find it, for as long as it lives.
//!
//! A logout removes the runtime folder, and people clean up. A daemon without its socket would run on with all its
//! tasks, and nobody could reach it. So what is missing is made again at once, under the rules of the start: only who
//! holds the lock may make the socket. What belongs to a service manager is left to it.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use bgd_shared::holder::{Note, Phase};
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::{AsyncListener, listen};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tokio::sync::{mpsc, oneshot, watch};

use crate::os::lock::{FileId, ProcessLock};
use crate::os::missing::Missing;

/// How long it rests when something is missing: whoever removes a folder with all that is in it would find it filled
/// again, and fail.
const REST: Duration = Duration::from_millis(50);

/// Where a daemon is found.
#[derive(Debug)]
pub struct Address {
    socket: SocketPath,
    lock: ProcessLock,
    note: Note,
    made: Made,
    /// Tells when the lock is ours that another daemon has.
    turn: Option<oneshot::Receiver<io::Result<ProcessLock>>>,
}

/// Who made the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// A service manager, which looks after it.
    Elsewhere,
    /// This daemon: this file, unless that was gone before it could be looked at.
    Here(Option<FileId>),
}

impl Made {
    fn is_at(self, path: &Path) -> bool {
        matches!(self, Self::Here(Some(file)) if Some(file) == FileId::of(path))
    }
}

/// What stands at the socket's path and must not be removed.
#[derive(Debug)]
pub struct InTheWay(&'static str);

impl Address {
    /// The address of a daemon that has the lock. It is noted there that the daemon is starting, beside what a dead
    /// one may have left.
    pub fn new(socket: SocketPath, lock: ProcessLock) -> Self {
        let note = Note { phase: Phase::Starting, ..lock.note() };
        lock.write_note(&note);
        Self { socket, lock, note, made: Made::Elsewhere, turn: None }
    }

    /// What the lock's file says: of the daemon before this one, until [`Self::tell`] says more.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// Notes in the lock's file how this daemon is.
    pub fn tell(&mut self, note: Note) {
        self.note = note;
        self.lock.write_note(&self.note);
    }

    /// Makes the socket. One of a daemon that is dead is removed first, and nothing else is.
    ///
    /// # Errors
    /// What is in the way, or what the system says.
    pub fn listen(&mut self) -> io::Result<Result<AsyncListener, InTheWay>> {
        let path = self.socket.as_path();
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(meta) if !meta.file_type().is_socket() => return Ok(Err(InTheWay("is not a socket"))),
            Ok(_) if is_served(path) => return Ok(Err(InTheWay("is the socket of another program"))),
            Ok(_) => fs::remove_file(path)?,
        }
        let listener = listen(&self.socket)?;
        self.made = Made::Here(FileId::of(path));
        Ok(Ok(listener))
    }

    /// Keeps the address until `ends` changes. A socket that was made again is for the server.
    pub async fn keep(
        mut self,
        listeners: mpsc::Sender<AsyncListener>,
        mut ends: watch::Receiver<bool>,
    ) -> Self {
        let mut told = String::new();
        while self.made != Made::Elsewhere {
            // Watched before it is looked at, so that nothing happens unseen in between.
            let missing = Missing::of(self.socket.as_path());
            match self.restore() {
                Ok(None) => told.clear(),
                Ok(Some(listener)) => {
                    tracing::warn!(socket = %self.socket.as_path().display(), "the socket was removed and has \
                         been recreated");
                    if listeners.send(listener).await.is_err() {
                        break;
                    }
                    continue;
                }
                Err(why) if why == told => {}
                Err(why) => {
                    tracing::error!(%why, "this daemon can't be reached: it can't recreate its socket yet");
                    told = why;
                }
            }
            tokio::select! {
                _ = ends.changed() => break,
                lock = turn(&mut self.turn) => self.take_turn(lock),
                () = missing.changed() => tokio::time::sleep(REST).await,
            }
        }
        if self.made == Made::Elsewhere {
            let _ = ends.changed().await;
        }
        self
    }

    /// Makes again what is missing: the folder, the lock, the socket. Gives the socket if that was.
    fn restore(&mut self) -> Result<Option<AsyncListener>, String> {
        let lock = self.socket.beside("lock");
        let has_socket = self.made.is_at(self.socket.as_path());
        if has_socket && self.lock.is_at(&lock) {
            return Ok(None);
        }
        self.socket.prepare_folder().map_err(|error| error.to_string())?;
        if !self.lock.is_at(&lock) {
            let taken = || format!("another daemon has {}", lock.display());
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
            Ok(Err(InTheWay(what))) => Err(format!("{path} {what}")),
            Err(error) => Err(format!("{path}: {error}")),
        }
    }

    fn own(&mut self, lock: ProcessLock) {
        lock.write_note(&self.note);
        self.lock = lock;
    }

    /// The other daemon is gone, or its lock can't be waited for.
    fn take_turn(&mut self, lock: io::Result<ProcessLock>) {
        self.turn = None;
        match lock {
            // Its file may have been removed meanwhile; then there is another one to be taken.
            Ok(lock) if lock.is_at(&self.socket.beside("lock")) => self.own(lock),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot wait for the lock"),
        }
    }

    /// Removes the socket, if it is the one that was made here.
    pub fn leave(&self) {
        let path = self.socket.as_path();
        if self.made.is_at(path)
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(%error, "cannot remove the socket");
        }
    }
}

impl InTheWay {
    /// What it is, as the end of a sentence that begins with the path.
    pub fn what(&self) -> &'static str {
        self.0
    }
}

/// Whether somebody listens there, be it that their queue is full.
fn is_served(path: &Path) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let connected = UnixAddr::new(path).and_then(|address| {
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &address)
    });
    matches!(connected, Ok(()) | Err(Errno::EAGAIN))
}

/// Waits for a lock on a thread: the kernel has no other word for when it is free. The thread ends with the process.
fn wait_for_turn(path: std::path::PathBuf) -> oneshot::Receiver<io::Result<ProcessLock>> {
    let (sender, receiver) = oneshot::channel();
    let wait = move || drop(sender.send(ProcessLock::take(&path)));
    if let Err(error) = thread::Builder::new().name("lock".to_owned()).spawn(wait) {
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
