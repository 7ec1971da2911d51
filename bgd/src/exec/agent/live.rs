//! An agent that is spoken with: its process, if that is ours, and the connection to it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::agent::AgentProtocol;
use bgd_shared::error::ErrorKind;
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;

use super::acp::Acp;
use super::link::Connection;
use super::opencode::{self, Opencode};
use super::start::Start;
use super::stderr_tail::{ON_THE_WAY, StderrTail};
use crate::agents::Agent;
use crate::core::Refusal;
use crate::exec::host::{Host, Launch, Leased, Process, SIGKILL, SIGTERM, Theirs, pipe, said};

/// How long a process that was asked to end has, before it is made to.
const GRACE: Duration = Duration::from_secs(2);

/// How long the exit of a process is waited for whose connection has ended, to tell how it went.
const OBITUARY: Duration = Duration::from_secs(1);

/// The longest line in which a server tells its address, in bytes.
const ADDRESS_BYTES: u64 = 64 * 1024;

/// The variable that sets the password of opencode's server.
const PASSWORD: &str = "OPENCODE_SERVER_PASSWORD";

/// An agent that has said who it is.
#[derive(Debug)]
pub struct Live {
    /// The way to speak with it.
    pub connection: Connection,
    process: Option<Leased>,
    stderr_tail: StderrTail,
    /// Nobody needs it any more.
    over: watch::Sender<bool>,
    /// Its process was ended from here, so how it exited says nothing.
    ended: Cell<bool>,
    /// What the turns in it are told if it was ended because of one of them.
    sacrificed: Cell<Option<&'static str>>,
}

/// A started process with our ends of its standard streams.
struct Started {
    process: Leased,
    stdin: Sender,
    stdout: Receiver,
    stderr_tail: StderrTail,
}

impl Live {
    /// Starts an agent and waits until it has said who it is. Dropping the future ends what was started.
    ///
    /// # Errors
    /// It could not be started, or did not say so.
    pub async fn start(host: &Host, start: &Start) -> Result<Self, Refusal> {
        match start.agent.protocol {
            AgentProtocol::Acp => Self::start_acp(host, start).await,
            AgentProtocol::Opencode => Self::start_opencode(host, start).await,
            AgentProtocol::Template => {
                Err(Refusal::new(ErrorKind::Internal, "a template has no process of its own"))
            }
        }
    }

    async fn start_acp(host: &Host, start: &Start) -> Result<Self, Refusal> {
        let Started { process, stdin, stdout, stderr_tail } = launch(host, start, start.env.clone()).await?;
        let connecting = Acp::connect(stdin, stdout);
        tokio::pin!(connecting);
        let connected = tokio::select! {
            biased;
            connected = &mut connecting => connected,
            // What it wrote in place of the protocol may say more than how it ended: its usage, for instance.
            exit = process.0.exited() => match tokio::time::timeout(ON_THE_WAY, connecting).await {
                Ok(Err(refusal)) => Err(refusal),
                Ok(Ok(_)) | Err(_) => Err(died(&start.agent, &exit)),
            },
        };
        match connected {
            Ok(acp) => Ok(Self::new(Connection::Acp(acp), Some(process), stderr_tail)),
            Err(refusal) => Err(with_end(refusal, &process.0, &stderr_tail).await),
        }
    }

    async fn start_opencode(host: &Host, start: &Start) -> Result<Self, Refusal> {
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
        // Everybody on this machine can reach the server, so it gets a password that nobody knows.
        let password = known.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        let others = start.env.0.iter().filter(|(name, _)| &**name != PASSWORD).cloned();
        let env: Env = others.chain([(PASSWORD.into(), password.as_str().into())]).collect();
        let Started { process, stdin: _, stdout, stderr_tail } = launch(host, start, Arc::new(env)).await?;
        let connected = tokio::select! {
            biased;
            connected = connect_to_printed(stdout, &stderr_tail, &password) => connected,
            exit = process.0.exited() => Err(died(&start.agent, &exit)),
        };
        match connected {
            Ok(opencode) => Ok(Self::new(Connection::Opencode(opencode), Some(process), stderr_tail)),
            Err(refusal) => Err(with_end(refusal, &process.0, &stderr_tail).await),
        }
    }

    fn new(connection: Connection, process: Option<Leased>, stderr_tail: StderrTail) -> Self {
        let (over, ended, sacrificed) = (watch::channel(false).0, Cell::new(false), Cell::new(None));
        Self { connection, process, stderr_tail, over, ended, sacrificed }
    }

    /// What has no process that outlives a turn.
    pub fn of(connection: Connection) -> Self {
        Self::new(connection, None, StderrTail::default())
    }

