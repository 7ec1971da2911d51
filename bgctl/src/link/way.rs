//! The way to the daemon for a program with several threads and many connections.

use std::io;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::{ConnectError, Stream};

use super::bootstrap::supplied;
use super::host::Host;
use super::lost::{NO_REMOTE_DAEMON, named};
use super::programs;
use super::ssh::{self, Bridge, Dial, Dialling, REFUSED, shared_place};
use crate::failure::Failure;

/// Where the daemon is.
#[derive(Debug)]
pub enum Way {
    /// On this machine, at this socket.
    Here(SocketPath),
    /// On another machine.
    There(There),
}

/// Another machine. Its ssh asks no questions: nobody would see them.
#[derive(Debug)]
pub struct There {
    host: Host,
    within: Duration,
    /// Whether programs are copied to a machine that has none.
    bootstraps: bool,
    /// The ssh of each connection, until it has ended.
    carriers: Mutex<Vec<Child>>,
}

impl Way {
    /// The way to another machine. Connecting to it takes at most `within`.
    pub fn there(host: Host, within: Duration, bootstraps: bool) -> Self {
        Self::There(There { host, within, bootstraps, carriers: Mutex::default() })
    }

    /// The machine, if it is another one.
    pub fn host(&self) -> Option<&Host> {
        match self {
            Self::Here(_) => None,
            Self::There(there) => Some(&there.host),
        }
    }

    /// Makes a connection for blocking calls to the daemon that is running.
    ///
    /// # Errors
    /// There is none, or it can't be reached.
    pub fn client(&self) -> Result<Client, ClientError> {
        match self {
            Self::Here(socket) => Client::connect(socket),
            Self::There(there) => there.stream(false).map(Client::over),
        }
    }
}

impl There {
    /// Makes a connection; with `starts`, starts a daemon there if none is running. Blocks.
    ///
    /// # Errors
    /// There is no daemon, or the machine can't be reached.
    pub fn stream(&self, starts: bool) -> Result<Stream, ClientError> {
        let made = self.dial(starts, self.within);
        made.map(|(stream, _)| stream).map_err(|failure| client_error(named(&self.host, failure)))
    }

    /// The machine.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Forgets the shared connection, which may be dead without knowing it.
    pub fn forget_shared(&self) {
        ssh::forget_shared(&self.host, shared_place().as_ref().map(SocketPath::folder));
    }

    /// Makes a connection within this time to the daemon that is running; also returns the daemon's instance. Blocks.
    ///
    /// # Errors
    /// There is no daemon, or the machine can't be reached.
    pub fn client(&self, within: Duration) -> Result<(Client, String), Failure> {
        self.dial(false, within).map(|(stream, instance)| (Client::over(stream), instance))
    }

    fn dial(&self, starts: bool, within: Duration) -> Result<(Stream, String), Failure> {
        let programs = if self.bootstraps { Some(programs::own()?) } else { None };
        let how = Dialling { starts, asks: false, within, programs };
        let socket = shared_place();
        let folder = socket.as_ref().map(SocketPath::folder);
        let dial = Dial { host: &self.host, folder, how, borrows: None };
        let Bridge { stream, ssh, instance, .. } = supplied(&dial, Dial::connect)?;
        let mut carriers = self.carriers.lock().unwrap_or_else(PoisonError::into_inner);
        carriers.retain_mut(|ssh| matches!(ssh.try_wait(), Ok(None)));
        carriers.push(ssh);
        Ok((stream, instance))
    }
}

/// The failure as clients of a socket know it.
fn client_error(failure: Failure) -> ClientError {
    if failure.kind == NO_REMOTE_DAEMON {
        let source = io::Error::new(io::ErrorKind::NotFound, failure.message);
        return ConnectError::NoDaemon { socket: "the other machine".to_owned(), source }.into();
    }
    // Trying again does not help against the one kind.
    let kind = if failure.kind == REFUSED { ErrorKind::PermissionDenied } else { ErrorKind::Internal };
    let error = RpcError::new(kind, failure.message);
    ClientError::Rpc(match failure.hint {
        Some(hint) => error.hint(hint),
        None => error,
    })
}
