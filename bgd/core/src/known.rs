//! What a daemon knows of a run elsewhere that another one, or another program, has left to it (R151).

use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::text::Env;

use super::effect::RunPlace;
use super::elsewhere::Elsewhere;
use super::task::Spec;

/// A run elsewhere that goes on after the daemon before, as that knew it. It may not even have been submitted.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct KnownRun {
    pub task: TaskId,
    pub run: u32,
    /// The task's specification.
    pub spec: Arc<Spec>,
    /// Its environment, if that is still kept.
    pub env: Option<Arc<Env>>,
    /// What it is told about its slots, group, attempt and dependencies, and its priority.
    pub place: Box<RunPlace>,
    /// What that place has said of it.
    pub elsewhere: Elsewhere,
    /// Whether it has started there.
    pub has_started: bool,
    /// Whether it is to be held, as long as it waits there.
    pub is_held: bool,
    /// Whether its processes are to be stopped.
    pub is_paused: bool,
    /// Whether it was reported to be ready.
    pub is_ready: bool,
    /// The signal that is to end it, if it is.
    pub stop: Option<i32>,
    /// Where its output begins in the files here, per stream: earlier attempts share them.
    pub base: [u64; 2],
}

/// A run elsewhere that has ended, of which it is not known yet what it has used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncounted {
    pub task: TaskId,
    pub run: u32,
    /// The task's specification.
    pub spec: Arc<Spec>,
    /// Its id there.
    pub id: Box<str>,
}
