//! Drains the pipes and sockets that handed-over processes write to into their output files.
//!
//! This happens on a dedicated thread, started with the first such process, so that a slow disk delays nothing else. A
//! pipe is drained by `splice`, without a copy in this process and without changing the pipe's own flags, which its
//! other holders share. Nothing is read before the process is really taken over: [`Prepared::begin`]. Draining
//! continues until every writer has closed the pipe, as descendants may keep writing after their leader has ended.
//!
//! Output that can't be written to the disk is dropped and reported on the task; a job must not stop because of that.
//! The output of a cleared task is dropped too.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
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

use super::copies::{FlowCopy, Via};
use super::kinds::Source;
use crate::exec::output::loss::Loss;
use crate::exec::threads::hold::{Hold, KeepStill};
use crate::os::watch;

/// The maximum number of bytes moved at once. A pipe holds 64 KiB unless it was enlarged.
const CHUNK: usize = 1024 * 1024;

/// The maximum number of bytes read from a socket at once.
const BUFFER: usize = 64 * 1024;

/// A source to drain, and the file that it is drained into.
#[derive(Debug)]
pub struct Flow {
    pub source: Source,
    /// The new file for the output. It has no other writer, and is not open for appending, which `splice` refuses.
    pub file: File,
    /// The pipe that a socket is drained through, if the drain must survive the daemon.
    pub via: Option<Via>,
}

impl Flow {
    /// Copies its descriptors.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn copy(&self) -> io::Result<FlowCopy> {
        let Self { source, file, via } = self;
        let (source, is_pipe) = match source {
            Source::Pipe(fd) => (fd, true),
            Source::Socket(fd) => (fd, false),
        };
        FlowCopy::of(source, is_pipe, Some(file), via.as_ref())
    }
}

/// A request to a drain.
#[derive(Debug)]
enum Ask {
    /// Drain the bytes that are available now.
    Settle(oneshot::Sender<()>),
    /// Discard the output, which is not wanted any more.
    Discard,
    /// Keep still for an upgrade.
    KeepStill(KeepStill<StillFlow>),
    /// Copy the descriptors.
    Copy(oneshot::Sender<io::Result<FlowCopy>>),
}

/// The state of a drain that is held. Every byte is either in its source or in its file.
#[derive(Debug)]
pub struct StillFlow {
    /// The number of the source's descriptor, and whether it is a pipe.
    pub source: (RawFd, bool),
    /// The number of the file's descriptor; `None` if the output is discarded.
    pub file: Option<RawFd>,
    /// The offset of the next byte.
    pub offset: u64,
    /// Whether the last write failed.
    pub is_losing: bool,
    /// The numbers of the pipe that a socket is drained through: read end, write end.
    pub via: Option<(RawFd, RawFd)>,
}

/// A drain of the previous program. Nothing of it is touched before it resumes.
#[derive(Debug)]
pub struct FlowBefore {
    pub source: Source,
    /// The file; `None` if the output is discarded.
    pub file: Option<File>,
    /// The offset of the next byte.
    pub offset: u64,
    /// Whether the last write failed.
    pub is_losing: bool,
    /// The pipe that a socket is drained through.
    pub via: Option<Via>,
}

/// Drains of the previous program that have not resumed yet.
#[derive(Debug)]
pub struct RestingDrains {
    task: TaskId,
    flows: Vec<(FlowBefore, mpsc::UnboundedReceiver<Ask>)>,
    loss: Loss,
}

/// The drains of one task. They continue when this is dropped.
#[derive(Clone, Debug, Default)]
pub struct Drains(Vec<mpsc::UnboundedSender<Ask>>);

impl Drains {
    /// Waits until everything that was in the pipes at the time of the call is in the output files.
    pub async fn settle(&self) {
        for drain in &self.0 {
            let (done, is_done) = oneshot::channel();
            // A drain that has ended has drained everything. A request sent at the very moment of its end stays in the
            // channel, unanswered, as long as this side has it; so wait for its end, too.
            if drain.send(Ask::Settle(done)).is_ok() {
                tokio::select! {
                    _ = is_done => {}
                    () = drain.closed() => {}
                }
            }
        }
    }

    /// Reports whether all pipes have reached their end.
    pub fn have_ended(&self) -> bool {
        self.0.iter().all(mpsc::UnboundedSender::is_closed)
    }

