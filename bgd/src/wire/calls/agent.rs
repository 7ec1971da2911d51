//! `task.resume` and `agent.answer`: messages from a client to the agent of a task.

use bgd_shared::agent::{AgentSettings, AnswerParams};
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskRef;

use super::checks::{check_settings, prompt_required};
use crate::core::Request;

/// Checks a follow-up prompt.
pub fn resume(id: TaskRef, prompt: String, settings: AgentSettings) -> Result<Request, RpcError> {
    if prompt.trim().is_empty() {
        return Err(prompt_required());
    }
    check_settings(&settings)?;
    Ok(Request::Resume { id, prompt: prompt.into(), settings: Box::new(settings) })
}

/// Converts the answer to a question.
pub fn answered(AnswerParams { id, request, option }: AnswerParams) -> Request {
    Request::Answer { id, request, option: option.map(Into::into) }
}
