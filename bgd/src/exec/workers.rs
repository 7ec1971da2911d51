//! A few threads for blocking jobs: reading output files, removing them, walking process trees.
//!
//! They are created at start-up, not on demand, so that a process limit reached later can't take them away. Their
//! queue needs no bound of its own: a connection has a bounded number of requests, a task's tree is walked by one job
//! at a time, and removals come in large batches.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};
use std::thread;

use tokio::sync::oneshot;

/// A blocking job.
pub type Job = Box<dyn FnOnce() + Send>;

/// How many blocking jobs run at once.
const THREADS: usize = 2;

/// A handle to the threads; they end when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Workers {
    jobs: Jobs,
    /// Jobs that are not done.
    waiting: Arc<AtomicUsize>,
}

/// Where jobs go.
#[derive(Clone)]
enum Jobs {
    Threads(mpsc::Sender<Job>),
    Simulated(Arc<dyn Fn(Job) + Send + Sync>),
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads(_) => "Threads",
            Self::Simulated(_) => "Simulated",
        })
    }
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let waiting = Arc::new(AtomicUsize::new(0));
        for number in 0..THREADS {
            let (queue, waiting) = (Arc::clone(&queue), Arc::clone(&waiting));
            thread::Builder::new().name(format!("worker-{number}")).stack_size(256 * 1024).spawn(
                move || {
                    loop {
                        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        match job {
                            // A job that panics loses its answer, but does not end the thread.
                            Ok(job) => {
                                let _ = catch_unwind(AssertUnwindSafe(job));
                                waiting.fetch_sub(1, Ordering::Release);
                            }
                            Err(mpsc::RecvError) => break,
                        }
                    }
                },
            )?;
        }
        Ok(Self { jobs: Jobs::Threads(jobs), waiting })
    }

    /// Creates workers without threads: a simulation takes the jobs, and does each when it likes.
    pub fn simulated(take: impl Fn(Job) + Send + Sync + 'static) -> Self {
        Self { jobs: Jobs::Simulated(Arc::new(take)), waiting: Arc::default() }
    }

    /// Whether jobs go to a simulation.
    pub fn are_simulated(&self) -> bool {
        matches!(self.jobs, Jobs::Simulated(_))
    }

    /// Queues a job.
    pub fn later(&self, job: impl FnOnce() + Send + 'static) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        match &self.jobs {
            // The threads live as long as this handle, so the queue is open.
            Jobs::Threads(jobs) => drop(jobs.send(Box::new(job))),
            Jobs::Simulated(take) => {
                let waiting = Arc::clone(&self.waiting);
                take(Box::new(move || {
                    job();
                    waiting.fetch_sub(1, Ordering::Release);
                }));
            }
        }
    }

    /// Whether every job is done, so that its result has been sent.
    pub fn are_idle(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Waits until every job queued so far is done.
    pub async fn drain(&self) {
        let all = Arc::new(Barrier::new(THREADS));
        let waits: Vec<_> = (0..THREADS)
            .map(|_| {
                let (sender, receiver) = oneshot::channel::<()>();
                let all = Arc::clone(&all);
                self.later(move || {
                    all.wait();
                    let _ = sender.send(());
                });
                receiver
            })
            .collect();
        for wait in waits {
            let _ = wait.await;
        }
    }

    /// Runs a job and returns its result; `None` if it panicked.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.later(move || {
            let _ = sender.send(job());
        });
        receiver.await.ok()
    }
}
