//! Drains the pipes and sockets that processes which were handed over write to, into their output files.
//!
//! It happens on a thread of its own that starts with the first of them, so that a slow disk delays
//! nobody else. A pipe moves by `splice`, without a copy in this process and without a change of the
//! pipe's own flags, which its other holders share. Nothing is taken out before the process is really
//! taken over: [`Prepared::begin`]. It goes on until every writer has closed the pipe, as descendants may
//! write on when their leader has ended.
//!
//! What the disk does not take is dropped and told on the task; a job must not stop because of that. The
//! output of a task that was cleared is dropped too.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::thread;

use bgd_shared::id::TaskId;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use rustix::io::ioctl_fionread;
use rustix::net::RecvFlags;
use rustix::pipe::{SpliceFlags, splice};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use super::kinds::Source;
use crate::exec::loss::Loss;
use crate::os::watch;

/// The most bytes that are moved at once. A pipe holds 64 KiB, unless somebody made it larger.
const CHUNK: usize = 1024 * 1024;

/// The most bytes that are read from a socket at once.
const BUFFER: usize = 64 * 1024;

/// What is to be drained where.
#[derive(Debug)]
pub struct Flow {
    /// Where the bytes come from.
    pub source: Source,
    /// The new file that they go to. Nobody else writes to it, and it is not open for appending: `splice`
    /// takes no such file.
    pub file: File,
}

/// What a drain is asked for.
enum Ask {
    /// Take out what is there at this moment.
    Settle(oneshot::Sender<()>),
    /// Nobody wants the output any more.
    Discard,
}

/// The drains of one task. They go on when this is dropped.
#[derive(Clone, Debug, Default)]
pub struct Drains(Vec<mpsc::UnboundedSender<Ask>>);

impl Drains {
    /// Waits until everything is in the output files that was in the pipes when this was called.
    pub async fn settle(&self) {
        for drain in &self.0 {
            let (done, is_done) = oneshot::channel();
            // A drain that has ended has taken out everything. What is sent in the very moment of its end stays in
            // the channel, unanswered, as long as this side has it: so its end is waited for, too.
            if drain.send(Ask::Settle(done)).is_ok() {
                tokio::select! {
                    _ = is_done => {}
                    () = drain.closed() => {}
                }
            }
        }
    }

    /// Whether all pipes are at their end.
    pub fn have_ended(&self) -> bool {
        self.0.iter().all(mpsc::UnboundedSender::is_closed)
    }

    /// Waits until all pipes are at their end.
    pub async fn end(&self) {
        for drain in &self.0 {
            drain.closed().await;
        }
    }

    /// Drops what is still to come.
    pub fn discard(&self) {
        for drain in &self.0 {
            let _ = drain.send(Ask::Discard);
        }
    }
}

/// Drains that wait for the word to begin; without it they end and have taken nothing.
#[derive(Debug, Default)]
pub struct Prepared {
    drains: Drains,
    begin: Vec<oneshot::Sender<Loss>>,
}

impl Prepared {
    /// The process is taken over; whatever is lost of its output is told by `loss`.
    pub fn begin(self, loss: &Loss) -> Drains {
        for begin in self.begin {
            let _ = begin.send(loss.of_another_stream());
        }
        self.drains
    }
}

/// Takes the answer to an [`Order`].
pub type Tell = Box<dyn FnOnce(io::Result<Prepared>) + Send>;

/// The order to prepare the drains of a task.
struct Order {
    task: TaskId,
    flows: Vec<Flow>,
    tell: Tell,
}

/// The thread that drains.
#[derive(Clone, Debug)]
pub struct DrainThread(mpsc::UnboundedSender<Order>);

