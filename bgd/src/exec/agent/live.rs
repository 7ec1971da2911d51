//! A running agent: the connection to it, and its process if the daemon started it. Which turns it gets is decided in
//! `pool`.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::agent::AgentProtocol;
use bgd_shared::error::ErrorKind;
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;

use super::acp::{Acp, AcpState};
use super::connection::Updates;
use super::far;
use super::folders::Folders;
use super::link::Connection;
use super::opencode::{self, Opencode, OpencodeState};
use super::start::Start;
use super::stderr_tail::{DRAIN_TIMEOUT, StderrTail, Tail};
use crate::agents::Agent;
use crate::carry::{CarriedFds, Fd, Obstacle};
use crate::core::Refusal;
use crate::exec::context::Context;
use crate::exec::host::{
    Host, Launch, Leased, PipeEnd, Process, ProcessState, SIGKILL, SIGTERM, how_ended, pipe,
};

/// An agent, as carried over an upgrade.
#[derive(Debug, Serialize, Deserialize)]
pub struct LiveState {
    connection: ConnectionState,
    process: Option<ProcessState>,
    stderr: Option<Fd>,
    tail: Tail,
}

#[derive(Debug, Serialize, Deserialize)]
enum ConnectionState {
    /// The Agent Client Protocol, with the pipes to and from the agent.
    Acp(Box<AcpState>, [Fd; 2]),
    /// opencode's server, with the pipe that it may still write to if the daemon started it.
    Opencode(Box<OpencodeState>, Option<Fd>),
}

impl LiveState {
    /// Returns the connection's keys for the agent's sessions.
    pub fn sessions(&self) -> Vec<Arc<str>> {
        match &self.connection {
            ConnectionState::Acp(acp, _) => acp.sessions().cloned().collect(),
            ConnectionState::Opencode(opencode, _) => opencode.sessions().cloned().collect(),
        }
    }

    pub fn descriptors(&self) -> Vec<Fd> {
        let own = match &self.connection {
            ConnectionState::Acp(_, pipes) => &pipes[..],
            ConnectionState::Opencode(_, pipe) => pipe.as_slice(),
        };
        own.iter().chain(&self.stderr).copied().collect()
    }
}

/// How long a process has to end after SIGTERM, before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// How long to wait for the exit of a process whose connection has ended, so that its exit status can be reported.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// The longest line in which a server may print its address, in bytes.
const ADDRESS_BYTES: u64 = 64 * 1024;

/// The variable that sets the password of opencode's server.
const PASSWORD: &str = "OPENCODE_SERVER_PASSWORD";

/// An agent that has completed its handshake.
#[derive(Debug)]
pub struct Live {
    pub connection: Connection,
    process: Option<Leased>,
    stderr_tail: StderrTail,
    /// Set once the agent is no longer needed.
    over: watch::Sender<bool>,
    /// Whether the daemon ended the process, so that its exit status is meaningless.
    ended: Cell<bool>,
    /// The reason to report to its turns if the process was killed because of one of them.
    killed_because: Cell<Option<&'static str>>,
    /// The number of the pipe that a server may still write to, while the pipe is read.
    drained: Rc<Cell<Option<RawFd>>>,
}

/// Why an agent is not connected.
struct NotConnected {
    refusal: Refusal,
    /// Whether the refusal says how its process ended.
    has_end: bool,
}

impl From<Refusal> for NotConnected {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, has_end: false }
    }
}

/// A started process with the daemon's ends of its standard streams.
struct Started {
    process: Leased,
    stdin: Sender,
    stdout: Receiver,
    stderr_tail: StderrTail,
}

impl Live {
    /// Starts an agent, and waits for its handshake. Dropping the future ends the process.
    ///
    /// # Errors
    /// The agent can't be started, or does not complete the handshake.
    pub async fn start(host: &Host, folders: &Folders, start: &Start) -> Result<Self, Refusal> {
        match start.agent.protocol {
            AgentProtocol::Acp => Self::start_acp(host, folders, start).await,
            AgentProtocol::Opencode => Self::start_opencode(host, folders, start).await,
            AgentProtocol::Template => {
                Err(Refusal::new(ErrorKind::Internal, "a template has no process of its own"))
            }
        }
    }