    /// Waits until all pipes have reached their end.
    pub async fn end(&self) {
        for drain in &self.0 {
            drain.closed().await;
        }
    }

    /// Holds the drains still until the holds are dropped.
    pub fn hold(&self) -> Vec<Hold<StillFlow>> {
        let holds = self.0.iter().map(|drain| {
            let (hold, order) = Hold::new();
            // A drain that has ended drops the order, and is recognised by that.
            let _ = drain.send(Ask::KeepStill(order));
            hold
        });
        holds.collect()
    }

    /// Copies the descriptors of the drains that have not ended.
    ///
    /// # Errors
    /// No descriptor is left.
    pub async fn copies(&self) -> io::Result<Vec<FlowCopy>> {
        let mut copies = Vec::new();
        for drain in &self.0 {
            let (done, result) = oneshot::channel();
            if drain.send(Ask::Copy(done)).is_ok() {
                let copy = tokio::select! {
                    copy = result => copy.ok(),
                    () = drain.closed() => None,
                };
                copies.extend(copy.transpose()?);
            }
        }
        Ok(copies)
    }

    /// Creates the handle to drains of the previous program; lost output is reported through `loss`.
    pub fn restore(task: TaskId, flows: Vec<FlowBefore>, loss: Loss) -> (Self, RestingDrains) {
        let mut drains = Self::default();
        let flows = flows.into_iter().map(|flow| {
            let (asks, asked) = mpsc::unbounded_channel();
            drains.0.push(asks);
            (flow, asked)
        });
        let flows = flows.collect();
        (drains, RestingDrains { task, flows, loss })
    }

    /// Discards all further output.
    pub fn discard(&self) {
        for drain in &self.0 {
            let _ = drain.send(Ask::Discard);
        }
    }
}

/// Drains that wait for [`Self::begin`]; if this is dropped, they end without having read anything.
#[derive(Debug, Default)]
pub struct Prepared {
    drains: Drains,
    begin: Vec<oneshot::Sender<Loss>>,
}

impl Prepared {
    /// Starts the drains after the process is taken over; lost output is reported through `loss`.
    pub fn begin(self, loss: &Loss) -> Drains {
        for begin in self.begin {
            let _ = begin.send(loss.of_another_stream());
        }
        self.drains
    }
}

/// Receives the answer to an [`Order`].
pub type PreparedCallback = Box<dyn FnOnce(io::Result<Prepared>) + Send>;

/// An order to the thread.
enum Order {
    /// Prepare the drains of a task.
    Prepare { task: TaskId, flows: Vec<Flow>, callback: PreparedCallback },
    /// Resume drains of the previous program.
    GoOn(RestingDrains),
}

/// A handle to the thread that drains.
#[derive(Clone, Debug)]
pub struct DrainThread(mpsc::UnboundedSender<Order>);

impl DrainThread {
    /// Starts the thread; it ends when the last handle is dropped and everything is drained.
    ///
    /// # Errors
    /// The system allows no more threads or descriptors.
    pub fn start() -> io::Result<Self> {
        let null = Arc::new(File::options().write(true).open("/dev/null")?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (orders, queue) = mpsc::unbounded_channel();
        thread::Builder::new().name("drain".to_owned()).stack_size(256 * 1024).spawn(move || {
            // With SIGXFSZ blocked, exceeding a file size limit is a write error and does not end the daemon.
            if let Err(error) = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None) {
                tracing::warn!(%error, "cannot block signals in the thread that drains");
            }
            runtime.block_on(serve(queue, &null));
        })?;
        Ok(Self(orders))
    }

    /// Reports whether the thread has ended.
    pub fn is_lost(&self) -> bool {
        self.0.is_closed()
    }

    /// Prepares drains; `callback` receives them, or the system error. It is called on the drain thread.
    pub fn prepare(&self, task: TaskId, flows: Vec<Flow>, callback: PreparedCallback) {
        if let Err(mpsc::error::SendError(Order::Prepare { callback, .. })) =
            self.0.send(Order::Prepare { task, flows, callback })
        {
            callback(Err(io::Error::other("the thread that drains pipes has ended")));
        }
    }

    /// Resumes drains of the previous program.
    pub fn resume(&self, resting: RestingDrains) {
        // The thread lives as long as this handle.
        let _ = self.0.send(Order::GoOn(resting));
    }
}

