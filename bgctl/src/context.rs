//! What every verb needs: the global options, the connection, and a way to print that survives a
//! reader who goes away.

use std::io::{self, BufWriter, Stdout, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use bgd_shared::client::{Client, ClientError, PolledClient};
use bgd_shared::error::ErrorKind;
use bgd_shared::request::{Hello, HelloParams, Method};
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::ConnectError;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::cli::Globals;
use crate::connect::{self, Started};
use crate::failure::Failure;
use crate::follow::left_until;
use crate::render::json;
use crate::render::look::Colours;

/// The state of one run of `bgctl`.
pub struct Context {
    globals: Globals,
    /// Not locked for good: `mcp` writes to it from a thread of its own.
    out: BufWriter<Stdout>,
    client: Option<Client>,
}

impl Context {
    /// Nothing is connected or printed yet.
    pub fn new(globals: Globals) -> Self {
        Self { globals, out: BufWriter::new(io::stdout()), client: None }
    }

    /// Whether the wire's objects are to be printed.
    pub fn json(&self) -> bool {
        self.globals.json
    }

    /// When lists are to have colours.
    pub fn colours(&self) -> Colours {
        self.globals.color
    }

    /// The daemon's socket.
    ///
    /// # Errors
    /// Its path can't be one.
    pub fn socket(&self) -> Result<SocketPath, Failure> {
        Ok(match &self.globals.socket {
            // A path typed by a user is meant from where they are.
            Some(path) => SocketPath::new(std::path::absolute(path).unwrap_or_else(|_| path.clone()))?,
            None => SocketPath::from_env()?,
        })
    }

    /// Whether a daemon is started if none runs.
    pub fn starts(&self) -> bool {
        !self.globals.no_start
    }

    /// Whether the command line named the daemon's socket.
    pub fn names_socket(&self) -> bool {
        self.globals.socket.is_some()
    }

    /// The daemon's socket, if the command line named it and it can stand in a variable.
    ///
    /// # Errors
    /// Its path can't be one.
    pub fn named_socket(&self) -> Result<Option<String>, Failure> {
        if self.globals.socket.is_none() {
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
        let start = !self.globals.no_start;
        let mut client = self.connect(&socket, start)?;
        let mut outcome = say(&mut client);
        if let Err(error) = &outcome
            && start
            && is_gone(error, &mut client, &socket)
        {
            // The daemon was on its way out when we came. All that it knew went with it, so that asking
            // its successor can do nothing twice.
            client = self.connect(&socket, true)?;
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
            self.client = Some(self.connect(&self.socket()?, !self.globals.no_start)?);
        }
        self.client.as_mut().ok_or_else(no_connection)
    }

    /// Connects, and says on standard error what was lost if that started a daemon.
    fn connect(&self, socket: &SocketPath, start: bool) -> Result<Client, Failure> {
        let (client, started) = connect::connect(socket, start)?;
        self.tell_loss(started);
        Ok(client)
    }

    /// Says on standard error which tasks a daemon that was killed took with it. Programs read it in `daemon status`.
    pub fn tell_loss(&self, started: Started) {
        if let Some(loss) = started.loss().filter(|_| !self.json()) {
            // It may be closed; the verb goes on anyway.
            let _ = writeln!(io::stderr(), "bgctl: {loss}");
        }
    }

    /// Makes the connection again; never starts a daemon.
    ///
    /// # Errors
    /// None runs, or what is at the socket must not be trusted.
    pub fn reconnect(&mut self) -> Result<&mut Client, Failure> {
        self.client = None;
        let client = self.existing()?;
        Ok(self.client.insert(client))
    }

    /// Sleeps until the daemon says something more on the connection. Where it has to at some time, it is looked
    /// after when it does not; else nothing wakes this process.
    ///
    /// # Errors
    /// Nobody reads standard output any more, or the daemon does not answer.
    pub fn wait(&mut self, due: Option<Instant>) -> Result<(), Failure> {
        let mut until = due;
        while !Self::wait_until(self.client()?.as_fd(), until)? {
            self.client()?.keep_up()?;
            until = self.client()?.until();
        }
        Ok(())
    }

    /// Sleeps until something can be read from a descriptor.
    ///
    /// # Errors
    /// Nobody reads standard output any more.
    pub fn wait_for(descriptor: BorrowedFd<'_>) -> Result<(), Failure> {
        Self::wait_until(descriptor, None).map(drop)
    }

    /// The same, but not for longer than until then: false.
    fn wait_until(descriptor: BorrowedFd<'_>, until: Option<Instant>) -> Result<bool, Failure> {
        let out = io::stdout();
        // Without flags only a reader who went away is told.
        let mut sources =
            [PollFd::new(descriptor, PollFlags::POLLIN), PollFd::new(out.as_fd(), PollFlags::empty())];
        loop {
            match poll(&mut sources, until.map_or(PollTimeout::NONE, left_until)) {
                Ok(0) => return Ok(false),
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(Failure::io("can't wait", &error.into())),
            }
        }
        let is_alone = sources[1].any().unwrap_or(false);
        if is_alone { Err(io::Error::from(io::ErrorKind::BrokenPipe).into()) } else { Ok(true) }
    }

    /// Prints text as it is.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn print(&mut self, text: &str) -> Result<(), Failure> {
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Prints bytes as they are.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn print_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Prints an object of the wire on one line.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn print_json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.print_bytes(&json::line(value)?)
    }

    /// Hands everything printed so far to the system.
    ///
    /// # Errors
    /// What the system says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Standard output as a file of its own, behind all that was printed so far: bytes can be moved to
    /// it without a copy in this process.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn raw_stdout(&mut self) -> Result<std::fs::File, Failure> {
        self.flush()?;
        Ok(self.out.get_ref().as_fd().try_clone_to_owned()?.into())
    }
}

fn no_connection() -> Failure {
    Failure::new(crate::exit::Code::NO_DAEMON, "no_daemon", "there is no connection")
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
