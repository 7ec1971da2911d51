//! A followed terminal: its job's output is kept in the task's file and shown to viewers, and their typed input is
//! written to the terminal.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::rc::Rc;

use bgd_shared::id::TaskId;
use bgd_shared::request::TerminalSize;
use nix::errno::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::news;
use super::opening::Opening;
use super::order::{CONTINUED, STOPPED, UNKNOWN};
use super::screen::Screen;
use super::still::{Before, Copies, KeepStill, SessionState, Still, WriteState};
use super::viewers::{Viewer, Viewers};
use crate::exec::output::loss::Loss;
use crate::os::pty::set_size;
use crate::os::watch;

/// A command to a session.
#[derive(Debug)]
pub enum Order {
    /// Show the terminal to a viewer.
    Attach(Viewer),
    /// Redraw the whole screen for a current viewer.
    DrawAgain { client: u64, size: Option<TerminalSize> },
    /// Stop showing the terminal to a client.
    Leave { client: u64 },
    /// Note the size of a viewer's own terminal.
    Resize { client: u64, size: TerminalSize },
    /// Write typed input.
    Write(Write),
    /// Pass on everything that is in the terminal now. The answer is the reason why the leader does not know its job's
    /// exit, if it has reported one.
    Drain(oneshot::Sender<Option<Box<str>>>),
    /// Keep still for an upgrade.
    KeepStill(KeepStill),
    /// Copy the descriptors.
    Copy(oneshot::Sender<io::Result<Copies>>),
    /// Notify this receiver, in place of an earlier one, once the job has stopped.
    AwaitStop(oneshot::Sender<()>),
}

/// A write to a terminal.
#[derive(Debug)]
pub struct Write {
    /// The write's number among those to this terminal.
    pub number: u64,
    pub data: Vec<u8>,
    /// The number of bytes already written.
    pub written: usize,
    /// Receives the result.
    pub done: oneshot::Sender<io::Result<u64>>,
    /// The write's slot in the queue.
    pub permit: OwnedSemaphorePermit,
}

pub struct Session {
    task: TaskId,
    master: AsyncFd<OwnedFd>,
    /// Kept open, so that the master reports no hang-up.
    slave: Option<OwnedFd>,
    leader_news: Option<AsyncFd<OwnedFd>>,
    /// The reason why the leader does not know its job's exit, if it has reported one.
    unknown_end: Option<Vec<u8>>,
    /// Whether the job has stopped, according to its leader.
    is_stopped: bool,
    /// Notified once the job has stopped.
    stop_waiter: Option<oneshot::Sender<()>>,
    orders: mpsc::UnboundedReceiver<Order>,
    writes: VecDeque<Write>,
    output: Output,
    screen: Screen,
    viewers: Viewers,
    /// The offset in the output up to which it was sent to viewers.
    sent_bytes: u64,
    /// The offset in the output at which the terminal was opened.
    began_at: u64,
    /// The beginning of a character, not sent yet.
    held: Vec<u8>,
    buffer: Rc<RefCell<Box<[u8]>>>,
    /// Whether nothing can be read any more.
    is_at_end: bool,
}

impl Session {
    /// Starts following a terminal. Must be called in the thread's runtime.
    ///
    /// # Errors
    /// The descriptors can't be registered with the runtime.
    pub fn new(
        opening: Opening,
        orders: mpsc::UnboundedReceiver<Order>,
        buffer: Rc<RefCell<Box<[u8]>>>,
    ) -> io::Result<Self> {
        let Opening { task, master, slave, size, output, loss, leader_news, owner, before } = opening;
        rustix::io::ioctl_fionbio(&master, true)?;
        let mut viewers = Viewers::default();
        if let Some(owner) = owner {
            viewers.add(owner, true);
        }
        let file = File::from(output);
        // Earlier attempts of the task have written to the same file.
        let began_at = file.metadata().map_or(0, |metadata| metadata.len());
        let mut session = Self {
            task,
            master: watch::both(master)?,
            slave,
            leader_news: leader_news.map(watch::readable).transpose()?,
            unknown_end: None,
            is_stopped: false,
            stop_waiter: None,
            orders,
            writes: VecDeque::new(),
            output: Output { task, file, is_losing: false, loss },
            screen: Screen::new(size),
            viewers,
            sent_bytes: began_at,
            began_at,
            held: Vec::new(),
            buffer,
            is_at_end: false,
        };
        if let Some(before) = before {
            session.restore(*before);
        }
        Ok(session)
    }

