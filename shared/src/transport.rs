//! Connecting to a daemon and listening as one, over a Unix stream socket.

use std::io;

use interprocess::local_socket::{ConnectOptions, GenericFilePath, prelude::*};
use interprocess::os::unix::uds_local_socket as uds;

use crate::socket::{SocketError, SocketPath};

/// A blocking connection.
pub type Stream = uds::Stream;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket or its folder must not be used.
    #[error(transparent)]
    Untrusted(#[from] SocketError),
    /// The socket belongs to somebody else: its other end runs as another user.
    #[error("the process behind {socket} runs as uid {peer}, not as you (uid {me})")]
    ForeignPeer {
        /// The socket.
        socket: String,
        /// Whose it is.
        peer: u32,
        /// The caller.
        me: u32,
    },
    /// Nobody listens there.
    #[error("no daemon answers at {socket}: {source}")]
    NoDaemon {
        /// The socket.
        socket: String,
        /// What the system said.
        source: io::Error,
    },
}

impl ConnectError {
    fn no_daemon(socket: &SocketPath, source: io::Error) -> Self {
        Self::NoDaemon { socket: socket.as_path().display().to_string(), source }
    }

    /// Whether there is simply no daemon, so that one may be started.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::NoDaemon { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
            ),
            Self::Untrusted(SocketError::Missing(_)) => true,
            Self::Untrusted(_) | Self::ForeignPeer { .. } => false,
        }
    }
}

/// Connects to the daemon of this user.
///
/// # Errors
/// There is none, or what is there must not be trusted.
pub fn connect(socket: &SocketPath) -> Result<Stream, ConnectError> {
    socket.check_folder()?;
    let options = || -> io::Result<ConnectOptions<'_>> {
        Ok(ConnectOptions::new().name(socket.as_path().to_fs_name::<GenericFilePath>()?))
    };
    let stream = options()
        .and_then(|options| options.connect_sync_as::<Stream>())
        .map_err(|source| ConnectError::no_daemon(socket, source))?;
    check_peer(&stream, socket)?;
    Ok(stream)
}

/// Asks the kernel who is at the other end, and refuses anybody but this user.
fn check_peer(stream: &impl std::os::fd::AsFd, socket: &SocketPath) -> Result<(), ConnectError> {
    let peer = crate::fds::peer_uid(stream).map_err(|source| ConnectError::no_daemon(socket, source))?;
    let me = nix::unistd::Uid::effective().as_raw();
    if peer == me {
        return Ok(());
    }
    Err(ConnectError::ForeignPeer { socket: socket.as_path().display().to_string(), peer, me })
}

#[cfg(feature = "tokio")]
pub use self::asynchronous::{AsyncListener, AsyncStream, connect_async, listen};

#[cfg(feature = "tokio")]
mod asynchronous {
    use interprocess::local_socket::{ConnectOptions, GenericFilePath, ListenerOptions, prelude::*};
    use interprocess::os::unix::local_socket::ListenerOptionsExt as _;
    use interprocess::os::unix::uds_local_socket::tokio as uds;

    use super::{ConnectError, check_peer, io};
    use crate::socket::SocketPath;

    /// A connection on tokio.
    pub type AsyncStream = uds::Stream;

    /// A listening socket on tokio.
    pub type AsyncListener = uds::Listener;

    /// Connects to the daemon of this user.
    ///
    /// # Errors
    /// There is none, or what is there must not be trusted.
    pub async fn connect_async(socket: &SocketPath) -> Result<AsyncStream, ConnectError> {
        use interprocess::local_socket::traits::tokio::Stream as _;
        socket.check_folder()?;
        let name = socket
            .as_path()
            .to_fs_name::<GenericFilePath>()
            .map_err(|source| ConnectError::no_daemon(socket, source))?;
        let stream = AsyncStream::from_options(&ConnectOptions::new().name(name))
            .await
            .map_err(|source| ConnectError::no_daemon(socket, source))?;
        check_peer(&stream, socket)?;
        Ok(stream)
    }

    /// Listens at a socket that only this user may connect to. The caller has checked the folder, holds
    /// the lock and has removed a stale socket.
    ///
    /// # Errors
    /// What the system says, for instance that the path is taken.
    pub fn listen(socket: &SocketPath) -> io::Result<AsyncListener> {
        ListenerOptions::new()
            .name(socket.as_path().to_fs_name::<GenericFilePath>()?)
            .reclaim_name(false)
            .mode(0o600)
            .create_tokio_as::<AsyncListener>()
    }
}
