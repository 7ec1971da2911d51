//! A few threads for blocking jobs: reading output files, removing them, walking process trees.
//!
//! They are created at start-up, so that a process limit reached later can't prevent them; only spare threads are
//! started on demand. Their queues need no bound of their own: a connection has a bounded number of requests, a task's
//! tree is walked by one job at a time, and removals come in large batches.
//!
//! A path that a user has chosen may be on a disk that hangs. It must delay nothing else: trees are walked and
//! signalled by separate threads, and a queue whose threads are all stuck gets spare ones, up to a limit.
//!
//! Disk checks for a status have a separate thread, too. The number of queued checks is limited, because clients may
//! ask repeatedly meanwhile.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::timeout;

use super::thread_pool::{Size, ThreadPool};

/// A blocking job.
pub type Job = Box<dyn FnOnce() + Send>;

/// The number of threads for blocking jobs, and of further ones for tree walks.
const THREADS: usize = 2;

/// The maximum number of spare threads for jobs, in case all others are stuck on disks.
const SPARES: usize = 30;

/// The maximum number of concurrent jobs of one purpose on paths outside the daemon's folders: each may block a thread
/// for good. Together they leave some of the spare threads to other jobs.
pub const ELSEWHERE: usize = 8;

/// The maximum number of looks queued or under way; further callers wait.
const LOOKS: usize = 64;

/// A handle to the threads; they end when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Queues>);

#[derive(Debug)]
struct Queues {
    jobs: Queue,
    trees: Queue,
    looks: Queue,
    /// The free places in the queue of looks.
    places: Arc<Semaphore>,
    /// The free places for jobs elsewhere, by [`Purpose`].
    elsewhere: [Arc<Semaphore>; PURPOSES.len()],
}

/// What a job on a path outside the daemon's folders is for. Each purpose has its own places, so that none has to wait
/// for the hanging disks of another.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Output,
    ReadyFile,
    ReadyLine,
    AgentFolder,
    Program,
}

/// Every purpose, in the order of the free places.
const PURPOSES: [Purpose; 5] =
    [Purpose::Output, Purpose::ReadyFile, Purpose::ReadyLine, Purpose::AgentFolder, Purpose::Program];

/// A queue of jobs, and the number of unfinished ones.
#[derive(Clone, Debug)]
struct Queue {
    target: Jobs,
    waiting: Arc<AtomicUsize>,
    /// Notified when none is left.
    done: Arc<Notify>,
}

/// The destination of jobs.
#[derive(Clone)]
enum Jobs {
    Threads(ThreadPool<Job>),
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
    fn start(size: Size) -> io::Result<Self> {
        // Of a job that panics, the sender of its result is dropped.
        let threads = ThreadPool::start(size, || Some(Box::new(|job: Job| job())))?;
        Ok(Self::of(Jobs::Threads(threads)))
    }

    fn of(target: Jobs) -> Self {
        Self { target, waiting: Arc::default(), done: Arc::default() }
    }

