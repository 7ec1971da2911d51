//! A runtime task that ends with its owner.

use std::future::Future;

use tokio::task::JoinHandle;

/// A handle to a runtime task; dropping it aborts the task.
#[derive(Debug)]
pub struct Job(JoinHandle<()>);

impl Job {
    /// Spawns the work on the current runtime.
    pub fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Job {
    pub fn is_done(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.0.abort();
    }
}
