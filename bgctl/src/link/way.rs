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
use super::ssh::{Bridge, Dial, Dialling, shared_place};
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
        let failed = |failure| client_error(named(&self.host, failure));
        let programs = if self.bootstraps { Some(programs::own().map_err(failed)?) } else { None };
        let how = Dialling { starts, asks: false, within: self.within, programs };
        let socket = shared_place();
        let folder = socket.as_ref().map(SocketPath::folder);
        let dial = Dial { host: &self.host, folder, how, borrows: None };
        let Bridge { stream, ssh, .. } = supplied(&dial, Dial::connect).map_err(failed)?;
        let mut carriers = self.carriers.lock().unwrap_or_else(PoisonError::into_inner);
        carriers.retain_mut(|ssh| matches!(ssh.try_wait(), Ok(None)));
        carriers.push(ssh);
        Ok(stream)
    }
}

/// The failure as clients of a socket know it.
fn client_error(failure: Failure) -> ClientError {
    if failure.kind == NO_REMOTE_DAEMON {
        let source = io::Error::new(io::ErrorKind::NotFound, failure.message);
        return ConnectError::NoDaemon { socket: "the other machine".to_owned(), source }.into();
    }
    let error = RpcError::new(ErrorKind::Internal, failure.message);
    ClientError::Rpc(match failure.hint {
        Some(hint) => error.hint(hint),
        None => error,
    })
}
