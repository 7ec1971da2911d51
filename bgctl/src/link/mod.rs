//! The connection to the daemon, used by everything that talks to it: finding or starting a daemon, reconnecting,
//! waiting, and listening to events. It knows no verbs, and prints nothing but what was lost with a killed daemon.

mod bounded;
mod connect;
mod daemon_process;
mod daemon_watch;
mod listener;
mod wait;

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::Instant;

use bgd_shared::client::{Client, ClientError, PolledClient};
use bgd_shared::error::ErrorKind;
use bgd_shared::request::{Hello, HelloParams, Method};
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::ConnectError;

pub use self::connect::{Started, check_config, pauses, start_daemon, start_daemon_with};
pub use self::daemon_process::DaemonProcess;
pub use self::daemon_watch::DaemonWatch;
pub use self::listener::{Heard, Listener};
pub use self::wait::{sleep, time_left};
use crate::exit::Code;
use crate::failure::Failure;

/// How many connections in a row may break before they are of any use.
const RECONNECTS: u32 = 8;

/// The link to the daemon.
pub struct Link {
    /// The socket given on the command line.
    socket: Option<PathBuf>,
    starts: bool,
    reports_loss: bool,
    client: Option<Client>,
}

impl Link {
    /// Creates a link without a connection. With `starts`, it starts a daemon if none runs; with `reports_loss`, it
    /// reports on standard error which tasks were lost with a killed daemon.
    pub fn new(socket: Option<PathBuf>, starts: bool, reports_loss: bool) -> Self {
        Self { socket, starts, reports_loss, client: None }
    }

    /// The daemon's socket.
    ///
    /// # Errors
    /// Its path can't be a socket's.
    pub fn socket(&self) -> Result<SocketPath, Failure> {
        Ok(match &self.socket {
            // A path that the user typed is relative to their folder.
            Some(path) => SocketPath::new(std::path::absolute(path).unwrap_or_else(|_| path.clone()))?,
            None => SocketPath::from_env()?,
        })
    }

    /// Whether to start a daemon if none runs.
    pub fn starts(&self) -> bool {
        self.starts
    }

    /// Whether the command line gave the daemon's socket.
    pub fn names_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// The daemon's socket, if the command line gave it and it can go into an environment variable (it is UTF-8).
    ///
    /// # Errors
    /// Its path can't be a socket's.
    pub fn named_socket(&self) -> Result<Option<String>, Failure> {
        if self.socket.is_none() {
            return Ok(None);
        }
        Ok(self.socket()?.as_path().to_str().map(str::to_owned))
    }

