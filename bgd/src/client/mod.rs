//! A connected client as the rest of the daemon sees it: a bounded queue of bytes to write.
//!
//! Producers append responses to the queue; the connection's own task writes them. Nothing here blocks a producer,
//! so a client that does not read slows down only itself: its next request is read only when there is room again.

pub mod answer;

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::message::error_line;
use bgd_shared::mutex::Mutex;
use nix::unistd::{Pid, getsid};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Debug)]
pub struct Client {
    /// The connection's number, never reused.
    pub id: u64,
    /// The process that connected, which may have ended since; `None` if its PID is not visible here.
    pub process: Option<i32>,
    /// The leader of that process's session, which identifies its terminal.
    pub leader: Option<i32>,
    queue: Mutex<Queue>,
    /// Signals that there are bytes to write, or that the last response was sent.
    written: Notify,
    /// Signals that there is room for requests again.
    room: Notify,
    /// Signals that bytes were written.
    read_on: Notify,
    /// Signals that the connection must be closed for another client.
    sent_away: Notify,
    limits: ClientLimits,
}

#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Maximum number of unanswered requests.
    pub requests: usize,
    /// Queued bytes above which the next request is not read.
    pub write_queue_bytes: usize,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Bytes taken from the queue but not yet written.
    in_hand: usize,
    /// Number of requests that were accepted. It is not carried over an upgrade.
    requests: u64,
    /// Bytes that pending responses may need.
    reserved: usize,
    unanswered: usize,
    /// Whether the daemon has more for this client once the queue is empty.
    wants_drained: bool,
    /// Whether the connection must be closed for another client.
    is_sent_away: bool,
    closed: bool,
}

impl Queue {
    fn load(&self) -> usize {
        self.unread() + self.reserved
    }

    fn unread(&self) -> usize {
        self.bytes.len() + self.in_hand
    }
}

impl Client {
    /// Creates a client with an empty queue.
    pub fn new(id: u64, limits: ClientLimits) -> Self {
        Self {
            id,
            process: None,
            leader: None,
            queue: Mutex::default(),
            written: Notify::new(),
            room: Notify::new(),
            read_on: Notify::new(),
            sent_away: Notify::new(),
            limits,
        }
    }

    /// Sets the process that connected, and its session leader.
    #[must_use]
    pub fn of_process(self, process: Option<i32>) -> Self {
        let leader = process.and_then(|process| getsid(Some(Pid::from_raw(process))).ok());
        Self { process, leader: leader.map(Pid::as_raw).filter(|leader| *leader > 0), ..self }
    }

    /// Registers a request whose response may need `reserve` bytes. Returns false if too many are pending.
    pub fn begin_request(&self, reserve: usize) -> bool {
        let mut queue = self.queue.lock();
        if queue.unanswered >= self.limits.requests {
            return false;
        }
        queue.unanswered += 1;
        queue.requests += 1;
        queue.reserved += reserve;
        true
    }

    /// Returns the number of requests accepted so far, to find out whether the client has sent more since then.
    pub fn requests(&self) -> u64 {
        self.queue.lock().requests
    }

    /// Releases bytes that were reserved for a response.
    pub fn release(&self, reserved: usize) {
        let mut queue = self.queue.lock();
        queue.reserved = queue.reserved.saturating_sub(reserved);
        drop(queue);
        self.room.notify_one();
    }

    /// Completes a request. `line` is empty for a notification, which gets no response.
    pub fn answer(&self, line: &[u8], reserved: usize) {
        let mut queue = self.queue.lock();
        queue.unanswered = queue.unanswered.saturating_sub(1);
        queue.reserved = queue.reserved.saturating_sub(reserved);
        if !queue.closed {
            queue.bytes.extend_from_slice(line);
        }
        drop(queue);
        self.written.notify_one();
        // Releasing the reservation may make room for the next request even if nothing is written.
        self.room.notify_one();
    }

    /// Appends a line that answers no request, regardless of the queue's limit. Use it only for one-off messages.
    pub fn tell(&self, line: &[u8]) {
        let mut queue = self.queue.lock();
        if !queue.closed {
            queue.bytes.extend_from_slice(line);
        }
        drop(queue);
        self.written.notify_one();
    }

