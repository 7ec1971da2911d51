//! A task of the runtime that ends with its owner.

use std::future::Future;

use tokio::task::JoinHandle;

/// Work that ends when this is dropped.
#[derive(Debug)]
pub struct Job(JoinHandle<()>);

impl Job {
    /// Starts it on the current runtime.
    pub fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.0.abort();
    }
}