    fn push(&self, job: impl FnOnce() + Send + 'static) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let done = Done { waiting: Arc::clone(&self.waiting), done: Arc::clone(&self.done) };
        let job = move || {
            // Dropped even if the job panics.
            let _done = done;
            job();
        };
        match &self.target {
            // The threads live as long as this handle.
            Jobs::Threads(threads) => drop(threads.send(Box::new(job))),
            Jobs::Simulated(take) => take(Box::new(job)),
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

/// Counts a job as done when it is dropped.
struct Done {
    waiting: Arc<AtomicUsize>,
    done: Arc<Notify>,
}

impl Drop for Done {
    fn drop(&mut self) {
        if self.waiting.fetch_sub(1, Ordering::Release) == 1 {
            self.done.notify_waiters();
        }
    }
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start() -> io::Result<Self> {
        let jobs = Size { spares: SPARES, ..Size::new("worker", THREADS) };
        let trees = Size::new("tree", THREADS);
        let looks = Size { spares: 0, ..Size::new("look", 1) };
        Ok(Self::of(Queue::start(jobs)?, Queue::start(trees)?, Queue::start(looks)?))
    }

    /// Creates workers without threads: a simulation takes the jobs, and runs each at a time of its choice.
    pub fn simulated(take: impl Fn(Job) + Send + Sync + 'static) -> Self {
        let target = Jobs::Simulated(Arc::new(take));
        let queue = || Queue::of(target.clone());
        Self::of(queue(), queue(), queue())
    }

    fn of(jobs: Queue, trees: Queue, looks: Queue) -> Self {
        let places = Arc::new(Semaphore::new(LOOKS));
        let elsewhere = PURPOSES.map(|_| Arc::new(Semaphore::new(ELSEWHERE)));
        Self(Arc::new(Queues { jobs, trees, looks, places, elsewhere }))
    }

    /// Reports whether jobs go to a simulation.
    pub fn are_simulated(&self) -> bool {
        matches!(self.0.jobs.target, Jobs::Simulated(_))
    }

    pub fn later(&self, job: impl FnOnce() + Send + 'static) {
        self.0.jobs.push(job);
    }

    /// Reports whether every job, tree walk and look is done, so that its result has been sent.
    pub fn are_idle(&self) -> bool {
        [&self.0.jobs, &self.0.trees, &self.0.looks]
            .iter()
            .all(|queue| queue.waiting.load(Ordering::Acquire) == 0)
    }

    /// Waits until no job is queued or under way. Tree walks and looks are not waited for.
    pub async fn drain(&self) {
        loop {
            let done = self.0.jobs.done.notified();
            tokio::pin!(done);
            // From here on no notification is missed.
            done.as_mut().enable();
            if self.0.jobs.waiting.load(Ordering::Acquire) == 0 {
                return;
            }
            done.await;
        }
    }

    /// Runs a job and returns its result; `None` if it panicked.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.0.jobs.run(job).await
    }

    /// Reads or examines an output file outside the daemon's folders once a place is free, and returns the result;
    /// `None` if its disk has not responded in time, or the job panicked.
    pub async fn elsewhere<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        timeout(patience, self.elsewhere_at_last(Purpose::Output, job)).await.ok().flatten()
    }

    /// Looks for a file whose existence shows that a task is ready, once a place is free. Waits as long as the disk
    /// does, so that a caller who asks again and again occupies one place only. `None` if the job panicked.
    pub async fn ready_file<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.elsewhere_at_last(Purpose::ReadyFile, job).await
    }

