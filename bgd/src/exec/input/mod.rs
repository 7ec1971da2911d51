//! Writes to the standard input of processes, and counts what they have not read. Who may write is not decided here.
//!
//! This file has the daemon's end of a pipe that clients write to. Input that the task has not read yet stays here, and
//! is carried to the program that takes over.

pub mod feed;
pub mod owed;
pub mod unread;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bgd_shared::mutex::Mutex;
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use self::owed::Owed;
use super::terminal::still::WriteState;
use crate::client::Client;
use crate::client::answer::AnswerState;

/// How many writes may be pending for one task, including the one in progress.
const MOST: usize = 64;

/// A write to a task's standard input.
#[derive(Debug)]
struct Write {
    state: InputWrite,
    done: oneshot::Sender<io::Result<u64>>,
}

/// A pending write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InputWrite {
    pub write: WriteState,
    /// Whether the pipe is closed after it.
    pub eof: bool,
}

/// Input that clients have written and the task has not read, for the program that takes over.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UnreadState {
    writes: Vec<InputWrite>,
    owed: Vec<(u64, AnswerState)>,
}

impl UnreadState {
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

/// The pending writes, in their order.
#[derive(Clone, Debug, Default)]
struct Writes(Arc<Mutex<VecDeque<Write>>>);

impl Writes {
    /// Writes as much of the first write as the pipe accepts. Returns whether all of it is written.
    fn advance(&self, pipe: &pipe::Sender) -> io::Result<bool> {
        let mut writes = self.0.lock();
        let Some(Write { state: InputWrite { write, .. }, .. }) = writes.front_mut() else { return Ok(true) };
        while write.written < write.data.len() {
            match pipe.try_write(&write.data[write.written..]) {
                Ok(count) => write.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    async fn write_first(&self, pipe: &pipe::Sender) -> io::Result<()> {
        while !self.advance(pipe)? {
            pipe.writable().await?;
        }
        Ok(())
    }
}

/// The write end of a task's standard input. It closes when the last clone is dropped and everything is written, or by
/// [`Self::close`].
#[derive(Clone, Debug)]
pub struct InputPipe {
    /// Announces each pending write to the runtime task that writes.
    queued: mpsc::UnboundedSender<()>,
    writes: Writes,
    writer: AbortHandle,
    /// Dangling once the pipe is closed.
    pipe: Weak<pipe::Sender>,
    /// The answers owed for writes.
    pub owed: Owed,
    /// Whether the keeper, if there is one, has a copy of the pipe's end, so that the pipe closes only when that copy
    /// does.
    is_kept: Arc<AtomicBool>,
}

impl InputPipe {
    /// Takes over the daemon's end of a pipe, of which the keeper has a copy.
    ///
    /// # Errors
    /// The pipe can't be registered with the runtime.
    pub fn new(end: OwnedFd) -> io::Result<Self> {
        let pipe = Arc::new(pipe::Sender::from_owned_fd(end)?);
        let (queued, mut queue) = mpsc::unbounded_channel();
        let (writes, weak) = (Writes::default(), Arc::downgrade(&pipe));
        let all = writes.clone();
        let task = tokio::spawn(async move {
            while let Some(()) = queue.recv().await {
                let result = writes.write_first(&pipe).await;
                let Some(Write { state, done }) = writes.0.lock().pop_front() else { break };
                let is_broken = result.is_err();
                let _ = done.send(result.map(|()| state.write.data.len() as u64));
                if state.eof || is_broken {
                    break;
                }
            }
            // Pending writes are answered, too.
            drop(queue);
            writes.0.lock().clear();
        });
        Ok(Self {
            queued,
            writes: all,
            writer: task.abort_handle(),
            pipe: weak,
            owed: Owed::default(),
            is_kept: Arc::new(AtomicBool::new(true)),
        })
    }

    /// Closes the pipe. Pending writes fail: a process that outlives the task may have the read end, and never read.
    pub fn close(&self) {
        self.writer.abort();
        self.writes.0.lock().clear();
    }

    /// Returns the descriptor's number; `None` if the pipe is closed.
    pub fn number(&self) -> Option<RawFd> {
        self.pipe.upgrade().map(|pipe| pipe.as_fd().as_raw_fd())
    }

    /// Returns a copy of the pipe's end; `None` if it is closed.
    pub fn copy(&self) -> Option<io::Result<OwnedFd>> {
        self.pipe.upgrade().map(|pipe| pipe.as_fd().try_clone_to_owned())
    }

    /// Notes whether the keeper has a copy of the pipe's end.
    pub fn set_kept(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
    }

    /// Returns whether the keeper has a copy. The caller must have the keeper close it, as this returns true only once.
    pub fn take_kept(&self) -> bool {
        self.is_kept.swap(false, Ordering::Relaxed)
    }

    /// Writes all of the data, waiting while the pipe is full. `number` is that of the owed answer.
    ///
    /// # Errors
    /// `BrokenPipe` if the pipe was closed: by the task, its end, or an earlier write with `eof`; `WouldBlock` if too
    /// many writes are pending.
    pub fn write(
        &self,
        number: u64,
        data: Vec<u8>,
        eof: bool,
    ) -> impl Future<Output = io::Result<u64>> + Send + use<> {
        let is_full = !self.queued.is_closed() && self.writes.0.lock().len() >= MOST;
        let state = InputWrite { write: WriteState { number, data, written: 0 }, eof };
        let taken = (!is_full).then(|| self.continue_writing(state));
        async move {
            match taken {
                Some(written) => written.await,
                None => Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    }

    /// Like [`Self::write`], for a write that another program has accepted, however many are pending.
    pub fn continue_writing(
        &self,
        state: InputWrite,
    ) -> impl Future<Output = io::Result<u64>> + Send + use<> {
        let queued = self.queued.send(()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
        let ordered = queued.map(|()| {
            let (done, result) = oneshot::channel();
            // The runtime task that writes runs on this thread, and so has not looked for the write yet.
            self.writes.0.lock().push_back(Write { state, done });
            result
        });
        async move { ordered?.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())) }
    }

    /// Returns the input that the task has not read; `None` while a completed write is unanswered.
    pub fn unread(&self) -> Option<UnreadState> {
        // The pipe is named with its process. While it is open, the keeper has a copy.
        let Self { writes, owed, queued: _, writer: _, pipe: _, is_kept: _ } = self;
        let writes: Vec<InputWrite> =
            writes.0.lock().iter().map(|Write { state, done: _ }| state.clone()).collect();
        let owed = owed.state();
        let waits = |number: u64| writes.iter().any(|write| write.write.number == number);
        owed.iter().all(|(number, _)| waits(*number)).then_some(UnreadState { writes, owed })
    }

    /// Restores the answers that another program owed to clients that are still connected. Returns that program's
    /// pending writes.
    pub fn restore(&self, unread: UnreadState, clients: &HashMap<u64, Arc<Client>>) -> Vec<InputWrite> {
        let UnreadState { writes, owed } = unread;
        self.owed.restore(owed, clients);
        writes
    }
}
