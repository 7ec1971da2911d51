//! The interface to the program that shows a job, together with its other jobs on the same connection.

use bgd_shared::client::{ClientError, PolledClient, Received};
use bgd_shared::foreground::Foreground;
use bgd_shared::id::TaskId;

/// The program that shows a job.
pub trait Host {
    /// Returns all foreground jobs, including the one that is shown, with the rules for the key.
    fn jobs(&mut self) -> &mut Foreground<TaskId>;

    /// Reports whether the program continues when a job is stopped; otherwise its process stops with the job.
    fn leaves_stopped(&self) -> bool;

    /// Asks the daemon to hand over a job other than the one that is shown, as the key requests. The answer is passed
    /// to [`Self::received`].
    ///
    /// # Errors
    /// The connection is broken.
    fn hand_over(&mut self, link: &mut PolledClient, job: TaskId) -> Result<(), ClientError>;

    /// Gives away the unanswered `task.block` call that waits for the end of this task, if there is one. The receiver,
    /// which shows the task, handles the answer.
    fn take_end_call(&mut self, _task: TaskId) -> Option<u64> {
        None
    }

    /// Takes back the unanswered `task.block` call of a task that is no longer shown, for later use: the number of
    /// unanswered calls per connection is limited.
    fn keep_end_call(&mut self, _task: TaskId, _call: u64) {}

    /// Undoes what has come of calls that the user gave up.
    ///
    /// # Errors
    /// The connection is broken.
    fn undo(&mut self, _link: &mut PolledClient) -> Result<(), ClientError> {
        Ok(())
    }

    /// Returns whether the key was pressed before anything read keys, and clears that.
    fn takes_press(&mut self) -> bool {
        false
    }

    /// Notes that a signal has asked the program to end; it goes to the shown job first. `code` is the exit code that a
    /// shell reports for the signal.
    fn asked_to_end(&mut self, _code: u8) {}

    /// Handles a message from the daemon that does not concern the shown job.
    ///
    /// # Errors
    /// The message is invalid.
    fn received(&mut self, received: Received) -> Result<(), ClientError>;
}

/// A program whose only job is the one that is shown.
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
