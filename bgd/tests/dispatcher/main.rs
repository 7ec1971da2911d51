//! Tests the dispatcher with its core from outside their crate: with an unknown executor, with a stalled journal, and
//! for simulated years.

mod executors;
mod journal;
mod simulator;

use std::path::Path;
use std::time::Instant;

use bgd::wire::status::Identity;

/// Returns the identity of a daemon in this process.
fn identity(instance: String, socket: &Path, state: &Path, started: Instant) -> Identity {
    Identity {
        instance,
        lost_tasks: 0,
        unused_tasks: 0,
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
