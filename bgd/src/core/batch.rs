//! Batches: tasks submitted together (R112). A batch arrives in parts, which are staged until the last one has
//! arrived. Its tasks are then added in slices, so that other requests never wait long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use serde::{Deserialize, Serialize};

use super::caller::ReplyTo;
use super::input::{BatchItem, BatchLimits, Command};
use super::plan::Plan;
use super::task::{Spec, StopReason};

/// A batch whose last part has not arrived yet.
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
    /// What each task holds besides its command, in bytes.
    pub each: usize,
    /// What all of its tasks hold, including what they share, in bytes.
    pub bytes: usize,
}

/// A complete batch with tasks that are still to be added.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entering {
    /// The batch.
    pub batch: TaskId,
    /// Who gets the answer once all tasks are added.
    pub to: ReplyTo,
    /// The tasks of the last part, which the answer lists.
    pub last: Vec<TaskId>,
    /// What its tasks have in common.
    pub spec: Spec,
    /// The environment of its tasks.
    #[serde(with = "super::sharing::env")]
    pub env: Arc<Env>,
    /// The plan of each task. Its conditions are updated as the tasks they depend on start and end.
    pub plan: Box<Plan>,
    /// Why none of the remaining tasks can start any more.
    pub never: Option<StopReason>,
    /// The tasks that are still to be added.
    pub items: VecDeque<BatchItem>,
    /// What each task holds besides its command, in bytes.
    pub each: usize,
    /// What all tasks still to be added hold, in bytes.
    pub bytes: usize,
}

/// A batch that has tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Its limits.
    pub limits: BatchLimits,
    /// How many of its tasks exist.
    pub members: u64,
    /// How many of its tasks have failed.
    pub failed: u32,
    /// Whether the rest was cancelled because too many failed.
    pub is_stopped: bool,
}

/// All batches.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Batches {
    /// Batches that have tasks.
    pub known: BTreeMap<TaskId, Batch>,
    /// Incomplete batches, by the client that submits them.
    pub staged: BTreeMap<u64, Staged>,
    /// Complete batches whose tasks are being added, one batch after the other.
    pub entering: VecDeque<Entering>,
}

impl Batches {
    /// Returns how many tasks have a place reserved.
    pub fn reserved_tasks(&self) -> usize {
        let staged = self.staged.values().map(|staged| staged.items.len());
        staged.chain(self.entering.iter().map(|entering| entering.items.len())).sum()
    }

    /// Returns how many bytes are reserved for tasks.
    pub fn reserved_bytes(&self) -> usize {
        let staged = self.staged.values().map(|staged| staged.bytes);
        staged.chain(self.entering.iter().map(|entering| entering.bytes)).sum()
    }
}
