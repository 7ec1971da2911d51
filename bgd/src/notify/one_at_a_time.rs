//! Blocking work of which only one job runs at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Runs jobs that may hang, as on a file system that does: while one hangs, no other is started.
#[derive(Debug)]
pub struct OneAtATime(Arc<Semaphore>);

impl Default for OneAtATime {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl OneAtATime {
    /// Runs a job off the runtime's own threads as soon as no other one runs. A job that was begun runs to its end,
    /// even if the caller has given up.
    ///
    /// # Errors
    /// The job's own, or it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let Ok(turn) = Arc::clone(&self.0).acquire_owned().await else {
            return Err("the daemon is ending".to_owned());
        };
        let done = spawn_blocking(move || {
            let _turn = turn;
            job()
        });
        done.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}
