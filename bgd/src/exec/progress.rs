//! How far the supervision of a tree has come, where its owner can see it: what a supervisor must go on with after an
//! upgrade in place. Between two waits a supervisor is at work, and nothing may be carried.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bgd_shared::task::Exit;
use bgd_shared::usage::Usage;
use serde::{Deserialize, Serialize};

use super::tree::pause::Paused;
use crate::os::clock::Stamp;

/// What a supervisor waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// For nothing: it is at work.
    #[default]
    AtWork,
    /// For the end of the leader.
    Leader,
    /// For the end of what has outlived the leader.
    Rest,
}

/// How far the supervision of a tree has come.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// What it waits for.
    pub stage: Stage,
    /// The signal by which the tree was told to end.
    pub ending: Option<i32>,
    /// The processes that were sent the signal.
    pub asked: Vec<i32>,
    /// When to report, after SIGKILL, that the tree does not end.
    pub give_up_at: Option<Stamp>,
    /// What is needed to continue the tree, if it is paused.
    pub paused: Option<Paused>,
    /// What the leader and those it has waited for have used, once it has ended.
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
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows that the supervisor waits.
    pub fn waits(&self, progress: Progress) {
        *self.lock() = progress;
    }

    /// Shows that the supervisor is at work, or has an order waiting.
    pub fn works(&self) {
        self.lock().stage = Stage::AtWork;
    }

    /// Returns the progress.
    pub fn get(&self) -> Progress {
        self.lock().clone()
    }
}
