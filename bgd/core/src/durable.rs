//! The persistent form of a durable daemon's core: the rows changed in a step, and everything from which a core is
//! rebuilt (R125 to R128). Waiting requests, connections and the owners of parent sessions are not part of it: they end
//! with the daemon's process.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::batch::{Batch, Entering};
use super::group::GroupSettings;
use super::inbox::InboxCounts;
use super::notice::{Notice, Tried};
use super::ordinal::Ordinal;
pub use super::queue::{GroupRow, Groups};
use super::sharing::KeptEnv;
use super::task::{Snapshot, State};
use super::time::{Mono, RunTime};

/// A task with its data from other parts of the core.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskRow {
    pub task: Snapshot,
    /// The numbers of its slots.
    pub slots: Box<[u32]>,
    /// The environment that it was submitted with, if that is kept.
    pub kept: Option<KeptEnv>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ItemRow {
    pub session: Arc<str>,
    pub notice: Arc<Notice>,
}

/// The items that an inbox has dropped and that no acknowledgement covers yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LossRow {
    pub session: Arc<str>,
    /// How many.
    pub lost: u64,
}

/// A notice that its channel has not delivered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NoticeRow {
    pub notice: Arc<Notice>,
    /// The delivery attempts so far.
    pub tried: Option<Tried>,
}

/// Numbers that only grow, and the clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub seq: u64,
    pub last: Ordinal,
    pub inboxes: InboxCounts,
    #[serde(default)]
    pub notices: u64,
    /// The monotonic clock when these were written.
    pub mono: Mono,
    /// The wall clock at the same moment.
    pub wall: Timestamp,
}

/// How many numbers are skipped if it is unknown which ones were published: more than a daemon can ever publish.
const LEFT_OUT: u64 = 1 << 32;

impl Counters {
    /// Skips all numbers of events, items and notices that may have been published since these were written. The skip
    /// grows with time, so that no number is published twice even if these are lost repeatedly.
    pub fn skip_published(&mut self, now: Timestamp) {
        let lowest = u64::try_from(now.unix_ms()).unwrap_or_default().saturating_mul(1000);
        for number in [&mut self.seq, &mut self.inboxes.last, &mut self.notices] {
            *number = number.saturating_add(LEFT_OUT).max(lowest);
        }
    }
}

/// The changes since the last call. `None` stands for a removed row.
#[derive(Debug, Default)]
pub struct Changes {
    pub tasks: Vec<(Ordinal, Option<TaskRow>)>,
    /// Items of inboxes, by their numbers.
    pub items: Vec<(u64, Option<ItemRow>)>,
    /// Losses of inboxes, by the numbers of the last lost items.
    pub losses: Vec<(u64, Option<LossRow>)>,
    /// Notices for channels, by their numbers. The core does not track these notices.
    pub notices: Vec<(u64, Option<NoticeRow>)>,
    pub batches: Vec<(TaskId, Option<Batch>)>,
    /// Batches whose tasks are being added: all tasks that were still to be added when the row was written. How many
    /// are left since then is in [`Batch::left`].
    pub entering: Vec<(TaskId, Option<Box<Entering>>)>,
    /// The groups, if any of them changed.
    pub groups: Option<Groups>,
    pub counters: Counters,
    /// The new tasks among the changed ones.
    pub added: Vec<TaskId>,
}

impl Changes {
    /// Returns the approximate size, in bytes.
    pub fn bytes(&self) -> usize {
        /// The size of a row besides its texts.
        const ROW: usize = 1024;
        let task = |row: &TaskRow| row.task.text_bytes() + row.task.spec.own_bytes();
        let tasks = self.tasks.iter().map(|(_, row)| ROW + row.as_ref().map_or(0, task));
        let items =
            self.items.iter().map(|(_, row)| ROW + row.as_ref().map_or(0, |row| row.notice.text_bytes()));
        let losses = self.losses.len() * ROW;
        let notices =
            self.notices.iter().map(|(_, row)| ROW + row.as_ref().map_or(0, |row| row.notice.text_bytes()));
        let entering = self.entering.iter().map(|(_, row)| ROW + row.as_ref().map_or(0, |row| row.bytes));
        tasks.chain(items).chain(notices).chain(entering).sum::<usize>() + losses + self.batches.len() * ROW
    }
}

/// The persisted data from which a core is rebuilt.
#[derive(Debug, Default)]
pub struct Kept {
    /// Tasks, oldest first.
    pub tasks: Vec<(Ordinal, TaskRow)>,
    /// Items of inboxes, oldest first.
    pub items: Vec<(u64, ItemRow)>,
    /// Losses of inboxes, oldest first.
    pub losses: Vec<(u64, LossRow)>,
    /// Notices that channels have not delivered, oldest first.
    pub notices: Vec<(u64, NoticeRow)>,
    pub batches: BTreeMap<TaskId, Batch>,
    /// Batches whose tasks were being added.
    pub entering: Vec<Entering>,
    pub groups: Groups,
    pub counters: Counters,
    /// Whether waits and run times were converted to another clock, so that their rows must be written again.
    pub is_rebased: bool,
}

