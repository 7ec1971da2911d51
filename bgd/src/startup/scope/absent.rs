//! Stub for `scope` in builds without systemd support.

use std::future::{Ready, ready};
use std::time::Duration;

use crate::features::Feature;

/// The timeout of the request.
pub const PATIENCE: Duration = Duration::ZERO;

/// The unit that this process is in.
#[derive(Debug)]
pub enum Unit {
    /// The original unit, whose cgroup is delegated.
    Delegated,
    /// A new scope of this name.
    Own(String),
}

/// Leaves this process where it is.
///
/// # Errors
/// Always fails, with a message for users.
pub fn enter(_: &str, _: bool) -> Ready<Result<Unit, String>> {
    ready(Err(refusal()))
}

/// Leaves the other process where it is.
///
/// # Errors
/// Always fails, with a message for users.
pub fn put(_: u32, _: &str, _: Option<&str>) -> Ready<Result<(), String>> {
    ready(Err(refusal()))
}

/// Queries no scopes.
///
/// # Errors
/// Always fails, with a message for users.
pub fn is_active(_: &str) -> Ready<Result<Option<bool>, String>> {
    ready(Err(refusal()))
}

fn refusal() -> String {
    format!("asking the systemd user manager for a scope {}", Feature::Systemd.needed())
}
