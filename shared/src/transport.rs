//! Connecting to a daemon and listening as one, over a Unix stream socket.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use interprocess::os::unix::uds_local_socket as uds;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::holder::{self, Holder, Phase};
use crate::limits::FIRST_ANSWER;
use crate::socket::{SocketError, SocketPath};

/// A blocking connection.
pub type Stream = uds::Stream;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket or its folder must not be used.
    #[error(transparent)]
    Untrusted(#[from] SocketError),
    /// The peer runs as another user.
    #[error("the process behind {socket} runs as uid {peer}, not as you (uid {me})")]
    ForeignPeer {
        /// The socket.
        socket: String,
        /// Uid of the peer.
        peer: u32,
        /// Uid of the caller.
        me: u32,
    },
    /// A process listens on the socket but does not accept the connection.
    #[error(transparent)]
    NoAnswer(Unresponsive),
    /// No process listens on the socket, or the process that did has ended.
    #[error("no daemon is listening on {socket}: {source}")]
    NoDaemon {
        /// The socket.
        socket: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ConnectError {
    fn no_daemon(socket: &SocketPath, source: io::Error) -> Self {
        Self::NoDaemon { socket: socket.as_path().display().to_string(), source }
    }

    /// Reports whether there is no daemon, so that one may be started.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::NoDaemon { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
            ),
            Self::Untrusted(SocketError::Missing(_)) => true,
            Self::Untrusted(_) | Self::ForeignPeer { .. } | Self::NoAnswer(_) => false,
        }
    }
}

/// A daemon that is running but does not answer.
#[derive(Clone, Debug)]
pub struct Unresponsive {
    /// Its socket, if known.
    pub socket: Option<PathBuf>,
    /// The process that holds its lock, if it can be found.
    pub holder: Option<Box<Holder>>,
    /// How long it has been silent.
    pub after: Duration,
    /// Whether its process works nevertheless. It may still carry out the request.
    pub is_working: bool,
}

impl Unresponsive {
    /// Describes the daemon behind this socket, silent for `after`. `cpu` is the CPU time that it had used at some time
    /// in between, in ticks.
    pub fn new(socket: Option<&SocketPath>, after: Duration, cpu: Option<u64>) -> Self {
        let holder = socket.and_then(holder::of).map(Box::new);
        let is_working = holder.as_ref().is_some_and(|holder| holder.is_working(cpu));
        Self { socket: socket.map(|socket| socket.as_path().to_owned()), holder, after, is_working }
    }
}

