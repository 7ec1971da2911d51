//! The connections to the daemon. One of them owns the parent session: the first call opens it, and if it breaks, the
//! next call reopens it. Calls that may wait long get a separate connection: when that is dropped, the daemon abandons
//! everything waiting on it. This module is independent of the tools.

use std::io;
use std::sync::Arc;

use bgd_shared::PROTOCOL;
use bgd_shared::client::{AsyncClient, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::mutex::Mutex as Lock;
use bgd_shared::request::{Hello, HelloParams, HelloResult, InboxRead, InboxReadParams, Method};
use bgd_shared::transport::{ConnectError, Stream};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{DaemonAddress, await_daemon, pauses, start_daemon_with, was_stopped};

/// Maximum number of concurrent waits with a connection of their own; further ones queue.
pub const WAITS: usize = 48;

/// Maximum number of concurrent searches of waits that have no connection of their own.
const GLANCES: usize = 4;

/// Maximum number of concurrent calls that end or remove tasks; further ones are refused.
pub const ENDS: usize = 16;

/// How far the number of requests in flight on a connection stays below the daemon's limit: the daemon counts a request
/// until its answer is written.
const SPARE_REQUESTS: u64 = 8;

/// One connection to one daemon.
#[derive(Debug)]
pub struct Connection {
    client: AsyncClient,
    hello: HelloResult,
    /// Limits the calls in flight.
    slots: Semaphore,
}

impl Connection {
    /// Makes a call, without retries. Waits while too many others are in flight.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        let _slot = self.slots.acquire().await.map_err(|_| ClientError::Closed)?;
        self.client.call::<M>(params).await
    }

    /// Like [`Self::call`], but for notifications that may never arrive, on a connection that is used for nothing else.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub async fn listen<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.client.listen::<M>(params).await
    }

    /// Returns the daemon instance at the other end.
    pub fn instance(&self) -> &str {
        &self.hello.instance
    }
}

/// A permit to wait on a connection of its own.
#[derive(Debug)]
pub struct WaitPermit {
    _permit: OwnedSemaphorePermit,
}

/// Whether to repeat a call after its connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// Repeating it is harmless.
    Yes,
    /// Not if the same daemon instance may have executed the call already.
    UnlessDone,
}

#[derive(Debug)]
pub struct Link {
    address: Arc<DaemonAddress>,
    starts: bool,
    /// Environment variables for a daemon started by this process, in addition to its own.
    variables: Vec<(String, String)>,
    session: String,
    owns: bool,
    current: Mutex<Option<Arc<Connection>>>,
    /// The daemon of the latest connection, if there was one.
    known: Lock<Option<Daemon>>,
    /// The report about a broken connection that is still to be made.
    broken: Lock<Option<&'static str>>,
    /// Publishes the daemon of every new connection.
    made: watch::Sender<Daemon>,
    waits: Arc<Semaphore>,
    glances: Arc<Semaphore>,
    ends: Arc<Semaphore>,
}

/// A daemon, identified by its process. Only a durable one has a successor that is the same instance with another pid;
/// an upgrade in place breaks no connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    pub instance: String,
    pub pid: i32,
}

const RESTARTED: &str = "The bgd daemon ended and was restarted. All earlier tasks are lost, as they are kept \
     only in its memory. Start the ones you still need again.";

const CUT_OFF: &str = "The connection to the bgd daemon broke, which ended the parent session: all tasks started \
     here were cancelled and deleted, including unreported results. Start the ones you still need again.";

const REPLACED: &str = "The bgd daemon ended, and the next one takes over its tasks: what ran keeps running, unless it \
     could not outlive that daemon. Look with background_list before you start anything again.";

const CUT_OFF_KEPT: &str =
    "The connection to the bgd daemon broke and was re-established; the tasks kept running.";

