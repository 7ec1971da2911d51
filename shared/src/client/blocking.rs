//! The blocking client: what short programs use, as it needs no runtime.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use super::protocol::Outcome;
use super::{ClientError, PolledClient, Protocol, Received};
use crate::event::EventParams;
use crate::fds;
use crate::request::Method;
use crate::socket::SocketPath;
use crate::transport::{Stream, connect};

/// Bytes that are read at once. A short program touches all of them, so they are few.
const READ_BYTES: usize = 8 * 1024;

/// A connection to the daemon that makes one call at a time.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    protocol: Protocol,
    news: VecDeque<EventParams>,
    /// Answers that came before they were asked for.
    answers: VecDeque<(u64, Outcome)>,
    buffer: Box<[u8]>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// There is no daemon, or what is there must not be trusted.
    pub fn connect(socket: &SocketPath) -> Result<Self, ClientError> {
        Ok(Self::over(connect(socket)?))
    }

    /// Speaks over a connection that was made elsewhere.
    pub fn over(stream: Stream) -> Self {
        Self {
            stream,
            protocol: Protocol::default(),
            news: VecDeque::new(),
            answers: VecDeque::new(),
            buffer: vec![0; READ_BYTES].into(),
        }
    }

    /// Makes a call and waits for its answer. Events that come meanwhile are kept for [`Self::next_news`].
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.call_with_fds::<M>(params, &[])
    }

    /// The same, with descriptors that travel with the line.
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

    /// Sends a call without waiting; its number is for [`Self::answer`].
    ///
    /// # Errors
    /// A broken connection.
    pub fn send<M: Method>(
        &mut self,
        params: &M::Params,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<u64, ClientError> {
        let (call, line) = self.protocol.call::<M>(params);
        if let Err(error) = self.write(&line, descriptors) {
            // The daemon may have said why before it closed, for instance `too_many_connections`.
            self.last_words()?;
            return Err(error.into());
        }
        Ok(call)
    }

    fn write(&mut self, line: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut sent = 0;
        if !descriptors.is_empty() {
            sent = fds::send(self.stream.as_fd(), line, descriptors)?;
        }
        self.stream.write_all(&line[sent..])
    }

    fn last_words(&mut self) -> Result<(), ClientError> {
        while let Ok(count @ 1..) = self.stream.read(&mut self.buffer) {
            self.protocol.push(&self.buffer[..count]);
        }
        while self.protocol.next_received()?.is_some() {}
        Ok(())
    }

    /// Waits for the answer of a call that was sent. Answers come in any order; those to other calls are
    /// kept until they are asked for. What a terminal shows meanwhile is dropped.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub fn answer<M: Method>(&mut self, call: u64) -> Result<M::Result, ClientError> {
        if let Some(place) = self.answers.iter().position(|(answered, _)| *answered == call)
            && let Some((_, outcome)) = self.answers.remove(place)
        {
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

    /// Waits for the next event of the subscriptions made here.
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

    /// The next event of the subscriptions made here, if it has been received already. Never waits.
    ///
    /// # Errors
    /// The daemon sent what this client can't read.
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

    pub(super) fn into_polled(self) -> PolledClient {
        let answers = self.answers.into_iter().map(|(call, outcome)| Received::Answer { call, outcome });
        let news = self.news.into_iter().map(|news| Received::News(Box::new(news)));
        PolledClient::new(self.stream, self.protocol, answers.chain(news).collect())
    }

    fn receive(&mut self) -> Result<Received, ClientError> {
        loop {
            if let Some(received) = self.protocol.next_received()? {
                return Ok(received);
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(count) => self.protocol.push(&self.buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Client {
    /// The socket, to be polled together with other descriptors. When it is readable an answer or news
    /// has begun to arrive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