impl DrainThread {
    /// Starts the thread; it ends when the last handle is dropped and everything is drained.
    ///
    /// # Errors
    /// The system allows no more threads, or watches no more descriptors.
    pub fn start() -> io::Result<Self> {
        let null = Arc::new(File::options().write(true).open("/dev/null")?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (orders, queue) = mpsc::unbounded_channel();
        thread::Builder::new().name("drain".to_owned()).stack_size(256 * 1024).spawn(move || {
            // A limit on the size of files is an error of a write then, and not the daemon's end.
            if let Err(error) = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None) {
                tracing::warn!(%error, "cannot block signals in the thread that drains");
            }
            runtime.block_on(serve(queue, &null));
        })?;
        Ok(Self(orders))
    }

    /// Whether the thread is lost.
    pub fn is_lost(&self) -> bool {
        self.0.is_closed()
    }

    /// Prepares to drain; `tell` gets the handle, or what the system says. It is called on the thread.
    pub fn prepare(&self, task: TaskId, flows: Vec<Flow>, tell: Tell) {
        if let Err(mpsc::error::SendError(order)) = self.0.send(Order { task, flows, tell }) {
            (order.tell)(Err(io::Error::other("the thread that drains pipes has ended")));
        }
    }
}

async fn serve(mut queue: mpsc::UnboundedReceiver<Order>, null: &Arc<File>) {
    // Each drain holds a copy, so that the end of the last one is seen.
    let (working, mut all_done) = mpsc::channel::<()>(1);
    while let Some(Order { task, flows, tell }) = queue.recv().await {
        let streams: io::Result<Vec<Stream>> =
            flows.into_iter().map(|flow| Stream::new(task, flow, Arc::clone(null))).collect();
        tell(streams.map(|streams| {
            let mut prepared = Prepared::default();
            for stream in streams {
                let (asks, asked) = mpsc::unbounded_channel();
                let (begin, word) = oneshot::channel();
                let working = working.clone();
                tokio::spawn(async move {
                    if let Ok(loss) = word.await {
                        stream.run(asked, loss).await;
                    }
                    drop(working);
                });
                prepared.drains.0.push(asks);
                prepared.begin.push(begin);
            }
            prepared
        }));
    }
    drop(working);
    all_done.recv().await;
}

/// What one move brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spliced {
    /// So many bytes.
    Bytes(usize),
    /// There is nothing at this moment.
    Nothing,
    /// Nothing will come any more.
    End,
}

/// One pipe or socket on its way into a file.
struct Stream {
    task: TaskId,
    from: AsyncFd<OwnedFd>,
    is_pipe: bool,
    to: Sink,
    /// For what comes from a socket.
    buffer: Vec<u8>,
}

impl Stream {
    fn new(task: TaskId, flow: Flow, null: Arc<File>) -> io::Result<Self> {
        let (fd, is_pipe) = match flow.source {
            Source::Pipe(fd) => (fd, true),
            Source::Socket(fd) => (fd, false),
        };
        let to = Sink { task, file: Some(flow.file), offset: 0, null, loss: None, is_losing: false };
        let buffer = if is_pipe { Vec::new() } else { vec![0; BUFFER] };
        Ok(Self { task, from: watch::readable(fd)?, is_pipe, to, buffer })
    }

    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Ask>, loss: Loss) {
        self.to.loss = Some(loss);
        loop {
            tokio::select! {
                biased;
                Some(ask) = asked.recv() => match ask {
                    Ask::Settle(done) => {
                        let has_ended = self.settle();
                        self.to.tell_loss();
                        // Whoever waits for this looks next whether it has ended.
                        if has_ended {
                            drop(asked);
                            let _ = done.send(());
                            break;
                        }
                        let _ = done.send(());
                    }
                    Ask::Discard => self.to.discard(),
                },
                ready = self.from.readable() => {
                    let Ok(mut ready) = ready else { break };
                    match advance(ready.get_inner(), self.is_pipe, &mut self.buffer, &mut self.to) {
                        Ok(Spliced::Bytes(_)) => {}
                        Ok(Spliced::Nothing) => ready.clear_ready(),
                        Ok(Spliced::End) => break,
                        Err(error) => {
                            tracing::warn!(task = %self.task, %error, "its output can't be read any more");
                            break;
                        }
                    }
                    // The others get their turn.
                    tokio::task::yield_now().await;
                }
            }
        }
        self.to.tell_loss();
    }

    /// Moves what is there at this moment. Whether that was the end.
    fn settle(&mut self) -> bool {
        let mut left = ioctl_fionread(self.from.get_ref()).unwrap_or(0);
        loop {
            match advance(self.from.get_ref(), self.is_pipe, &mut self.buffer, &mut self.to) {
                Ok(Spliced::Bytes(count)) if left > 0 => left = left.saturating_sub(count as u64),
                Ok(Spliced::Bytes(_) | Spliced::Nothing) => return false,
                Ok(Spliced::End) | Err(_) => return true,
            }
        }
    }
}