    /// Appends a line, given in pieces, if there is room or everything was written: reservations for answers don't
    /// block it, as answers may take long. Otherwise returns false, and `wrote` returns true once the queue is empty.
    pub fn try_tell(&self, line: &[&[u8]]) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed {
            return true;
        }
        if queue.unread() > 0
            && queue.load() + line.iter().map(|piece| piece.len()).sum::<usize>()
                > self.limits.write_queue_bytes
        {
            queue.wants_drained = true;
            return false;
        }
        for piece in line {
            queue.bytes.extend_from_slice(piece);
        }
        drop(queue);
        self.written.notify_one();
        true
    }

    /// Reports whether the client reads too slowly for more streamed messages: more than half of the queue limit is
    /// unread.
    pub fn is_slow(&self) -> bool {
        self.queue.lock().unread() > self.limits.write_queue_bytes / 2
    }

    /// Reports whether the client has read nearly everything: at most an eighth of the queue limit is unread.
    pub fn has_caught_up(&self) -> bool {
        self.queue.lock().unread() <= self.limits.write_queue_bytes / 8
    }

    /// Waits until the client has caught up if `to_the_end`, else only until it is no longer slow.
    pub async fn wait_until_read(&self, to_the_end: bool) {
        loop {
            let waiting = self.read_on.notified();
            if if to_the_end { self.has_caught_up() } else { !self.is_slow() } {
                return;
            }
            waiting.await;
        }
    }

    /// Waits until everything queued so far is written, or the connection is broken.
    pub async fn wait_until_written(&self) {
        loop {
            let waiting = self.read_on.notified();
            if self.queue.lock().unread() == 0 {
                return;
            }
            waiting.await;
        }
    }

    /// Waits until the next request may be read.
    pub async fn has_room(&self) {
        loop {
            let waiting = self.room.notified();
            if self.queue.lock().load() <= self.limits.write_queue_bytes {
                return;
            }
            waiting.await;
        }
    }

    /// Waits for bytes to write. They may be empty if the program before an upgrade held back news. Returns `None` at
    /// the end of the connection: it was closed, or `finished` reports that no more requests will come and all are
    /// answered.
    pub async fn next_bytes(&self, finished: impl Fn() -> bool) -> Option<Vec<u8>> {
        loop {
            let waiting = self.written.notified();
            {
                let mut queue = self.queue.lock();
                if !queue.bytes.is_empty() || queue.wants_drained {
                    let bytes = std::mem::take(&mut queue.bytes);
                    queue.in_hand = bytes.len();
                    return Some(bytes);
                }
                if queue.closed || (finished() && queue.unanswered == 0) {
                    return None;
                }
            }
            waiting.await;
        }
    }

    /// Marks the bytes taken by `next_bytes` as written. Returns true if the daemon has more for this client.
    #[must_use]
    pub fn wrote(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.in_hand = 0;
        let drained = queue.bytes.is_empty() && std::mem::take(&mut queue.wants_drained);
        drop(queue);
        self.room.notify_one();
        self.read_on.notify_waiters();
        drained
    }

    /// Queues a last message after which the connection is closed.
    pub fn evict(&self, word: &[u8]) {
        self.tell(word);
        self.queue.lock().is_sent_away = true;
        self.sent_away.notify_one();
    }

    /// Reports whether the connection must be closed for another client.
    pub fn must_leave(&self) -> bool {
        self.queue.lock().is_sent_away
    }

    /// Waits for `evict`.
    pub async fn is_sent_away(&self) {
        self.sent_away.notified().await;
    }

    /// Signals that no more requests will come.
    pub fn finish(&self) {
        self.written.notify_one();
    }

    /// Marks the connection as broken: discards queued and future bytes.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.bytes = Vec::new();
        queue.in_hand = 0;
        drop(queue);
        self.written.notify_one();
        self.room.notify_one();
        self.read_on.notify_waiters();
    }
}

/// A client's state, for an upgrade in place.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClientState {
    id: u64,
    process: Option<i32>,
    leader: Option<i32>,
    #[serde(with = "crate::carry::bytes")]
    bytes: Vec<u8>,
    in_hand: usize,
    reserved: usize,
    unanswered: usize,
    wants_drained: bool,
}

impl Client {
    /// Returns the state; `None` if the connection is broken.
    pub fn state(&self) -> Option<ClientState> {
        // Nothing waits for the signals during an upgrade; the limits come from the configuration.
        let Self { id, process, leader, queue: _, written: _, room: _, read_on: _, sent_away: _, limits: _ } =
            self;
        // Its connection carries that it was sent away.
        let Queue {
            bytes,
            in_hand,
            requests: _,
            reserved,
            unanswered,
            wants_drained,
            is_sent_away: _,
            closed,
        } = &*self.queue.lock();
        (!closed).then(|| ClientState {
            id: *id,
            process: *process,
            leader: *leader,
            bytes: bytes.clone(),
            in_hand: *in_hand,
            reserved: *reserved,
            unanswered: *unanswered,
            wants_drained: *wants_drained,
        })
    }

    /// Restores a client of the program before an upgrade.
    pub fn restore(state: ClientState, limits: ClientLimits) -> Self {
        let ClientState { id, process, leader, bytes, in_hand, reserved, unanswered, wants_drained } = state;
        let queue =
            Queue { bytes, in_hand, requests: 0, reserved, unanswered, wants_drained, ..Queue::default() };
        Self { process, leader, queue: Mutex::new(queue), ..Self::new(id, limits) }
    }

