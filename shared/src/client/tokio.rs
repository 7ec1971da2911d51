//! The asynchronous client: many concurrent calls over one connection.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::blocking::{cpu_ticks, give_up};
use super::error::ClientError;
use super::news_queue::{NewsQueue, NewsSender};
use super::protocol::{Call, Outcome, Protocol, Received};
use super::watchdog::{Step, Watchdog};
use crate::event::EventParams;
use crate::fds;
use crate::limits::FIRST_ANSWER;
use crate::mutex::Mutex;
use crate::request::Method;
use crate::socket::SocketPath;
use crate::transport::{AsyncStream, Listener, Stream, connect_async, into_async};

/// Time limit for writing a `hello`. The socket has room for it, unless the daemon does not read.
const PROBE: Duration = Duration::from_secs(1);

/// State shared by the callers and the reader task. The lock is never held over I/O.
#[derive(Debug)]
struct Pending {
    protocol: Protocol,
    watchdog: Watchdog,
    calls: HashMap<u64, oneshot::Sender<Outcome>>,
    closed: Option<String>,
    /// When something has last arrived.
    heard: Instant,
    /// How many bytes have arrived since the last complete message.
    arrived: usize,
}

/// A call with a waiting caller; it is forgotten when the caller stops waiting.
struct Waiting<'a> {
    pending: &'a Mutex<Pending>,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pending.lock().calls.remove(&self.number);
    }
}

/// A line that is being written. Nothing can follow a part of it, whatever has stopped its writer.
struct Writing<'a> {
    pending: &'a Mutex<Pending>,
    rest: &'a [u8],
    bytes: usize,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.rest.is_empty() && self.rest.len() < self.bytes {
            self.pending.lock().closed.get_or_insert_with(|| "a call was cut off".to_owned());
        }
    }
}

/// A connection to the daemon for any number of concurrent calls. Dropping it closes the connection.
#[derive(Debug)]
pub struct AsyncClient {
    stream: Arc<AsyncStream>,
    pending: Arc<Mutex<Pending>>,
    write: tokio::sync::Mutex<()>,
    news: Arc<NewsQueue>,
    reader: JoinHandle<()>,
    socket: Option<SocketPath>,
    listener: Option<Listener>,
}

impl AsyncClient {
    /// Connects. Gives up on a daemon that does not answer after [`FIRST_ANSWER`].
    ///
    /// # Errors
    /// There is no daemon, it does not answer, or the peer must not be trusted.
    pub async fn connect(socket: &SocketPath) -> Result<Self, ClientError> {
        let (stream, listener) = connect_async(socket, FIRST_ANSWER).await?;
        let (protocol, watchdog) = (Protocol::default(), Watchdog::new(Instant::now()));
        let mut client = Self::new(stream, protocol, watchdog);
        (client.socket, client.listener) = (Some(socket.clone()), listener);
        Ok(client)
    }

    /// Speaks over a connection that another program, such as ssh, relays to a daemon. The daemon may then be silent
    /// for a minute. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The connection can't be used on tokio.
    pub fn over(stream: Stream) -> io::Result<Self> {
        Ok(Self::new(into_async(stream)?, Protocol::carried(), Watchdog::carried(Instant::now())))
    }

    fn new(stream: AsyncStream, protocol: Protocol, watchdog: Watchdog) -> Self {
        let stream = Arc::new(stream);
        let (calls, heard) = (HashMap::new(), Instant::now());
        let pending = Pending { protocol, watchdog, calls, closed: None, heard, arrived: 0 };
        let pending = Arc::new(Mutex::new(pending));
        let (news_sender, news) = NewsSender::new();
        let reader = tokio::spawn(read_all(Arc::clone(&stream), Arc::clone(&pending), news_sender));
        Self {
            stream,
            pending,
            write: tokio::sync::Mutex::default(),
            news,
            reader,
            socket: None,
            listener: None,
        }
    }

    /// Refuses calls with longer lines from now on, as the daemon would close the connection. The answer to `hello`
    /// contains the daemon's limit.
    pub fn limit_lines(&self, bytes: u64) {
        self.pending.lock().protocol.limit_lines(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Returns how long the line of a call would be, in bytes.
    ///
    /// # Errors
    /// The params are longer than any daemon accepts.
    pub fn line_bytes<M: Method>(&self, params: &M::Params) -> Result<usize, ClientError> {
        Ok(self.pending.lock().protocol.build::<M>(params)?.line.len())
    }

    /// Makes a call and waits for its answer. Calls may run concurrently. Waits for a slow answer as long as the daemon
    /// is alive.
    ///
    /// If the future is dropped, the daemon may still carry out the call. If that cuts off its line, which happens only
    /// while the daemon does not read, all later calls are refused: connect again then.
    ///
    /// # Errors
    /// The daemon's refusal, a broken connection, or a daemon that does not answer. In the last case the daemon may
    /// still carry out this call later, and answer other calls on the connection.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.call_or_listen::<M>(params, true).await
    }

    /// Like [`call`](Self::call), but never checks on the daemon: for answers that may never come, such as news.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub async fn listen<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.call_or_listen::<M>(params, false).await
    }

