//! Checks shared by several calls.

use std::fmt;

use bgd_shared::agent::AgentSettings;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::limits;
use bgd_shared::request::TerminalSize;
use bgd_shared::text::OsText;

use crate::exec::terminal::TERMINAL_SIDE;

/// Returns the refusal of a request with invalid params.
pub fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, message)
}

/// Checks a time in milliseconds.
pub fn check_ms(name: &str, ms: Option<u64>) -> Result<(), RpcError> {
    match ms {
        Some(ms) if ms > limits::DURATION_MS => Err(invalid(format!(
            "`{name}` is {ms} ms; at most {} ms (100 years) are allowed",
            limits::DURATION_MS
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Checks that an optional short text is neither empty nor too long.
pub fn check_label(name: &str, text: Option<&str>) -> Result<(), RpcError> {
    match text {
        Some("") => Err(invalid(format!("`{name}` is empty; omit it instead"))),
        Some(text) => check_required(name, text),
        None => Ok(()),
    }
}

/// Checks that a short text that can't be omitted is neither empty nor too long.
pub fn check_required(name: &str, text: &str) -> Result<(), RpcError> {
    match text {
        "" => Err(invalid(format!("`{name}` is empty"))),
        text if text.len() > limits::LABEL_BYTES => Err(invalid(format!(
            "`{name}` has {} bytes; at most {} are allowed",
            text.len(),
            limits::LABEL_BYTES
        ))),
        _ => Ok(()),
    }
}

/// Checks that a text for the system contains no NUL.
pub fn check_no_nul(name: impl fmt::Display, text: &OsText) -> Result<(), RpcError> {
    if text.has_nul() {
        return Err(invalid(format!("`{name}` contains a NUL byte, which the system does not allow")));
    }
    Ok(())
}

/// Returns the refusal of an empty prompt.
pub fn prompt_required() -> RpcError {
    RpcError::new(ErrorKind::PromptRequired, "`prompt` is missing or blank")
}

/// Checks the options of an agent's session.
pub fn check_settings(settings: &AgentSettings) -> Result<(), RpcError> {
    settings.check().map_err(|(key, what)| invalid(format!("`settings.{key}` {what}")))
}

/// Checks the number and length of tags.
pub fn check_tags(tags: &[String]) -> Result<(), RpcError> {
    if tags.len() > limits::TAGS {
        return Err(invalid(format!("{} tags; at most {} are allowed", tags.len(), limits::TAGS)));
    }
    let mut numbered = tags.iter().enumerate();
    numbered.try_for_each(|(number, tag)| check_required(&format!("tags[{number}]"), tag))
}

pub fn check_size(size: TerminalSize) -> Result<(), RpcError> {
    for (name, side) in [("rows", size.rows), ("cols", size.cols)] {
        if side == 0 || side > TERMINAL_SIDE {
            return Err(invalid(format!("`{name}` is {side}; it must be 1 to {TERMINAL_SIDE}")));
        }
    }
    Ok(())
}
