//! Interprets the daemon's answers about a job, for all loops that show one.

use bgd_shared::client::ClientError;
use bgd_shared::error::RpcError;
use bgd_shared::foreground::Answer;
use bgd_shared::request::{BlockResult, DetachResult};
use bgd_shared::task::Task;

use crate::exit::Code;
use crate::failure::Failure;

/// Returns the ended job from the answer to the `task.block` call that waited for it.
///
/// # Errors
/// The daemon refused, or returned no task.
pub fn ended(outcome: Result<BlockResult, ClientError>) -> Result<Task, Failure> {
    let message = "the daemon's answer about the task's end is empty";
    outcome?.tasks.pop().ok_or_else(|| Failure::new(Code::INTERNAL, "garbled", message))
}

/// Returns the outcome of pressing the background key.
pub fn of_press(outcome: &Result<DetachResult, ClientError>) -> Answer {
    match outcome {
        Ok(result) => Answer::Backgrounded(result.task.id),
        Err(ClientError::Rpc(error)) => Answer::from(error as &RpcError),
        Err(error) => Answer::Failed(error.to_string()),
    }
}
