//! Batches: tasks submitted together (R112). A batch arrives in parts, which are staged until the last one has
//! arrived. Its tasks are then added in slices, so that other requests never wait long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::request::ClearedTasks;
use bgd_shared::text::Env;
use serde::{Deserialize, Serialize};

use super::caller::ReplyTo;
use super::input::{BatchItem, BatchLimits, Command};
use super::plan::Plan;
use super::task::{Spec, StopReason};

/// A batch whose last part has not arrived yet.
#[derive(Debug, Serialize, Deserialize)]
pub struct Staged {
    pub batch: TaskId,
    pub common: Box<Command>,
    pub limits: BatchLimits,
    pub items: VecDeque<BatchItem>,
    /// Memory of each task besides its command, in bytes.
    pub each: usize,
    /// Memory of all its tasks, including what they share, in bytes.
    pub bytes: usize,
}

/// A complete batch, some of whose tasks are still to be added.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entering {
    pub batch: TaskId,
    /// Who gets the reply once all tasks are added.
    pub to: ReplyTo,
    /// The tasks of the last part, which the reply lists.
    pub last: Vec<TaskId>,
    /// Who has submitted the batch again meanwhile, and the tasks of their last part.
    #[serde(default)]
    pub again: Vec<(ReplyTo, Vec<TaskId>)>,
    /// The part that its tasks have in common.
    pub spec: Spec,
    #[serde(with = "super::sharing::env")]
    pub env: Arc<Env>,
    /// The plan of each task. Its conditions are updated as the tasks they depend on start and end.
    pub plan: Box<Plan>,
    /// Why none of the remaining tasks can start any more.
    pub never: Option<StopReason>,
    /// The tasks that are still to be added.
    pub items: VecDeque<BatchItem>,
    /// Memory of each task besides its command, in bytes.
    pub each: usize,
    /// Memory of all tasks still to be added, in bytes.
    pub bytes: usize,
    /// Whether it must be persisted again because its remaining tasks are to be added differently.
    #[serde(skip)]
    pub is_changed: bool,
}

/// Identifies a batch that was submitted with an idempotency key. Its tasks have the ids of [`TaskId::member`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchKey {
    /// The parent session in which the key is unique.
    pub session: Option<Arc<str>>,
    pub key: Arc<str>,
    /// How many tasks were submitted.
    pub tasks: u64,
    /// Whether some of the tasks were withdrawn because they could not be persisted.
    #[serde(default)]
    pub is_torn: bool,
}

impl BatchKey {
    fn is(&self, session: Option<&str>, key: &str) -> bool {
        self.session.as_deref() == session && *self.key == *key
    }

    fn held(&self) -> usize {
        self.key.len() + self.session.as_ref().map_or(0, |session| session.len()) + size_of::<Self>()
    }
}

/// A known batch that a client is submitting again, with further parts to follow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Repeated {
    pub batch: TaskId,
    /// How many of its tasks have arrived so far.
    pub tasks: u64,
}

/// A batch that has tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Box<BatchKey>>,
    pub limits: BatchLimits,
    /// How many of its tasks exist.
    pub members: u64,
    /// How many of its tasks have failed.
    pub failed: u32,
    /// Whether the rest was cancelled because too many tasks failed.
    pub is_stopped: bool,
    /// How many of its tasks are still to be added; `None` if all are added, or if an earlier release wrote the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<usize>,
    /// Its tasks that are gone. Without them, a batch of which a failed task was cleared would seem to have succeeded.
    #[serde(default, skip_serializing_if = "ClearedTasks::is_empty")]
    pub cleared: ClearedTasks,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Batches {
    /// Batches that have tasks.
    pub known: BTreeMap<TaskId, Batch>,
    /// Incomplete batches, by the client that submits them.
    pub staged: BTreeMap<u64, Staged>,
    /// Complete batches whose tasks are being added, one batch after the other.
    pub entering: VecDeque<Entering>,
    /// Batches that are being submitted again, by client.
    #[serde(default)]
    pub repeated: BTreeMap<u64, Repeated>,
    /// Memory of the known batches' keys, in bytes.
    #[serde(default)]
    pub key_bytes: usize,
}

impl Batches {
    /// Returns the number of places reserved for tasks.
    pub fn reserved_tasks(&self) -> usize {
        let staged = self.staged.values().map(|staged| staged.items.len());
        staged.chain(self.entering.iter().map(|entering| entering.items.len())).sum()
    }

    /// Returns the memory of keys and of tasks still to be added, in bytes.
    pub fn held(&self) -> usize {
        let staged = self.staged.values().map(|staged| staged.bytes);
        staged.chain(self.entering.iter().map(|entering| entering.bytes)).sum::<usize>() + self.key_bytes
    }

    /// Returns the number of places and the memory, in bytes, reserved for the tasks of incomplete batches.
    pub fn incomplete(&self) -> (usize, usize) {
        let staged = self.staged.values();
        staged.fold((0, 0), |(tasks, bytes), staged| (tasks + staged.items.len(), bytes + staged.bytes))
    }

    /// Returns how many bytes of memory a batch's key frees once this many of its tasks are cleared: the batch goes with
    /// its last task.
    pub fn key_freed(&self, id: TaskId, cleared: u64) -> usize {
        let key = self.known.get(&id).filter(|batch| batch.members == cleared);
        let key = key.and_then(|batch| batch.key.as_ref()).map_or(0, |key| key.held());
        if key > 0 && self.entering.iter().any(|entering| entering.batch == id) { 0 } else { key }
    }

    /// Adds a batch to those that have tasks.
    pub fn insert(&mut self, id: TaskId, batch: Batch) {
        self.key_bytes += batch.key.as_ref().map_or(0, |key| key.held());
        self.known.insert(id, batch);
    }

    /// Removes a batch that has no tasks.
    pub fn remove(&mut self, id: TaskId) {
        let removed = self.known.remove(&id).and_then(|batch| batch.key);
        self.key_bytes = self.key_bytes.saturating_sub(removed.map_or(0, |key| key.held()));
    }

    /// Returns the batch that was submitted with this idempotency key.
    pub fn by_key(&self, session: Option<&str>, key: &str) -> Option<TaskId> {
        let has_key = |batch: &Batch| batch.key.as_ref().is_some_and(|known| known.is(session, key));
        self.known.iter().find(|(_, batch)| has_key(batch)).map(|(id, _)| *id)
    }

    /// Reports whether this call gets its reply once all tasks of its batch are added.
    pub fn is_awaited_by(&self, to: ReplyTo) -> bool {
        let is_awaited =
            |entering: &Entering| entering.to == to || entering.again.iter().any(|(again, _)| *again == to);
        self.entering.iter().any(is_awaited)
    }

    /// Drops everything that a client has begun to submit.
    pub fn leave(&mut self, client: u64) {
        self.staged.remove(&client);
        self.repeated.remove(&client);
    }
}
