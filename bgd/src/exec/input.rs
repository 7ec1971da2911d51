//! Standard input that clients write to: the daemon's end of a pipe.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

/// How many writes may be queued for one task.
const QUEUE: usize = 64;

/// A write to a task's standard input.
struct Write {
    data: Vec<u8>,
    eof: bool,
    done: oneshot::Sender<io::Result<u64>>,
}

/// The write end of a task's standard input. It closes when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct InputPipe {
    writes: mpsc::Sender<Write>,
    /// The pipe's number, while it is open.
    number: RawFd,
    /// Writes that are not done.
    waiting: Arc<AtomicUsize>,
}

impl InputPipe {
    /// Takes over the daemon's end of a pipe.
    ///
    /// # Errors
    /// The pipe can't be registered with the runtime.
    pub fn new(end: OwnedFd) -> io::Result<Self> {
        let mut pipe = pipe::Sender::from_owned_fd(end)?;
        let number = pipe.as_fd().as_raw_fd();
        let waiting = Arc::new(AtomicUsize::new(0));
        let is_done = Arc::clone(&waiting);
        let (writes, mut queue) = mpsc::channel::<Write>(QUEUE);
        tokio::spawn(async move {
            while let Some(Write { data, eof, done }) = queue.recv().await {
                let result = pipe.write_all(&data).await.map(|()| data.len() as u64);
                let broken = result.is_err();
                let _ = done.send(result);
                is_done.fetch_sub(1, Ordering::Relaxed);
                if eof || broken {
                    break;
                }
            }
        });
        Ok(Self { writes, number, waiting })
    }

    /// Returns the pipe's number; `None` if it is closed.
    pub fn number(&self) -> Option<RawFd> {
        (!self.writes.is_closed()).then_some(self.number)
    }

    /// Whether writes are waiting for the task to read.
    pub fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Writes all of the data, waiting while the pipe is full.
    ///
    /// # Errors
    /// `BrokenPipe` if the task, or an earlier write with `eof`, has closed it; `WouldBlock` if too many writes are
    /// queued already.
    pub async fn write(&self, data: Vec<u8>, eof: bool) -> io::Result<u64> {
        let (done, result) = oneshot::channel();
        self.writes.try_send(Write { data, eof, done }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => io::Error::from(io::ErrorKind::WouldBlock),
            mpsc::error::TrySendError::Closed(_) => io::Error::from(io::ErrorKind::BrokenPipe),
        })?;
        // Its task runs on this thread, and so has not begun yet.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        result.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}
