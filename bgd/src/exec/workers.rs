//! A few threads for what blocks: reading output files, removing them, walking process trees.
//!
//! They are made at the start, not on demand, so that a process limit that is met later can't take
//! them away. Their queue holds closures, of which callers keep few: a connection has a bounded number
//! of requests, a task one walk at a time.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// How many blocking jobs run at once.
const THREADS: usize = 2;

/// Handle to the threads; they end when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Workers {
    jobs: mpsc::Sender<Job>,
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..THREADS {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name(format!("worker-{number}")).stack_size(256 * 1024).spawn(
                move || {
                    loop {
                        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        match job {
                            Ok(job) => job(),
                            Err(mpsc::RecvError) => break,
                        }
                    }
                },
            )?;
        }
        Ok(Self { jobs })
    }

    /// Does a job some time soon.
    pub fn later(&self, job: impl FnOnce() + Send + 'static) {
        // The threads live as long as this handle, so the queue is open.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Does a job and waits for what it returns; `None` if it panicked.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.later(move || {
            let _ = sender.send(job());
        });
        receiver.await.ok()
    }
}
