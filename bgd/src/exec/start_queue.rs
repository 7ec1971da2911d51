//! The orders on their way to the threads that start processes. Whoever takes one wakes no other thread: with a receiver
//! that threads share by a lock, each order wakes one that waits for it and one that waits for the lock.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::messages::StartOrder;

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// No more than the tasks that may run at once, and helpers: whoever decides on starts has counted them.
    orders: VecDeque<StartOrder>,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives orders. The receivers end when it is dropped, once they have taken all.
#[derive(Debug)]
pub struct StartSender(Arc<Queue>);

/// Takes orders.
#[derive(Clone, Debug)]
pub struct StartReceiver(Arc<Queue>);

/// Makes a queue.
pub fn start_queue() -> (StartSender, StartReceiver) {
    let queue = Arc::<Queue>::default();
    (StartSender(Arc::clone(&queue)), StartReceiver(queue))
}

impl StartSender {
    /// Gives an order to whoever is free first.
    ///
    /// # Errors
    /// There is no receiver left: the order comes back.
    pub fn send(&self, order: StartOrder) -> Result<(), Box<StartOrder>> {
        if Arc::strong_count(&self.0) == 1 {
            return Err(Box::new(order));
        }
        self.0.lock().orders.push_back(order);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl Drop for StartSender {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl StartReceiver {
    /// Waits for the next order. `None`: there will be none.
    pub fn receive(&self) -> Option<StartOrder> {
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
