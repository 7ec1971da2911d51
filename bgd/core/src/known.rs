//! The data on a run elsewhere that another daemon, or another program, has left to this one (R151).

use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::text::Env;

use super::effect::RunPlace;
use super::elsewhere::Elsewhere;
use super::task::Spec;

/// A run elsewhere that continues after the previous daemon's end, in the state known to that daemon. It may not even
/// have been submitted.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct KnownRun {
    pub task: TaskId,
    pub run: u32,
    pub spec: Arc<Spec>,
    /// Its environment, if that is still kept.
    pub env: Option<Arc<Env>>,
    /// Information about its slots, group, attempt and dependencies, and its priority.
    pub place: Box<RunPlace>,
    /// The place's reports about it.
    pub elsewhere: Elsewhere,
    pub has_started: bool,
    /// Whether it is held while it waits there.
    pub is_held: bool,
    /// Whether its processes are paused.
    pub is_paused: bool,
    /// Whether it has been reported as ready.
    pub is_ready: bool,
    /// How it is being ended; `None` if it is not.
    pub stop: Option<KnownStop>,
    /// Where its output begins in the files here, per stream: earlier attempts share the files.
    pub base: [u64; 2],
}

/// How a run elsewhere is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownStop {
    /// The signal sent to end it.
    pub signal: i32,
    /// How long until SIGKILL follows, in milliseconds; 0 with SIGKILL.
    pub grace_ms: u64,
}

/// A run elsewhere that has ended, but whose usage is still unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsagePending {
    pub task: TaskId,
    pub run: u32,
    pub spec: Arc<Spec>,
    /// Its id there.
    pub id: Box<str>,
}