    /// Runs until the last handle to the terminal is dropped.
    pub async fn run(mut self) {
        loop {
            self.catch_up().await;
            self.notify_stop().await;
            let holds_back = self.viewers.hold_back();
            let may_read = !self.is_at_end && !holds_back;
            tokio::select! {
                biased;
                order = self.orders.recv() => match order {
                    Some(order) => self.handle_order(order).await,
                    None => return,
                },
                () = readable(self.leader_news.as_ref()) => self.read_leader_reports(),
                ready = self.master.writable(), if !self.writes.is_empty() => match ready {
                    Ok(mut ready) => {
                        if write(self.master.get_ref(), &mut self.writes) {
                            ready.clear_ready();
                        }
                    }
                    Err(error) => return self.give_up(&error),
                },
                ready = self.master.readable(), if may_read => {
                    match ready {
                        Ok(mut ready) => {
                            let buffer = Rc::clone(&self.buffer);
                            let (count, then) = read(self.master.get_ref(), &mut buffer.borrow_mut());
                            match then {
                                ReadOutcome::More => {}
                                ReadOutcome::Wait => ready.clear_ready(),
                                ReadOutcome::End => self.is_at_end = true,
                            }
                            drop(ready);
                            self.show(&buffer.borrow()[..count]);
                            self.make_room().await;
                        }
                        Err(error) => return self.give_up(&error),
                    }
                    tokio::task::yield_now().await;
                }
                () = self.viewers.have_room(holds_back) => {}
            }
        }
    }

    fn give_up(&self, error: &io::Error) {
        tracing::error!(task = %self.task, %error, "a terminal can't be followed; it is closed");
    }

    async fn handle_order(&mut self, order: Order) {
        match order {
            Order::Attach(viewer) => self.viewers.add(viewer, false),
            Order::DrawAgain { client, size } => {
                if let Some(size) = size {
                    self.viewers.resize(client, size);
                }
                self.viewers.draw_again(client);
            }
            Order::Leave { client } => self.viewers.remove(client),
            Order::Resize { client, size } => self.viewers.resize(client, size),
            Order::Write(write) => return self.writes.push_back(write),
            Order::Drain(done) => {
                self.drain().await;
                // No viewer can catch up after the end: the job's terminal is closed then. It is one screen each.
                if self.viewers.is_any_behind() {
                    self.draw(true).await;
                }
                // The caller reports the job's exit next, and a loss must be known by then.
                self.output.loss.report();
                self.read_leader_reports();
                let why = self.unknown_end.as_deref();
                let _ = done.send(why.map(|why| String::from_utf8_lossy(why).into()));
                return;
            }
            Order::KeepStill(order) => return self.keep_still(order).await,
            Order::Copy(done) => return drop(done.send(self.copies())),
            Order::AwaitStop(waiter) => {
                self.stop_waiter = Some(waiter);
                return self.tell_stop_waiter();
            }
        }
        self.take_size().await;
    }

    /// Applies the size that all viewers see completely.
    async fn take_size(&mut self) {
        let Some(size) = self.viewers.size().filter(|size| *size != self.screen.size()) else { return };
        self.parse().await;
        self.screen.resize(size);
        if let Err(error) = set_size(self.master.get_ref(), size) {
            tracing::warn!(task = %self.task, %error, "cannot set the size of a terminal");
        }
    }

    /// Parses the backlog of the screen. Other terminals get their turn meanwhile.
    async fn parse(&mut self) {
        while self.screen.parse_slice() {
            tokio::task::yield_now().await;
        }
    }

    /// Like [`Self::parse`], but only if the screen is full. Call it after [`Self::show`], when the buffer is free.
    async fn make_room(&mut self) {
        if self.screen.is_full() {
            self.parse().await;
        }
    }

    /// Saves and shows output of the job.
    fn show(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.output.keep(bytes);
        self.screen.take(bytes);
        if self.held.is_empty() {
            let whole = news::whole_characters(bytes);
            self.held.extend_from_slice(&bytes[whole..]);
            self.tell(&bytes[..whole]);
        } else {
            let mut all = std::mem::take(&mut self.held);
            all.extend_from_slice(bytes);
            self.held = all.split_off(news::whole_characters(&all));
            self.tell(&all);
        }
    }