    /// The number of its process.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|process| process.0.pid)
    }

    /// Whether its process has ended, be it in this very moment.
    pub fn is_dead(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.0.has_exited())
    }

    /// Waits for the death of a process whose connection would not tell of it at once: a server's. What is
    /// spoken with through pipes is heard to the end.
    pub async fn died_unheard(&self) -> Box<str> {
        match (&self.connection, &self.process) {
            (Connection::Opencode(_), Some(process)) => {
                let exit = process.0.exited().await;
                format!("its process {}", said(&exit)).into()
            }
            (Connection::Acp(_) | Connection::Opencode(_) | Connection::Template(_), _) => {
                std::future::pending().await
            }
        }
    }

    /// Waits until it can't be spoken with any more, and says why.
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
            exit = exited => format!("its process {}", said(&exit)).into(),
            _ = over.wait_for(|over| *over) => "no longer needed".into(),
        }
    }

    /// What its process says on its standard error while it lives.
    pub fn stderr_tail(&self) -> &StderrTail {
        &self.stderr_tail
    }

    /// How it ended, as a sentence about a turn that ran in it.
    pub async fn describe_end(&self, why: &str) -> String {
        let exit = match &self.process {
            Some(process) => tokio::time::timeout(OBITUARY, process.0.exited()).await.ok(),
            None => None,
        };
        let what = match (self.sacrificed.get(), exit) {
            (Some(why), _) => format!("the agent's process was ended: {why}"),
            (None, Some(exit)) if !self.ended.get() => format!("the agent's process {}", said(&exit)),
            (None, Some(_) | None) => format!("lost the connection to the agent: {why}"),
        };
        self.stderr_tail.read_out().await;
        format!("{what}{}", self.stderr_tail.tell())
    }

    /// Ends the process tree of one that can't be spoken with any more. What is dying by itself is left the
    /// time for that, so that it is known how it died.
    pub async fn end_lost(self: Rc<Self>) {
        if let (Some(process), false) = (&self.process, *self.over.borrow()) {
            // One that lives on is ended now.
            let _ = tokio::time::timeout(OBITUARY, process.0.exited()).await;
        }
        self.end(true).await;
    }

    /// Ends its process tree by force, with all turns that are in it; this is what they are told.
    pub async fn sacrifice(self: Rc<Self>, why: &'static str) {
        self.sacrificed.set(Some(why));
        self.end(false).await;
    }

    /// Ends its process tree: asks first, unless that is useless. Returns when nothing of it is left.
    pub async fn end(self: Rc<Self>, ask: bool) {
        self.over.send_replace(true);
        let Some(process) = &self.process else { return };
        if !process.0.has_exited() {
            self.ended.set(true);
        }
        if ask {
            process.0.end(SIGTERM);
            if tokio::time::timeout(GRACE, process.0.gone()).await.is_ok() {
                return;
            }
        }
        process.0.end(SIGKILL);
        process.0.gone().await;
    }
}

/// What is said of an agent whose time to start was over before it had done this.
pub fn too_slow(agent: &Agent, what: &str) -> Refusal {
    let message = format!(
        "the agent {:?} {what} within {}",
        &*agent.name,
        humantime::format_duration(agent.start_timeout)
    );
    Refusal::new(ErrorKind::AgentUnavailable, message)
        .hint(format!("raise start_timeout in [agents.{}]", agent.name))
}

fn died(agent: &Agent, exit: &Exit) -> Refusal {
    let message = format!("the agent {:?} does not start: its process {}", &*agent.name, said(exit));
    Refusal::new(ErrorKind::AgentUnavailable, message)
}

/// What an agent wrote before it gave up says more than that it did.
async fn with_end(mut refusal: Refusal, process: &Process, stderr_tail: &StderrTail) -> Refusal {
    if refusal.kind == ErrorKind::AgentUnavailable {
        let exit = tokio::time::timeout(OBITUARY, process.exited()).await;
        let ended = match exit {
            Ok(exit) if !refusal.message.contains("its process") => format!(" (its process {})", said(&exit)),
            Ok(_) | Err(_) => String::new(),
        };
        stderr_tail.read_out().await;
        refusal.message = format!("{}{ended}{}", refusal.message, stderr_tail.tell()).into();
    }
    refusal
}

/// Starts an agent's program with pipes as standard streams.
async fn launch(host: &Host, start: &Start, env: Arc<Env>) -> Result<Started, Refusal> {
    let refuse = |error: &io::Error| {
        Refusal::new(ErrorKind::AgentUnavailable, format!("cannot make pipes for the agent: {error}"))
    };
    let (their_in, stdin) = pipe(Theirs::Reading).map_err(|error| refuse(&error))?;
    let (their_out, stdout) = pipe(Theirs::Writing).map_err(|error| refuse(&error))?;
    let (their_err, stderr) = pipe(Theirs::Writing).map_err(|error| refuse(&error))?;
    let stdin = Sender::from_owned_fd(stdin).map_err(|error| refuse(&error))?;
    let stdout = Receiver::from_owned_fd(stdout).map_err(|error| refuse(&error))?;
    let stderr = Receiver::from_owned_fd(stderr).map_err(|error| refuse(&error))?;
    let launch = Launch {
        argv: start.agent.command.iter().map(|word| OsText::from(word.as_str())).collect(),
        cwd: home(&env),
        env: start.agent.environment(&env),
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

/// The folder of a process that several tasks share: none of theirs, as each may be removed.
fn home(env: &Env) -> OsText {
    let home = env
        .get("HOME")
        .filter(|home| home.as_bytes().starts_with(b"/") && std::path::Path::new(home.as_os_str()).is_dir());
    home.cloned().unwrap_or_else(|| OsText::from("/"))
}

/// Connects to the server that prints its address on this pipe. What else it prints is read and dropped
/// for as long as it lives, so that it never waits for a reader.
async fn connect_to_printed(
    stdout: Receiver,
    stderr_tail: &StderrTail,
    password: &str,
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
    tokio::task::spawn_local(async move {
        let mut rest = reader.into_inner();
        let mut buffer = vec![0; 4096];
        while matches!(rest.read(&mut buffer).await, Ok(count) if count > 0) {}
    });
    Opencode::connect(&address, Some(password)).await
}
