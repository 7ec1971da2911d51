//! Checks shared by several calls.

use bgd_shared::error::RpcError;
use bgd_shared::limits;
use bgd_shared::request::TerminalSize;

use super::{check_label, invalid};
use crate::exec::terminal::TERMINAL_SIDE;

/// Checks the number and length of tags.
pub fn check_tags(tags: &[String]) -> Result<(), RpcError> {
    if tags.len() > limits::TAGS {
        return Err(invalid(format!("{} tags; at most {} are allowed", tags.len(), limits::TAGS)));
    }
    tags.iter().try_for_each(|tag| check_label("tags", Some(tag)))
}

pub fn check_size(size: TerminalSize) -> Result<(), RpcError> {
    for (name, side) in [("rows", size.rows), ("cols", size.cols)] {
        if side == 0 || side > TERMINAL_SIDE {
            return Err(invalid(format!("`{name}` is {side}; it must be 1 to {TERMINAL_SIDE}")));
        }
    }
    Ok(())
}
