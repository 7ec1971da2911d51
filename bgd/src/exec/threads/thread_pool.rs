//! Threads that take blocking work from a queue. A thread that takes an order wakes no other thread: with a receiver
//! that threads share by a lock, each order wakes a thread that waits for the order and one that waits for the lock.
//!
//! Work may hang in the kernel, for instance on a file system whose server is gone. If orders wait and no thread takes
//! one for a while, a watcher starts a spare thread, up to a limit. The pool is independent of the work.
//!
//! An order that panics does not end its thread. It is dropped, which is how whoever waits for it finds out.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many threads a pool has.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The name of the threads, followed by a number.
    pub name: &'static str,
    /// The number of threads started at once, so that a process limit reached later can't prevent them.
    pub threads: usize,
    /// The maximum number of further threads. Once started, they stay.
    pub spares: usize,
    /// How long orders may wait, with none taken, before a spare thread is started.
    pub patience: Duration,
}

impl Size {
    /// Returns a size with so many threads at once, and up to three times as many spares when none has taken an order
    /// for a second.
    pub const fn new(name: &'static str, threads: usize) -> Self {
        Self { name, threads, spares: 3 * threads, patience: Duration::from_secs(1) }
    }
}

/// A handle to the threads. They end when the last handle is dropped and all orders are done.
pub struct ThreadPool<T>(Arc<Handle<T>>);

struct Handle<T>(Arc<Shared<T>>);

/// Creates the function that a thread calls for each order, on that thread; `None` if the thread can't serve.
type Make<T> = dyn Fn() -> Option<Box<dyn FnMut(T)>> + Send + Sync;

struct Shared<T> {
    size: Size,
    make: Box<Make<T>>,
    state: Mutex<State<T>>,
    /// Signalled when an order has arrived for an idle thread.
    ordered: Condvar,
    /// Signalled when there are more orders than idle threads.
    crowded: Condvar,
}

struct State<T> {
    /// The senders bound the number of orders.
    orders: VecDeque<T>,
    /// The number of orders taken so far.
    taken: u64,
    threads: usize,
    /// The number of threads that wait for an order.
    idle: usize,
    watcher: Watcher,
    is_closed: bool,
}

