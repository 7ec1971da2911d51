//! The address of the daemon for a program with several threads and many connections.

use std::io;
use std::time::Duration;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::{ConnectError, Stream};

use super::bootstrap::with_bootstrap;
use super::children::Carriers;
use super::host::Host;
use super::lost::{NO_DAEMON, named};
use super::programs;
use super::ssh::{self, Bridge, Dial, Dialling, shared_folder};
use super::ssh_failure::REFUSED;
use crate::failure::Failure;

/// Where the daemon is.
#[derive(Debug)]
pub enum DaemonAddress {
    /// On this machine, at this socket.
    Local(SocketPath),
    /// On a remote machine.
    Remote(RemoteMachine),
}

/// A remote machine. Its ssh asks no questions, because these would not be seen.
#[derive(Debug)]
pub struct RemoteMachine {
    host: Host,
    within: Duration,
    /// Whether to copy the programs to a machine on which they are not installed.
    bootstraps: bool,
    carriers: Carriers,
}

impl DaemonAddress {
    /// Creates the address of the daemon on a remote machine. Connecting takes at most `within`.
    pub fn remote(host: Host, within: Duration, bootstraps: bool) -> Self {
        Self::Remote(RemoteMachine { host, within, bootstraps, carriers: Carriers::default() })
    }

    /// Returns the machine, if it is a remote one.
    pub fn host(&self) -> Option<&Host> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(&remote.host),
        }
    }

    /// Connects to the running daemon for blocking calls.
    ///
    /// # Errors
    /// There is no daemon, or it can't be reached.
    pub fn client(&self) -> Result<Client, ClientError> {
        match self {
            Self::Local(socket) => Client::connect(socket),
            Self::Remote(remote) => remote.stream(false).map(Client::over),
        }
    }
}

impl RemoteMachine {
    /// Makes a connection; with `starts`, starts a daemon there if none is running. Blocks.
    ///
    /// # Errors
    /// There is no daemon, or the machine can't be reached.
    pub fn stream(&self, starts: bool) -> Result<Stream, ClientError> {
        let made = self.dial(starts, self.within);
        made.map(|(stream, _)| stream).map_err(|failure| client_error(named(&self.host, failure)))
    }

    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Forgets the shared connection, which may be dead unnoticed.
    pub fn forget_shared(&self) {
        ssh::forget_shared(&self.host, shared_folder().as_deref());
    }

    /// Connects within this time to the running daemon; also returns the daemon's instance. Blocks.
    ///
    /// # Errors
    /// There is no daemon, or the machine can't be reached.
    pub fn client(&self, within: Duration) -> Result<(Client, String), Failure> {
        self.dial(false, within).map(|(stream, instance)| (Client::over(stream), instance))
    }

    fn dial(&self, starts: bool, within: Duration) -> Result<(Stream, String), Failure> {
        let programs = if self.bootstraps { Some(programs::own()?) } else { None };
        let how = Dialling { starts, asks: false, within, programs };
        let dial = Dial::shared(&self.host, how);
        let Bridge { stream, ssh, instance, .. } = with_bootstrap(&dial, Dial::connect)?;
        self.carriers.add(ssh);
        Ok((stream, instance))
    }
}

/// Converts a failure to the error type of socket clients.
fn client_error(failure: Failure) -> ClientError {
    if failure.kind == NO_DAEMON {
        let source = io::Error::new(io::ErrorKind::NotFound, failure.message);
        return ConnectError::NoDaemon { socket: "the other machine".to_owned(), source }.into();
    }
    // Retrying does not help against a refusal.
    let kind = if failure.kind == REFUSED { ErrorKind::PermissionDenied } else { ErrorKind::Internal };
    let error = RpcError::new(kind, failure.message);
    ClientError::Rpc(match failure.hint {
        Some(hint) => error.hint(hint),
        None => error,
    })
}