/// Moves one chunk.
fn advance(from: &OwnedFd, is_pipe: bool, buffer: &mut [u8], to: &mut Sink) -> io::Result<Spliced> {
    let moved = if is_pipe { to.splice_from(from) } else { to.receive_from(from, buffer) };
    match moved {
        Ok(0) => Ok(Spliced::End),
        Ok(count) => Ok(Spliced::Bytes(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Spliced::Nothing),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Spliced::Bytes(0)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Spliced::End),
        Err(error) => Err(error),
    }
}

/// An output file at whose end it is written.
struct Sink {
    task: TaskId,
    /// None: nobody wants it. It is closed then, so that the disk gets the space back of what was removed.
    file: Option<File>,
    offset: u64,
    null: Arc<File>,
    /// Who hears of what the disk does not take; known when it begins.
    loss: Option<Loss>,
    /// The disk did not take what came last.
    is_losing: bool,
}

impl Sink {
    /// Nobody wants it any more.
    fn discard(&mut self) {
        self.file = None;
    }

    /// Moves what a pipe holds, at most a chunk. Zero: it is at its end.
    fn splice_from(&mut self, pipe: &OwnedFd) -> io::Result<usize> {
        if let Some(file) = &self.file {
            let before = self.offset;
            match splice_once(pipe, file, Some(&mut self.offset)) {
                Ok(count) => {
                    self.took(count);
                    return Ok(count);
                }
                Err(error) if is_of_the_pipe(&error) => return Err(error),
                Err(error) => {
                    self.offset = before;
                    let count = splice_once(pipe, &self.null, None)?;
                    self.lose(count, &error);
                    return Ok(count);
                }
            }
        }
        splice_once(pipe, &self.null, None)
    }

    /// Moves what a socket holds, at most a buffer full. Zero: it is at its end.
    fn receive_from(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        let (count, _) = rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT)?;
        let mut rest = &buffer[..count];
        while let Some(file) = self.file.as_ref().filter(|_| !rest.is_empty()) {
            match file.write_at(rest, self.offset) {
                Ok(written) => {
                    self.offset += written as u64;
                    self.took(written);
                    rest = &rest[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.lose(rest.len(), &error);
                    break;
                }
            }
        }
        Ok(count)
    }

    fn took(&mut self, count: usize) {
        if count > 0 {
            self.is_losing = false;
        }
    }

    fn lose(&mut self, count: usize, error: &io::Error) {
        if count == 0 {
            return;
        }
        if !std::mem::replace(&mut self.is_losing, true) {
            tracing::warn!(task = %self.task, %error, "its output can't be written; what comes is dropped");
        }
        if let Some(loss) = &mut self.loss {
            loss.add(count, error);
        }
    }

    /// Whoever waits for the drain must know of all that was lost.
    fn tell_loss(&mut self) {
        if let Some(loss) = &mut self.loss {
            loss.tell();
        }
    }
}

/// Errors of `splice` that say something about the pipe and not about what it is written to.
fn is_of_the_pipe(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn splice_once(pipe: &OwnedFd, to: impl AsFd, offset: Option<&mut u64>) -> io::Result<usize> {
    Ok(splice(pipe, None, to, offset, CHUNK, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?)
}

#[cfg(test)]
mod tests;
