//! The connection to the daemon, used by everything that talks to it: finding or starting a daemon, reconnecting,
//! waiting, and listening to events. It is independent of the verbs, and prints only losses (tasks that died with a
//! killed daemon, or the connection to a daemon that keeps running) and that it has started a daemon where the command
//! line expects one.

mod address;
mod bootstrap;
mod bounded;
mod children;
mod connect;
mod daemon_process;
mod daemon_watch;
mod greeting;
mod host;
mod listener;
mod lost;
mod programs;
mod reach;
mod recovery;
mod ssh;
mod ssh_failure;
mod streams;
mod successor;
mod turn;
mod wait;

use std::cell::RefCell;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bgd_shared::client::{Client, ClientError, PolledClient};
use bgd_shared::id::TaskId;
use bgd_shared::request::{DaemonStatusOf, Hello, HelloParams, Method, NoParams};
use bgd_shared::show;
use bgd_shared::socket::SocketPath;

pub use self::address::DaemonAddress;
use self::bootstrap::with_bootstrap;
use self::children::Carriers;
pub use self::children::{end_children, ended};
pub use self::connect::{
    DROPPED, KEPT, KEPT_PREFIXES, Started, pauses, program_path, start_daemon, start_daemon_with,
    start_in_turn, take_turn, until_started,
};
pub use self::daemon_process::DaemonProcess;
pub use self::daemon_watch::DaemonWatch;
pub use self::host::Host;
pub use self::listener::{Heard, Listener};
pub use self::lost::{CONNECTION_LOST, OTHER_INSTANCE, is_lost, may_be_older, maybe_done, outcome, reason};
use self::lost::{MAYBE_DONE, NO_DAEMON, named, not_over_remote};
pub use self::reach::reach;
pub use self::ssh::LENT;
use self::ssh::{Bridge, Dial, Dialling};
pub use self::ssh_failure::{REFUSED, UNREACHABLE};
pub use self::streams::{Given, Streams};
pub use self::successor::was_stopped;
use self::successor::{Successors, is_gone};
pub use self::wait::{check_reader, poll_timeout, sleep, time_left};
use crate::exit::Code;
use crate::failure::Failure;
use crate::remark::say;
use crate::state::state_folder;

/// Waits for another process that is about to start a daemon at this socket, possibly after stopping the current one.
/// Blocks for as long as that takes, which is bounded; does not block if there is no such process.
///
/// # Errors
/// No daemon listens afterwards.
pub fn await_daemon(socket: &SocketPath) -> Result<(), Failure> {
    connect::connect(socket, false).map(drop)
}

/// How many connections in a row may break before they are of any use.
const RECONNECTS: u32 = 8;

/// Where the daemon is.
#[derive(Debug)]
pub enum Target {
    /// On this machine, at this socket; `None` for the default socket.
    Local(Option<PathBuf>),
    /// On a remote machine.
    Remote(Host),
}

/// How to reach the daemon.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "an option is a flag, and a link has several")]
pub struct Options {
    pub target: Target,
    /// Whether to start a daemon if none is running.
    pub starts: bool,
    /// Whether to report on standard error the losses from a killed daemon, and that a host is connected again.
    pub reports: bool,
    /// Whether ssh may ask the user, for a password for example.
    pub asks: bool,
    /// Whether to copy this program and its daemon to a machine on which they are not installed.
    pub bootstraps: bool,
    /// Timeout for the answer of a daemon on a remote machine, also after a connection was lost.
    pub connect_timeout: Duration,
}

pub struct Link {
    options: Options,
    client: Option<Client>,
    carriers: Carriers,
    /// The instance of the remote daemon that was connected to first.
    instance: RefCell<Option<String>>,
    successors: Successors,
    has_repeated: bool,
}