async fn serve(mut queue: mpsc::UnboundedReceiver<Order>, null: &Arc<File>) {
    // Each drain holds a clone, so that the end of the last one is noticed.
    let (working, mut all_done) = mpsc::channel::<()>(1);
    while let Some(order) = queue.recv().await {
        let (task, flows, callback) = match order {
            Order::Prepare { task, flows, callback } => (task, flows, callback),
            Order::GoOn(resting) => {
                resume(resting, null, &working);
                continue;
            }
        };
        let streams: io::Result<Vec<Stream>> =
            flows.into_iter().map(|flow| Stream::new(task, flow, Arc::clone(null))).collect();
        callback(streams.map(|streams| {
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

fn resume(resting: RestingDrains, null: &Arc<File>, working: &mpsc::Sender<()>) {
    let RestingDrains { task, flows, loss } = resting;
    for (FlowBefore { source, file, offset, is_losing, via }, asked) in flows {
        let to = Sink { task, file, offset, null: Arc::clone(null), loss: None, is_losing };
        let (loss, working) = (loss.of_another_stream(), working.clone());
        match Stream::to(task, source, via, to) {
            Ok(stream) => {
                tokio::spawn(async move {
                    stream.run(asked, loss).await;
                    drop(working);
                });
            }
            Err(error) => tracing::error!(%task, %error, "its output can no longer be read"),
        }
    }
}

/// The outcome of one move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spliced {
    /// This many bytes were moved.
    Bytes(usize),
    /// Nothing is available at this moment.
    Nothing,
    /// End of file.
    End,
}

/// A pipe or socket that is drained into a file.
struct Stream {
    task: TaskId,
    from: AsyncFd<OwnedFd>,
    is_pipe: bool,
    to: Sink,
    /// The pipe that a socket is drained through; without it, a socket is read into the buffer.
    via: Option<Via>,
    /// The buffer for a socket; empty for a pipe.
    buffer: Vec<u8>,
}

impl Stream {
    fn new(task: TaskId, flow: Flow, null: Arc<File>) -> io::Result<Self> {
        let to = Sink { task, file: Some(flow.file), offset: 0, null, loss: None, is_losing: false };
        Self::to(task, flow.source, flow.via, to)
    }

    fn to(task: TaskId, source: Source, via: Option<Via>, to: Sink) -> io::Result<Self> {
        let (fd, is_pipe) = match source {
            Source::Pipe(fd) => (fd, true),
            Source::Socket(fd) => (fd, false),
        };
        let buffer = if is_pipe || via.is_some() { Vec::new() } else { vec![0; BUFFER] };
        Ok(Self { task, from: watch::readable(fd)?, is_pipe, to, via, buffer })
    }

    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Ask>, loss: Loss) {
        self.to.loss = Some(loss);
        if let Some(via) = &self.via {
            // Bytes that a killed daemon has left in the pipe.
            let _ = self.to.empty(via);
        }
        loop {
            tokio::select! {
                biased;
                Some(ask) = asked.recv() => match ask {
                    Ask::Settle(done) => {
                        let has_ended = self.settle();
                        self.to.report_loss();
                        // The requester checks next whether the drain has ended.
                        if has_ended {
                            drop(asked);
                            let _ = done.send(());
                            break;
                        }
                        let _ = done.send(());
                    }
                    Ask::Discard => self.to.discard(),
                    Ask::KeepStill(order) => {
                        self.to.report_loss();
                        order.keep(self.still()).await;
                    }
                    Ask::Copy(done) => {
                        let (file, via) = (self.to.file.as_ref(), self.via.as_ref());
                        let _ = done.send(FlowCopy::of(self.from.get_ref(), self.is_pipe, file, via));
                    }
                },
                ready = self.from.readable() => {
                    let Ok(mut ready) = ready else { break };
                    match advance(ready.get_inner(), self.is_pipe, self.via.as_ref(), &mut self.buffer, &mut self.to) {
                        Ok(Spliced::Bytes(_)) => {}
                        Ok(Spliced::Nothing) => ready.clear_ready(),
                        Ok(Spliced::End) => break,
                        Err(error) => {
                            tracing::warn!(task = %self.task, %error, "its output can no longer be read");
                            break;
                        }
                    }
                    // Give the other drains their turn.
                    tokio::task::yield_now().await;
                }
            }
        }
        self.to.report_loss();
    }

    fn still(&self) -> StillFlow {
        // Exhaustive, as a new field must be carried, too.
        let Self { task: _, from, is_pipe, to, via, buffer: _ } = self;
        let Sink { task: _, file, offset, null: _, loss: _, is_losing } = to;
        StillFlow {
            source: (from.get_ref().as_raw_fd(), *is_pipe),
            file: file.as_ref().map(AsRawFd::as_raw_fd),
            offset: *offset,
            is_losing: *is_losing,
            via: via.as_ref().map(|via| (via.out.as_raw_fd(), via.into.as_raw_fd())),
        }
    }

    /// Moves the bytes that are available now. Returns whether the drain has reached the end.
    fn settle(&mut self) -> bool {
        let mut left = ioctl_fionread(self.from.get_ref()).unwrap_or(0);
        loop {
            let (from, via) = (self.from.get_ref(), self.via.as_ref());
            match advance(from, self.is_pipe, via, &mut self.buffer, &mut self.to) {
                Ok(Spliced::Bytes(count)) if left > 0 => left = left.saturating_sub(count as u64),
                Ok(Spliced::Bytes(_) | Spliced::Nothing) => return false,
                Ok(Spliced::End) | Err(_) => return true,
            }
        }
    }
}

/// Moves one chunk.
fn advance(
    from: &OwnedFd,
    is_pipe: bool,
    via: Option<&Via>,
    buffer: &mut [u8],
    to: &mut Sink,
) -> io::Result<Spliced> {
    let moved = match via {
        _ if is_pipe => to.splice_from(from),
        Some(via) => to.splice_through(from, via),
        None => to.receive_from(from, buffer),
    };
    match moved {
        Ok(0) => Ok(Spliced::End),
        Ok(count) => Ok(Spliced::Bytes(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Spliced::Nothing),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Spliced::Bytes(0)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Spliced::End),
        Err(error) => Err(error),
    }
}

/// An output file that is appended to.
struct Sink {
    task: TaskId,
    /// `None` if the output is not wanted. The file is closed then, so that the disk frees the space of a removed file.
    file: Option<File>,
    offset: u64,
    null: Arc<File>,
    /// Reports bytes that can't be written; set when draining begins.
    loss: Option<Loss>,
    /// Whether the last write failed.
    is_losing: bool,
}

impl Sink {
    fn discard(&mut self) {
        self.file = None;
    }

    /// Moves the content of a pipe, at most a chunk. Returns 0 at the end of file.
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

    /// Moves the content of a socket through a pipe, at most as much as fits into the pipe. Returns 0 at the end of
    /// file.
    fn splice_through(&mut self, socket: &OwnedFd, via: &Via) -> io::Result<usize> {
        // `splice` from a TCP socket waits for bytes whatever its flags, unless the socket itself is non-blocking,
        // which its other holders decide. Its errors come from here, too.
        let (peeked, _) = rustix::net::recv(socket, &mut [0_u8], RecvFlags::DONTWAIT | RecvFlags::PEEK)?;
        if peeked == 0 {
            return Ok(0);
        }
        let count = splice_once(socket, &via.into, None)?;
        self.empty(via)?;
        Ok(count)
    }

    /// Moves the entire content of a pipe that has no writer but this process.
    fn empty(&mut self, via: &Via) -> io::Result<()> {
        loop {
            match self.splice_from(&via.out) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves the content of a socket, at most a buffer full. Returns 0 at the end of file.
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
            tracing::warn!(task = %self.task, %error, "its output can't be written; further output is dropped");
        }
        if let Some(loss) = &mut self.loss {
            loss.add(count, error);
        }
    }

    /// Reports all losses: everything that waits for the drain needs them.
    fn report_loss(&mut self) {
        if let Some(loss) = &mut self.loss {
            loss.report();
        }
    }
}

/// Reports whether an error of `splice` concerns the pipe and not the file that it is written to.
fn is_of_the_pipe(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn splice_once(pipe: &OwnedFd, to: impl AsFd, offset: Option<&mut u64>) -> io::Result<usize> {
    Ok(splice(pipe, None, to, offset, CHUNK, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?)
}

#[cfg(test)]
mod tests;
