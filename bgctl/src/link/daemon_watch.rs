//! Waits for a daemon to appear without starting one: it may have been stopped on purpose.

use std::cell::Cell;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::{fs, io};

use bgd_shared::socket::SocketPath;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::connect;
use super::wait::sleep;
use crate::exit::Code;
use crate::failure::Failure;
use crate::watch::{is_exhausted, next_look};

/// Waits for a daemon to appear. May miss one that exists already when the watch is created.
pub struct DaemonWatch {
    socket: SocketPath,
    /// `None` if the system has no watches left; then the socket is polled.
    changes: Option<Inotify>,
    /// The socket as last seen, since one left behind by a killed daemon does not count.
    seen: Cell<Option<Seen>>,
}

/// Identifies a socket, to distinguish it from another one at the same path.
type Seen = (u64, i64, i64);

fn seen(socket: &SocketPath) -> Option<Seen> {
    // The inode number alone may be reused.
    fs::metadata(socket.as_path()).map(|meta| (meta.ino(), meta.ctime(), meta.ctime_nsec())).ok()
}

impl DaemonWatch {
    /// Watches the folder of the daemon's socket.
    ///
    /// # Errors
    /// The folder does not exist, or can't be watched.
    pub fn new(socket: SocketPath) -> Result<Self, Failure> {
        let folder = folder_of(&socket);
        let watched = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).and_then(|changes| {
            changes.add_watch(folder, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO)?;
            Ok(changes)
        });
        let changes = match watched {
            Ok(changes) => Some(changes),
            Err(error) if is_exhausted(error) => None,
            Err(error) => {
                let what = format!("can't wait for a daemon in {}", folder.display());
                return Err(Failure::io(what, &error.into()));
            }
        };
        let seen = Cell::new(seen(&socket));
        Ok(Self { socket, changes, seen })
    }

    /// Sleeps until a daemon has created its socket and listens, or has failed to.
    ///
    /// # Errors
    /// The reader of standard output or the folder is gone.
    pub fn wait(&self) -> Result<(), Failure> {
        let comes = match &self.changes {
            Some(changes) => self.wait_for_socket(changes)?,
            None => self.poll_for_socket()?,
        };
        if !comes {
            let message = "the daemon has ended, and the folder of its socket is gone";
            return Err(Failure::new(Code::NO_DAEMON, "no_daemon", message));
        }
        // The socket exists a moment before it accepts connections.
        let _ = connect::connect_patiently(&self.socket);
        Ok(())
    }

    /// Waits for the socket with inotify. Returns false if its folder is gone.
    fn wait_for_socket(&self, changes: &Inotify) -> Result<bool, Failure> {
        loop {
            sleep([Some(changes.as_fd())], None)?;
            let events = match changes.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(error) => return Err(Failure::io("can't wait for a daemon", &io::Error::from(error))),
            };
            if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED)) {
                return Ok(false);
            }
            let is_socket = |name: &_| self.socket.as_path().file_name() == Some(name);
            if events.iter().any(|event| event.name.as_deref().is_some_and(is_socket)) {
                return Ok(true);
            }
        }
    }

    /// Like [`Self::wait_for_socket`], by polling.
    fn poll_for_socket(&self) -> Result<bool, Failure> {
        loop {
            let now = seen(&self.socket);
            if now.is_some() && now != self.seen.replace(now) {
                return Ok(true);
            }
            if now.is_none() && !folder_of(&self.socket).is_dir() {
                return Ok(false);
            }
            sleep([], Some(next_look()))?;
        }
    }
}

fn folder_of(socket: &SocketPath) -> &Path {
    socket.as_path().parent().unwrap_or(socket.as_path())
}
