//! What a durable daemon writes down of the core: rows that were changed in a step, and everything that a core is built
//! from again (R125 to R128). Requests that wait, connections and who owns which parent session are no part of it: they
//! end with the daemon's process.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::batch::{Batch, Entering};
use super::inbox::InboxCounts;
use super::notice::{Notice, Tried};
use super::ordinal::Ordinal;
pub use super::queue::Groups;
use super::sharing::KeptEnv;
use super::task::Snapshot;
use super::time::Mono;

/// A task with what other parts of the core have of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskRow {
    pub task: Snapshot,
    /// The numbers of its slots.
    pub slots: Box<[u32]>,
    /// The environment that it was submitted with, if that is kept.
    pub kept: Option<KeptEnv>,
}

/// An item of an inbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ItemRow {
    /// The parent session.
    pub session: Arc<str>,
    pub notice: Arc<Notice>,
}

/// A notice that its channel has not delivered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NoticeRow {
    pub notice: Arc<Notice>,
    /// What was tried so far.
    pub tried: Option<Tried>,
}

/// Numbers that only grow, and the clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The number of the last event.
    pub seq: u64,
    /// The ordinal of the last task.
    pub last: Ordinal,
    /// What was counted of inboxes.
    pub inboxes: InboxCounts,
    /// The number of the last notice.
    #[serde(default)]
    pub notices: u64,
    /// The monotonic clock.
    pub mono: Mono,
    /// The wall clock at the same moment.
    pub wall: Timestamp,
}

/// How many numbers are left out where it is not known which ones were told: more than a daemon ever tells.
const LEFT_OUT: u64 = 1 << 32;

impl Counters {
    /// Leaves out all numbers of events, items and notices that may have been told since these were written. What is left out
    /// grows with the time, so that no number is told twice if these are lost again and again.
    pub fn leave_out(&mut self, now: Timestamp) {
        let told = u64::try_from(now.unix_ms()).unwrap_or_default().saturating_mul(1000);
        for number in [&mut self.seq, &mut self.inboxes.last, &mut self.notices] {
            *number = number.saturating_add(LEFT_OUT).max(told);
        }
    }
}

/// What was changed since the last look. `None` stands for what was removed.
#[derive(Debug, Default)]
pub struct Changes {
    pub tasks: Vec<(Ordinal, Option<TaskRow>)>,
    /// Items of inboxes, by their numbers.
    pub items: Vec<(u64, Option<ItemRow>)>,
    /// Notices that go to channels, by their numbers. The core does not know which ones do.
    pub notices: Vec<(u64, Option<NoticeRow>)>,
    pub batches: Vec<(TaskId, Option<Batch>)>,
    /// Batches whose tasks are being added: all that were to be added when this was noted. How many are left since is in
    /// [`Batch::left`].
    pub entering: Vec<(TaskId, Option<Box<Entering>>)>,
    /// The groups, if one of them was changed.
    pub groups: Option<Groups>,
    /// The numbers that only grow.
    pub counters: Counters,
    /// The tasks among them that are new.
    pub added: Vec<TaskId>,
}

impl Changes {
    /// Returns about how many bytes they are.
    pub fn bytes(&self) -> usize {
        /// A row besides its texts.
        const ROW: usize = 1024;
        let task = |row: &TaskRow| row.task.text_bytes() + row.task.spec.own_bytes();
        let tasks = self.tasks.iter().map(|(_, row)| ROW + row.as_ref().map_or(0, task));
        let items =
            self.items.iter().map(|(_, row)| ROW + row.as_ref().map_or(0, |row| row.notice.text_bytes()));
        let notices =
            self.notices.iter().map(|(_, row)| ROW + row.as_ref().map_or(0, |row| row.notice.text_bytes()));
        let entering = self.entering.iter().map(|(_, row)| ROW + row.as_ref().map_or(0, |row| row.bytes));
        tasks.chain(items).chain(notices).chain(entering).sum::<usize>() + self.batches.len() * ROW
    }
}

/// What a core is built from again.
#[derive(Debug, Default)]
pub struct Kept {
    /// Tasks, oldest first.
    pub tasks: Vec<(Ordinal, TaskRow)>,
    /// Items of inboxes, oldest first.
    pub items: Vec<(u64, ItemRow)>,
    /// Notices that channels have not delivered, oldest first.
    pub notices: Vec<(u64, NoticeRow)>,
    pub batches: BTreeMap<TaskId, Batch>,
    /// Batches whose tasks were being added.
    pub entering: Vec<Entering>,
    pub groups: Groups,
    /// The numbers that only grow.
    pub counters: Counters,
}

impl Kept {
    /// Moves what waits for a time on the monotonic clock to one that has begun anew, as after a reboot: the wall clock says
    /// how long that is. It may have been set back meanwhile, so nothing waits longer than it would have.
    pub fn rebase(&mut self, mono: Mono, wall: Timestamp) {
        let written = self.counters.mono;
        let plans = self.tasks.iter_mut().filter_map(|(_, row)| row.task.plan.as_deref_mut());
        for plan in plans.chain(self.entering.iter_mut().map(|entering| &mut *entering.plan)) {
            if let Some(not_before) = &mut plan.not_before {
                not_before.rebase(written, mono, wall);
            }
        }
        (self.counters.mono, self.counters.wall) = (mono, wall);
    }
}