impl Link {
    /// Creates a link without a connection. With `owns`, the parent session ends with the connection. `variables` are
    /// added to the environment of a daemon started by this link.
    pub fn new(
        address: DaemonAddress,
        starts: bool,
        variables: Vec<(String, String)>,
        session: String,
        owns: bool,
    ) -> Self {
        Self {
            address: Arc::new(address),
            starts,
            variables,
            session,
            owns,
            current: Mutex::new(None),
            known: Lock::new(None),
            broken: Lock::new(None),
            made: watch::Sender::default(),
            waits: Arc::new(Semaphore::new(WAITS)),
            glances: Arc::new(Semaphore::new(GLANCES)),
            ends: Arc::new(Semaphore::new(ENDS)),
        }
    }

    /// Subscribes to the daemons of new connections. The same daemon appears again if only the connection broke.
    pub fn connections(&self) -> watch::Receiver<Daemon> {
        self.made.subscribe()
    }

    /// Returns the daemon instance of the latest connection, if there was one.
    pub fn instance(&self) -> Option<String> {
        self.known.lock().as_ref().map(|daemon| daemon.instance.clone())
    }

    /// Takes the report about a broken connection, if there is one.
    pub fn take_broken(&self) -> Option<&'static str> {
        self.broken.lock().take()
    }

    /// Makes a call. If the daemon turns out to be gone, repeats the call once on a new connection: earlier tasks went
    /// away with the old daemon.
    ///
    /// # Errors
    /// No daemon, a request that is too long, or the daemon's refusal.
    pub async fn call<M: Method>(self: &Arc<Self>, params: M::Params) -> Result<M::Result, Failure>
    where
        M::Params: Send + Sync + 'static,
        M::Result: Send + 'static,
    {
        self.call_to_end::<M>(params, Again::Yes).await
    }

    /// Like [`Self::call`], for calls that must not be executed twice: not repeated if the same daemon may have
    /// received the call.
    ///
    /// # Errors
    /// Those of [`Self::call`], and that the call may have been executed.
    pub async fn call_once<M: Method>(self: &Arc<Self>, params: M::Params) -> Result<M::Result, Failure>
    where
        M::Params: Send + Sync + 'static,
        M::Result: Send + 'static,
    {
        self.call_to_end::<M>(params, Again::UnlessDone).await
    }

    /// Makes a call if a daemon runs; never starts one. If the connection turns out to be broken, repeats the call once
    /// on a new connection: the daemon may still run, or have a successor.
    ///
    /// # Errors
    /// Those of [`Self::call`].
    pub async fn call_running<M: Method>(
        self: &Arc<Self>,
        params: &M::Params,
    ) -> Result<Option<M::Result>, Failure> {
        let Some(connection) = self.running_connection().await? else { return Ok(None) };
        let error = match connection.call::<M>(params).await {
            Err(error) if is_gone(&error) => error,
            outcome => return Ok(Some(outcome?)),
        };
        self.leave(&connection, &error).await;
        let Some(next) = self.running_connection().await? else { return Ok(None) };
        match next.call::<M>(params).await {
            // It is still the one that is about to end.
            Err(error) if is_gone(&error) => Ok(None),
            outcome => Ok(Some(outcome?)),
        }
    }

    /// Like [`Self::call`], but starts no daemon if the last one [`Self::was_stopped`]: then returns `None`.
    ///
    /// # Errors
    /// Those of [`Self::call`].
    pub async fn call_unless_stopped<M: Method>(
        self: &Arc<Self>,
        params: M::Params,
    ) -> Result<Option<M::Result>, Failure>
    where
        M::Params: Send + Sync + 'static,
        M::Result: Send + 'static,
    {
        if self.was_stopped() {
            return self.call_running::<M>(&params).await;
        }
        self.call::<M>(params).await.map(Some)
    }

    /// Reports whether the last daemon of this machine was asked to end and its tasks outlive it. It does not say so on
    /// every connection that it closes.
    pub fn was_stopped(&self) -> bool {
        matches!(&*self.address, DaemonAddress::Local(socket) if was_stopped(socket))
    }

    /// Like [`Self::connection`], but returns `None` if no daemon runs.
    async fn running_connection(self: &Arc<Self>) -> Result<Option<Arc<Connection>>, Failure> {
        match self.connection(false).await {
            Ok(connection) => Ok(Some(connection)),
            Err(failure) if failure.kind == "no_daemon" => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Makes a call on the current connection, if there is one and it leads to this instance; otherwise returns `None`.
    /// Never connects.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub async fn call_here<M: Method>(
        &self,
        instance: &str,
        params: &M::Params,
    ) -> Option<Result<M::Result, ClientError>> {
        let connection =
            self.current.lock().await.clone().filter(|current| current.instance() == instance)?;
        Some(connection.call::<M>(params).await)
    }

    /// Returns how to reach the daemon, for code that runs on a separate thread.
    pub fn address(&self) -> &Arc<DaemonAddress> {
        &self.address
    }

    /// Waits for a permit until this moment; returns `None` if there is none in time.
    pub async fn turn(&self, until: Instant) -> Option<WaitPermit> {
        let turn = timeout_at(until, Arc::clone(&self.waits).acquire_owned()).await;
        turn.ok()?.ok().map(|permit| WaitPermit { _permit: permit })
    }

    /// Waits for a permit to connect for a moment, for a wait that has no connection of its own.
    pub async fn glance(&self) -> Option<WaitPermit> {
        let turn = Arc::clone(&self.glances).acquire_owned().await;
        turn.ok().map(|permit| WaitPermit { _permit: permit })
    }

    /// Waits on a separate connection. Dropping the future closes it, so the daemon stops waiting too.
    ///
    /// # Errors
    /// Those of [`Self::call`].
    pub async fn wait<M: Method>(
        self: &Arc<Self>,
        turn: WaitPermit,
        params: M::Params,
    ) -> Result<M::Result, Failure> {
        let _turn = turn;
        self.aside::<M>(&params).await
    }

    /// Makes a call that may take long on a separate connection. The call continues even if the caller stops waiting.
    ///
    /// # Errors
    /// Those of [`Self::call`], and that too many are in flight.
    pub async fn end<M: Method>(self: &Arc<Self>, params: M::Params) -> Result<M::Result, Failure>
    where
        M::Params: Send + Sync + 'static,
        M::Result: Send + 'static,
    {
        let Ok(turn) = Arc::clone(&self.ends).try_acquire_owned() else {
            let message = format!("{ENDS} calls that cancel tasks are still waiting for their tasks to end");
            return Err(Failure::new(Code::WRONG_STATE, "too_many_requests", message)
                .hint("wait for them with background_block, then call this again"));
        };
        let link = Arc::clone(self);
        spawned(async move {
            let _turn = turn;
            link.aside::<M>(&params).await
        })
        .await
    }

    /// Opens another connection to the running daemon, which owns no session. Never starts a daemon.
    ///
    /// # Errors
    /// There is no daemon, it is not trusted, or it refuses.
    pub async fn another(&self) -> Result<Connection, ClientError> {
        self.greet(&introduction(None, false), false).await
    }

    async fn call_to_end<M: Method>(
        self: &Arc<Self>,
        params: M::Params,
        again: Again,
    ) -> Result<M::Result, Failure>
    where
        M::Params: Send + Sync + 'static,
        M::Result: Send + 'static,
    {
        let link = Arc::clone(self);
        // A call must be written completely, even if the caller stops waiting.
        spawned(async move {
            let connection = link.made_connection(link.starts).await?;
            check_length::<M>(&params, &connection)?;
            let error = match connection.call::<M>(&params).await {
                Err(error) if is_gone(&error) => error,
                outcome => return Ok(outcome?),
            };
            link.leave(&connection, &error).await;
            let next = link.made_connection(link.starts).await?;
            if again == Again::UnlessDone && may_be_done(&error) && next.instance() == connection.instance() {
                let message =
                    "the connection to the daemon broke before it answered: it may have received this";
                return Err(Failure::new(Code::INTERNAL, "maybe_done", message).hint(
                    "check with background_list whether it was done, and call this again only if not",
                ));
            }
            Ok(next.call::<M>(&params).await?)
        })
        .await
    }

    /// Makes a call on a separate connection. Like any other call, it is repeated once if the daemon is gone.
    async fn aside<M: Method>(self: &Arc<Self>, params: &M::Params) -> Result<M::Result, Failure> {
        check_length::<M>(params, &*self.connection(self.starts).await?)?;
        match self.call_beside::<M>(params).await {
            // The user who stopped the daemon does not want one now; the next call starts one.
            Err(error) if error.kind() == Some(ErrorKind::ShuttingDown) => Err(error.into()),
            Err(error) if is_gone(&error) || is_absent(&error) => {
                // The connection that owns the session handles the loss.
                let probe = InboxReadParams {
                    session: self.session.clone(),
                    limit: Some(1),
                    ..InboxReadParams::default()
                };
                if self.call_unless_stopped::<InboxRead>(probe).await?.is_none() {
                    return Err(error.into());
                }
                Ok(self.call_beside::<M>(params).await?)
            }
            outcome => Ok(outcome?),
        }
    }

    async fn call_beside<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.another().await?.call::<M>(params).await
    }

    /// Returns the connection that owns the session, connecting if necessary. Connecting continues even if the caller
    /// stops waiting: dropping a half-made connection would end the session.
    async fn connection(self: &Arc<Self>, starts: bool) -> Result<Arc<Connection>, Failure> {
        let link = Arc::clone(self);
        spawned(async move { link.made_connection(starts).await }).await
    }

    async fn made_connection(&self, starts: bool) -> Result<Arc<Connection>, Failure> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &*current {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(self.connect(starts).await?);
        let daemon = Daemon { instance: connection.instance().to_owned(), pid: connection.hello.pid };
        self.compare(&daemon);
        *current = Some(Arc::clone(&connection));
        self.made.send_replace(daemon);
        Ok(connection)
    }

    /// Connects with retries: the socket of a killed daemon stays open for a moment.
    async fn connect(&self, starts: bool) -> Result<Connection, Failure> {
        let params = introduction(Some(&self.session), self.owns);
        let mut pauses = pauses();
        loop {
            let error = match self.greet(&params, starts).await {
                Err(error) if is_gone(&error) || is_absent(&error) => error,
                outcome => return Ok(outcome?),
            };
            let Some(pause) = pauses.next() else { return Err(error.into()) };
            if !is_absent(&error) {
                sleep(pause).await;
                continue;
            }
            // On another machine, connecting starts the daemon.
            let DaemonAddress::Local(socket) = &*self.address else { return Err(error.into()) };
            if !starts {
                // The daemon may be restarting.
                if self.comes_again().await {
                    continue;
                }
                return Err(error.into());
            }
            let (socket, variables) = (socket.clone(), self.variables.clone());
            // This blocks until the daemon's first message.
            let started =
                tokio::task::spawn_blocking(move || start_daemon_with(&socket, &variables).map(drop));
            started.await.map_err(|error| internal(&error))??;
        }
    }

    /// Waits for a daemon that is being restarted. Returns false if no process on this machine is restarting it, or if
    /// the restart fails.
    pub async fn comes_again(&self) -> bool {
        let DaemonAddress::Local(socket) = &*self.address else { return false };
        let socket = socket.clone();
        tokio::task::spawn_blocking(move || await_daemon(&socket)).await.is_ok_and(|awaited| awaited.is_ok())
    }

    /// Connects and sends the hello request. If the daemon is shutting down, waits until it has gone. `starts` applies
    /// to a daemon on another machine.
    async fn greet(&self, params: &HelloParams, starts: bool) -> Result<Connection, ClientError> {
        let client = match &*self.address {
            DaemonAddress::Local(socket) => AsyncClient::connect(socket).await?,
            DaemonAddress::Remote(_) => AsyncClient::over(self.dialled(starts).await?)?,
        };
        match client.call::<Hello>(params).await {
            Ok(hello) => {
                let requests = hello.limits.requests.saturating_sub(SPARE_REQUESTS).max(1);
                let slots = usize::try_from(requests).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
                Ok(Connection { client, hello, slots: Semaphore::new(slots) })
            }
            Err(error) => {
                until_closed(&client, &error).await;
                Err(error)
            }
        }
    }

    /// Connects to another machine. This takes as long as ssh does, so it runs on a thread that may block.
    async fn dialled(&self, starts: bool) -> Result<Stream, ClientError> {
        let address = Arc::clone(&self.address);
        let dialling = tokio::task::spawn_blocking(move || match &*address {
            DaemonAddress::Remote(remote) => remote.stream(starts),
            DaemonAddress::Local(_) => Err(ClientError::Closed),
        });
        dialling.await.unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }

    /// Records what a reconnect means for the session.
    fn compare(&self, daemon: &Daemon) {
        let Daemon { instance, pid } = daemon;
        let before = self.known.lock().replace(daemon.clone());
        let word = match before {
            None => return,
            Some(before) if before.instance != *instance => RESTARTED,
            Some(before) if before.pid != *pid => REPLACED,
            Some(_) if self.owns => CUT_OFF,
            Some(_) => CUT_OFF_KEPT,
        };
        *self.broken.lock() = Some(word);
    }

    /// Forgets a connection, unless it has been replaced already. If the daemon is shutting down, waits until it has
    /// gone.
    async fn leave(&self, connection: &Arc<Connection>, error: &ClientError) {
        until_closed(&connection.client, error).await;
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|same| Arc::ptr_eq(same, connection)) {
            *current = None;
        }
    }
}

