//! Terminals of jobs: pseudo-terminals on whose slave a job runs. Their output is kept in the task's file and shown to
//! attached viewers.
//!
//! They are followed by a dedicated thread, started with the first of them, so that a job that writes without end
//! delays nothing else. Access to terminals is not decided here.

mod drawing;
pub mod launch;
pub mod leader;
mod modes;
pub mod news;
mod opening;
pub mod order;
pub mod screen;
mod sequences;
mod session;
pub mod still;
pub mod viewers;
mod work;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use bgd_shared::request::TerminalSize;
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use self::opening::Opening;
use self::session::{Order, Session, Write};
use self::still::{Copies, Hold, WriteState};
use self::viewers::Viewer;

/// The maximum number of rows and of columns of a terminal.
pub const TERMINAL_SIDE: u16 = 1000;

/// The maximum number of writes queued for one terminal.
const WRITES: usize = 64;

/// How many bytes are read from a terminal before they are passed on.
const READ_BYTES: usize = 64 * 1024;

/// How many runtime tasks the thread runs before it looks for new input, as terminals that flood must not keep quiet
/// ones waiting.
const EVENT_INTERVAL: u32 = 4;

/// A handle to a followed terminal. The terminal is closed when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Terminal {
    orders: mpsc::UnboundedSender<Order>,
    writes: Arc<Semaphore>,
}

impl Terminal {
    /// Shows the terminal to a viewer, starting with the whole screen.
    pub fn attach(&self, viewer: Viewer) {
        self.order(Order::Attach(viewer));
    }

    /// Redraws the whole screen for a current viewer, and notes the size of its own terminal if it sent one.
    pub fn draw_again(&self, client: u64, size: Option<TerminalSize>) {
        self.order(Order::DrawAgain { client, size });
    }

    /// Stops showing the terminal to a client.
    pub fn leave(&self, client: u64) {
        self.order(Order::Leave { client });
    }

    /// Notes the size of a viewer's own terminal.
    pub fn resize(&self, client: u64, size: TerminalSize) {
        self.order(Order::Resize { client, size });
    }

    /// Writes all of the data, as if it were typed, waiting while the terminal accepts no more. The number identifies
    /// the pending write.
    ///
    /// # Errors
    /// `BrokenPipe` if the terminal is closed; `WouldBlock` if 64 writes are queued already.
    pub fn write(&self, number: u64, data: Vec<u8>) -> impl Future<Output = io::Result<u64>> + Send + use<> {
        // Ordered at once, so that the write precedes any later order to keep still.
        let ordered = Arc::clone(&self.writes).try_acquire_owned().ok().map(|permit| {
            let (done, result) = oneshot::channel();
            self.order(Order::Write(Write { number, data, written: 0, done, permit }));
            result
        });
        async move {
            match ordered {
                Some(result) => written(result).await,
                None => Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    }

    /// Resumes a write that another program has begun. The receiver resolves when it is done.
    pub fn continue_writing(&self, write: WriteState) -> oneshot::Receiver<io::Result<u64>> {
        let WriteState { number, data, written } = write;
        let (done, result) = oneshot::channel();
        // That program had no more writes than there are slots.
        if let Ok(permit) = Arc::clone(&self.writes).try_acquire_owned() {
            self.order(Order::Write(Write { number, data, written, done, permit }));
        }
        result
    }

    /// Returns a receiver that resolves once the job has stopped; at once if it is stopped now.
    pub fn once_stopped(&self) -> oneshot::Receiver<()> {
        let (done, stopped) = oneshot::channel();
        self.order(Order::AwaitStop(done));
        stopped
    }

    /// Has the terminal keep still until the hold is dropped.
    pub fn hold(&self) -> Hold {
        let (hold, order) = Hold::new();
        self.order(Order::KeepStill(order));
        hold
    }

    /// Copies the descriptors.
    ///
    /// # Errors
    /// The terminal is closed, or no descriptor is left.
    pub async fn copies(&self) -> io::Result<Copies> {
        let (done, result) = oneshot::channel();
        self.order(Order::Copy(done));
        result.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Waits until all output written so far is saved and on its way to the viewers. Returns the reason why the leader
    /// does not know the job's exit, if it has reported one.
    pub async fn drain(&self) -> Option<Box<str>> {
        let (done, drained) = oneshot::channel();
        self.order(Order::Drain(done));
        // A closed terminal contains nothing more.
        drained.await.ok().flatten()
    }

    fn order(&self, order: Order) {
        // A closed terminal has nothing more to do.
        let _ = self.orders.send(order);
    }
}

/// Waits until a write is done.
///
/// # Errors
/// The terminal is closed.
pub async fn written(result: oneshot::Receiver<io::Result<u64>>) -> io::Result<u64> {
    result.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

/// A terminal of the previous program, which is not followed yet.
#[derive(Debug)]
pub struct Resting {
    pub terminal: Terminal,
    orders: mpsc::UnboundedReceiver<Order>,
}

impl Default for Resting {
    fn default() -> Self {
        let (orders, queue) = mpsc::unbounded_channel();
        let terminal = Terminal { orders, writes: Arc::new(Semaphore::new(WRITES)) };
        Self { terminal, orders: queue }
    }
}

type Start = (Opening, mpsc::UnboundedReceiver<Order>);

/// A handle to the thread that follows terminals.
#[derive(Debug, Default)]
pub struct Terminals {
    starts: Option<mpsc::UnboundedSender<Start>>,
}

impl Terminals {
    /// Starts the thread if it isn't running.
    ///
    /// # Errors
    /// The system allows no more threads or descriptors.
    pub fn start(&mut self) -> io::Result<()> {
        if self.starts.as_ref().is_none_or(mpsc::UnboundedSender::is_closed) {
            self.starts = Some(start()?);
        }
        Ok(())
    }

    /// Starts following a terminal.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn open(&mut self, opening: Opening) -> io::Result<Terminal> {
        let resting = Resting::default();
        let terminal = resting.terminal.clone();
        self.follow(opening, resting)?;
        Ok(terminal)
    }

    /// Like [`Self::open`], for a terminal that already has a handle.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn follow(&mut self, opening: Opening, resting: Resting) -> io::Result<()> {
        self.start()?;
        if let Some(starts) = &self.starts {
            let _ = starts.send((opening, resting.orders));
        }
        Ok(())
    }
}

fn start() -> io::Result<mpsc::UnboundedSender<Start>> {
    let (starts, mut queue) = mpsc::unbounded_channel::<Start>();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().event_interval(EVENT_INTERVAL).build()?;
    thread::Builder::new().name("terminals".to_owned()).stack_size(512 * 1024).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            // All terminals share it: each passes its data on before the next one reads.
            let buffer = Rc::new(RefCell::new(vec![0; READ_BYTES].into_boxed_slice()));
            while let Some((opening, orders)) = queue.recv().await {
                let task = opening.task;
                match Session::new(opening, orders, Rc::clone(&buffer)) {
                    Ok(session) => drop(tokio::task::spawn_local(session.run())),
                    Err(error) => {
                        tracing::error!(%task, %error, "a terminal can't be followed; it is closed");
                    }
                }
            }
        });
    })?;
    Ok(starts)
}