    /// Makes a call. The first one connects, and may start a daemon.
    ///
    /// # Errors
    /// No daemon, a broken connection, or the daemon's refusal.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.call_with_fds::<M>(params, &[])
    }

    /// Like [`Self::call`], and passes file descriptors along.
    ///
    /// # Errors
    /// No daemon, a broken connection, or the daemon's refusal.
    pub fn call_with_fds<M: Method>(
        &mut self,
        params: &M::Params,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<M::Result, Failure> {
        self.exchange(|client| {
            if !descriptors.is_empty() {
                // A daemon that does not answer would keep the descriptors for as long as it is silent, and a reader
                // at the other end of one would wait just as long.
                client.call::<Hello>(&HelloParams::default())?;
            }
            client.call_with_fds::<M>(params, descriptors)
        })
    }

    /// Makes several calls on one connection. The first exchange connects, and may start a daemon. `say` may run
    /// twice.
    ///
    /// # Errors
    /// No daemon, a broken connection, or the daemon's refusal.
    pub fn exchange<T>(&mut self, say: impl Fn(&mut Client) -> Result<T, ClientError>) -> Result<T, Failure> {
        if let Some(client) = &mut self.client {
            return Ok(say(client)?);
        }
        let socket = self.socket()?;
        let mut client = self.connect(&socket)?;
        let mut outcome = say(&mut client);
        if let Err(error) = &outcome
            && self.starts
            && is_gone(error, &mut client, &socket)
        {
            // The daemon was shutting down when we connected. All its state went with it, so asking its successor
            // can't do anything twice.
            client = self.connect(&socket)?;
            outcome = say(&mut client);
        }
        self.client = Some(client);
        Ok(outcome?)
    }

    /// Gives away the connection of the calls so far, for a caller with a poll loop of its own.
    ///
    /// # Errors
    /// There is none, and none can be made.
    pub fn polled(&mut self) -> Result<PolledClient, Failure> {
        self.client()?;
        let client = self.client.take();
        Ok(client.ok_or_else(no_connection)?.into())
    }

    /// Connects to the daemon if one runs; never starts one.
    ///
    /// # Errors
    /// What is at the socket must not be trusted.
    pub fn running(&self) -> Result<Option<Client>, Failure> {
        match Client::connect(&self.socket()?) {
            Ok(client) => Ok(Some(client)),
            Err(ClientError::Connect(error)) if error.is_absent() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to the running daemon.
    ///
    /// # Errors
    /// None runs, or what is at the socket must not be trusted.
    pub fn existing(&self) -> Result<Client, Failure> {
        let socket = self.socket()?;
        Client::connect(&socket).map_err(|error| connect::absent(&socket, error))
    }

    /// Returns the connection of the calls so far, or makes one.
    ///
    /// # Errors
    /// There is none, and none can be made.
    pub fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.is_none() {
            self.client = Some(self.connect(&self.socket()?)?);
        }
        self.client.as_mut().ok_or_else(no_connection)
    }

    /// Connects. If that started a daemon, reports on standard error what was lost.
    fn connect(&self, socket: &SocketPath) -> Result<Client, Failure> {
        let (client, started) = connect::connect(socket, self.starts)?;
        self.report_loss(started);
        Ok(client)
    }

    /// Reports on standard error which tasks were lost with a killed daemon.
    pub fn report_loss(&self, started: Started) {
        if let Some(loss) = started.loss().filter(|_| self.reports_loss) {
            // Standard error may be closed; the verb continues anyway.
            let _ = writeln!(io::stderr(), "bgctl: {loss}");
        }
    }

    /// Connects again; never starts a daemon.
    fn reconnect(&mut self) -> Result<&mut Client, Failure> {
        self.client = None;
        let client = self.existing()?;
        Ok(self.client.insert(client))
    }

    /// Reconnects and makes an exchange; `None` if no daemon runs, or if its connections keep breaking. Never starts
    /// a daemon.
    ///
    /// # Errors
    /// The daemon's refusal, or what is at the socket must not be trusted.
    pub fn exchange_again<T>(
        &mut self,
        say: impl Fn(&mut Client) -> Result<T, ClientError>,
    ) -> Result<Option<T>, Failure> {
        for _ in 0..RECONNECTS {
            let outcome = match self.reconnect() {
                Ok(client) => say(client).map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            match outcome {
                Ok(said) => return Ok(Some(said)),
                Err(failure) if failure.kind == "connection_lost" => {}
                Err(failure) if failure.code == Code::NO_DAEMON && failure.kind != "no_answer" => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(None)
    }

    /// Sleeps until something arrives on the connection. If something is due from the daemon by some time and does
    /// not come, checks whether the daemon still answers; otherwise nothing wakes this process.
    ///
    /// # Errors
    /// Nobody reads standard output any more, or the daemon does not answer.
    pub fn wait(&mut self, due: Option<Instant>) -> Result<(), Failure> {
        let mut until = due;
        while sleep([Some(self.client()?.as_fd())], until)? == [false] {
            self.client()?.keep_up()?;
            until = self.client()?.until();
        }
        Ok(())
    }
}

fn no_connection() -> Failure {
    Failure::new(Code::NO_DAEMON, "no_daemon", "not connected")
}

/// Whether the daemon has gone since we connected. If it is shutting down, waits for that.
fn is_gone(error: &ClientError, client: &mut Client, socket: &SocketPath) -> bool {
    match error {
        ClientError::Rpc(error) if error.kind() == ErrorKind::ShuttingDown => client.until_closed().is_ok(),
        ClientError::Closed | ClientError::Io(_) => {
            bgd_shared::transport::connect(socket).as_ref().is_err_and(ConnectError::is_absent)
        }
        ClientError::Rpc(_)
        | ClientError::Connect(_)
        | ClientError::NoAnswer(_)
        | ClientError::Garbled(_) => false,
    }
}
