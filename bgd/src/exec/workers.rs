//! A few threads for blocking jobs: reading output files, removing them, walking process trees.
//!
//! They are created at start-up, not on demand, so that a process limit reached later can't take them away. Their
//! queue needs no bound of its own: a connection has a bounded number of requests, a task's tree is walked by one job
//! at a time, and removals come in large batches.
//!
//! Looks at a disk for a status have a thread of their own: they wait for no tree walk, and a disk that hangs holds up
//! nothing else. Only so many are queued, as clients may ask again and again meanwhile.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};
use std::thread;

use tokio::sync::{Semaphore, oneshot};

/// A blocking job.
pub type Job = Box<dyn FnOnce() + Send>;

/// How many blocking jobs run at once.
const THREADS: usize = 2;

/// How many looks may be queued or under way; further ones wait with whoever asks.
const LOOKS: usize = 64;

/// A handle to the threads; they end when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Workers {
    jobs: Queue,
    looks: Queue,
    /// The places in the queue of looks.
    places: Arc<Semaphore>,
}

/// A queue of jobs, and how many of them are not done.
#[derive(Clone, Debug)]
struct Queue {
    target: Jobs,
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

impl Queue {
    /// Starts so many threads for a queue. `name` is that of the threads, with a number.
    fn start(name: &str, threads: usize) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (queue, waiting) = (Arc::new(Mutex::new(queue)), Arc::<AtomicUsize>::default());
        for number in 0..threads {
            let (queue, waiting) = (Arc::clone(&queue), Arc::clone(&waiting));
            let thread = thread::Builder::new().name(format!("{name}-{number}")).stack_size(256 * 1024);
            thread.spawn(move || {
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
            })?;
        }
        Ok(Self { target: Jobs::Threads(jobs), waiting })
    }

    fn push(&self, job: impl FnOnce() + Send + 'static) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        match &self.target {
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

    async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.push(move || {
            let _ = sender.send(job());
        });
        receiver.await.ok()
    }
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start() -> io::Result<Self> {
        Ok(Self::of(Queue::start("worker", THREADS)?, Queue::start("look", 1)?))
    }

    /// Creates workers without threads: a simulation takes the jobs, and does each when it likes.
    pub fn simulated(take: impl Fn(Job) + Send + Sync + 'static) -> Self {
        let jobs = Queue { target: Jobs::Simulated(Arc::new(take)), waiting: Arc::default() };
        let looks = Queue { waiting: Arc::default(), ..jobs.clone() };
        Self::of(jobs, looks)
    }

    fn of(jobs: Queue, looks: Queue) -> Self {
        Self { jobs, looks, places: Arc::new(Semaphore::new(LOOKS)) }
    }

    /// Whether jobs go to a simulation.
    pub fn are_simulated(&self) -> bool {
        matches!(self.jobs.target, Jobs::Simulated(_))
    }

    /// Queues a job.
    pub fn later(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.push(job);
    }

    /// Whether every job and every look is done, so that its result has been sent.
    pub fn are_idle(&self) -> bool {
        [&self.jobs, &self.looks].iter().all(|queue| queue.waiting.load(Ordering::Acquire) == 0)
    }

    /// Waits until every job queued so far is done. Looks are not waited for.
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
        self.jobs.run(job).await
    }

    /// Runs a look at a disk once there is a place for it, and returns its result; `None` if it panicked. Waits as long as the
    /// disk does: give it a deadline.
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let run = move || {
            // It takes its place until it has ended, even if whoever asked has given up.
            let _place = place;
            look()
        };
        self.looks.run(run).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn within<T>(work: impl Future<Output = T>) -> T {
        timeout(Duration::from_mins(1), work).await.expect("it waits for something else")
    }

    #[tokio::test]
    async fn a_look_waits_for_no_job_and_a_disk_that_hangs_holds_up_no_job() {
        let workers = Workers::start().unwrap();
        let (end_jobs, end_looks) = (Arc::new(Barrier::new(THREADS + 1)), Arc::new(Barrier::new(2)));
        for _ in 0..THREADS {
            let end = Arc::clone(&end_jobs);
            workers.later(move || _ = end.wait());
        }
        assert_eq!(within(workers.look(|| 1)).await, Some(1));
        let end = Arc::clone(&end_looks);
        workers.looks.push(move || _ = end.wait());
        end_jobs.wait();
        assert_eq!(within(workers.run(|| 2)).await, Some(2));
        end_looks.wait();
        assert_eq!(within(workers.look(|| 3)).await, Some(3));
    }

    #[tokio::test]
    async fn only_so_many_looks_are_queued_at_a_disk_that_hangs() {
        let workers = Workers::start().unwrap();
        let end_looks = Arc::new(Barrier::new(2));
        let end = Arc::clone(&end_looks);
        // Whoever asks gives up at once.
        let given_up = timeout(Duration::ZERO, workers.look(move || _ = end.wait())).await;
        assert!(given_up.is_err());
        for _ in 0..2 * LOOKS {
            assert!(timeout(Duration::ZERO, workers.look(|| ())).await.is_err());
        }
        assert_eq!(workers.looks.waiting.load(Ordering::Acquire), LOOKS);
        assert!(!workers.are_idle());
        end_looks.wait();
        assert_eq!(within(workers.look(|| 1)).await, Some(1));
    }
}