/// Waits until the daemon closes the connection, if the error reports that it is shutting down.
async fn until_closed(client: &AsyncClient, error: &ClientError) {
    if error.kind() == Some(ErrorKind::ShuttingDown) {
        client.until_closed().await;
    }
}

/// Runs to the end even if the caller stops waiting.
async fn spawned<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(internal(&error)))
}

fn internal(error: &tokio::task::JoinError) -> Failure {
    Failure::new(Code::INTERNAL, "internal", error.to_string())
}

fn introduction(session: Option<&str>, owns: bool) -> HelloParams {
    HelloParams {
        client: Some(concat!("bgctl mcp ", env!("CARGO_PKG_VERSION")).to_owned()),
        protocol: Some(PROTOCOL),
        session: session.map(str::to_owned),
        owns,
    }
}

/// Refuses requests that are too long: the daemon would close the connection, which would end the parent session.
fn check_length<M: Method>(params: &M::Params, connection: &Connection) -> Result<(), Failure> {
    let length = connection.client.line_bytes::<M>(params)?;
    let most = usize::try_from(connection.hello.limits.frame_bytes).unwrap_or(usize::MAX);
    if length <= most {
        return Ok(());
    }
    let message = format!("this is too long for the daemon: {length} bytes, at most {most}");
    Err(Failure::new(Code::USAGE, "frame_too_large", message)
        .hint("write the long part to a file, and give the file's path"))
}

/// Reports whether the error means that the daemon at the other end has gone or is shutting down.
pub fn is_gone(error: &ClientError) -> bool {
    match error {
        ClientError::Rpc(error) => error.kind() == ErrorKind::ShuttingDown,
        ClientError::Closed | ClientError::Io(_) => true,
        // The daemon may answer later, and closing the connection would end the session.
        ClientError::NoAnswer(_) | ClientError::Connect(_) | ClientError::Garbled(_) => false,
    }
}

/// Reports whether the error means that no daemon is running.
pub fn is_absent(error: &ClientError) -> bool {
    matches!(error, ClientError::Connect(error) if ConnectError::is_absent(error))
}

/// Reports whether a call that failed with this error may have reached the daemon.
fn may_be_done(error: &ClientError) -> bool {
    match error {
        // The connection had broken before the call.
        ClientError::Io(error) => error.kind() != io::ErrorKind::NotConnected,
        ClientError::Closed | ClientError::NoAnswer(_) => true,
        ClientError::Rpc(_) | ClientError::Connect(_) | ClientError::Garbled(_) => false,
    }
}