    /// Like [`Self::ready_file`], but searches an output file outside the daemon's folders for a line that shows it.
    pub async fn ready_line<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.elsewhere_at_last(Purpose::ReadyLine, job).await
    }

    /// Looks at a folder for an agent once a place is free. Waits as long as the disk does: set a deadline. `None` if
    /// the job panicked.
    pub async fn agent_folder<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.elsewhere_at_last(Purpose::AgentFolder, job).await
    }

    /// Looks at the programs of agents and channels, or at the daemon's next one, in folders that a client or the
    /// configuration names, once a place is free. `None` if their disks have not responded in time, or the job panicked.
    pub async fn program<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        timeout(patience, self.elsewhere_at_last(Purpose::Program, job)).await.ok().flatten()
    }

    async fn elsewhere_at_last<T: Send + 'static>(
        &self,
        purpose: Purpose,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = Arc::clone(&self.0.elsewhere[purpose as usize]).acquire_owned().await.ok()?;
        let job = move || {
            // The job keeps its place until it ends, even if nothing waits for it any more.
            let _place = place;
            job()
        };
        self.0.jobs.run(job).await
    }

    /// Walks or signals the processes of a task and returns the result; `None` if that panicked. The walk may read only
    /// the data of processes.
    pub async fn walk<T: Send + 'static>(&self, walk: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.0.trees.run(walk).await
    }

    /// Runs the daemon's last steps, on a thread that no disk has blocked before. `None` if they panicked. They may
    /// hang nevertheless: set a deadline.
    pub async fn last_steps<T: Send + 'static>(
        &self,
        steps: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.0.trees.run(steps).await
    }

    /// Runs a look at a disk once a place is free, and returns its result; `None` if it panicked. Waits as long as the
    /// disk does: set a deadline.
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let place = Arc::clone(&self.0.places).acquire_owned().await.ok()?;
        let run = move || {
            // The look keeps its place until it ends, even if the caller has stopped waiting.
            let _place = place;
            look()
        };
        self.0.looks.run(run).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    async fn within<T>(work: impl Future<Output = T>) -> T {
        timeout(Duration::from_mins(1), work).await.expect("it waits for something else")
    }

    #[tokio::test]
    async fn looks_and_jobs_do_not_block_each_other() {
        let workers = Workers::start().unwrap();
        let (end_jobs, end_looks) = (Arc::new(Barrier::new(THREADS + 1)), Arc::new(Barrier::new(2)));
        for _ in 0..THREADS {
            let end = Arc::clone(&end_jobs);
            workers.later(move || _ = end.wait());
        }
        assert_eq!(within(workers.look(|| 1)).await, Some(1));
        let end = Arc::clone(&end_looks);
        workers.0.looks.push(move || _ = end.wait());
        end_jobs.wait();
        assert_eq!(within(workers.run(|| 2)).await, Some(2));
        end_looks.wait();
        assert_eq!(within(workers.look(|| 3)).await, Some(3));
    }

    #[tokio::test]
    async fn drain_waits_for_every_job_even_a_panicking_one() {
        let workers = Workers::start().unwrap();
        within(workers.drain()).await;
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        workers.later(move || _ = ended.recv());
        workers.later(|| panic!("a test"));
        let drain = workers.drain();
        tokio::pin!(drain);
        assert!(timeout(Duration::ZERO, &mut drain).await.is_err());
        drop(ends);
        within(drain).await;
        assert!(workers.are_idle());
    }

    #[tokio::test]
    async fn walks_run_while_file_jobs_hang() {
        let workers = Workers::start().unwrap();
        let end_jobs = Arc::new(Barrier::new(THREADS + 1));
        for _ in 0..THREADS {
            let end = Arc::clone(&end_jobs);
            workers.later(move || _ = end.wait());
        }
        assert_eq!(within(workers.walk(|| 1)).await, Some(1));
        assert!(!workers.are_idle());
        end_jobs.wait();
    }

    #[tokio::test]
    async fn queued_looks_are_limited_while_the_disk_hangs() {
        let workers = Workers::start().unwrap();
        let end_looks = Arc::new(Barrier::new(2));
        let end = Arc::clone(&end_looks);
        // The caller stops waiting at once.
        let given_up = timeout(Duration::ZERO, workers.look(move || _ = end.wait())).await;
        assert!(given_up.is_err());
        for _ in 0..2 * LOOKS {
            assert!(timeout(Duration::ZERO, workers.look(|| ())).await.is_err());
        }
        assert_eq!(workers.0.looks.waiting.load(Ordering::Acquire), LOOKS);
        assert!(!workers.are_idle());
        end_looks.wait();
        assert_eq!(within(workers.look(|| 1)).await, Some(1));
    }

    #[tokio::test]
    async fn hanging_foreign_disk_occupies_limited_threads_and_callers_time_out() {
        let workers = Workers::start().unwrap();
        assert_eq!(within(workers.elsewhere(Duration::MAX, || 1)).await, Some(1));
        // The result arrives before the job counts as done.
        within(workers.drain()).await;
        let end_jobs = Arc::new(Barrier::new(ELSEWHERE + 1));
        for _ in 0..2 * ELSEWHERE {
            let end = Arc::clone(&end_jobs);
            let hung = workers.elsewhere(Duration::ZERO, move || _ = end.wait());
            assert_eq!(hung.await, None);
        }
        assert_eq!(workers.0.jobs.waiting.load(Ordering::Acquire), ELSEWHERE);
        assert_eq!(within(workers.run(|| 2)).await, Some(2));
        end_jobs.wait();
        assert_eq!(within(workers.elsewhere(Duration::MAX, || 3)).await, Some(3));
    }

    #[tokio::test]
    async fn hanging_jobs_elsewhere_delay_none_of_another_purpose() {
        let workers = Workers::start().unwrap();
        let end_jobs = Arc::new(Barrier::new(2 * ELSEWHERE + 1));
        for _ in 0..2 * ELSEWHERE {
            let (file, line) = (Arc::clone(&end_jobs), Arc::clone(&end_jobs));
            let hung = workers.ready_file(move || _ = file.wait());
            assert!(timeout(Duration::ZERO, hung).await.is_err());
            let hung = workers.ready_line(move || _ = line.wait());
            assert!(timeout(Duration::ZERO, hung).await.is_err());
        }
        assert_eq!(workers.0.jobs.waiting.load(Ordering::Acquire), 2 * ELSEWHERE);
        assert_eq!(within(workers.elsewhere(Duration::MAX, || 1)).await, Some(1));
        let hung_outputs = Arc::new(Barrier::new(ELSEWHERE + 1));
        for _ in 0..ELSEWHERE {
            let end = Arc::clone(&hung_outputs);
            assert_eq!(workers.elsewhere(Duration::ZERO, move || _ = end.wait()).await, None);
        }
        assert_eq!(within(workers.run(|| 2)).await, Some(2));
        end_jobs.wait();
        assert_eq!(within(workers.ready_file(|| 3)).await, Some(3));
        assert_eq!(within(workers.ready_line(|| 4)).await, Some(4));
        hung_outputs.wait();
    }
}
