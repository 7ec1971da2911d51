//! One connection: turns received bytes into calls for the dispatcher, and writes the client's queue.
//!
//! Requests of one connection are processed concurrently. This module must not access tasks.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::fds;
use bgd_shared::frame::{Frame, FrameDecoder, FrameError};
use bgd_shared::message::{error_line, parse_request};
use bgd_shared::proc::ProcessStat;
use bgd_shared::request::{Method as _, TaskHandoff};
use bgd_shared::transport::AsyncStream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{AsyncWriteExt as _, Interest, Ready};
use tokio::sync::watch;
use zeroize::Zeroize as _;

use crate::client::{Client, IdleConnections, Room};
use crate::os::descriptors;
use crate::wire::calls::{Body, Call};
use crate::wire::mailbox::{Calls, Incoming};

/// The size of the read buffer, in bytes.
const READ_BYTES: usize = 16 * 1024;

/// Serves a client until it is gone, or until no more requests can come (it has closed its sending side, or the
/// daemon is `closing`) and every response is written.
pub async fn serve(
    stream: AsyncStream,
    client: Arc<Client>,
    calls: Calls,
    admission: Admission,
    mut closing: watch::Receiver<bool>,
) {
    let Admission { frame_bytes, room, silent } = admission;
    let no_more_requests = AtomicBool::new(false);
    let connection = Connection { stream, client, calls, no_more_requests, room, silent };
    if connection.calls.send(Incoming::Connected(Arc::clone(&connection.client))).await.is_err() {
        return;
    }
    let until_no_more_requests = async {
        tokio::select! {
            result = connection.read(frame_bytes) => {
                if let Err(error) = result {
                    tracing::debug!(client = connection.client.id, %error, "connection broken");
                    connection.client.close();
                }
            }
            () = connection.client.is_sent_away() => {}
            _ = closing.changed() => {}
        }
        connection.no_more_requests.store(true, Ordering::Relaxed);
        connection.client.finish();
        connection.until_hung_up().await;
    };
    tokio::select! {
        () = connection.write() => {}
        () = until_no_more_requests => {}
    }
    connection.silent.remove(&connection.client);
    // Discard whatever is still sent to it.
    connection.client.close();
    // Sending fails only if the dispatcher has ended.
    let _ = connection.calls.send(Incoming::Gone(Arc::clone(&connection.client))).await;
}

struct Connection {
    stream: AsyncStream,
    client: Arc<Client>,
    calls: Calls,
    no_more_requests: AtomicBool,
    room: Room,
    silent: Arc<IdleConnections>,
}

/// The terms on which a connection was admitted.
pub struct Admission {
    /// The maximum length of a request line in bytes.
    pub frame_bytes: usize,
    /// Which requests it may send.
    pub room: Room,
    /// Lists the connection until it sends a request.
    pub silent: Arc<IdleConnections>,
}

