//! The orders on their way to the threads that start processes. Whoever takes one wakes no other thread: with a receiver
//! that threads share by a lock, each order wakes one that waits for it and one that waits for the lock.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::messages::StartOrder;

#[derive(Debug)]
struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// No more than the tasks that may run at once, and helpers: whoever decides on starts has counted them.
    orders: VecDeque<T>,
    is_closed: bool,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives orders. The receivers end when it is dropped, once they have taken all.
#[derive(Debug)]
pub struct StartSender<T = StartOrder>(Arc<Queue<T>>);

/// Takes orders.
#[derive(Debug)]
pub struct StartReceiver<T = StartOrder>(Arc<Queue<T>>);

/// Makes a queue.
pub fn start_queue<T>() -> (StartSender<T>, StartReceiver<T>) {
    let state = State { orders: VecDeque::new(), is_closed: false };
    let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() });
    (StartSender(Arc::clone(&queue)), StartReceiver(queue))
}

impl<T> StartSender<T> {
    /// Gives an order to whoever is free first.
    ///
    /// # Errors
    /// There is no receiver left: the order comes back.
    pub fn send(&self, order: T) -> Result<(), T> {
        if Arc::strong_count(&self.0) == 1 {
            return Err(order);
        }
        self.0.lock().orders.push_back(order);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Drop for StartSender<T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl<T> Clone for StartReceiver<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> StartReceiver<T> {
    /// Waits for the next order. `None`: there will be none.
    pub fn receive(&self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            if let Some(order) = state.orders.pop_front() {
                return Some(order);
            }
            if state.is_closed {
                return None;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{iter, thread};

    use super::*;

    #[test]
    fn each_order_is_taken_once_also_after_the_sender_is_gone() {
        let (sender, receiver) = start_queue();
        let take =
            |receiver: StartReceiver<u32>| move || iter::from_fn(|| receiver.receive()).collect::<Vec<_>>();
        let takers = [receiver.clone(), receiver].map(|receiver| thread::spawn(take(receiver)));
        for order in 1..=100 {
            sender.send(order).unwrap();
        }
        drop(sender);
        let mut taken: Vec<u32> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        taken.sort_unstable();
        assert_eq!(taken, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn an_order_that_nobody_can_take_comes_back() {
        let (sender, receiver) = start_queue();
        drop(receiver);
        assert_eq!(sender.send(7), Err(7));
    }
}
