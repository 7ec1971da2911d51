//! Accepts connections, only from this user and up to a limit.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::fds::{self, peer_pid, peer_uid};
use bgd_shared::message::error_line;
use bgd_shared::transport::{AsyncListener, AsyncStream};
use interprocess::local_socket::traits::tokio::Listener as _;
use nix::errno::Errno;
use rustix::net::{SocketFlags, accept_with};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::client::{Client, ClientLimits, Room};
use crate::config::Config;
use crate::os::descriptors;
use crate::wire::connection::{Connection, Shared, discard_requests};

#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Maximum number of concurrent connections.
    pub connections: usize,
    /// The maximum length of a request line in bytes.
    pub frame_bytes: usize,
    pub client: ClientLimits,
    /// Whether root may connect to another user's daemon.
    pub allow_root: bool,
}

impl From<&Config> for ServerLimits {
    fn from(config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            connections: limits.connections,
            frame_bytes: limits.frame_bytes,
            client: ClientLimits { requests: limits.requests, write_queue_bytes: limits.write_queue_bytes },
            allow_root: config.allow_root,
        }
    }
}

/// How many connections above the limit are reserved for `hello` and `daemon.*`, so that a daemon at its limit
/// can still be queried and stopped.
const KEPT: usize = 4;

/// How long clients have to receive their last responses at shutdown.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The pause after an accept error that no event will resolve.
const REST: Duration = Duration::from_millis(100);

/// Serves until `closing` changes, then waits up to a second for clients to receive their last responses.
///
/// A listener received from `listeners` replaces the current one, whose socket was removed. `before` are connections
/// taken over from another program.
pub async fn run(
    mut listener: AsyncListener,
    mut listeners: mpsc::Receiver<AsyncListener>,
    limits: watch::Receiver<ServerLimits>,
    (shared, before): (Shared, Vec<Arc<Connection>>),
    mut closing: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut spare = Spare::default();
    shared.connections.listens(raw(&listener));
    for connection in before {
        connections.spawn(connection.serve(closing.clone()));
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    spare.refill();
                    let limits = *limits.borrow();
                    while connections.try_join_next().is_some() {}
                    let admitted = admit(&stream, connections.len(), &limits, &shared);
                    let is_short = !matches!(admitted, Ok(Room::All));
                    match admitted {
                        Ok(room) => {
                            let client = Client::new(shared.connections.next_client(), limits.client);
                            let client = Arc::new(client.of_process(peer_pid(&stream)));
                            match Connection::new(stream, client, room, limits.frame_bytes, &shared) {
                                Ok(connection) => _ = connections.spawn(connection.serve(closing.clone())),
                                Err(error) => tracing::warn!(%error, "a connection can't be watched"),
                            }
                        }
                        Err(error) => {
                            refuse(&stream, &error);
                            drop(stream);
                        }
                    }
                    if is_short || connections.len() > limits.connections {
                        // A connection that was closed to make room ends meanwhile, and its descriptor becomes free:
                        // without this, each of a burst would close another one.
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) => spare.handle_accept_error(&listener, &error).await,
            },
            // Clients in the queue of the old listener retry, as it is closed.
            Some(new) = listeners.recv() => {
                shared.connections.listens(raw(&new));
                listener = new;
            }
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection failed");
                }
            }
            _ = closing.changed() => break,
        }
    }
    drop(listener);
    drop(shared);
    let _ =
        tokio::time::timeout(LAST_WORDS, async { while connections.join_next().await.is_some() {} }).await;
}

/// Checks whether a peer may connect, and which requests there is room for.
fn admit(
    stream: &AsyncStream,
    connections: usize,
    limits: &ServerLimits,
    shared: &Shared,
) -> Result<Room, RpcError> {
    let peer = peer_uid(stream)
        .map_err(|error| RpcError::new(ErrorKind::Internal, format!("the peer is unknown: {error}")))?;
    let me = nix::unistd::Uid::effective().as_raw();
    if peer != me && !(peer == 0 && limits.allow_root) {
        tracing::warn!(peer, "a connection of another user was refused");
        return Err(RpcError::new(
            ErrorKind::PermissionDenied,
            format!("this daemon serves only uid {me}, you are uid {peer}"),
        )
        .hint(if peer == 0 {
            "allow_root = true in its configuration allows root"
        } else {
            "start your own"
        }));
    }
    if descriptors::are_reserved(stream, descriptors::User::Client) {
        // The descriptor of a closed silent connection becomes free a moment later.
        let _ = shared.evict(Room::All) || shared.evict(Room::Daemon);
        let has_some = !descriptors::are_reserved(stream, descriptors::User::Control);
        return if has_some { Ok(Room::Daemon) } else { Err(no_descriptors()) };
    }
    if connections < limits.connections {
        return Ok(Room::All);
    }
    // Those that were closed to make room count until they have ended, which takes as long as the dispatcher is busy.
    let may_evict = connections < limits.connections.saturating_mul(2) + KEPT;
    if may_evict && shared.evict(Room::All) {
        return Ok(Room::All);
    }
    if connections < limits.connections + KEPT || (may_evict && shared.evict(Room::Daemon)) {
        return Ok(Room::Daemon);
    }
    tracing::warn!(limit = limits.connections, "a connection was refused: there are too many");
    let message = format!("the daemon has {connections} connections, more than its limit");
    Err(RpcError::new(ErrorKind::TooManyConnections, message)
        .hint("close some, or raise limits.connections in the configuration"))
}

fn no_descriptors() -> RpcError {
    tracing::warn!("no descriptors are left: a connection is refused");
    let message = format!("a connection was refused: {}", descriptors::NONE_LEFT);
    RpcError::new(ErrorKind::TooManyConnections, message)
        .hint("end some tasks or clients, or restart the daemon where `ulimit -Hn` shows more")
}

/// Sends the reason; the caller closes the connection. The line fits into any socket buffer. The runtime would not write
/// it, as it does not know yet whether there is room.
fn refuse(socket: impl AsFd, error: &RpcError) {
    let _ = fds::send_now(&socket, &error_line(None, error), &[]);
    discard_requests(socket);
}

/// A spare descriptor that is given up to inform a client that none are left.
struct Spare(Option<File>);

impl Default for Spare {
    fn default() -> Self {
        Self(File::open("/dev/null").ok())
    }
}

impl Spare {
    fn refill(&mut self) {
        if self.0.is_none() {
            *self = Self::default();
        }
    }

    /// Handles a failed accept so that it can't fail repeatedly without a pause.
    async fn handle_accept_error(&mut self, listener: &AsyncListener, error: &io::Error) {
        let errno = error.raw_os_error().map(Errno::from_raw);
        match errno {
            Some(Errno::EMFILE | Errno::ENFILE) if self.0.take().is_some() => {
                if let Ok(accepted) = accept_with(listener, SocketFlags::CLOEXEC) {
                    refuse(accepted, &no_descriptors());
                }
                self.refill();
                // Connections that end meanwhile have descriptors.
                tokio::task::yield_now().await;
            }
            Some(Errno::ECONNABORTED | Errno::EINTR) => {}
            Some(_) | None => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(REST).await;
            }
        }
    }
}

fn raw(listener: &AsyncListener) -> std::os::fd::RawFd {
    use std::os::fd::AsRawFd as _;
    listener.as_fd().as_raw_fd()
}