impl<T> State<T> {
    /// Returns the time since which orders have waited with none taken, if more threads are allowed. `known` is the
    /// result of the last look, with the number of orders taken by then.
    fn waiting_since(&self, known: Option<(Instant, u64)>, most: usize, now: Instant) -> Option<Instant> {
        match known {
            _ if self.orders.is_empty() || self.threads >= most => None,
            Some((since, taken)) if taken == self.taken => Some(since),
            _ => Some(now),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watcher {
    /// No watcher has been started.
    None,
    /// It waits for [`Shared::crowded`].
    Idle,
    /// It looks again without being woken.
    Watches,
}

impl<T> Clone for ThreadPool<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for ThreadPool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("size", &self.0.0.size).finish_non_exhaustive()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.ordered.notify_all();
        self.0.crowded.notify_all();
    }
}

impl<T: Send + 'static> ThreadPool<T> {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start(
        size: Size,
        make: impl Fn() -> Option<Box<dyn FnMut(T)>> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (orders, watcher) = (VecDeque::new(), Watcher::None);
        let state = State { orders, taken: 0, threads: 0, idle: 0, watcher, is_closed: false };
        let (state, make) = (Mutex::new(state), Box::new(make));
        let (ordered, crowded) = (Condvar::new(), Condvar::new());
        let pool = Self(Arc::new(Handle(Arc::new(Shared { size, make, state, ordered, crowded }))));
        for _ in 0..size.threads {
            pool.0.0.add_thread()?;
        }
        Ok(pool)
    }

    /// Hands an order to the first free thread.
    ///
    /// # Errors
    /// Returns the order if no thread is left.
    pub fn send(&self, order: T) -> Result<(), T> {
        let shared = &self.0.0;
        let mut state = shared.lock();
        if state.threads == 0 {
            return Err(order);
        }
        state.orders.push_back(order);
        let (is_awaited, is_crowded) = (state.idle > 0, state.orders.len() > state.idle);
        let watcher = if shared.size.spares > 0 { state.watcher } else { Watcher::Watches };
        if is_crowded && watcher == Watcher::None {
            // Set on the watcher's behalf, as a second watcher must not be started.
            state.watcher = Watcher::Watches;
        }
        drop(state);
        if is_awaited {
            shared.ordered.notify_one();
        }
        match watcher {
            Watcher::None if is_crowded => shared.start_watcher(),
            Watcher::Idle if is_crowded => shared.crowded.notify_one(),
            _ => {}
        }
        Ok(())
    }

    /// Returns the number of threads that take orders.
    pub fn threads(&self) -> usize {
        self.0.0.lock().threads
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next order; `None` if there will be none.
    fn take(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(order) = state.orders.pop_front() {
                state.taken += 1;
                return Some(order);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            state = self.ordered.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// Counts a thread until it ends, by a panic or otherwise.
struct Counted<T>(Arc<Shared<T>>);

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.0.lock().threads -= 1;
        self.0.ordered.notify_all();
    }
}

impl<T: Send + 'static> Shared<T> {
    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        let number = {
            let mut state = self.lock();
            state.threads += 1;
            state.threads - 1
        };
        // Also dropped if no thread can be started.
        let counted = Counted(shared);
        let started = thread_of(format!("{}-{number}", self.size.name)).spawn(move || {
            let Counted(shared) = &counted;
            if let Some(mut work) = (shared.make)() {
                while let Some(order) = shared.take() {
                    // With the last thread gone, later orders would wait forever.
                    drop(catch_unwind(AssertUnwindSafe(|| work(order))));
                }
            }
        });
        started.map(drop)
    }

    fn start_watcher(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        if let Err(error) = thread_of(format!("{}-watch", self.size.name)).spawn(move || shared.watch()) {
            tracing::debug!(%error, "no thread watches for threads that hang");
            // The next order retries.
            self.lock().watcher = Watcher::None;
        }
    }

    /// Starts a spare thread whenever orders wait and none has been taken for a while.
    fn watch(self: &Arc<Self>) {
        let Size { name, threads, spares, patience } = self.size;
        let mut state = self.lock();
        // The start of the wait, and the number of orders taken by then.
        let mut waits: Option<(Instant, u64)> = None;
        while !state.is_closed {
            let since = state.waiting_since(waits, threads + spares, Instant::now());
            waits = since.map(|since| (since, state.taken));
            let Some(since) = since else {
                state.watcher = Watcher::Idle;
                state = self.crowded.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.watcher = Watcher::Watches;
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                drop(state);
                tracing::warn!(name, "all threads have been busy for a long time: starting a spare one");
                if let Err(error) = self.add_thread() {
                    tracing::error!(%error, "no thread can be started");
                }
                waits = None;
                state = self.lock();
            } else {
                state = self.crowded.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// The size of each thread's stack in bytes. Parsers of regular expressions and of the configuration recurse with their
/// input, as deep as their nesting limits allow: the former may need 800 KiB in a build for tests. Only the pages in
/// use take up memory.
const STACK_BYTES: usize = 2 * 1024 * 1024;

fn thread_of(name: String) -> thread::Builder {
    thread::Builder::new().name(name).stack_size(STACK_BYTES)
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};

    use super::*;

    const TEST: Size = Size { name: "test", threads: 2, spares: 3, patience: Duration::ZERO };

    /// No test takes that long.
    const LIMIT: Duration = Duration::from_mins(1);

    type Job = Box<dyn FnOnce() + Send>;

    fn pool(size: Size) -> ThreadPool<Job> {
        ThreadPool::start(size, || Some(Box::new(|job: Job| job()))).unwrap()
    }

    fn send(pool: &ThreadPool<Job>, job: impl FnOnce() + Send + 'static) {
        assert!(pool.send(Box::new(job)).is_ok());
    }

    /// Wakes the watcher, and waits until it has decided to start no thread.
    fn look_again(pool: &ThreadPool<Job>) {
        let shared = &pool.0.0;
        shared.lock().watcher = Watcher::Watches;
        shared.crowded.notify_all();
        let end = Instant::now() + LIMIT;
        while shared.lock().watcher != Watcher::Idle {
            assert!(Instant::now() < end, "the watcher does not look");
            thread::yield_now();
        }
    }

    #[test]
    fn each_order_runs_once_even_after_the_last_handle_is_dropped() {
        let (taken, all) = mpsc::channel();
        let pool = ThreadPool::start(TEST, move || {
            let taken = taken.clone();
            Some(Box::new(move |order: u32| taken.send(order).unwrap()))
        })
        .unwrap();
        for order in 1..=100 {
            pool.send(order).unwrap();
        }
        drop(pool);
        let mut orders: Vec<u32> = std::iter::from_fn(|| all.recv_timeout(LIMIT).ok()).collect();
        assert_eq!(all.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Disconnected));
        orders.sort_unstable();
        assert_eq!(orders, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn order_is_returned_if_no_thread_can_take_it() {
        // A thread that can't serve, and one that panics instead.
        for panics in [false, true] {
            let size = Size { threads: 1, spares: 0, ..TEST };
            let pool: ThreadPool<u32> = ThreadPool::start(size, move || {
                assert!(!panics, "a test");
                None
            })
            .unwrap();
            let shared = &pool.0.0;
            let lives = |state: &mut State<u32>| state.threads > 0;
            let (state, late) = shared.ordered.wait_timeout_while(shared.lock(), LIMIT, lives).unwrap();
            drop(state);
            assert!(!late.timed_out(), "the thread has not ended");
            assert_eq!(pool.send(7), Err(7));
        }
    }

    #[test]
    fn order_that_panics_ends_no_thread() {
        let pool = pool(Size { threads: 1, spares: 0, ..TEST });
        send(&pool, || panic!("a test"));
        let (ends, ended) = mpsc::channel();
        send(&pool, move || ends.send(()).unwrap());
        ended.recv_timeout(LIMIT).unwrap();
        assert_eq!(pool.threads(), 1);
    }

    #[test]
    fn orders_proceed_beside_stuck_ones_up_to_the_thread_limit() {
        let pool = pool(TEST);
        let end = Arc::new(Barrier::new(5 + 1));
        for number in 0..5 {
            let (begins, begun) = mpsc::channel();
            let end = Arc::clone(&end);
            send(&pool, move || {
                begins.send(()).unwrap();
                end.wait();
            });
            begun.recv_timeout(LIMIT).unwrap();
            if number < 4 {
                let (ends, ended) = mpsc::channel();
                send(&pool, move || ends.send(()).unwrap());
                ended.recv_timeout(LIMIT).unwrap();
            }
        }
        assert_eq!(pool.threads(), 5);
        let (ends, ended) = mpsc::channel();
        send(&pool, move || ends.send(()).unwrap());
        // No thread can take it before one of the others has ended.
        look_again(&pool);
        assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty));
        assert_eq!(pool.threads(), 5);
        end.wait();
        ended.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn only_untaken_orders_count_as_waiting() {
        let (begun, now) = (Instant::now(), Instant::now() + LIMIT);
        let state = |orders: &[u32], threads| State {
            orders: orders.iter().copied().collect(),
            taken: 5,
            threads,
            idle: 0,
            watcher: Watcher::Watches,
            is_closed: false,
        };
        let crowded = state(&[1], 2);
        assert_eq!(crowded.waiting_since(Some((begun, 5)), 3, now), Some(begun));
        assert_eq!(crowded.waiting_since(Some((begun, 4)), 3, now), Some(now), "one was taken meanwhile");
        assert_eq!(crowded.waiting_since(None, 3, now), Some(now));
        assert_eq!(crowded.waiting_since(Some((begun, 5)), 2, now), None, "there may be no more threads");
        assert_eq!(state(&[], 2).waiting_since(Some((begun, 5)), 3, now), None);
    }
}