    /// Returns the number of unanswered requests.
    pub fn unanswered(&self) -> usize {
        self.queue.lock().unanswered
    }
}

/// The requests that a connection slot admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Room {
    /// Any request.
    All,
    /// `hello` and `daemon.*`.
    Daemon,
}

/// Connections that have not sent anything yet, oldest first.
#[derive(Debug, Default)]
pub struct IdleConnections(Mutex<BTreeMap<u64, (Arc<Client>, Room)>>);

impl IdleConnections {
    pub fn add(&self, client: &Arc<Client>, room: Room) {
        self.0.lock().insert(client.id, (Arc::clone(client), room));
    }

    /// Reports whether a connection has not sent anything yet.
    pub fn contains(&self, client: u64) -> bool {
        self.0.lock().contains_key(&client)
    }

    /// Removes a connection that sent something or is gone.
    pub fn remove(&self, client: &Client) {
        self.0.lock().remove(&client.id);
    }

    /// Closes the longest-silent connection in a slot of this kind. Returns false if there is none. A connection is not
    /// silent if it `has_sent` something that is not read yet.
    pub fn evict(&self, room: Room, has_sent: impl Fn(u64) -> bool) -> bool {
        let mut all = self.0.lock();
        let oldest = loop {
            let oldest = all.iter().find(|(_, (_, its))| *its == room).map(|(id, _)| *id);
            let Some((oldest, _)) = oldest.and_then(|oldest| all.remove(&oldest)) else { return false };
            if !has_sent(oldest.id) {
                break oldest;
            }
        };
        drop(all);
        tracing::warn!(client = oldest.id, "closing a connection without requests: another client needs it");
        let message = "closed because it sent no request and another client needs the connection";
        let error = RpcError::new(ErrorKind::TooManyConnections, message)
            .hint("connect only to send requests, or raise limits.connections in the configuration");
        oldest.evict(&error_line(None, &error));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        Client::new(1, ClientLimits { requests: 2, write_queue_bytes: 10 })
    }

    #[test]
    fn requests_count_until_answered() {
        let client = client();
        assert!(client.begin_request(0) && client.begin_request(0));
        assert!(!client.begin_request(0));
        client.answer(b"x", 0);
        assert!(client.begin_request(0));
    }

    #[tokio::test]
    async fn connection_whose_request_is_unread_is_not_closed_for_another() {
        let limits = ClientLimits { requests: 2, write_queue_bytes: 10 };
        let [asks, silent] = [1, 2].map(|id| Arc::new(Client::new(id, limits)));
        let all = IdleConnections::default();
        for client in [&asks, &silent] {
            all.add(client, Room::All);
        }
        assert!(all.evict(Room::All, |client| client == asks.id));
        silent.is_sent_away().await;
        assert!(asks.next_bytes(|| true).await.is_none(), "it is told nothing");
        assert!(!all.evict(Room::All, |_| false), "it is known to have sent something");
    }

    #[tokio::test]
    async fn full_queue_accepts_events_only_after_being_written() {
        let client = client();
        assert!(client.try_tell(&[b"12345", b"678"]));
        assert!(!client.try_tell(&[b"901"]));
        assert_eq!(client.next_bytes(|| false).await.unwrap(), b"12345678");
        assert!(!client.try_tell(&[b"901"]), "the bytes in hand count");
        assert!(client.wrote(), "somebody waits");
        assert!(client.try_tell(&[b"901"]));
    }

    #[tokio::test]
    async fn r26_events_do_not_wait_for_a_pending_reply() {
        let client = client();
        assert!(client.begin_request(1000));
        for line in [b"news", b"more"] {
            assert!(client.try_tell(&[line]), "everything was written");
            assert!(!client.try_tell(&[b"rest"]), "the room is reserved");
            assert_eq!(client.next_bytes(|| false).await.unwrap(), line);
            assert!(client.wrote(), "somebody waits");
        }
    }

    #[tokio::test]
    async fn empty_reply_releases_its_reserved_room() {
        let client = client();
        assert!(client.begin_request(1000));
        let waits = client.has_room();
        tokio::pin!(waits);
        assert!(futures_poll(&mut waits).await.is_none(), "the room is reserved");
        client.answer(b"", 1000);
        waits.await;
    }

    /// Returns the output of a future if it is ready at once.
    async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }

    #[test]
    fn empty_queue_accepts_one_overlong_line() {
        let client = client();
        assert!(client.try_tell(&[&[b'x'; 100]]));
    }

    #[tokio::test]
    async fn writer_ends_when_everything_is_answered() {
        let client = client();
        assert!(client.begin_request(0));
        client.answer(b"", 0);
        assert_eq!(client.next_bytes(|| true).await, None);
    }
}
