//! The result of a check whose request failed. Makes no requests itself.

use crate::exit::Code;
use crate::failure::Failure;
use crate::render::doctor::Check;

/// Returns the check for a request that failed.
pub fn failed(part: &'static str, name: &str, failure: &Failure) -> Check {
    let otherwise = match failure.code {
        Code::CONFIG => "correct that line; then bgctl daemon start, or bgctl daemon reload if one runs",
        _ => "see the daemon's log: bgctl daemon status names its folder",
    };
    let hint = failure.hint.as_deref().unwrap_or(otherwise);
    Check::fails(part, name, &failure.message, hint)
}