    fn tell(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (task, offset, modes) = (self.task, self.sent_bytes, self.screen.modes());
        self.sent_bytes += bytes.len() as u64;
        self.viewers.tell(modes, self.screen.is_main_blank(), |have_changed| {
            news::output(task, offset, bytes.to_vec(), false, have_changed.then(|| modes.restore()))
        });
    }

    /// Draws the screen for viewers that lack it.
    async fn catch_up(&mut self) {
        if self.viewers.is_any_due() {
            self.draw(false).await;
        }
    }

    /// Draws the screen for viewers that lack it: those that have read everything sent before, or if it `is_last`, all.
    async fn draw(&mut self, is_last: bool) {
        self.parse().await;
        let Self { task, screen, viewers, sent_bytes, .. } = self;
        let modes = screen.modes().clone();
        let rows = screen.size().rows;
        viewers.catch_up(&modes, is_last, |theirs, their_rows| {
            let mut bytes = theirs.restore().into_bytes();
            // Before the job has written anything, the content of the user's terminal stays, as in the foreground.
            if !screen.is_untouched() {
                bytes.extend(screen.redraw(their_rows.unwrap_or(rows)));
            }
            // A title may end in an incomplete character, which will be sent as a whole.
            bytes.truncate(news::whole_characters(&bytes));
            news::output(*task, *sent_bytes, bytes, true, Some(modes.restore()))
        });
    }

    /// Notifies viewers that have room that the job has stopped.
    async fn notify_stop(&mut self) {
        if self.viewers.is_stop_due() {
            // Send first the output written before the stop.
            self.drain().await;
            self.viewers.notify_stop(&news::stopped(self.task));
        }
    }

    /// Passes on the content of the terminal, even to slow readers, as it is little.
    async fn drain(&mut self) {
        let buffer = Rc::clone(&self.buffer);
        // The buffer holds more than the kernel does; any further data was written later.
        let (count, then) = read(self.master.get_ref(), &mut buffer.borrow_mut());
        self.is_at_end |= then == ReadOutcome::End;
        self.show(&buffer.borrow()[..count]);
        let held = std::mem::take(&mut self.held);
        self.tell(&held);
        self.make_room().await;
    }

    /// Handles the leader's reports about its job.
    fn read_leader_reports(&mut self) {
        let mut words = [0; 64];
        while let Some(leader) = &self.leader_news {
            match nix::unistd::read(leader.get_ref(), &mut words) {
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                // The leader has ended, and its job with it.
                Ok(0) | Err(_) => self.leader_news = None,
                Ok(count) => self.handle_report(&words[..count]),
            }
        }
    }

    fn handle_report(&mut self, words: &[u8]) {
        let reason = match &mut self.unknown_end {
            Some(reason) => return reason.extend_from_slice(words),
            None => words.iter().position(|word| *word == UNKNOWN),
        };
        let (words, reason) = words.split_at(reason.unwrap_or(words.len()));
        // A leader may be of another version, and send reports unknown to this one.
        if let Some(word) = words.iter().rfind(|word| [STOPPED, CONTINUED].contains(word)) {
            self.is_stopped = *word == STOPPED;
            self.viewers.note_stop(self.is_stopped);
            self.tell_stop_waiter();
        }
        self.unknown_end = reason.get(1..).map(<[u8]>::to_vec);
    }

    fn tell_stop_waiter(&mut self) {
        if let Some(waiter) = self.stop_waiter.take_if(|_| self.is_stopped) {
            // The receiver may not be waiting any more.
            let _ = waiter.send(());
        }
    }
}

impl Session {
    /// Keeps still until the hold is dropped.
    async fn keep_still(&mut self, order: KeepStill) {
        self.parse().await;
        // The holder must be informed of a loss.
        self.output.loss.report();
        order.keep(Box::new(self.still())).await;
    }

    fn copies(&self) -> io::Result<Copies> {
        Ok(Copies {
            master: self.master.get_ref().try_clone()?,
            slave: self.slave.as_ref().map(OwnedFd::try_clone).transpose()?,
            leader_news: self.leader_news.as_ref().map(|news| news.get_ref().try_clone()).transpose()?,
            output: self.output.file.try_clone()?.into(),
            began_at: self.began_at,
        })
    }

