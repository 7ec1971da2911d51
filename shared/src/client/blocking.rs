//! The blocking client, for short programs: it needs no runtime.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{MsgFlags, send, setsockopt};
use nix::sys::time::TimeVal;

use super::error::ClientError;
use super::protocol::{Call, Outcome, Protocol, Received};
use super::watchdog::{Step, Watchdog};
use crate::event::EventParams;
use crate::fds;
use crate::holder::{self, Phase};
use crate::limits::FIRST_ANSWER;
use crate::proc;
use crate::request::Method;
use crate::socket::SocketPath;
use crate::transport::{Listener, Stream, Unresponsive, connect_within};

/// Bytes per read. Few, because a short program touches all of the buffer.
const READ_BYTES: usize = 8 * 1024;

/// A connection to the daemon that makes one call at a time.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    protocol: Protocol,
    news: VecDeque<EventParams>,
    /// Answers that arrived before they were asked for.
    answers: VecDeque<(u64, Outcome)>,
    buffer: Box<[u8]>,
    socket: Option<SocketPath>,
    listener: Option<Listener>,
    watchdog: Watchdog,
    /// Whether the client waits for the daemon to exit and close the connection.
    awaits_end: bool,
    /// Maximum time to wait for any message, whatever the daemon reports about itself.
    at_most: Option<Duration>,
    /// The receive timeout that is set on the socket.
    armed: Option<Duration>,
}

/// The parts of a connection.
pub(super) struct Parts {
    pub(super) stream: Stream,
    pub(super) protocol: Protocol,
    pub(super) received: VecDeque<Received>,
    pub(super) socket: Option<SocketPath>,
    pub(super) listener: Option<Listener>,
    pub(super) watchdog: Watchdog,
}

/// Differences between wait times that do not matter.
const ROUND: Duration = Duration::from_millis(1);

/// How early a read may time out, to save a system call.
const EARLY: Duration = Duration::from_millis(100);

impl Client {
    /// Connects. Gives up on a daemon that does not answer after [`FIRST_ANSWER`].
    ///
    /// # Errors
    /// There is no daemon, it does not answer, or the peer must not be trusted.
    pub fn connect(socket: &SocketPath) -> Result<Self, ClientError> {
        Self::connect_within(socket, FIRST_ANSWER)
    }

    /// Connects. Gives up on a daemon that does not answer after `first_answer`.
    ///
    /// # Errors
    /// There is no daemon, it does not answer, or the peer must not be trusted.
    pub fn connect_within(socket: &SocketPath, first_answer: Duration) -> Result<Self, ClientError> {
        let (stream, listener) = connect_within(socket, first_answer)?;
        let mut client = Self::of(stream);
        (client.socket, client.listener) = (Some(socket.clone()), listener);
        client.watchdog.first_answer(first_answer);
        Ok(client)
    }

    /// Speaks over a connection that another program, such as ssh, relays to a daemon. The daemon may then be silent
    /// for a minute.
    pub fn over(stream: Stream) -> Self {
        Self {
            watchdog: Watchdog::carried(Instant::now()),
            protocol: Protocol::carried(),
            ..Self::of(stream)
        }
    }

    /// Speaks over a direct connection to the daemon.
    pub(super) fn of(stream: Stream) -> Self {
        Self {
            stream,
            protocol: Protocol::default(),
            news: VecDeque::new(),
            answers: VecDeque::new(),
            buffer: vec![0; READ_BYTES].into(),
            socket: None,
            listener: None,
            watchdog: Watchdog::new(Instant::now()),
            awaits_end: false,
            at_most: None,
            armed: None,
        }
    }

    /// Limits every wait from now on, even if the daemon is alive.
    pub fn wait_at_most(&mut self, time: Duration) {
        self.at_most = Some(time);
    }

    /// Makes a call whose answer may take at most `takes`. Checks on the daemon if the answer is late.
    ///
    /// # Errors
    /// The daemon's refusal, a broken connection, or a daemon that does not answer.
    pub fn call_within<M: Method>(
        &mut self,
        params: &M::Params,
        takes: Option<Duration>,
    ) -> Result<M::Result, ClientError> {
        self.call_meanwhile::<M>(params, takes, || ())
    }

