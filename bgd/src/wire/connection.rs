//! One connection: bytes become calls for the dispatcher, and the client's queue becomes bytes.
//!
//! Requests of one connection are answered side by side. It may not look at tasks.

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

use crate::client::{Client, Room, Silent};
use crate::os::descriptors;
use crate::wire::calls::{Body, Call};
use crate::wire::mailbox::{Calls, Incoming};

/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Serves a client until it is gone, or until no request can come (as it has closed its side, or the
/// daemon is `closing`) and every answer is written.
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
    // What is still to come for it goes nowhere.
    connection.client.close();
    // The dispatcher has ended if nobody takes this.
    let _ = connection.calls.send(Incoming::Gone(Arc::clone(&connection.client))).await;
}

struct Connection {
    stream: AsyncStream,
    client: Arc<Client>,
    calls: Calls,
    no_more_requests: AtomicBool,
    room: Room,
    silent: Arc<Silent>,
}

/// How a connection was let in.
pub struct Admission {
    /// The longest request line in bytes.
    pub frame_bytes: usize,
    /// What there is room for.
    pub room: Room,
    /// Where it is known until it says something.
    pub silent: Arc<Silent>,
}

impl Connection {
    /// Reads requests until the client has closed its side, or sends what can't be read on from.
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

    /// Refuses what there is no room for: the last connections are kept for the daemon's own methods.
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

    /// Whether the other end is closed for both directions. One that has closed its sending side only still reads.
    fn is_abandoned(&self) -> bool {
        let mut socket = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        matches!(poll(&mut socket, PollTimeout::ZERO), Ok(1..))
            && socket[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }

    /// Whether a program hands over its child and has ended since: nobody else looks after that child.
    fn is_bequest(&self, method: &str) -> bool {
        // The system closes the connections of a process before it says that the process has ended.
        let has_ended = |pid| ProcessStat::of(pid).is_none_or(|stat| stat.has_ended());
        method == TaskHandoff::NAME && self.client.process.is_some_and(has_ended)
    }

    /// Waits until the client has closed its reading side too: it waits for nothing any more.
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
            // Then the end of the answers is the end of the connection.
            tracing::debug!(client = self.client.id, %error, "a half-closed connection can't be watched");
            std::future::pending::<()>().await;
        }
    }

    async fn take(&self, frame: Frame<OwnedFd>) {
        let request = match parse_request(&frame.line) {
            Ok(request) => request,
            Err(error) => return self.client.tell(&error_line(None, &error)),
        };
        // Nobody waits for the answer, as when this process was stopped and its clients have given up: what was
        // asked for is not wanted any more. A notification has no answer, so that its sender may be gone.
        if request.id.is_some() && self.is_abandoned() && !self.is_bequest(&request.method) {
            tracing::info!(client = self.client.id, method = %request.method, "its client is gone: not carried out");
            return;
        }
        let body = Body::read(&request, frame.attachments);
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
        // The dispatcher has ended if nobody takes this; the connection is about to be closed then.
        let _ = self.calls.send(Incoming::Call { client: Arc::clone(&self.client), call }).await;
    }

    /// Writes what is queued, until the connection is at its end.
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

/// Reads once. The buffer lives on the stack, so that ten thousand quiet connections need none.
fn receive(socket: &tokio::net::UnixStream, decoder: &mut FrameDecoder<OwnedFd>) -> io::Result<usize> {
    let mut buffer = [0; READ_BYTES];
    let (count, attachments) = fds::receive(socket, &mut buffer)?;
    if !attachments.is_empty() && descriptors::are_reserved(socket, descriptors::User::Client) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, descriptors::NONE_LEFT));
    }
    decoder.push(&buffer[..count], attachments);
    // Environments came in it, and nobody gives a stack back.
    buffer[..count].zeroize();
    Ok(count)
}
