//! One connection: turns received bytes into calls for the dispatcher, and writes the client's queue.
//!
//! Requests of one connection are processed concurrently. This module must not access tasks.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::fds;
use bgd_shared::frame::{Frame, FrameDecoder, FrameError, Rest};
use bgd_shared::message::{error_line, parse_request};
use bgd_shared::mutex::Mutex;
use bgd_shared::proc;
use bgd_shared::request::{Method as _, TaskHandoff};
use bgd_shared::transport::AsyncStream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use rustix::io::ioctl_fionread;
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::net::UnixStream;
use tokio::sync::mpsc::Permit;
use tokio::sync::watch as watched;
use zeroize::Zeroize as _;

use crate::carry::{self, CarriedFds, Fd, Obstacle, ReceivedFds};
use crate::client::{Client, ClientLimits, ClientState, IdleConnections, Room};
use crate::os::{descriptors, watch};
use crate::wire::calls::{Body, Call};
use crate::wire::connections::Connections;
use crate::wire::mailbox::{Calls, Incoming};

/// The size of the read buffer, in bytes.
const READ_BYTES: usize = 16 * 1024;

/// How long a full connection pauses if no descriptor is left to watch it for room.
const REST: Duration = Duration::from_millis(100);

/// A connection. Unfinished work is kept in [`Progress`], so that nothing is lost between two waits.
#[derive(Debug)]
pub struct Connection {
    pub client: Arc<Client>,
    /// Watched for requests only: if the runtime watched it for room, too, each response that the client reads would
    /// wake the daemon.
    stream: AsyncFd<OwnedFd>,
    calls: Calls,
    /// The requests it may send.
    room: Room,
    /// Lists the connection until it sends a request.
    silent: Arc<IdleConnections>,
    others: Arc<Connections<Connection>>,
    progress: Mutex<Progress>,
}

/// The unfinished work of a connection.
#[derive(Debug)]
struct Progress {
    /// Bytes that were read, but not yet accepted as requests.
    decoder: FrameDecoder<OwnedFd>,
    /// The bytes being written, and how many of them are written.
    hand: Vec<u8>,
    written: usize,
    /// Whether the dispatcher knows the client.
    is_known: bool,
    no_more_requests: bool,
    /// Whether that is because the client has sent something that was refused, or was sent away.
    is_refused: bool,
}

/// Why no more requests are read from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client has closed its sending side.
    Closed,
    /// The client has sent something that was refused, and after which nothing more can be read.
    Refused,
}

/// All connections, for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectionsState {
    /// The listening socket.
    pub listener: Fd,
    pub latest: u64,
    pub all: Vec<ConnectionState>,
}

impl ConnectionsState {
    /// Returns the state of all connections.
    ///
    /// # Errors
    /// A request is on its way, or a connection is being opened or closed.
    pub fn of(connections: &Connections<Connection>, named: &mut CarriedFds) -> Result<Self, Obstacle> {
        if !connections.gate.is_idle() {
            return Err(Obstacle::passing("a request is being read"));
        }
        let (latest, listener) = connections.state();
        let listener = named.number(listener);
        let all =
            connections.list().iter().map(|connection| connection.state(named)).collect::<Result<_, _>>()?;
        Ok(Self { listener, latest, all })
    }
}

/// A connection, for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectionState {
    client: ClientState,
    stream: Fd,
    room: Room,
    is_silent: bool,
    #[serde(with = "carry::bytes")]
    read: Vec<u8>,
    attachments: Vec<(u64, Fd)>,
    #[serde(with = "carry::bytes")]
    hand: Vec<u8>,
    no_more_requests: bool,
    /// Whether that is because the client has sent something that was refused, or was sent away.
    #[serde(default)]
    is_refused: bool,
}

impl Connection {
    /// Returns the state.
    ///
    /// # Errors
    /// The connection is being opened or closed.
    pub fn state(&self, named: &mut CarriedFds) -> Result<ConnectionState, Obstacle> {
        // The parts that serve it are rebuilt.
        let Self { client, stream, room, silent, calls: _, others: _, progress: _ } = self;
        let Progress { decoder, hand, written, is_known, no_more_requests, is_refused } =
            &*self.progress.lock();
        // Its task may not have noticed yet, and the signal is not carried.
        let must_leave = client.must_leave();
        let id = client.id;
        let client = client.state().filter(|_| *is_known);
        let client = client.ok_or_else(|| Obstacle::passing("a connection is being opened or closed"))?;
        let rest = decoder.rest(|attachment| named.add(attachment));
        Ok(ConnectionState {
            client,
            stream: named.add(stream),
            room: *room,
            is_silent: silent.contains(id),
            read: rest.bytes,
            attachments: rest.attachments,
            hand: hand.get(*written..).unwrap_or_default().to_vec(),
            no_more_requests: *no_more_requests || must_leave,
            is_refused: *is_refused || must_leave,
        })
    }