    async fn start_acp(host: &Host, folders: &Folders, start: &Start) -> Result<Self, Refusal> {
        let Started { process, stdin, stdout, stderr_tail } =
            launch(host, folders, start, start.env.clone()).await?;
        let connecting = Acp::connect(stdin, stdout);
        tokio::pin!(connecting);
        let connected = tokio::select! {
            biased;
            connected = &mut connecting => connected.map_err(NotConnected::from),
            // The agent's output instead of the protocol may explain more than its exit status: its usage, for
            // instance.
            exit = process.0.exited() => match tokio::time::timeout(DRAIN_TIMEOUT, connecting).await {
                Ok(Err(refusal)) => Err(refusal.into()),
                Ok(Ok(_)) | Err(_) => Err(died(&start.agent, &exit)),
            },
        };
        match connected {
            Ok(acp) => Ok(Self::new(Connection::Acp(acp), Some(process), stderr_tail)),
            Err(refused) => Err(with_end(refused, &process.0, &stderr_tail).await),
        }
    }

    async fn start_opencode(host: &Host, folders: &Folders, start: &Start) -> Result<Self, Refusal> {
        let given = start.agent.environment(&start.env);
        let known = given.get(PASSWORD).map(|password| password.to_string_lossy().into_owned());
        if let Some(url) = &start.agent.url {
            let opencode = Opencode::connect(url, known.as_deref()).await.map_err(|mut refusal| {
                let name = &start.agent.name;
                refusal.message = format!("the agent {:?} at {url}: {}", &**name, refusal.message).into();
                refusal
            })?;
            let connection = Connection::Opencode(opencode);
            return Ok(Self::of(connection));
        }
        // Every user of this machine can reach the server, so it gets a random password.
        let password = known.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        let others = start.env.0.iter().filter(|(name, _)| &**name != PASSWORD).cloned();
        let env: Env = others.chain([(PASSWORD.into(), password.as_str().into())]).collect();
        let Started { process, stdin: _, stdout, stderr_tail } =
            launch(host, folders, start, Arc::new(env)).await?;
        let drained = Rc::default();
        let connected = tokio::select! {
            biased;
            connected = connect_to_printed(stdout, &stderr_tail, &password, &drained) => {
                connected.map_err(NotConnected::from)
            }
            exit = process.0.exited() => Err(died(&start.agent, &exit)),
        };
        match connected {
            Ok(opencode) => {
                let connection = Connection::Opencode(opencode);
                Ok(Self { drained, ..Self::new(connection, Some(process), stderr_tail) })
            }
            Err(refused) => Err(with_end(refused, &process.0, &stderr_tail).await),
        }
    }

    /// Returns the state for an upgrade.
    ///
    /// # Errors
    /// Something is in progress in the agent, or it can't be carried over.
    pub fn state(&self, named: &mut CarriedFds) -> Result<LiveState, Obstacle> {
        // A sacrificed agent is ending.
        let Self { connection, process, stderr_tail, over, ended, killed_because: _, drained } = self;
        let is_ending = *over.borrow() || ended.get();
        if is_ending || process.as_ref().is_some_and(|process| !process.0.runs()) {
            return Err(Obstacle::passing("the program of an agent is ending"));
        }
        let connection = match connection {
            Connection::Acp(acp) => {
                let (state, pipes) = acp.state().ok_or_else(|| Obstacle::passing("an agent is at work"))?;
                ConnectionState::Acp(Box::new(state), pipes.map(|number| named.number(number)))
            }
            Connection::Opencode(opencode) => {
                let state = opencode.state().ok_or_else(|| Obstacle::passing("an agent is at work"))?;
                ConnectionState::Opencode(Box::new(state), drained.get().map(|number| named.number(number)))
            }
            Connection::Template(_) => return Err(Obstacle::lasting("a template has no process to keep")),
        };
        let (tail, stderr) = stderr_tail.state();
        let stderr = stderr.map(|number| named.number(number));
        let process = process.as_ref().map(|process| process.0.state());
        Ok(LiveState { connection, process, stderr, tail })
    }

    /// Restores an agent after an upgrade. `updates` returns the update channel of a session.
    ///
    /// # Errors
    /// A descriptor of the agent can't be used.
    pub fn restore(
        state: LiveState,
        take: &mut dyn FnMut(Fd) -> io::Result<OwnedFd>,
        context: &Context,
        updates: impl FnMut(&Arc<str>) -> Option<Updates>,
    ) -> io::Result<Self> {
        let LiveState { connection, process, stderr, tail } = state;
        let process = process.map(|process| Leased(Process::restore(process, context)));
        let stderr_tail = StderrTail::restore(tail);
        let drained = Rc::default();
        if let Some(stderr) = stderr {
            let pipe = Receiver::from_owned_fd(take(stderr)?)?;
            tokio::task::spawn_local(stderr_tail.clone().read(pipe));
        }
        let connection = match connection {
            ConnectionState::Acp(acp, [stdin, stdout]) => {
                let stdin = Sender::from_owned_fd(take(stdin)?)?;
                let stdout = Receiver::from_owned_fd(take(stdout)?)?;
                Connection::Acp(Acp::restore(*acp, stdin, stdout, updates))
            }
            ConnectionState::Opencode(opencode, pipe) => {
                if let Some(pipe) = pipe {
                    drain(Receiver::from_owned_fd(take(pipe)?)?, &drained);
                }
                Connection::Opencode(Opencode::restore(*opencode, updates)?)
            }
        };
        Ok(Self { drained, ..Self::new(connection, process, stderr_tail) })
    }