impl Link {
    /// Creates a link without a connection.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            client: None,
            carriers: Carriers::default(),
            instance: RefCell::default(),
            successors: Successors::default(),
            has_repeated: false,
        }
    }

    /// Returns the daemon's socket.
    ///
    /// # Errors
    /// The path is not valid for a socket, or the daemon is on a remote machine.
    pub fn socket(&self) -> Result<SocketPath, Failure> {
        Ok(match &self.options.target {
            // A path typed by the user is relative to the current folder.
            Target::Local(Some(path)) => {
                SocketPath::new(std::path::absolute(path).unwrap_or_else(|_| path.clone()))?
            }
            Target::Local(None) => SocketPath::from_env()?,
            Target::Remote(_) => return Err(not_over_remote("this verb")),
        })
    }

    /// Returns the machine of the daemon, if it is a remote one.
    pub fn host(&self) -> Option<&Host> {
        match &self.options.target {
            Target::Local(_) => None,
            Target::Remote(host) => Some(host),
        }
    }

    /// Reports whether the daemon is on a remote machine, where local paths, terminals and descriptors mean nothing.
    pub fn is_remote(&self) -> bool {
        self.host().is_some()
    }

    /// # Errors
    /// The daemon is on a remote machine, where `what` does not work.
    pub fn only_here(&self, what: &str) -> Result<(), Failure> {
        if self.is_remote() { Err(not_over_remote(what)) } else { Ok(()) }
    }

    /// Reports whether to start a daemon if none is running.
    pub fn starts(&self) -> bool {
        self.options.starts
    }

    /// Reports whether the command line gave the daemon's socket.
    pub fn names_socket(&self) -> bool {
        matches!(self.options.target, Target::Local(Some(_)))
    }

    /// Returns the daemon's socket, if the command line gave it and it can be put into an environment variable (it is
    /// UTF-8).
    ///
    /// # Errors
    /// The path is not valid for a socket.
    pub fn named_socket(&self) -> Result<Option<String>, Failure> {
        if !self.names_socket() {
            return Ok(None);
        }
        Ok(self.socket()?.as_path().to_str().map(str::to_owned))
    }

    /// Makes a call. The first call connects, and may start a daemon.
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
        if !descriptors.is_empty() {
            self.only_here("passing on a file or a pipe")?;
        }
        let call = |client: &mut Client| {
            if !descriptors.is_empty() {
                // An unresponsive daemon would keep the descriptors for as long as it is silent, and a reader at the
                // other end of one would wait just as long.
                client.call::<Hello>(&HelloParams::default())?;
            }
            client.call_with_fds::<M>(params, descriptors)
        };
        let is_repeatable = lost::REPEATABLE.contains(&M::NAME);
        loop {
            match self.exchange(call) {
                Err(failure) if is_repeatable => self.recover(failure)?,
                Err(failure) if self.is_maybe_done(&failure) => return Err(maybe_done(M::NAME)),
                outcome => return outcome,
            }
        }
    }

    /// Makes several calls at once: all are sent before the first answer is awaited, so that together they take about as
    /// long as one. They must be repeatable. Returns `None` for those that the daemon refuses.
    ///
    /// # Errors
    /// No daemon, or a broken connection that can't be replaced.
    pub fn call_together<M: Method>(&mut self, all: &[M::Params]) -> Result<Vec<Option<M::Result>>, Failure> {
        debug_assert!(lost::REPEATABLE.contains(&M::NAME), "{}", M::NAME);
        let say = |client: &mut Client| together::<M>(client, all);
        loop {
            match self.exchange(say) {
                Err(failure) => self.recover(failure)?,
                outcome => return outcome,
            }
        }
    }

    /// Like [`Self::call_with_fds`], for a call that is idempotent only because of these params, for example because
    /// they contain a key: it is repeated if the connection was lost before the answer arrived, and the tasks were not.
    ///
    /// # Errors
    /// No daemon, the daemon's refusal, or a daemon that can't be reached again.
    pub fn call_repeatable<M: Method>(
        &mut self,
        params: &M::Params,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<M::Result, Failure> {
        loop {
            match self.call_with_fds::<M>(params, descriptors) {
                Err(failure) if failure.kind == MAYBE_DONE => self.recover(failure)?,
                outcome => return outcome,
            }
            self.has_repeated = true;
        }
    }

    /// Reports whether [`Self::call_repeatable`] has repeated a call: what that call found may be its own earlier work.
    pub fn has_repeated(&self) -> bool {
        self.has_repeated
    }

    /// Makes several calls on one connection. The first exchange connects, and may start a daemon. `say` may run twice.
    ///
    /// # Errors
    /// No daemon, a broken connection, or the daemon's refusal.
    pub fn exchange<T>(&mut self, say: impl Fn(&mut Client) -> Result<T, ClientError>) -> Result<T, Failure> {
        if let Some(client) = &mut self.client {
            let outcome = say(client);
            self.client.take_if(|_| outcome.as_ref().is_err_and(lost::is_closing));
            return Ok(outcome?);
        }
        let mut client = self.connect()?;
        let mut outcome = say(&mut client);
        if let Err(error) = &outcome
            && self.options.starts
            && !self.is_remote()
            && is_gone(error, &mut client, &self.socket()?, |client| self.until_closed(client))
        {
            // The daemon was shutting down when we connected. It has refused the call, or all its state is gone with
            // it, so asking its successor can't do anything twice.
            client = self.connect()?;
            outcome = say(&mut client);
        }
        self.client = (!outcome.as_ref().is_err_and(lost::is_closing)).then_some(client);
        Ok(outcome?)
    }

    /// Gives away the current connection, for a caller with its own poll loop.
    ///
    /// # Errors
    /// There is no connection, and none can be made.
    pub fn polled(&mut self) -> Result<PolledClient, Failure> {
        self.client()?;
        let client = self.client.take();
        Ok(client.ok_or_else(no_connection)?.into())
    }

    /// Connects to the daemon if one is running; never starts one.
    ///
    /// # Errors
    /// The socket must not be trusted.
    pub fn running(&self) -> Result<Option<Client>, Failure> {
        if let Some(host) = self.host() {
            return match self.dial(host, false) {
                Ok(client) => Ok(Some(client)),
                Err(failure) if failure.kind == NO_DAEMON => Ok(None),
                Err(failure) => Err(failure),
            };
        }
        match Client::connect(&self.socket()?) {
            Ok(client) => Ok(Some(client)),
            Err(ClientError::Connect(error)) if error.is_absent() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to the running daemon.
    ///
    /// # Errors
    /// No daemon is running, or the socket must not be trusted.
    pub fn existing(&self) -> Result<Client, Failure> {
        if let Some(host) = self.host() {
            return self.dial(host, false);
        }
        let socket = self.socket()?;
        Client::connect(&socket).map_err(|error| connect::absent(&socket, error))
    }

    /// Reports whether there is a connection. It may be broken without having been noticed.
    pub fn is_connected(&self) -> bool {
        self.client.is_some()
    }

    /// Returns the current connection, or makes one.
    ///
    /// # Errors
    /// There is no connection, and none can be made.
    pub fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.is_none() {
            self.client = Some(self.connect()?);
        }
        self.client.as_mut().ok_or_else(no_connection)
    }

    /// Makes a new connection, and starts a daemon if none is running; then reports losses on standard error.
    ///
    /// # Errors
    /// No daemon is running, and none can be started.
    pub fn connect(&self) -> Result<Client, Failure> {
        if let Some(host) = self.host() {
            return self.dial(host, self.options.starts);
        }
        let (mut client, started) = connect::connect(&self.socket()?, self.options.starts)?;
        self.report_loss(started);
        // Scripts may treat any standard error as failure.
        if io::stderr().is_terminal() {
            self.report_unused(&mut client, started);
        }
        self.report_start(started);
        Ok(client)
    }

    /// Connects to the daemon of a remote machine.
    fn dial(&self, host: &Host, starts: bool) -> Result<Client, Failure> {
        self.dial_by(host, self.dialling(starts)?, None)
    }

    /// Connects to the daemon of a remote machine by a separate ssh that asks the user nothing: for a program that
    /// stays connected, and must not close a connection shared with others when it ends.
    ///
    /// # Errors
    /// No daemon is running there, and none can be started; or the host can't be reached.
    pub fn dial_alone(&self, host: &Host) -> Result<Bridge, Failure> {
        let how = Dialling { asks: false, ..self.dialling(self.options.starts)? };
        with_bootstrap(&Dial { host, folder: None, how, borrows: None }, Dial::connect)
    }

    /// Connects to the daemon; on a remote machine, starts one if none is running, regardless of the options.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_starting(&self) -> Result<Client, Failure> {
        self.host().map_or_else(|| self.connect(), |host| self.dial(host, true))
    }

    /// Accepts a daemon other than the previous one on the remote machine.
    pub fn expect_another(&self) {
        self.instance.replace(None);
    }

    /// Makes the daemon's program, on the remote machine if there is one, check the configuration that it would start
    /// with.
    ///
    /// # Errors
    /// The configuration is invalid, or the machine can't be reached.
    pub fn check_config(&self) -> Result<(), Failure> {
        let Some(host) = self.host() else { return connect::check_config() };
        let dial = Dial::shared(host, self.dialling(false)?);
        with_bootstrap(&dial, Dial::check_config)
    }

    fn dialling(&self, starts: bool) -> Result<Dialling, Failure> {
        let Options { asks, bootstraps, connect_timeout: within, .. } = self.options;
        let programs = if bootstraps { Some(programs::own()?) } else { None };
        Ok(Dialling { starts, asks, within, programs })
    }

    /// Connects to the daemon of a remote machine so that the first task to be submitted there gets this process's
    /// standard stream for each stream that its params name as a descriptor.
    ///
    /// # Errors
    /// The daemon is on this machine; otherwise as for [`Self::connect`].
    pub fn lend(&mut self, given: Given) -> Result<Streams, Failure> {
        let Some(host) = self.host().cloned() else {
            return Err(Failure::new(
                Code::INTERNAL,
                "internal",
                "a daemon on this machine takes descriptors",
            ));
        };
        let token = TaskId::random().to_string();
        let how = self.dialling(self.options.starts)?;
        let dial = Dial::shared(&host, how);
        let streams = with_bootstrap(&dial, |dial| Streams::open(dial, &token, given))?;
        self.client = Some(self.dial_by(&host, how, Some(&token))?);
        Ok(streams)
    }

    fn dial_by(&self, host: &Host, how: Dialling, borrows: Option<&str>) -> Result<Client, Failure> {
        let dial = Dial { borrows, ..Dial::shared(host, how) };
        let Bridge { stream, ssh, instance, stderr_text } = with_bootstrap(&dial, Dial::connect)?;
        self.carriers.add(ssh);
        if !stderr_text.is_empty() && self.options.reports {
            say(format_args!("{stderr_text}"));
        }
        let mut first = self.instance.borrow_mut();
        if *first.get_or_insert_with(|| instance.clone()) != instance {
            let message = "the daemon was restarted meanwhile: its tasks are lost";
            return Err(Failure::new(Code::NO_DAEMON, OTHER_INSTANCE, message));
        }
        Ok(Client::over(stream))
    }

    fn report(&self, text: &str) {
        if self.options.reports {
            say(format_args!("bgctl: {text}"));
        }
    }

    /// Adds the host's name to a failure, if the daemon is on a remote machine.
    #[must_use]
    pub fn name_host(&self, failure: Failure) -> Failure {
        match self.host() {
            Some(host) => named(host, failure),
            None => failure,
        }
    }

    /// Reports on standard error which tasks were lost with a killed daemon.
    pub fn report_loss(&self, started: Started) {
        if let Some(loss) = started.loss().filter(|_| self.options.reports) {
            say(format_args!("bgctl: {loss}"));
        }
    }

    /// Reports on standard error which tasks a daemon that was just started does not show, as it is not durable.
    pub fn report_unused(&self, client: &mut Client, started: Started) {
        let Started::ByUs { lost } = started else { return };
        // Only where a daemon was durable, another call is worth it.
        if !self.options.reports || self.is_remote() || !state_folder().join("journal").exists() {
            return;
        }
        let Ok(status) = client.call::<DaemonStatusOf>(&NoParams {}) else { return };
        let is_reported = |note: &&String| note.starts_with(&show::lost_tasks(lost));
        for note in status.notes.iter().filter(|note| !is_reported(note)) {
            say(format_args!("bgctl: {}", show::line(note)));
        }
    }

    /// Notifies a user on a terminal that there was no daemon at the socket given on the command line: the path may be
    /// mistyped, and another daemon may have the tasks. Prints nothing for scripts, which may treat any standard error
    /// as failure.
    fn report_start(&self, started: Started) {
        if started != Started::Before
            && self.names_socket()
            && io::stderr().is_terminal()
            && let Ok(socket) = self.socket()
        {
            let socket = show::line(&socket.as_path().display().to_string());
            self.report(&format!("no daemon was running at {socket}: started one"));
        }
    }

    /// Reconnects; never starts a daemon.
    fn reconnect(&mut self) -> Result<&mut Client, Failure> {
        self.client = None;
        let client = self.existing()?;
        Ok(self.client.insert(client))
    }

    /// Reconnects and makes an exchange; `None` if no daemon is running, or if its connections keep breaking. Never
    /// starts a daemon.
    ///
    /// # Errors
    /// The daemon's refusal, also if it is full or about to end; or the socket must not be trusted.
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
                Ok(report) => return Ok(Some(report)),
                Err(failure) if failure.kind == CONNECTION_LOST => {}
                Err(failure) if failure.kind == NO_DAEMON => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(None)
    }

    /// Sleeps until something arrives on the connection. If something is due from the daemon by some time and does not
    /// arrive, checks whether the daemon still answers; otherwise nothing wakes this process.
    ///
    /// # Errors
    /// The reader of standard output is gone, or the daemon does not answer.
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
    Failure::new(Code::NO_DAEMON, NO_DAEMON, "not connected")
}