    /// Like [`listen`](Self::listen), but gives up once nothing has arrived on the connection for this long. A line that
    /// arrives slowly, or after those of many other calls, is no silence.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken or silent connection.
    pub async fn listen_within<M: Method>(
        &self,
        silence: Duration,
        params: &M::Params,
    ) -> Result<M::Result, ClientError> {
        let mut until = Instant::now() + silence;
        let mut call = std::pin::pin!(self.listen::<M>(params));
        loop {
            if let Ok(result) = tokio::time::timeout_at(until.into(), &mut call).await {
                return result;
            }
            let next = self.pending.lock().heard + silence;
            if next <= until {
                return Err(ClientError::Closed);
            }
            until = next;
        }
    }

    async fn call_or_listen<M: Method>(
        &self,
        params: &M::Params,
        looks: bool,
    ) -> Result<M::Result, ClientError> {
        let (sender, mut receiver) = oneshot::channel();
        let Call { number, line, along } = {
            let mut pending = self.pending.lock();
            if let Some(why) = &pending.closed {
                return Err(io::Error::new(io::ErrorKind::NotConnected, why.clone()).into());
            }
            let call = pending.protocol.call::<M>(params)?;
            pending.watchdog.asked(Instant::now());
            pending.calls.insert(call.number, sender);
            call
        };
        let _waiting = Waiting { pending: &self.pending, number };
        let outcome = match self.write_all(&line, along.as_ref()).await {
            Ok(()) if !looks => receiver.await.map_err(|_| ClientError::Closed),
            Ok(()) => loop {
                match self.answered_in_time(&mut receiver).await {
                    Some(outcome) => break outcome.map_err(|_| ClientError::Closed),
                    None => self.look().await?,
                }
            },
            Err(error) => Err(error),
        };
        Protocol::result::<M>(outcome?)
    }

    async fn answered_in_time<T: Future + Unpin>(&self, future: &mut T) -> Option<T::Output> {
        let until = self.pending.lock().watchdog.until();
        tokio::time::timeout_at(until.into(), future).await.ok()
    }

    async fn write_all(&self, line: &[u8], along: Option<&OwnedFd>) -> Result<(), ClientError> {
        let mut turn = std::pin::pin!(self.write.lock());
        let _turn = loop {
            match self.answered_in_time(&mut turn).await {
                Some(turn) => break turn,
                None => self.look().await?,
            }
        };
        let mut written = std::pin::pin!(self.put(line, along));
        loop {
            match self.answered_in_time(&mut written).await {
                Some(written) => return Ok(written?),
                None => self.look().await?,
            }
        }
    }