    fn new(connection: Connection, process: Option<Leased>, stderr_tail: StderrTail) -> Self {
        let (over, ended, killed_because) = (watch::channel(false).0, Cell::new(false), Cell::new(None));
        Self { connection, process, stderr_tail, over, ended, killed_because, drained: Rc::default() }
    }

    /// Wraps a connection without a process of the daemon's that outlives a turn.
    pub fn of(connection: Connection) -> Self {
        Self::new(connection, None, StderrTail::default())
    }

    /// Returns the id of its process; `None` if the daemon did not start it.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|process| process.0.pid)
    }

    /// Returns whether its process has ended, even if just now.
    pub fn is_dead(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.0.has_exited())
    }

    /// Waits for the exit of a server's process, which its connection would not report at once. Never resolves for
    /// other agents: the pipes of those are read to the end.
    pub async fn server_exited(&self) -> Box<str> {
        match (&self.connection, &self.process) {
            (Connection::Opencode(_), Some(process)) => {
                let exit = process.0.exited().await;
                format!("its process {}", how_ended(&exit)).into()
            }
            (Connection::Acp(_) | Connection::Opencode(_) | Connection::Template(_), _) => {
                std::future::pending().await
            }
        }
    }

    /// Waits until the agent can no longer be used, and returns the reason.
    pub async fn lost(&self) -> Box<str> {
        let mut over = self.over.subscribe();
        let exited = async {
            match &self.process {
                Some(process) => process.0.exited().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            why = self.connection.closed() => why,
            exit = exited => format!("its process {}", how_ended(&exit)).into(),
            _ = over.wait_for(|over| *over) => "no longer needed".into(),
        }
    }

    /// Returns the tail of its process's standard error.
    pub fn stderr_tail(&self) -> &StderrTail {
        &self.stderr_tail
    }

    /// Describes how the agent ended, for a turn that ran in it.
    pub async fn describe_end(&self, why: &str) -> String {
        let exit = match &self.process {
            Some(process) => tokio::time::timeout(EXIT_WAIT, process.0.exited()).await.ok(),
            None => None,
        };
        let what = match (self.killed_because.get(), exit) {
            (Some(why), _) => format!("the agent's process was ended: {why}"),
            (None, Some(exit)) if !self.ended.get() => format!("the agent's process {}", how_ended(&exit)),
            (None, Some(_) | None) => format!("lost the connection to the agent: {why}"),
        };
        self.stderr_tail.read_out().await;
        format!("{what}{}", self.stderr_tail.summary())
    }

    /// Ends the process tree after the connection was lost. A process that is already dying gets time to exit, so that
    /// its exit status is known.
    pub async fn end_lost(self: Rc<Self>) {
        if let (Some(process), false) = (&self.process, *self.over.borrow()) {
            // A process that is still running is ended below.
            let _ = tokio::time::timeout(EXIT_WAIT, process.0.exited()).await;
        }
        self.end(true).await;
    }

    /// Kills its process tree, with all turns in it; `why` is the reason that the turns report.
    pub async fn kill_with_reason(self: Rc<Self>, why: &'static str) {
        self.killed_because.set(Some(why));
        self.end(false).await;
    }

    /// Ends its process tree, and waits until all of its processes are gone. With `ask`, sends SIGTERM first, and
    /// SIGKILL only after [`GRACE`].
    pub async fn end(self: Rc<Self>, ask: bool) {
        self.over.send_replace(true);
        let Some(process) = &self.process else { return };
        if !process.0.has_exited() {
            self.ended.set(true);
        }
        if ask {
            process.0.end(SIGTERM);
            if tokio::time::timeout(GRACE, process.0.until_ended()).await.is_ok() {
                return;
            }
        }
        process.0.end(SIGKILL);
        process.0.until_ended().await;
    }
}

/// Builds the refusal for an agent that exceeded its start timeout; `what` names the step that it had not completed.
pub fn too_slow(agent: &Agent, what: &str) -> Refusal {
    let message = format!(
        "the agent {:?} {what} within {}",
        &*agent.name,
        humantime::format_duration(agent.start_timeout)
    );
    Refusal::new(ErrorKind::AgentUnavailable, message)
        .hint(format!("raise start_timeout in [agents.{}]", agent.name))
}