impl fmt::Display for Unresponsive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the daemon ")?;
        if let Some(holder) = &self.holder {
            write!(f, "(pid {}) ", holder.pid)?;
        } else if let Some(socket) = &self.socket {
            write!(f, "at {} ", socket.display())?;
        }
        write!(f, "does not answer: no data from it for {} s", self.after.as_secs())?;
        match self.holder.as_ref().and_then(|holder| holder.state()) {
            Some(state) if self.is_working && state.0 != 'D' => write!(f, "; it is busy (state {})", state.0),
            Some(state) => write!(f, "; it {state}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Unresponsive {}

/// Connects to the daemon of this user.
///
/// # Errors
/// There is none, the peer must not be trusted, or it does not accept the connection within [`FIRST_ANSWER`].
pub fn connect(socket: &SocketPath) -> Result<Stream, ConnectError> {
    connect_within(socket, FIRST_ANSWER).map(|(stream, _)| stream)
}

/// Like [`connect`], but the daemon may take up to `at_most` to accept the connection. Also sets `at_most` as the
/// timeout of each write. Also returns the listening process, unless it is unknown, or has passed the socket on and
/// ended.
///
/// # Errors
/// As for [`connect`].
pub fn connect_within(
    socket: &SocketPath,
    at_most: Duration,
) -> Result<(Stream, Option<Listener>), ConnectError> {
    socket.check_folder()?;
    let stream = open_checked(socket, at_most)?;
    if let Ok(listener) = Listener::of(&stream) {
        return Ok((stream, listener));
    }
    // A process that was being started when its daemon was killed keeps the daemon's descriptors until it executes its
    // program: the kernel connects to that socket, but no process accepts the connection.
    match holder::of(socket).map(|holder| holder.note.phase) {
        None | Some(Phase::Starting) => Err(ConnectError::no_daemon(socket, Errno::ECONNREFUSED.into())),
        // The next daemon has just replaced the socket, or has received it from a process that has ended since.
        Some(Phase::Ready | Phase::Ending) => {
            let stream = open_checked(socket, at_most)?;
            let listener = Listener::of(&stream).unwrap_or(None);
            Ok((stream, listener))
        }
    }
}

/// Connects, and checks which user's process listens.
fn open_checked(socket: &SocketPath, at_most: Duration) -> Result<Stream, ConnectError> {
    match open(socket, at_most) {
        Ok(stream) => {
            check_peer(&stream, socket)?;
            Ok(stream)
        }
        // The backlog is full, and the daemon has accepted nothing within that time.
        Err(Errno::EAGAIN) => Err(ConnectError::NoAnswer(Unresponsive::new(Some(socket), at_most, None))),
        Err(errno) => Err(ConnectError::no_daemon(socket, errno.into())),
    }
}

fn open(path: &SocketPath, at_most: Duration) -> nix::Result<Stream> {
    let address = UnixAddr::new(path.as_path())?;
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // On Linux the send timeout also limits the connect of a Unix socket.
    let at_most = TimeVal::new(at_most.as_secs().cast_signed(), at_most.subsec_micros().into());
    setsockopt(&fd, sockopt::SendTimeout, &at_most)?;
    loop {
        match nix::sys::socket::connect(fd.as_raw_fd(), &address) {
            Ok(()) => return Ok(fd.into()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Asks the kernel for the peer's uid, and rejects any other user.
fn check_peer(stream: &impl AsFd, socket: &SocketPath) -> Result<(), ConnectError> {
    let peer = crate::fds::peer_uid(stream).map_err(|source| ConnectError::no_daemon(socket, source))?;
    let me = nix::unistd::Uid::effective().as_raw();
    if peer == me {
        return Ok(());
    }
    Err(ConnectError::ForeignPeer { socket: socket.as_path().display().to_string(), peer, me })
}

/// The process that listens on a connected socket. The connection may outlive it: a process that was being started has
/// copies of its daemon's descriptors until it executes its program.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// Error: the listening process has ended.
struct Gone;

impl Listener {
    /// Returns the process; `None` if it is unknown.
    fn of(stream: &impl AsFd) -> Result<Option<Self>, Gone> {
        let Some(pid) = crate::fds::peer_pid(stream).and_then(Pid::from_raw) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()).map(Self) {
            Ok(listener) if listener.has_ended() => Err(Gone),
            Ok(listener) => Ok(Some(listener)),
            Err(rustix::io::Errno::SRCH) => Err(Gone),
            Err(_) => Ok(None),
        }
    }

    /// Reports whether it has ended, even if it has not been reaped yet.
    pub fn has_ended(&self) -> bool {
        poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }
}

#[cfg(feature = "tokio")]
pub use self::asynchronous::{AsyncListener, AsyncStream, connect_async, into_async, listen};

#[cfg(feature = "tokio")]
mod asynchronous {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use interprocess::local_socket::{GenericFilePath, ListenerOptions, prelude::*};
    use interprocess::os::unix::local_socket::ListenerOptionsExt as _;
    use interprocess::os::unix::uds_local_socket::tokio as uds;

    use super::{ConnectError, Listener, Stream, connect_within, io};
    use crate::socket::SocketPath;

    /// A connection on tokio.
    pub type AsyncStream = uds::Stream;

    /// A listening socket on tokio.
    pub type AsyncListener = uds::Listener;

    /// Connects to the daemon of this user as [`connect_within`] does, on a thread that may block.
    ///
    /// # Errors
    /// As for [`connect`](super::connect).
    pub async fn connect_async(
        socket: &SocketPath,
        at_most: Duration,
    ) -> Result<(AsyncStream, Option<Listener>), ConnectError> {
        let failed = |source: io::Error| ConnectError::no_daemon(socket, source);
        let named = socket.clone();
        let stream = tokio::task::spawn_blocking(move || connect_within(&named, at_most));
        let (stream, listener) = stream.await.map_err(|error| failed(io::Error::other(error)))??;
        Ok((into_async(stream).map_err(failed)?, listener))
    }

    /// Continues a connection on tokio.
    ///
    /// # Errors
    /// The system's error.
    pub fn into_async(stream: Stream) -> io::Result<AsyncStream> {
        stream.set_nonblocking(true)?;
        AsyncStream::try_from(OwnedFd::from(stream)).map_err(|error| io::Error::other(error.to_string()))
    }

    /// Listens on a socket that only this user may connect to. The caller has checked the folder, holds the lock and
    /// has removed a stale socket.
    ///
    /// # Errors
    /// The system's error, for example that the path is in use.
    pub fn listen(socket: &SocketPath) -> io::Result<AsyncListener> {
        ListenerOptions::new()
            .name(socket.as_path().to_fs_name::<GenericFilePath>()?)
            .reclaim_name(false)
            .mode(0o600)
            .create_tokio_as::<AsyncListener>()
    }
}