    /// Adds a connection taken over from another program.
    ///
    /// # Errors
    /// A descriptor is missing, or can't be watched.
    pub fn restore(
        state: ConnectionState,
        (frame_bytes, limits): (usize, ClientLimits),
        shared: &Shared,
        received: &mut ReceivedFds,
    ) -> io::Result<Arc<Self>> {
        let ConnectionState {
            client,
            stream,
            room,
            is_silent,
            read,
            attachments,
            hand,
            no_more_requests,
            is_refused,
        } = state;
        let stream = watch::readable(received.take(stream)?)?;
        let take = |(line, fd)| received.take(fd).map(|fd| (line, fd));
        let attachments = attachments.into_iter().map(take).collect::<io::Result<_>>()?;
        let decoder = FrameDecoder::resume_from(frame_bytes, Rest { bytes: read, attachments });
        let progress = Progress { decoder, hand, written: 0, is_known: true, no_more_requests, is_refused };
        let client = Arc::new(Client::restore(client, limits));
        Ok(Self::added(stream, client, (room, is_silent), progress, shared))
    }
}

impl Progress {
    fn has_rest(&self) -> bool {
        self.written < self.hand.len()
    }
}

/// The parts shared by all connections.
#[derive(Clone, Debug)]
pub struct Shared {
    pub calls: Calls,
    /// The connections that have not sent anything yet.
    pub silent: Arc<IdleConnections>,
    pub connections: Arc<Connections<Connection>>,
}

impl Shared {
    /// Closes the longest-silent connection in a slot of this kind. Returns false if there is none.
    pub fn evict(&self, room: Room) -> bool {
        let has_sent =
            |client| self.connections.get(client).is_some_and(|connection| connection.has_unread());
        self.silent.evict(room, has_sent)
    }
}

impl Connection {
    /// Adds a connection that was accepted. `frame_bytes` is the maximum length of a request line.
    ///
    /// # Errors
    /// The system can't watch more descriptors.
    pub fn new(
        stream: AsyncStream,
        client: Arc<Client>,
        room: Room,
        frame_bytes: usize,
        shared: &Shared,
    ) -> io::Result<Arc<Self>> {
        let stream = watch::readable(UnixStream::from(stream).into_std()?.into())?;
        let progress = Progress {
            decoder: FrameDecoder::new(frame_bytes),
            hand: Vec::new(),
            written: 0,
            is_known: false,
            no_more_requests: false,
            is_refused: false,
        };
        Ok(Self::added(stream, client, (room, true), progress, shared))
    }

    fn added(
        stream: AsyncFd<OwnedFd>,
        client: Arc<Client>,
        (room, is_silent): (Room, bool),
        progress: Progress,
        shared: &Shared,
    ) -> Arc<Self> {
        let Shared { calls, silent, connections } = shared.clone();
        if is_silent {
            silent.add(&client, room);
        }
        let progress = Mutex::new(progress);
        let connection =
            Arc::new(Self { client, stream, calls, room, silent, others: connections, progress });
        connection.others.add(connection.client.id, &connection);
        connection
    }

    /// Serves the client until it is gone, or until no more requests can come (it has closed its sending side, or the
    /// daemon is `closing`) and every response is written.
    pub async fn serve(self: Arc<Self>, mut closing: watched::Receiver<bool>) {
        if !self.progress.lock().is_known {
            if self.calls.send(Incoming::Connected(Arc::clone(&self.client))).await.is_err() {
                return;
            }
            self.progress.lock().is_known = true;
        }
        let until_no_more_requests = async {
            if !self.progress.lock().no_more_requests {
                let mut is_refused = false;
                tokio::select! {
                    result = self.read() => match result {
                        Ok(end) => is_refused = end == End::Refused,
                        Err(error) => {
                            tracing::debug!(client = self.client.id, %error, "connection broken");
                            self.client.close();
                        }
                    },
                    () = self.client.is_sent_away() => is_refused = true,
                    _ = closing.changed() => {}
                }
                let mut progress = self.progress.lock();
                (progress.no_more_requests, progress.is_refused) = (true, is_refused);
            }
            self.client.finish();
            if self.progress.lock().is_refused {
                self.close_to_requests().await;
            }
            self.until_hung_up().await;
        };
        tokio::select! {
            () = self.write() => {}
            () = until_no_more_requests => {}
        }
        if self.progress.lock().is_refused {
            // The last response may have been written before anything else.
            discard_requests(&self.stream);
        }
        self.silent.remove(&self.client);
        // Discard further messages to it.
        self.client.close();
        // Sending fails only if the dispatcher has ended.
        let _ = self.calls.send(Incoming::Gone(Arc::clone(&self.client))).await;
        self.others.remove(self.client.id);
    }