/// Sends several calls before the first answer is awaited. Returns `None` for those that the daemon refuses.
///
/// # Errors
/// The connection broke, or an answer did not come in time.
pub fn together<M: Method>(
    client: &mut Client,
    all: &[M::Params],
) -> Result<Vec<Option<M::Result>>, ClientError> {
    let sent = all.iter().map(|params| client.send::<M>(params, &[]));
    let sent: Vec<u64> = sent.collect::<Result<_, _>>()?;
    let answers = sent.into_iter().map(|call| match client.answer::<M>(call) {
        Ok(answer) => Ok(Some(answer)),
        Err(ClientError::Rpc(_)) => Ok(None),
        Err(error) => Err(error),
    });
    answers.collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixStream;

    use bgd_shared::error::{ErrorKind, RpcError};
    use bgd_shared::request::{IdParams, TaskGet};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn r140_calls_made_together_are_sent_before_an_answer_is_awaited() {
        let (here, there) = UnixStream::pair().unwrap();
        let daemon = std::thread::spawn(move || {
            let lines = BufReader::new(&there).lines().map(Result::unwrap);
            let calls: Vec<Value> = lines.take(3).map(|line| serde_json::from_str(&line).unwrap()).collect();
            for call in &calls {
                let error = RpcError::new(ErrorKind::TaskNotFound, "gone");
                let answer = json!({"jsonrpc": "2.0", "id": call["id"], "error": error});
                writeln!(&there, "{answer}").unwrap();
            }
            calls.iter().map(|call| call["method"].clone()).collect::<Vec<_>>()
        });
        let mut link = Link::new(Options {
            target: Target::Local(None),
            starts: false,
            reports: false,
            asks: false,
            bootstraps: false,
            connect_timeout: Duration::ZERO,
        });
        link.client = Some(Client::over(here.into()));
        let params = ["1111", "2222", "3333"].map(|id| IdParams { id: id.parse().unwrap() });
        let answers = link.call_together::<TaskGet>(&params).unwrap();
        assert!(answers.len() == 3 && answers.iter().all(Option::is_none), "each is refused by itself");
        assert_eq!(daemon.join().unwrap(), ["task.get"; 3]);
    }
}
