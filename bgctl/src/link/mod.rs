//! The connection to the daemon, under everything that speaks with it: finding a daemon or starting one, connecting
//! again, waiting, and listening to events. It knows no verb, and prints nothing but what was lost with a daemon that
//! was killed.

mod bounded;
mod coming;
mod connect;
mod listener;
mod living;
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

pub use self::coming::Coming;
pub use self::connect::{Started, check_config, pauses, start_daemon, start_daemon_with};
pub use self::listener::{Heard, Listener};
pub use self::living::Living;
pub use self::wait::{left_until, sleep};
use crate::exit::Code;
use crate::failure::Failure;

/// How often a connection may break before it is good for anything, one after the other.
const RECONNECTS: u32 = 8;

/// The way to the daemon.
pub struct Link {
    /// The socket that the command line named.
    socket: Option<PathBuf>,
    starts: bool,
    tells_loss: bool,
    client: Option<Client>,
}

impl Link {
    /// No connection yet. With `starts` a daemon is started if none runs; with `tells_loss` standard error says which
    /// tasks a daemon took with it that was killed.
    pub fn new(socket: Option<PathBuf>, starts: bool, tells_loss: bool) -> Self {
        Self { socket, starts, tells_loss, client: None }
    }

    /// The daemon's socket.
    ///
    /// # Errors
    /// Its path can't be one.
    pub fn socket(&self) -> Result<SocketPath, Failure> {
        Ok(match &self.socket {
            // A path typed by a user is meant from where they are.
            Some(path) => SocketPath::new(std::path::absolute(path).unwrap_or_else(|_| path.clone()))?,
            None => SocketPath::from_env()?,
        })
    }

    /// Whether a daemon is started if none runs.
    pub fn starts(&self) -> bool {
        self.starts
    }

    /// Whether the command line named the daemon's socket.
    pub fn names_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// The daemon's socket, if the command line named it and it can stand in a variable.
    ///
    /// # Errors
    /// Its path can't be one.
    pub fn named_socket(&self) -> Result<Option<String>, Failure> {
        if self.socket.is_none() {
            return Ok(None);
        }
        Ok(self.socket()?.as_path().to_str().map(str::to_owned))
    }

    /// Makes a call; the first one connects, and starts a daemon if there is none.
    ///
    /// # Errors
    /// No daemon, a broken connection, or the daemon's refusal.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.call_with_fds::<M>(params, &[])
    }

    /// The same, with descriptors that travel along.
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
                // A daemon that does not answer would keep the descriptors for as long as it is silent, and whoever
                // reads from the other end of one would wait as long.
                client.call::<Hello>(&HelloParams::default())?;
            }
            client.call_with_fds::<M>(params, descriptors)
        })
    }

    /// Says several things at once; the first exchange connects, and starts a daemon if there is none. It
    /// may be made twice.
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
            // The daemon was on its way out when we came. All that it knew went with it, so that asking
            // its successor can do nothing twice.
            client = self.connect(&socket)?;
            outcome = say(&mut client);
        }
        self.client = Some(client);
        Ok(outcome?)
    }

    /// Gives the connection that the calls so far were made on to a loop of its own.
    ///
    /// # Errors
    /// There was none, and none can be made.
    pub fn polled(&mut self) -> Result<PolledClient, Failure> {
        self.client()?;
        let client = self.client.take();
        Ok(client.ok_or_else(no_connection)?.into())
    }

    /// A connection to the daemon if one runs; never starts one.
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

    /// A connection to the daemon that runs.
    ///
    /// # Errors
    /// None runs, or what is at the socket must not be trusted.
    pub fn existing(&self) -> Result<Client, Failure> {
        let socket = self.socket()?;
        Client::connect(&socket).map_err(|error| connect::absent(&socket, error))
    }

    /// The connection that the calls so far were made on.
    ///
    /// # Errors
    /// There was none, and none can be made.
    pub fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.is_none() {
            self.client = Some(self.connect(&self.socket()?)?);
        }
        self.client.as_mut().ok_or_else(no_connection)
    }

    /// Connects, and says on standard error what was lost if that started a daemon.
    fn connect(&self, socket: &SocketPath) -> Result<Client, Failure> {
        let (client, started) = connect::connect(socket, self.starts)?;
        self.tell_loss(started);
        Ok(client)
    }

    /// Says on standard error which tasks a daemon that was killed took with it.
    pub fn tell_loss(&self, started: Started) {
        if let Some(loss) = started.loss().filter(|_| self.tells_loss) {
            // It may be closed; the verb goes on anyway.
            let _ = writeln!(io::stderr(), "bgctl: {loss}");
        }
    }

    /// Makes the connection again; never starts a daemon.
    fn reconnect(&mut self) -> Result<&mut Client, Failure> {
        self.client = None;
        let client = self.existing()?;
        Ok(self.client.insert(client))
    }

    /// Connects again and says something; `None` if no daemon runs, or its connections break at once. Starts none.
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

    /// Sleeps until the daemon says something more on the connection. Where it has to at some time, it is looked
    /// after when it does not; else nothing wakes this process.
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

/// Whether the daemon has gone since we connected. One that says that it is about to end is waited for.
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