impl Kept {
    /// Converts waits for a monotonic time to a restarted monotonic clock, as after a reboot: the wall clock provides
    /// the remaining time, and that of a run. As the wall clock may have been set back meanwhile, no wait becomes longer
    /// than it was.
    pub fn rebase(&mut self, mono: Mono, wall: Timestamp) {
        let written = self.counters.mono;
        for (_, row) in &mut self.tasks {
            if let RunTime::Since(_) = row.task.run_time {
                row.task.run_time = RunTime::Unknown;
            }
        }
        let plans = self.tasks.iter_mut().filter_map(|(_, row)| row.task.plan.as_deref_mut());
        for plan in plans.chain(self.entering.iter_mut().map(|entering| &mut *entering.plan)) {
            if let Some(not_before) = &mut plan.not_before {
                not_before.rebase(written, mono, wall);
            }
        }
        (self.counters.mono, self.counters.wall) = (mono, wall);
        self.is_rebased = true;
    }

    /// Returns the latest time that the monotonic clock is known to have reached. If the counters are lost, the tasks tell
    /// it: a clock that began anew would put off their time limits for as long as the earlier one had run.
    pub fn reached(&self) -> Mono {
        let started = |(_, row): &(Ordinal, TaskRow)| {
            let began = row.task.plan().again.as_deref().and_then(|again| again.began);
            let State::Running { time_limit: Some(at), .. } = &row.task.state else { return began };
            let limited = row.task.spec.time_limit_ms.map(|limit| Mono(at.0.saturating_sub(limit)));
            began.max(limited)
        };
        self.tasks.iter().filter_map(started).fold(self.counters.mono, Mono::max)
    }

    /// Replaces the groups, whose record was lost: those of tasks that have not ended get one slot until they are
    /// configured. Those with pending tasks are paused, as they may have been before. Returns how many these are.
    pub fn replace_groups(&mut self) -> usize {
        let mut groups: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        let tasks = self.tasks.iter().filter(|(_, row)| !row.task.is_finished());
        let tasks = tasks.map(|(_, row)| (row.task.plan(), matches!(row.task.state, State::Queued { .. })));
        for (plan, is_pending) in tasks.chain(self.entering.iter().map(|left| (&*left.plan, true))) {
            *groups.entry(plan.group().into()).or_default() |= is_pending;
        }
        let paused = groups.values().filter(|is_paused| **is_paused).count();
        let row = |(name, is_paused)| GroupRow { name, settings: GroupSettings { slots: 1 }, is_paused };
        let all = groups.into_iter().map(row).collect();
        self.groups = Groups { all, ..Groups::default() };
        paused
    }

    /// Makes the records of batches agree with their tasks, some of which may be lost. Where the record itself is lost,
    /// and with it the limits, a new one is created, and the pending tasks are held. Returns how many these are.
    pub fn recount_batches(&mut self) -> usize {
        let mut counted: BTreeMap<TaskId, (u64, u32)> = BTreeMap::new();
        for (_, row) in &self.tasks {
            if let Some(batch) = row.task.plan().batch {
                let (members, failed) = counted.entry(batch).or_default();
                *members += 1;
                *failed += u32::from(row.task.status() == Status::Failed);
            }
        }
        for left in &self.entering {
            counted.entry(left.batch).or_default();
        }
        for (id, batch) in &mut self.batches {
            let (members, _) = counted.remove(id).unwrap_or_default();
            let is_entering = self.entering.iter().any(|left| left.batch == *id);
            let lacks = members < batch.members || batch.left.is_some() && !is_entering;
            if let Some(key) = batch.key.as_deref_mut() {
                key.is_torn |= lacks;
            }
            let left = batch.left.filter(|_| !is_entering).map_or(0, |left| left as u64);
            batch.cleared.count_lost(batch.members.saturating_sub(members).saturating_add(left));
            batch.members = members;
            batch.left = batch.left.filter(|_| is_entering);
        }
        let tasks = self.tasks.iter_mut().filter(|(_, row)| matches!(row.task.state, State::Queued { .. }));
        let plans = tasks.filter_map(|(_, row)| row.task.plan.as_deref_mut());
        for plan in plans.chain(self.entering.iter_mut().map(|left| &mut *left.plan)) {
            plan.held |= plan.batch.is_some_and(|batch| counted.contains_key(&batch));
        }
        let lost = counted.len();
        let anew = |(id, (members, failed))| (id, Batch { members, failed, ..Batch::default() });
        self.batches.extend(counted.into_iter().map(anew));
        lost
    }
}