    fn still(&mut self) -> Still {
        // Exhaustive, as a new field must be carried, too.
        let Self {
            task: _,
            master,
            slave,
            leader_news,
            unknown_end,
            is_stopped,
            stop_waiter,
            orders: _,
            writes,
            output: Output { task: _, file, is_losing, loss: _ },
            screen,
            viewers,
            sent_bytes,
            began_at,
            held,
            buffer: _,
            is_at_end,
        } = self;
        let number = |fd: &OwnedFd| fd.as_fd().as_raw_fd();
        let writes = writes.iter().map(|write| {
            let Write { number, data, written, done: _, permit: _ } = write;
            WriteState { number: *number, data: data.clone(), written: *written }
        });
        Still {
            state: SessionState {
                unknown_end: unknown_end.clone(),
                is_stopped: *is_stopped,
                is_stop_awaited: stop_waiter.as_ref().is_some_and(|waiter| !waiter.is_closed()),
                writes: writes.collect(),
                is_losing: *is_losing,
                screen: screen.state(),
                viewers: viewers.state(),
                sent_bytes: *sent_bytes,
                began_at: *began_at,
                held: held.clone(),
                is_at_end: *is_at_end,
            },
            master: number(master.get_ref()),
            slave: slave.as_ref().map(number),
            leader_news: leader_news.as_ref().map(|news| number(news.get_ref())),
            output: file.as_fd().as_raw_fd(),
        }
    }

    /// Restores the state of another program.
    fn restore(&mut self, Before { state, viewers }: Before) {
        let SessionState {
            unknown_end,
            is_stopped,
            is_stop_awaited: _,
            writes: _,
            is_losing,
            screen,
            viewers: _,
            sent_bytes,
            began_at,
            held,
            is_at_end,
        } = state;
        (self.unknown_end, self.is_stopped) = (unknown_end, is_stopped);
        self.output.is_losing = is_losing;
        self.screen = Screen::restore(screen);
        for (viewer, state) in viewers {
            self.viewers.add_restored(viewer, state);
        }
        (self.sent_bytes, self.began_at) = (sent_bytes, began_at);
        (self.held, self.is_at_end) = (held, is_at_end);
    }
}

/// Waits until there is data to read; forever if there is no descriptor.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) {
    let Some(fd) = fd else { return std::future::pending().await };
    // An error shows on the next read.
    if let Ok(mut ready) = fd.readable().await {
        ready.clear_ready();
    }
}

/// The state after a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadOutcome {
    /// There may be more.
    More,
    /// There is nothing more at this moment.
    Wait,
    /// End of file.
    End,
}

/// Reads the available data, as much as fits.
fn read(master: &OwnedFd, buffer: &mut [u8]) -> (usize, ReadOutcome) {
    let mut count = 0;
    while count < buffer.len() {
        match nix::unistd::read(master, &mut buffer[count..]) {
            Ok(0) => return (count, ReadOutcome::End),
            Ok(more) => count += more,
            Err(Errno::EAGAIN) => return (count, ReadOutcome::Wait),
            Err(Errno::EINTR) => {}
            // No process has the terminal open any more.
            Err(_) => return (count, ReadOutcome::End),
        }
    }
    (count, ReadOutcome::More)
}

/// Writes the queued writes. Returns whether the terminal accepts nothing more at this moment.
fn write(master: &OwnedFd, writes: &mut VecDeque<Write>) -> bool {
    while let Some(first) = writes.front_mut() {
        let result = match nix::unistd::write(master, &first.data[first.written..]) {
            Ok(0) if !first.data.is_empty() => return true,
            Err(Errno::EAGAIN) => return true,
            Err(Errno::EINTR) => continue,
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
            Ok(count) => {
                first.written += count;
                if first.written < first.data.len() {
                    continue;
                }
                Ok(first.data.len() as u64)
            }
        };
        if let Some(Write { done, permit, .. }) = writes.pop_front() {
            drop(permit);
            let _ = done.send(result);
        }
    }
    false
}

struct Output {
    task: TaskId,
    file: File,
    /// Whether the last write failed.
    is_losing: bool,
    loss: Loss,
}

impl Output {
    /// Appends bytes. Bytes that can't be written (the disk may be full) are lost and reported on the task; the
    /// terminal keeps working.
    fn keep(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(count @ 1..) => {
                    self.is_losing = false;
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => {
                    let error = result.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into());
                    if !std::mem::replace(&mut self.is_losing, true) {
                        tracing::warn!(task = %self.task, %error, "the contents of a terminal can't be kept");
                    }
                    self.loss.add(bytes.len(), &error);
                    return;
                }
            }
        }
    }
}
