//! Connects to the keeper of a previous daemon. A silent keeper is awaited while it may be alive: without it, all
//! running processes would be lost.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bgd_shared::{fds, proc};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{
    HEAD_BYTES, Kept, Key, MESSAGE_BYTES, Message, MessageKind, OTHERS_MAY_SAY_MORE, PATIENCE, SOCKET,
};
use crate::os::pidfd::PidFd;

/// How long a keeper may be silent before the daemon refuses to start.
const LONGEST: Duration = Duration::from_secs(20);

/// The interval in milliseconds at which a silent keeper is checked and sent SIGCONT, in case it was stopped.
const LOOK: u8 = 100;

/// How long, in milliseconds, a process may take to end after its sockets were closed.
const ENDING: u16 = 1000;

/// The name of a keeper's process.
const NAME: &[u8] = b"bgd";

/// Why the keeper of a previous daemon does not send what it holds.
#[derive(Debug)]
pub enum NotFound {
    /// The keeper was ended, and the descriptors it held are lost.
    Gone(io::Error),
    /// The keeper may be alive but does not answer.
    Silent(io::Error),
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Gone(error) | Self::Silent(error)) = self;
        error.fmt(f)
    }
}

pub(super) struct Reached {
    socket: OwnedFd,
    /// The keeper's process, if known.
    process: Option<(i32, PidFd)>,
}

impl Reached {
    /// Connects to the keeper of this folder; `None` if it has ended by itself.
    pub(super) fn connect(folder: &Path) -> Result<Option<Self>, NotFound> {
        let connected = new_socket().and_then(|socket| {
            set_timeouts(&socket)?;
            with_address(folder, SOCKET, |address| connect(&socket, address))?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => {
                let process = fds::peer_pid(&socket).filter(|pid| is_one(*pid));
                let process = process.and_then(|pid| Some((pid, PidFd::open(pid).ok()?)));
                // Before a keeper calls `listen`, this is the PID of its daemon, whose end says nothing about the
                // keeper.
                let process = process.filter(|(_, process)| !process.has_ended());
                Ok(Some(Self { socket, process }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(NotFound::Gone(error)),
            Err(error) => Err(NotFound::Silent(error)),
        }
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Receives everything held, and makes the keeper serve no one else; call it with the locks of the previous daemon.
    /// Also returns the keeper's PID.
    pub(super) fn receive_all(&self) -> Result<(Vec<Kept>, i32), NotFound> {
        let mut all: BTreeMap<Key, Kept> = BTreeMap::new();
        fds::send(&self.socket, &Message::bare(MessageKind::Alone).encode(), &[])
            .map_err(|error| self.failed(error))?;
        let mut bytes = vec![0; HEAD_BYTES + MESSAGE_BYTES];
        loop {
            self.wait(LONGEST)?;
            let (count, descriptors) =
                fds::receive(&self.socket, &mut bytes).map_err(|error| self.failed(error))?;
            match Message::decode(&bytes[..count]) {
                Some(Message { word: MessageKind::Keep, key, pid, text }) => {
                    all.insert(key, Kept { key, pid, text: text.to_vec(), descriptors, ended_at: None });
                }
                Some(Message { word: MessageKind::Done, text, .. }) if text == OTHERS_MAY_SAY_MORE => {}
                Some(Message { word: MessageKind::Done, pid, .. }) => {
                    return Ok((all.into_values().collect(), pid));
                }
                Some(Message {
                    word: MessageKind::Drop | MessageKind::End | MessageKind::Part | MessageKind::Alone,
                    ..
                }) => {}
                None if count == 0 => return Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
                None => return Err(NotFound::Silent(io::Error::other("it sent an unknown message"))),
            }
        }
    }

    /// Ends the keeper, which closes everything that it holds.
    pub(super) fn end(self) {
        if fds::send(&self.socket, &Message::bare(MessageKind::End).encode(), &[]).is_ok() {
            // The keeper sends everything first. Received descriptors are closed, as is the connection at the end.
            let mut bytes = vec![0; HEAD_BYTES + MESSAGE_BYTES];
            while self.wait(PATIENCE).is_ok()
                && matches!(fds::receive(&self.socket, &mut bytes), Ok((1.., _)))
            {}
        }
    }

    /// Waits for a message from the keeper.
    fn wait(&self, at_most: Duration) -> Result<(), NotFound> {
        let begun = Instant::now();
        let mut has_warned = false;
        loop {
            match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], LOOK) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(NotFound::Silent(error.into())),
            }
            let silent = begun.elapsed();
            if let Some((_, process)) = &self.process {
                // Its socket may survive in a process that was just being started.
                if process.has_ended() {
                    return Err(NotFound::Gone(io::ErrorKind::UnexpectedEof.into()));
                }
                let _ = process.signal(libc::SIGCONT);
            }
            if silent > at_most {
                return Err(self.failed(io::ErrorKind::TimedOut.into()));
            }
            if silent > PATIENCE && !has_warned {
                has_warned = true;
                tracing::warn!(pid = self.pid(), "the keeper of running tasks is slow: waiting for it");
            }
        }
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|(pid, _)| *pid)
    }

    /// Distinguishes a keeper that was ended from one that may be alive.
    fn failed(&self, error: io::Error) -> NotFound {
        let is_cut = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        );
        if let Some((_, process)) = self.process.as_ref().filter(|_| is_cut) {
            let _ = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], ENDING);
        }
        match &self.process {
            Some((_, process)) if process.has_ended() => NotFound::Gone(error),
            Some((pid, _)) => NotFound::Silent(io::Error::new(error.kind(), format!("{error} (pid {pid})"))),
            None => NotFound::Silent(error),
        }
    }
}

/// Reports whether this PID may be a keeper's: before a keeper calls `listen`, the PID is that of its daemon.
fn is_one(pid: i32) -> bool {
    let name = proc::name(pid);
    name.is_empty() || name == NAME
}

/// Ends the keeper of a daemon that had this folder, as the processes it holds will not be taken over. Returns whether
/// there was one.
pub fn dismiss(folder: &Path) -> bool {
    let Ok(Some(reached)) = Reached::connect(folder) else { return false };
    reached.end();
    true
}

/// Calls a function with the address of a socket in this folder. As a path in the state folder may be too long for a
/// socket address, the folder is addressed through a descriptor.
pub(super) fn with_address<T>(
    folder: &Path,
    name: &str,
    call: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<T>,
) -> io::Result<T> {
    let folder = fs::File::open(folder)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))?;
    Ok(call(&address)?)
}

pub(super) fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sets the timeouts for sending and receiving.
pub(super) fn set_timeouts(socket: &OwnedFd) -> io::Result<()> {
    set_socket_timeout(socket, Timeout::Send, Some(PATIENCE))?;
    Ok(set_socket_timeout(socket, Timeout::Recv, Some(PATIENCE))?)
}