    /// Like [`Self::call_within`], and runs `meanwhile` while the daemon processes the call.
    ///
    /// # Errors
    /// As for [`Self::call_within`].
    pub fn call_meanwhile<M: Method>(
        &mut self,
        params: &M::Params,
        takes: Option<Duration>,
        meanwhile: impl FnOnce(),
    ) -> Result<M::Result, ClientError> {
        let sent = self.send_within::<M>(params, takes);
        let outcome = sent.and_then(|call| {
            meanwhile();
            self.answer::<M>(call)
        });
        self.watchdog.due(None);
        outcome
    }

    /// Makes a call and waits for its answer. Keeps events that arrive meanwhile for [`Self::next_news`].
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.call_with_fds::<M>(params, &[])
    }

    /// Like [`Self::call`], with descriptors that travel with the line.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub fn call_with_fds<M: Method>(
        &mut self,
        params: &M::Params,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<M::Result, ClientError> {
        let call = self.send::<M>(params, descriptors)?;
        self.answer::<M>(call)
    }

    /// Sends a call without waiting. Returns its number, for [`Self::answer`].
    ///
    /// # Errors
    /// A broken connection.
    pub fn send<M: Method>(
        &mut self,
        params: &M::Params,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<u64, ClientError> {
        let Call { number, line, along } = self.protocol.call::<M>(params)?;
        let along = along.as_ref().map(OwnedFd::as_fd);
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().copied().chain(along).collect();
        match self.write(&line, &descriptors) {
            // The daemon may have sent a reason before it closed, such as `too_many_connections`. After any other error
            // the connection may be open, and reading to its end would never return.
            Err(error) if is_closed_by_peer(&error) => {
                self.last_words()?;
                Err(error)
            }
            outcome => outcome.map(|()| number),
        }
    }

    /// Like [`Self::send`], for a call whose answer may take at most `takes`. A later wait checks on the daemon if the
    /// answer is late.
    ///
    /// # Errors
    /// A broken connection.
    pub fn send_within<M: Method>(
        &mut self,
        params: &M::Params,
        takes: Option<Duration>,
    ) -> Result<u64, ClientError> {
        self.watchdog.due(takes.and_then(|takes| Instant::now().checked_add(takes)));
        self.send::<M>(params, &[])
    }

    fn write(&mut self, line: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        self.watchdog.asked(Instant::now());
        let mut sent = 0;
        while sent < line.len() {
            let outcome = if sent == 0 && !descriptors.is_empty() {
                fds::send(self.stream.as_fd(), line, descriptors)
            } else {
                self.stream.write(&line[sent..])
            };
            match outcome {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The socket buffer is full: the daemon does not read.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.look(false)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn last_words(&mut self) -> Result<(), ClientError> {
        while let Ok(count @ 1..) = self.stream.read(&mut self.buffer) {
            self.protocol.push(&self.buffer[..count]);
        }
        while self.protocol.next_received()?.is_some() {}
        Ok(())
    }

    /// Waits for the answer to a call. Answers may arrive in any order; those to other calls are kept until they are
    /// requested. Drops terminal output that arrives meanwhile.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub fn answer<M: Method>(&mut self, call: u64) -> Result<M::Result, ClientError> {
        let outcome = self.awaited::<M>(call);
        // Later calls may take longer.
        self.watchdog.due(None);
        outcome
    }

    fn awaited<M: Method>(&mut self, call: u64) -> Result<M::Result, ClientError> {
        if let Some(outcome) = self.take_answer(call) {
            return Protocol::result::<M>(outcome);
        }
        loop {
            match self.receive()? {
                Received::Answer { call: answered, outcome } if answered == call => {
                    return Protocol::result::<M>(outcome);
                }
                Received::Answer { call: other, outcome } => self.answers.push_back((other, outcome)),
                Received::Output(_) | Received::Stopped(_) => {}
                Received::News(news) => self.news.push_back(*news),
            }
        }
    }

    /// Returns the answer to a call, if it has arrived; reads once unless it had arrived before. For callers that poll
    /// the socket together with other descriptors and have found it readable. It may be readable only because the
    /// daemon answered a probe.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub fn answered<M: Method>(&mut self, call: u64) -> Result<Option<M::Result>, ClientError> {
        // The daemon may have closed the connection after this answer.
        self.sort_received()?;
        let mut outcome = self.take_answer(call);
        if outcome.is_none() {
            self.read_once()?;
            self.sort_received()?;
            outcome = self.take_answer(call);
        }
        outcome.map(Protocol::result::<M>).transpose()
    }

    /// Keeps all messages that have been received until they are requested. Drops terminal output.
    fn sort_received(&mut self) -> Result<(), ClientError> {
        while let Some(received) = self.protocol.next_received()? {
            match received {
                Received::Answer { call, outcome } => self.answers.push_back((call, outcome)),
                Received::Output(_) | Received::Stopped(_) => {}
                Received::News(news) => self.news.push_back(*news),
            }
        }
        Ok(())
    }

    /// Takes the answer to a call from those that were kept.
    fn take_answer(&mut self, call: u64) -> Option<Outcome> {
        let place = self.answers.iter().position(|(answered, _)| *answered == call)?;
        self.answers.remove(place).map(|(_, outcome)| outcome)
    }

    /// Reads what has arrived, if anything. Returns at once if the socket is readable.
    fn read_once(&mut self) -> Result<(), ClientError> {
        match self.stream.read(&mut self.buffer) {
            Ok(0) => return Err(ClientError::Closed),
            Ok(count) => {
                self.watchdog.heard(Instant::now());
                self.protocol.push(&self.buffer[..count]);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Waits for the next event of this connection's subscriptions.
    ///
    /// # Errors
    /// A broken connection.
    pub fn next_news(&mut self) -> Result<EventParams, ClientError> {
        if let Some(news) = self.news.pop_front() {
            return Ok(news);
        }
        loop {
            if let Received::News(news) = self.receive()? {
                return Ok(*news);
            }
        }
    }

    /// Returns the next event of this connection's subscriptions, if it has been received already. Never waits.
    ///
    /// # Errors
    /// The daemon sent something that this client can't parse.
    pub fn received_news(&mut self) -> Result<Option<EventParams>, ClientError> {
        if let Some(news) = self.news.pop_front() {
            return Ok(Some(news));
        }
        while let Some(received) = self.protocol.next_received()? {
            if let Received::News(news) = received {
                return Ok(Some(*news));
            }
        }
        Ok(None)
    }

    /// Reads once, unless an event has been received already, and returns the next event if it is complete. For callers
    /// that poll the socket together with other descriptors and have found it readable. It may be readable only because
    /// the daemon answered a probe.
    ///
    /// # Errors
    /// A broken connection.
    pub fn arrived_news(&mut self) -> Result<Option<EventParams>, ClientError> {
        if let Some(news) = self.received_news()? {
            return Ok(Some(news));
        }
        self.read_once()?;
        self.received_news()
    }

    /// Gives a daemon that did not answer another chance, as long as the first one. Answers to earlier calls are still
    /// available from [`Self::answer`].
    pub fn wait_again(&mut self) {
        self.watchdog.asked(Instant::now());
    }

    /// Waits until a daemon that is about to exit closes the connection. Drops all messages until then.
    ///
    /// # Errors
    /// The daemon neither answers nor exits.
    pub fn until_closed(&mut self) -> Result<(), ClientError> {
        self.awaits_end = true;
        self.watchdog.asked(Instant::now());
        loop {
            match self.receive() {
                Ok(_) => {}
                Err(error @ ClientError::NoAnswer(_)) => return Err(error),
                Err(_) => return Ok(()),
            }
        }
    }

    /// Splits the client into its parts, including messages that were received but not requested yet.
    pub(super) fn into_parts(self) -> Parts {
        let Self { stream, protocol, socket, listener, watchdog, answers, news, .. } = self;
        let answers = answers.into_iter().map(|(call, outcome)| Received::Answer { call, outcome });
        let news = news.into_iter().map(|news| Received::News(Box::new(news)));
        let received = answers.chain(news).collect();
        Parts { stream, protocol, received, socket, listener, watchdog }
    }

    fn receive(&mut self) -> Result<Received, ClientError> {
        let end = self.at_most.and_then(|time| Instant::now().checked_add(time));
        loop {
            if let Some(received) = self.protocol.next_received()? {
                return Ok(received);
            }
            self.arm(end)?;
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(count) => {
                    self.watchdog.heard(Instant::now());
                    self.protocol.push(&self.buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if end.is_some_and(|end| end <= Instant::now()) {
                        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    }
                    self.keep_up()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns when to call [`Self::keep_up`] in a poll loop of the caller's own; `None` while no answer is pending.
    pub fn until(&self) -> Option<Instant> {
        (self.protocol.has_pending() || self.awaits_end).then(|| self.watchdog.until())
    }

    /// Checks on a daemon that has been silent until [`Self::until`].
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn keep_up(&mut self) -> Result<(), ClientError> {
        if self.until().is_some() { self.look(true) } else { Ok(()) }
    }

    /// Makes the next read time out when it is time to check on the daemon or to stop waiting. A timeout that is
    /// slightly early does no harm, so a call that is answered at once needs no system call to change it.
    fn arm(&mut self, end: Option<Instant>) -> Result<(), ClientError> {
        let until = self.until().into_iter().chain(end).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()).max(ROUND));
        let fits = match (self.armed, left) {
            (None, None) => true,
            (Some(armed), Some(left)) => armed <= left + ROUND && armed + EARLY >= left,
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !fits {
            // Rounded up, so that reads do not keep ending a little too early. 0 means no timeout.
            let timeout = left.map_or(TimeVal::new(0, 0), |left| timeval(left + ROUND));
            setsockopt(&self.stream, ReceiveTimeout, &timeout).map_err(io::Error::from)?;
            self.armed = left;
        }
        Ok(())
    }

    fn look(&mut self, may_write: bool) -> Result<(), ClientError> {
        let must_probe = check(&mut self.watchdog, self.listener.as_ref(), self.socket.as_ref())?;
        if must_probe && may_write {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            // If the socket has no room for a probe, the daemon does not read anyway. A read reports a broken
            // connection.
            let _ = send(self.stream.as_fd().as_raw_fd(), &Protocol::probe(), flags);
        }
        Ok(())
    }
}

/// Reports whether the error of a write means that the daemon has closed the connection.
fn is_closed_by_peer(error: &ClientError) -> bool {
    let kind = if let ClientError::Io(error) = error { Some(error.kind()) } else { None };
    matches!(kind, Some(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset))
}

fn timeval(time: Duration) -> TimeVal {
    TimeVal::new(time.as_secs().cast_signed(), time.subsec_micros().into())
}

/// Checks on a daemon that has been silent for long. Returns whether to send a probe.
///
/// # Errors
/// The daemon has ended or does not answer.
pub(super) fn check(
    watchdog: &mut Watchdog,
    listener: Option<&Listener>,
    socket: Option<&SocketPath>,
) -> Result<bool, ClientError> {
    let now = Instant::now();
    match watchdog.tick(now) {
        Step::Wait => Ok(false),
        Step::Probe | Step::GiveUp(_) if listener.is_some_and(Listener::has_ended) => {
            Err(ClientError::Closed)
        }
        Step::Probe => {
            watchdog.note_cpu(cpu_ticks(socket));
            Ok(true)
        }
        Step::GiveUp(after) => give_up(socket, watchdog, now, after).map(|()| false),
    }
}

/// Gives up on a silent daemon, unless it reports itself as starting or ending.
pub(super) fn give_up(
    socket: Option<&SocketPath>,
    watchdog: &mut Watchdog,
    now: Instant,
    after: Duration,
) -> Result<(), ClientError> {
    let is_busy = socket.and_then(holder::of).is_some_and(|holder| {
        holder.note.phase != Phase::Ready && !holder.state().is_some_and(holder::State::is_stopped)
    });
    if watchdog.extend(now, after, is_busy) {
        return Ok(());
    }
    Err(ClientError::NoAnswer(Unresponsive::new(socket, after, watchdog.cpu())))
}

/// Returns the CPU time that the daemon behind a socket has used, in ticks.
pub(super) fn cpu_ticks(socket: Option<&SocketPath>) -> Option<u64> {
    proc::cpu_ticks(holder::of(socket?)?.pid)
}

impl AsFd for Client {
    /// Returns the socket, to be polled together with other descriptors. It becomes readable when a message begins to
    /// arrive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests;
