//! Tests the dispatcher with its core from outside of their crate: with an executor that nobody knows, with a journal that
//! stands still, and for simulated years.

mod executors;
mod journal;
mod simulator;

use std::path::Path;
use std::time::Instant;

use bgd::wire::status::Identity;

/// What a daemon in this process says of itself.
fn identity(instance: String, socket: &Path, state: &Path, started: Instant) -> Identity {
    Identity {
        instance,
        lost_tasks: 0,
        pid: 0,
        socket: socket.into(),
        state_dir: state.into(),
        config_path: state.join("config.toml"),
        config_loaded: false,
        config_modified: None,
        config_error: None,
        tree: "session",
        tree_reason: "a test".into(),
        program: None,
        started,
    }
}
