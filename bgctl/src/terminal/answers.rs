//! What the daemon's answers about a job mean, whichever loop shows it.

use bgd_shared::client::ClientError;
use bgd_shared::error::RpcError;
use bgd_shared::foreground::Answer;
use bgd_shared::request::{BlockResult, DetachResult};
use bgd_shared::task::Task;

use crate::exit::Code;
use crate::failure::Failure;

/// The job whose end was waited for.
///
/// # Errors
/// The daemon refused, or named none.
pub fn ended(outcome: Result<BlockResult, ClientError>) -> Result<Task, Failure> {
    let message = "the daemon's answer about the task's end is empty";
    outcome?.tasks.pop().ok_or_else(|| Failure::new(Code::INTERNAL, "garbled", message))
}

/// What became of a press of the key.
pub fn of_press(outcome: &Result<DetachResult, ClientError>) -> Answer {
    match outcome {
        Ok(result) => Answer::Backgrounded(result.task.id),
        Err(ClientError::Rpc(error)) => Answer::from(error as &RpcError),
        Err(error) => Answer::Failed(error.to_string()),
    }
}