    /// Reads requests until the client closes its sending side or sends something after which parsing can't continue.
    async fn read(&self) -> io::Result<End> {
        loop {
            // Start with the leftover of an earlier read.
            if !self.take_all().await {
                return Ok(End::Refused);
            }
            let count = match self.stream.async_io(Interest::READABLE, |socket| self.receive(socket)).await {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.client.tell(&error_line(None, &too_many_descriptors(&error.to_string())));
                    return Ok(End::Refused);
                }
                count => count?,
            };
            if count == 0 {
                return Ok(End::Closed);
            }
            self.silent.remove(&self.client);
        }
    }

    /// Accepts the complete requests among the bytes read. Returns false if the connection can't continue.
    ///
    /// A client that is sent away drops this future, so it must not wait with a request in hand: that would never be
    /// answered.
    async fn take_all(&self) -> bool {
        loop {
            self.client.has_room().await;
            let _passing = self.others.gate.pass().await;
            let Ok(place) = self.calls.reserve().await else {
                // The dispatcher has ended, and the connection is closed with the daemon, which may take a while: if it
                // were read meanwhile, nothing would limit what is kept of it.
                return std::future::pending().await;
            };
            let next = self.progress.lock().decoder.next_frame();
            match next {
                Ok(Some(frame)) if self.refuses(&frame) => return false,
                Ok(Some(frame)) => self.take(frame, place),
                Ok(None) => return true,
                Err(error) => {
                    let error = match error {
                        FrameError::TooLarge { .. } => {
                            RpcError::new(ErrorKind::FrameTooLarge, format!("request refused: {error}"))
                                .hint("the connection is closed; limits.frame_bytes sets the limit")
                        }
                        FrameError::TooManyAttachments { .. } => too_many_descriptors(&error.to_string()),
                    };
                    self.client.tell(&error_line(None, &error));
                    return false;
                }
            }
        }
    }

    /// Reads once. The buffer is on the stack, so that ten thousand idle connections need none.
    fn receive(&self, socket: &OwnedFd) -> io::Result<usize> {
        let mut buffer = [0; READ_BYTES];
        let (count, attachments) = fds::receive(socket, &mut buffer)?;
        if !attachments.is_empty() && descriptors::are_reserved(socket, descriptors::User::Client) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, descriptors::NONE_LEFT));
        }
        self.progress.lock().decoder.push(&buffer[..count], attachments);
        // It may have held environments, and the stack is not wiped otherwise.
        buffer[..count].zeroize();
        Ok(count)
    }

    /// Refuses requests that the connection may not send: the last connections are reserved for `hello` and `daemon.*`.
    fn refuses(&self, frame: &Frame<OwnedFd>) -> bool {
        if self.room == Room::All {
            return false;
        }
        let Ok(request) = parse_request(&frame.line) else { return false };
        if request.method == "hello" || request.method.starts_with("daemon.") {
            return false;
        }
        let error = RpcError::new(
            ErrorKind::TooManyConnections,
            "the daemon has reached its limit of connections, and serves only hello and daemon.* on this one",
        )
        .hint("the connection is closed; close others, or raise limits.connections in the configuration");
        self.client.tell(&error_line(request.id.as_ref(), &error));
        true
    }

    /// Closes the direction from the client once it was sent the reason. The other one stays open until all its requests are
    /// answered, but a client that goes on writing fails, rather than wait for answers that never come.
    async fn close_to_requests(&self) {
        // Some clients look for the reason as soon as a write fails.
        self.client.wait_until_written().await;
        discard_requests(&self.stream);
    }

    /// Reports whether the client has sent something that is not read yet.
    fn has_unread(&self) -> bool {
        ioctl_fionread(self.stream.get_ref()).is_ok_and(|bytes| bytes > 0)
    }

    /// Reports whether the peer has closed both directions. A peer that has only closed its sending side still reads.
    fn is_abandoned(&self) -> bool {
        let mut socket = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        matches!(poll(&mut socket, PollTimeout::ZERO), Ok(1..))
            && socket[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }

    /// Reports whether a program that has since ended is handing over its child: nothing else supervises that child.
    fn is_orphan_handoff(&self, method: &str) -> bool {
        // The kernel closes a process's connections before it reports the process as ended.
        method == TaskHandoff::NAME && self.client.process.is_some_and(proc::has_ended)
    }

    /// Waits until the client has closed its reading side as well, and so no longer waits for anything.
    async fn until_hung_up(&self) {
        // Nearly always: a client that has its response closes both sides at once.
        if self.is_abandoned() {
            return;
        }
        let hung_up = async {
            let socket = watch::writable(self.stream.get_ref().try_clone()?)?;
            loop {
                let mut ready = socket.writable().await?;
                if ready.ready().is_write_closed() {
                    return io::Result::Ok(());
                }
                ready.clear_ready_matching(Ready::WRITABLE);
            }
        };
        if let Err(error) = hung_up.await {
            // The connection then ends after the last response.
            tracing::debug!(client = self.client.id, %error, "a half-closed connection can't be watched");
            std::future::pending::<()>().await;
        }
    }

    /// Passes a request on, through a place in the mailbox.
    fn take(&self, frame: Frame<OwnedFd>, place: Permit<'_, Incoming>) {
        let request = match parse_request(&frame.line) {
            Ok(request) => request,
            Err(error) => return self.client.tell(&error_line(None, &error)),
        };
        // The response is no longer awaited, for example because this process was stopped and its clients have given
        // up: drop the request. A notification gets no response, so its sender may be gone.
        if request.id.is_some() && self.is_abandoned() && !self.is_orphan_handoff(&request.method) {
            tracing::info!(client = self.client.id, method = %request.method, "its client is gone: not carried out");
            return;
        }
        let body = Body::read(&request, frame.attachments, self.client.process);
        let reserved = body.reserve();
        if !self.client.begin_request(reserved) {
            let error =
                RpcError::new(ErrorKind::TooManyRequests, "this connection has too many unanswered requests")
                    .hint("wait for answers, or use more connections; limits.requests sets the limit");
            if matches!(body, Body::Many(..) | Body::PartRefused(_)) {
                place.send(Incoming::PartRefused(Arc::clone(&self.client)));
            }
            if request.id.is_some() {
                self.client.tell(&error_line(request.id.as_ref(), &error));
            }
            return;
        }
        let call = Call { id: request.id, reserved, body };
        place.send(Incoming::Call { client: Arc::clone(&self.client), call });
    }

    /// Writes the queue until the connection ends.
    async fn write(&self) {
        let finished = || self.progress.lock().no_more_requests;
        loop {
            if let Err(error) = self.write_rest().await {
                tracing::debug!(client = self.client.id, %error, "connection broken");
                return self.client.close();
            }
            if self.client.wrote() {
                let _ = self.calls.send(Incoming::Drained(Arc::clone(&self.client))).await;
            }
            let Some(bytes) = self.client.next_bytes(finished).await else { return };
            let mut progress = self.progress.lock();
            (progress.hand, progress.written) = (bytes, 0);
        }
    }

    /// Writes the rest of the bytes being written.
    async fn write_rest(&self) -> io::Result<()> {
        let mut room = None;
        while self.progress.lock().has_rest() {
            let sent = match &room {
                None => self.send(),
                Some(room) => match AsyncFd::writable(room).await?.try_io(|_| self.send()) {
                    Ok(sent) => sent,
                    Err(_is_full) => continue,
                },
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => room = self.watch_for_room().await,
                sent => sent?,
            }
        }
        let mut progress = self.progress.lock();
        (progress.hand, progress.written) = (Vec::new(), 0);
        Ok(())
    }

    /// Watches for room for more of a response, until the watch is dropped. Without a descriptor for that, waits a
    /// moment.
    async fn watch_for_room(&self) -> Option<AsyncFd<OwnedFd>> {
        let socket = self.stream.get_ref();
        // Do without a descriptor if others need it more.
        let has_some = !descriptors::are_reserved(socket, descriptors::User::Task);
        let room = if has_some { socket.try_clone().and_then(watch::writable).ok() } else { None };
        if room.is_none() {
            tokio::time::sleep(REST).await;
        }
        room
    }

    /// Writes once.
    fn send(&self) -> io::Result<()> {
        let mut progress = self.progress.lock();
        let rest = progress.hand.get(progress.written..).unwrap_or_default();
        progress.written += fds::send(&self.stream, rest, &[])?;
        Ok(())
    }
}

/// Closes the direction from a client, and discards what has come there: closing the connection with it would replace its
/// end by an error, on which some clients don't look for the reason.
pub fn discard_requests(socket: impl AsFd) {
    let socket = socket.as_fd();
    if let Err(error) = shutdown(socket, Shutdown::Read) {
        tracing::debug!(%error, "connection broken");
    }
    let mut buffer = [0; READ_BYTES];
    while let Ok(1..) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        // It may have held environments.
        buffer.zeroize();
    }
}

fn too_many_descriptors(why: &str) -> RpcError {
    RpcError::new(ErrorKind::InvalidRequest, format!("request refused: {why}"))
        .hint("the connection is closed")
}

#[cfg(test)]
mod tests;
