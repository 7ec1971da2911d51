//! Terminals of jobs: pseudo-terminals whose processes' side a job runs in. What they show is kept in the
//! task's output, and shown to whoever is attached.
//!
//! They live on a thread of their own, so that a job that writes without end delays nobody else; it is
//! started with the first of them. Who may see which terminal is not decided here.

pub mod birth;
pub mod leader;
mod modes;
pub mod news;
mod opening;
pub mod order;
mod screen;
mod sequences;
mod session;
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
use self::viewers::Viewer;

/// The most rows and columns of a terminal.
pub const TERMINAL_SIDE: u16 = 1000;

/// How many writes may wait for one terminal.
const WRITES: usize = 64;

/// How much is read from a terminal before anybody is told.
const READ_BYTES: usize = 64 * 1024;

/// How many tasks of the thread's runtime run before it looks for new input: terminals that flood shall not
/// keep quiet ones waiting.
const EVENT_INTERVAL: u32 = 4;

/// The way to a terminal that is followed. It is closed when the last of these is dropped.
#[derive(Clone, Debug)]
pub struct Terminal {
    orders: mpsc::UnboundedSender<Order>,
    writes: Arc<Semaphore>,
}

impl Terminal {
    /// Shows it to somebody: the whole screen first.
    pub fn attach(&self, viewer: Viewer) {
        self.order(Order::Attach(viewer));
    }

    /// Draws the whole screen for somebody who is shown it already, with the size of theirs if they told one.
    pub fn draw_again(&self, client: u64, size: Option<TerminalSize>) {
        self.order(Order::DrawAgain { client, size });
    }

    /// Shows it to somebody no more.
    pub fn leave(&self, client: u64) {
        self.order(Order::Leave { client });
    }

    /// Notes the size of somebody's own terminal.
    pub fn resize(&self, client: u64, size: TerminalSize) {
        self.order(Order::Resize { client, size });
    }

    /// Writes all of the data, as if it were typed, waiting for the job to take it.
    ///
    /// # Errors
    /// `BrokenPipe` when the terminal is closed; `WouldBlock` when 64 writes wait already.
    pub async fn write(&self, data: Vec<u8>) -> io::Result<u64> {
        let Ok(permit) = Arc::clone(&self.writes).try_acquire_owned() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let (done, result) = oneshot::channel();
        self.order(Order::Write(Write { data, written: 0, done, permit }));
        result.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Waits until everything that was written to it so far is kept, and on its way to those who are shown it.
    /// Returns why its leader does not know how the job has ended, if that is so.
    pub async fn drain(&self) -> Option<Box<str>> {
        let (done, drained) = oneshot::channel();
        self.order(Order::Drain(done));
        // If it is closed, nothing is left in it.
        drained.await.ok().flatten()
    }

    fn order(&self, order: Order) {
        // A terminal that has closed has nothing more to do.
        let _ = self.orders.send(order);
    }
}

type Start = (Opening, mpsc::UnboundedReceiver<Order>);

/// The thread that follows terminals.
#[derive(Debug, Default)]
pub struct Terminals {
    starts: Option<mpsc::UnboundedSender<Start>>,
}

impl Terminals {
    /// Starts the thread, if it does not run.
    ///
    /// # Errors
    /// The system allows no more threads or descriptors.
    pub fn start(&mut self) -> io::Result<()> {
        if self.starts.as_ref().is_none_or(mpsc::UnboundedSender::is_closed) {
            self.starts = Some(start()?);
        }
        Ok(())
    }

    /// Begins to follow a terminal.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn open(&mut self, opening: Opening) -> io::Result<Terminal> {
        self.start()?;
        let (orders, queue) = mpsc::unbounded_channel();
        if let Some(starts) = &self.starts {
            let _ = starts.send((opening, queue));
        }
        Ok(Terminal { orders, writes: Arc::new(Semaphore::new(WRITES)) })
    }
}

fn start() -> io::Result<mpsc::UnboundedSender<Start>> {
    let (starts, mut queue) = mpsc::unbounded_channel::<Start>();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().event_interval(EVENT_INTERVAL).build()?;
    thread::Builder::new().name("terminals".to_owned()).stack_size(512 * 1024).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            // One at a time is read, and what was read is passed on before the next one is.
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
