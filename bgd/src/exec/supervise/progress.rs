//! The progress of the supervision of a tree, visible to its owner: the state that a supervisor resumes from after an
//! upgrade in place. Between two waits a supervisor is busy, and nothing may be carried.

use std::sync::Arc;

use bgd_shared::mutex::Mutex;
use bgd_shared::task::Exit;
use bgd_shared::usage::Usage;
use serde::{Deserialize, Serialize};

use crate::exec::tree::pause::Paused;
use crate::os::clock::Stamp;

/// The event that a supervisor waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// None: it is busy.
    #[default]
    AtWork,
    /// The end of the leader.
    Leader,
    /// The end of the processes that have outlived the leader.
    Rest,
}

/// The progress of the supervision of a tree.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    pub stage: Stage,
    /// The signal to end that the tree was sent.
    pub ending: Option<i32>,
    /// The processes that were sent this signal.
    pub asked: Vec<i32>,
    /// When to report, after SIGKILL, that the tree does not end.
    pub give_up_at: Option<Stamp>,
    /// The information needed to continue the tree, if it is paused.
    pub paused: Option<Paused>,
    /// The usage of the leader and of the children that it has waited for, once it has ended.
    pub usage: Option<Usage>,
    /// The exit of a handed-over process, as reported by the program that started it.
    #[serde(default)]
    pub reported: Option<Exit>,
    /// Whether that program has disconnected.
    #[serde(default)]
    pub is_left: bool,
}

/// The progress of a supervisor, shared with its owner.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<Progress>>);

impl Shown {
    /// Shows that the supervisor waits.
    pub fn waits(&self, progress: Progress) {
        *self.0.lock() = progress;
    }

    /// Shows that the supervisor is busy, or has an order waiting.
    pub fn works(&self) {
        self.0.lock().stage = Stage::AtWork;
    }

    pub fn get(&self) -> Progress {
        self.0.lock().clone()
    }
}