impl Connection {
    /// Reads requests until the client closes its sending side or sends something after which parsing can't continue.
    async fn read(&self, frame_bytes: usize) -> io::Result<()> {
        let mut decoder = FrameDecoder::<OwnedFd>::new(frame_bytes);
        loop {
            let socket = self.stream.inner();
            let count = match socket.async_io(Interest::READABLE, || receive(socket, &mut decoder)).await {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.client.tell(&error_line(None, &too_many_descriptors(&error.to_string())));
                    return Ok(());
                }
                count => count?,
            };
            if count == 0 {
                return Ok(());
            }
            self.silent.remove(&self.client);
            loop {
                self.client.has_room().await;
                match decoder.next_frame() {
                    Ok(Some(frame)) if self.refuses(&frame) => return Ok(()),
                    Ok(Some(frame)) => self.take(frame).await,
                    Ok(None) => break,
                    Err(error) => {
                        let error = match error {
                            FrameError::TooLarge { .. } => {
                                RpcError::new(ErrorKind::FrameTooLarge, format!("request refused: {error}"))
                                    .hint("the connection is closed; limits.frame_bytes sets the limit")
                            }
                            FrameError::TooManyAttachments { .. } => too_many_descriptors(&error.to_string()),
                        };
                        self.client.tell(&error_line(None, &error));
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Refuses requests that the connection may not send: the last connections are reserved for `hello`
    /// and `daemon.*`.
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

    /// Whether the peer has closed both directions. A peer that has only closed its sending side still reads.
    fn is_abandoned(&self) -> bool {
        let mut socket = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        matches!(poll(&mut socket, PollTimeout::ZERO), Ok(1..))
            && socket[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }

    /// Whether a program that has ended since hands over its child: nobody else looks after that child.
    fn is_bequest(&self, method: &str) -> bool {
        // The kernel closes a process's connections before it reports the process as ended.
        let has_ended = |pid| ProcessStat::of(pid).is_none_or(|stat| stat.has_ended());
        method == TaskHandoff::NAME && self.client.process.is_some_and(has_ended)
    }

    /// Waits until the client has closed its reading side as well, and so waits for nothing any more.
    async fn until_hung_up(&self) {
        let hung_up = async {
            let socket = crate::os::watch::writable(self.stream.as_fd().try_clone_to_owned()?)?;
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

    async fn take(&self, frame: Frame<OwnedFd>) {
        let request = match parse_request(&frame.line) {
            Ok(request) => request,
            Err(error) => return self.client.tell(&error_line(None, &error)),
        };
        // Nobody waits for the response, for example because this process was stopped and its clients have given
        // up: the request is no longer wanted. A notification gets no response, so its sender may be gone.
        if request.id.is_some() && self.is_abandoned() && !self.is_bequest(&request.method) {
            tracing::info!(client = self.client.id, method = %request.method, "its client is gone: not carried out");
            return;
        }
        let body = Body::read(&request, frame.attachments, self.client.process);
        let reserved = body.reserve();
        if !self.client.begin_request(reserved) {
            let error =
                RpcError::new(ErrorKind::TooManyRequests, "this connection has too many unanswered requests")
                    .hint("wait for answers, or use more connections; limits.requests sets the limit");
            if request.id.is_some() {
                self.client.tell(&error_line(request.id.as_ref(), &error));
            }
            return;
        }
        let call = Call { id: request.id, reserved, body };
        // Sending fails only if the dispatcher has ended; the connection is about to be closed then.
        let _ = self.calls.send(Incoming::Call { client: Arc::clone(&self.client), call }).await;
    }

    /// Writes what is queued until the connection ends.
    async fn write(&self) {
        let finished = || self.no_more_requests.load(Ordering::Relaxed);
        while let Some(bytes) = self.client.next_bytes(finished).await {
            if let Err(error) = (&self.stream).write_all(&bytes).await {
                tracing::debug!(client = self.client.id, %error, "connection broken");
                return self.client.close();
            }
            if self.client.wrote() {
                let _ = self.calls.send(Incoming::Drained(Arc::clone(&self.client))).await;
            }
        }
    }
}

fn too_many_descriptors(why: &str) -> RpcError {
    RpcError::new(ErrorKind::InvalidRequest, format!("request refused: {why}"))
        .hint("the connection is closed")
}

/// Reads once. The buffer is on the stack, so that ten thousand idle connections need none.
fn receive(socket: &tokio::net::UnixStream, decoder: &mut FrameDecoder<OwnedFd>) -> io::Result<usize> {
    let mut buffer = [0; READ_BYTES];
    let (count, attachments) = fds::receive(socket, &mut buffer)?;
    if !attachments.is_empty() && descriptors::are_reserved(socket, descriptors::User::Client) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, descriptors::NONE_LEFT));
    }
    decoder.push(&buffer[..count], attachments);
    // It may have held environments, and the stack is not wiped otherwise.
    buffer[..count].zeroize();
    Ok(count)
}
