//! The asynchronous client: many calls at once over one connection.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::protocol::Outcome;
use super::{ClientError, Protocol, Received};
use crate::event::EventParams;
use crate::request::Method;
use crate::socket::SocketPath;
use crate::transport::{AsyncStream, connect_async};

/// What the calling side and the reading task share. No lock is held over I/O.
#[derive(Debug, Default)]
struct Pending {
    protocol: Protocol,
    calls: HashMap<u64, oneshot::Sender<Outcome>>,
    closed: Option<String>,
}

/// A connection to the daemon that makes any number of calls at a time. It ends when it is dropped.
#[derive(Debug)]
pub struct AsyncClient {
    stream: Arc<AsyncStream>,
    pending: Arc<Mutex<Pending>>,
    write: tokio::sync::Mutex<()>,
    news: tokio::sync::Mutex<mpsc::UnboundedReceiver<EventParams>>,
    reader: JoinHandle<()>,
}

impl AsyncClient {
    /// Connects.
    ///
    /// # Errors
    /// There is no daemon, or what is there must not be trusted.
    pub async fn connect(socket: &SocketPath) -> Result<Self, ClientError> {
        let stream = Arc::new(connect_async(socket).await?);
        let pending = Arc::new(Mutex::new(Pending::default()));
        let (news_sender, news) = mpsc::unbounded_channel();
        let reader = tokio::spawn(read_all(Arc::clone(&stream), Arc::clone(&pending), news_sender));
        Ok(Self {
            stream,
            pending,
            write: tokio::sync::Mutex::default(),
            news: tokio::sync::Mutex::new(news),
            reader,
        })
    }

    /// Makes a call and waits for its answer. Calls may be made side by side.
    ///
    /// # Errors
    /// The daemon's refusal, or a broken connection.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        let (sender, receiver) = oneshot::channel();
        let line = {
            let mut pending = lock(&self.pending);
            if let Some(why) = &pending.closed {
                return Err(io::Error::new(io::ErrorKind::NotConnected, why.clone()).into());
            }
            let (call, line) = pending.protocol.call::<M>(params);
            pending.calls.insert(call, sender);
            line
        };
        {
            let _turn = self.write.lock().await;
            (&*self.stream).write_all(&line).await?;
        }
        let outcome = receiver.await.map_err(|_| ClientError::Closed)?;
        Protocol::result::<M>(outcome)
    }

    /// Waits for the next event of the subscriptions made here; `None` when the connection is closed.
    /// Events wait in this process without a limit until they are taken: a subscriber takes them.
    pub async fn next_news(&self) -> Option<EventParams> {
        self.news.lock().await.recv().await
    }
}

impl Drop for AsyncClient {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn lock(pending: &Mutex<Pending>) -> std::sync::MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read_all(
    stream: Arc<AsyncStream>,
    pending: Arc<Mutex<Pending>>,
    news: mpsc::UnboundedSender<EventParams>,
) {
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
    let mut pending = lock(&pending);
    pending.closed = Some(why);
    pending.calls.clear();
}

fn deliver(
    pending: &Mutex<Pending>,
    bytes: &[u8],
    news: &mpsc::UnboundedSender<EventParams>,
) -> Result<(), ClientError> {
    let mut pending = lock(pending);
    pending.protocol.push(bytes);
    while let Some(received) = pending.protocol.next_received()? {
        match received {
            // Whoever made the call may have stopped waiting: nothing is owed to them then.
            Received::Answer { call, outcome } => {
                let _ = pending.calls.remove(&call).map(|caller| caller.send(outcome));
            }
            // Terminals are for the blocking client.
            Received::Output(_) | Received::Stopped(_) => {}
            Received::News(params) => {
                let _ = news.send(*params);
            }
        }
    }
    Ok(())
}
