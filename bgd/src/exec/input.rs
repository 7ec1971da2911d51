//! Standard input that clients write to: the daemon's end of a pipe.

use std::io;
use std::os::fd::OwnedFd;

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
pub struct InputPipe(mpsc::Sender<Write>);

impl InputPipe {
    /// Takes over the daemon's end of a pipe.
    ///
    /// # Errors
    /// The pipe can't be registered with the runtime.
    pub fn new(end: OwnedFd) -> io::Result<Self> {
        let mut pipe = pipe::Sender::from_owned_fd(end)?;
        let (sender, mut queue) = mpsc::channel::<Write>(QUEUE);
        tokio::spawn(async move {
            while let Some(Write { data, eof, done }) = queue.recv().await {
                let result = pipe.write_all(&data).await.map(|()| data.len() as u64);
                let broken = result.is_err();
                let _ = done.send(result);
                if eof || broken {
                    break;
                }
            }
        });
        Ok(Self(sender))
    }

    /// Writes all of the data, waiting while the pipe is full.
    ///
    /// # Errors
    /// `BrokenPipe` if the task, or an earlier write with `eof`, has closed it; `WouldBlock` if too many writes are
    /// queued already.
    pub async fn write(&self, data: Vec<u8>, eof: bool) -> io::Result<u64> {
        let (done, result) = oneshot::channel();
        self.0.try_send(Write { data, eof, done }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => io::Error::from(io::ErrorKind::WouldBlock),
            mpsc::error::TrySendError::Closed(_) => io::Error::from(io::ErrorKind::BrokenPipe),
        })?;
        result.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}