    /// Writes a line; a descriptor travels with its first byte.
    async fn put(&self, line: &[u8], along: Option<&OwnedFd>) -> io::Result<()> {
        let mut writing = Writing { pending: &self.pending, rest: line, bytes: line.len() };
        if let Some(file) = along {
            let socket = self.stream.inner();
            let sent =
                socket.async_io(Interest::WRITABLE, || fds::send(socket, line, &[file.as_fd()])).await?;
            writing.rest = &line[sent..];
        }
        let mut stream = &*self.stream;
        while !writing.rest.is_empty() {
            match stream.write(writing.rest).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => writing.rest = &writing.rest[written..],
            }
        }
        Ok(())
    }

    /// Checks on a daemon that has been silent for long.
    async fn look(&self) -> Result<(), ClientError> {
        let step = self.pending.lock().watchdog.tick(Instant::now());
        match step {
            Step::Wait => {}
            Step::Probe | Step::GiveUp(_) if self.listener.as_ref().is_some_and(Listener::has_ended) => {
                let mut pending = self.pending.lock();
                pending.closed = Some("the daemon has ended".to_owned());
                // Callers that wait for an answer are notified, too.
                pending.calls.clear();
                return Err(ClientError::Closed);
            }
            Step::Probe => {
                // Read before the lock is held, as reading files takes a moment.
                let ticks = cpu_ticks(self.socket.as_ref());
                self.pending.lock().watchdog.note_cpu(ticks);
                // While another call writes, a probe is not needed and would have no room.
                if let Ok(_turn) = self.write.try_lock() {
                    let probe = Protocol::probe();
                    let written = tokio::time::timeout(PROBE, self.put(&probe, None)).await;
                    if !matches!(written, Ok(Ok(()))) {
                        self.pending.lock().closed = Some("the daemon does not read its input".to_owned());
                    }
                }
            }
            Step::GiveUp(after) => {
                let mut pending = self.pending.lock();
                return give_up(self.socket.as_ref(), &mut pending.watchdog, Instant::now(), after);
            }
        }
        Ok(())
    }

    /// Waits until a daemon that is about to exit closes the connection or stops answering.
    pub async fn until_closed(&self) {
        self.pending.lock().watchdog.asked(Instant::now());
        loop {
            let until = self.pending.lock().watchdog.until();
            match tokio::time::timeout_at(until.into(), self.next_news()).await {
                Ok(None) => return,
                Err(_) if self.look().await.is_err() => return,
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }

    /// Waits for the next event of this connection's subscriptions; `None` once the connection is closed. If a
    /// subscriber consumes them too slowly, a gap stands for those that were dropped.
    pub async fn next_news(&self) -> Option<EventParams> {
        self.news.next().await
    }
}

impl Drop for AsyncClient {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_all(stream: Arc<AsyncStream>, pending: Arc<Mutex<Pending>>, news: NewsSender) {
    let mut buffer = vec![0; 64 * 1024];
    let why = loop {
        let count = match (&*stream).read(&mut buffer).await {
            Ok(0) => break "the daemon closed the connection".to_owned(),
            Ok(count) => count,
            Err(error) => break error.to_string(),
        };
        if let Err(error) = deliver(&pending, &buffer[..count], &news) {
            break error.to_string();
        }
    };
    let mut pending = pending.lock();
    pending.closed = Some(why);
    pending.calls.clear();
}

fn deliver(pending: &Mutex<Pending>, bytes: &[u8], news: &NewsSender) -> Result<(), ClientError> {
    let mut pending = pending.lock();
    let now = Instant::now();
    pending.heard = now;
    pending.watchdog.heard(now);
    pending.arrived += bytes.len();
    pending.protocol.push(bytes);
    while let Some(received) = pending.protocol.next_received()? {
        // The first of several messages that arrive together counts for all of them.
        let arrived = std::mem::take(&mut pending.arrived);
        match received {
            // The caller may have stopped waiting; the answer is dropped then.
            Received::Answer { call, outcome } => {
                let _ = pending.calls.remove(&call).map(|caller| caller.send(outcome));
            }
            // Terminals are supported by the polled client only.
            Received::Output(_) | Received::Stopped(_) => {}
            Received::News(params) => news.send(*params, arrived),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::client::news_queue::EVENTS;
    use crate::error::{ErrorKind, RpcError};
    use crate::event::News;
    use crate::request::{Hello, HelloParams};

    #[test]
    fn flood_of_events_ends_in_one_gap() {
        let (mut daemon, ours) = UnixStream::pair().unwrap();
        let last = EVENTS as u64 + 1000;
        let flood = std::thread::spawn(move || {
            // The call has begun.
            daemon.read_exact(&mut [0]).unwrap();
            let mut lines = Vec::new();
            for number in 1..=last {
                let params = format!(r#"{{"subscription":1,"kind":"gap","from":{number},"to":{number}}}"#);
                writeln!(lines, r#"{{"jsonrpc":"2.0","method":"event","params":{params}}}"#).unwrap();
            }
            let error = RpcError::new(ErrorKind::ShuttingDown, "that is all");
            let error = serde_json::to_string(&error).unwrap();
            writeln!(lines, r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#).unwrap();
            daemon.write_all(&lines).unwrap();
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let gaps = runtime.block_on(async {
            let client = AsyncClient::over(OwnedFd::from(ours).into()).unwrap();
            let error = client.listen::<Hello>(&HelloParams::default()).await.unwrap_err();
            assert!(error.to_string().contains("that is all"), "{error}");
            let mut gaps = Vec::new();
            while let Some(params) = client.next_news().await {
                let News::Gap(gap) = params.news else { panic!("{params:?}") };
                gaps.push((gap.from, gap.to));
            }
            gaps
        });
        flood.join().unwrap();
        assert_eq!(gaps.len(), EVENTS);
        assert_eq!(gaps.last(), Some(&(EVENTS as u64, last)));
    }
}
