//! Batches: tasks that were submitted together (R112). One comes in parts, which are staged until the last one is there,
//! and enters in slices, so that nobody else waits for long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use serde::{Deserialize, Serialize};

use super::caller::ReplyTo;
use super::input::{BatchItem, BatchLimits, Command};
use super::plan::Plan;
use super::task::{Spec, StopReason};

/// A batch whose last part is not there yet.
#[derive(Debug, Serialize, Deserialize)]
pub struct Staged {
    /// The batch.
    pub batch: TaskId,
    /// What its tasks have in common.
    pub common: Box<Command>,
    /// Its limits.
    pub limits: BatchLimits,
    /// Its tasks so far.
    pub items: VecDeque<BatchItem>,
    /// What a task holds beside its command, in bytes.
    pub each: usize,
    /// What all of these hold, in bytes.
    pub bytes: usize,
}

/// A batch that is complete, of which some tasks are still to be added.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entering {
    /// The batch.
    pub batch: TaskId,
    /// Who hears when all are in.
    pub to: ReplyTo,
    /// The tasks of the last part, which the answer names.
    pub last: Vec<TaskId>,
    /// What all have in common.
    pub spec: Spec,
    /// Their environment.
    pub env: Arc<Env>,
    /// How each is ordered; it follows what becomes of those that they come after.
    pub plan: Box<Plan>,
    /// Why none of them can start any more.
    pub never: Option<StopReason>,
    /// Those that are to be added.
    pub items: VecDeque<BatchItem>,
    /// What a task holds beside its command, in bytes.
    pub each: usize,
    /// What all hold that are to be added, in bytes.
    pub bytes: usize,
}

/// A batch of which there are tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Its limits.
    pub limits: BatchLimits,
    /// Its tasks that are there.
    pub members: u64,
    /// How many have failed.
    pub failed: u32,
    /// Whether the rest was cancelled for that.
    pub is_stopped: bool,
}

/// Every batch.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Batches {
    /// Those of which there are tasks.
    pub known: BTreeMap<TaskId, Batch>,
    /// Those that are not complete, by the client that submits them.
    pub staged: BTreeMap<u64, Staged>,
    /// Those that are complete and enter, one after the other.
    pub entering: VecDeque<Entering>,
}

impl Batches {
    /// How many tasks have a place reserved.
    pub fn reserved_tasks(&self) -> usize {
        let staged = self.staged.values().map(|staged| staged.items.len());
        staged.chain(self.entering.iter().map(|entering| entering.items.len())).sum()
    }

    /// How many bytes are reserved for tasks.
    pub fn reserved_bytes(&self) -> usize {
        let staged = self.staged.values().map(|staged| staged.bytes);
        staged.chain(self.entering.iter().map(|entering| entering.bytes)).sum()
    }
}
