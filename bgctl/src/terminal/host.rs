//! The program that shows a job, with the other jobs of the same connection.

use bgd_shared::client::{ClientError, PolledClient, Received};
use bgd_shared::foreground::Foreground;
use bgd_shared::id::TaskId;

/// The program that shows a job.
pub trait Host {
    /// All jobs in its foreground, the one that is shown among them, with the rules for the key.
    fn jobs(&mut self) -> &mut Foreground<TaskId>;

    /// Whether it goes on without a job that was stopped; else its process stops with the job.
    fn leaves_stopped(&self) -> bool;

    /// The key takes another job than the one that is shown: asks the daemon for its hand-over. The answer
    /// is told by [`Self::received`].
    ///
    /// # Errors
    /// A broken connection.
    fn hand_over(&mut self, link: &mut PolledClient, job: TaskId) -> Result<(), ClientError>;

    /// The daemon said something that is not about the job that is shown.
    ///
    /// # Errors
    /// It makes no sense.
    fn received(&mut self, received: Received) -> Result<(), ClientError>;
}

/// A program with this one job.
impl Host for Foreground<TaskId> {
    fn jobs(&mut self) -> &mut Foreground<TaskId> {
        self
    }

    fn leaves_stopped(&self) -> bool {
        false
    }

    fn hand_over(&mut self, _: &mut PolledClient, _: TaskId) -> Result<(), ClientError> {
        Ok(())
    }

    fn received(&mut self, _: Received) -> Result<(), ClientError> {
        Ok(())
    }
}
