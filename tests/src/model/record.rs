//! State shared by the server's thread and the test: the requests so far, and the gates. Nothing here communicates with
//! a client.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Semaphore;

use super::request::{Progress, Request};
use crate::wait::PATIENCE;

#[derive(Debug, Default)]
pub(super) struct Record {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
    gates: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Record {
    pub(super) fn requests(&self) -> Vec<Request> {
        self.lock().clone()
    }

    /// Returns the gate of this name. A release before anyone waits is not lost.
    pub(super) fn gate(&self, name: &str) -> Arc<Semaphore> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(gates.entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(0))))
    }

    /// Calls `check` after every change. Returns the requests as an error if `check` returns nothing for too long.
    pub(super) fn wait_for<T>(
        &self,
        mut check: impl FnMut(&[Request]) -> Option<T>,
    ) -> Result<T, Vec<Request>> {
        let end = Instant::now() + PATIENCE;
        let mut requests = self.lock();
        loop {
            if let Some(found) = check(&requests) {
                return Ok(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(requests.clone());
            }
            let waited = self.changed.wait_timeout(requests, left);
            requests = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Records a request. Its ticket records the outcome.
    pub(super) fn add(self: &Arc<Self>, request: Request) -> Ticket {
        let mut requests = self.lock();
        requests.push(request);
        self.changed.notify_all();
        Ticket { record: Arc::clone(self), number: requests.len() - 1, progress: Progress::Left }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Request>> {
        // A check of a test may panic while holding the lock; the server must survive that.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in progress. If it is dropped before it was answered, it records that the client has left.
#[derive(Debug)]
pub(super) struct Ticket {
    record: Arc<Record>,
    number: usize,
    progress: Progress,
}

impl Ticket {
    /// Returns the index of the request, from 0.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Records that the answer is complete.
    pub(super) fn answered(mut self) {
        self.progress = Progress::Answered;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.record.lock()[self.number].progress = self.progress;
        self.record.changed.notify_all();
    }
}