fn died(agent: &Agent, exit: &Exit) -> NotConnected {
    let message = format!("the agent {:?} does not start: its process {}", &*agent.name, how_ended(exit));
    NotConnected { refusal: Refusal::new(ErrorKind::AgentUnavailable, message), has_end: true }
}

/// Adds the exit status and the last output of the process to a refusal: they explain more than the lost connection.
async fn with_end(refused: NotConnected, process: &Process, stderr_tail: &StderrTail) -> Refusal {
    let NotConnected { mut refusal, has_end } = refused;
    if refusal.kind == ErrorKind::AgentUnavailable {
        let exit = tokio::time::timeout(EXIT_WAIT, process.exited()).await;
        let ended = match exit {
            Ok(exit) if !has_end => format!(" (its process {})", how_ended(&exit)),
            Ok(_) | Err(_) => String::new(),
        };
        stderr_tail.read_out().await;
        refusal.message = format!("{}{ended}{}", refusal.message, stderr_tail.summary()).into();
    }
    refusal
}

/// Starts an agent's program with pipes as standard streams.
async fn launch(host: &Host, folders: &Folders, start: &Start, env: Arc<Env>) -> Result<Started, Refusal> {
    let refuse = |error: &io::Error| {
        Refusal::new(ErrorKind::AgentUnavailable, format!("cannot create pipes for the agent: {error}"))
    };
    let (their_in, stdin) = pipe(PipeEnd::Reading).map_err(|error| refuse(&error))?;
    let (their_out, stdout) = pipe(PipeEnd::Writing).map_err(|error| refuse(&error))?;
    let (their_err, stderr) = pipe(PipeEnd::Writing).map_err(|error| refuse(&error))?;
    let stdin = Sender::from_owned_fd(stdin).map_err(|error| refuse(&error))?;
    let stdout = Receiver::from_owned_fd(stdout).map_err(|error| refuse(&error))?;
    let stderr = Receiver::from_owned_fd(stderr).map_err(|error| refuse(&error))?;
    let (argv, variables) = if let Some(machine) = &start.agent.on {
        far::process(&start.agent, machine, &env)?
    } else {
        let words = start.agent.command.iter().map(|word| OsText::from(word.as_str()));
        (words.collect(), start.agent.environment(&env))
    };
    let launch = Launch {
        argv,
        cwd: home(folders, &env).await,
        env: variables,
        task: None,
        like: start.like.clone(),
        streams: [their_in, their_out, their_err],
    };
    let process = host.start(launch).await.map_err(|error| {
        let message = format!("the agent {:?} does not start: {error}", &*start.agent.name);
        Refusal::new(ErrorKind::AgentUnavailable, message)
    })?;
    let stderr_tail = StderrTail::default();
    tokio::task::spawn_local(stderr_tail.clone().read(stderr));
    Ok(Started { process: Leased(process), stdin, stdout, stderr_tail })
}

/// Returns the working directory of a process that several tasks share: the home directory, or else `/`. A directory of
/// one of the tasks might be removed.
async fn home(folders: &Folders, env: &Env) -> OsText {
    match env.get("HOME") {
        Some(home) if folders.is_home(home).await => home.clone(),
        Some(_) | None => OsText::from("/"),
    }
}

/// Connects to the server that prints its address on this pipe. Earlier lines go to `stderr_tail`. Later output is read
/// and discarded for as long as the server runs, so that it never blocks on a full pipe.
async fn connect_to_printed(
    stdout: Receiver,
    stderr_tail: &StderrTail,
    password: &str,
    drained: &Rc<Cell<Option<RawFd>>>,
) -> Result<Opencode, Refusal> {
    let unavailable =
        |what: &str| Refusal::new(ErrorKind::AgentUnavailable, format!("the agent's server {what}"));
    let mut reader = BufReader::new(stdout);
    let address = loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(ADDRESS_BYTES).read_until(b'\n', &mut line).await;
        match read {
            Ok(0) | Err(_) => return Err(unavailable("closed its output before printing its address")),
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line);
        match opencode::address(&line) {
            Some(address) => break address,
            None => stderr_tail.note(&line),
        }
    };
    drain(reader.into_inner(), drained);
    Opencode::connect(&address, Some(password)).await
}

/// Reads a pipe to its end, discarding the data. `drained` holds the pipe's number for as long as the pipe is open.
fn drain(mut pipe: Receiver, drained: &Rc<Cell<Option<RawFd>>>) {
    drained.set(Some(pipe.as_fd().as_raw_fd()));
    let drained = Rc::clone(drained);
    tokio::task::spawn_local(async move {
        let mut buffer = vec![0; 4096];
        while matches!(pipe.read(&mut buffer).await, Ok(count) if count > 0) {}
        drained.set(None);
    });
}
