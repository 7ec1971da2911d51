//! The queue: groups with their slots, and the tasks that wait for slots. Within a group, the highest priority goes
//! first, then the earliest submission. No task overtakes the first one, even while the first one does not fit (R100 to
//! R102). A batch may limit how many of its tasks compete at once (R112). The queue is independent of the other reasons
//! for which a task may wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::order::DEFAULT_GROUP;
use serde::{Deserialize, Serialize};

use super::group::GroupSettings;
use super::task::{Blocked, Ordinal, QueuePlace, State, Task};

/// A task's requirements to the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its group; `None` means the default group.
    pub group: Option<Arc<str>>,
    /// Priority: higher starts first.
    pub priority: i32,
    /// How many slots it occupies.
    pub slots: u32,
    pub batch: Option<TaskId>,
}

/// A task's standing in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It waits for slots.
    Waits(Demand),
    HasSlots(Demand),
    /// It is not in the queue.
    Out,
}

impl Standing {
    /// Reports whether a task keeps its slots from one standing to the other: its process or a cluster has their
    /// numbers.
    fn has_same_slots(&self, to: &Self) -> bool {
        let (Self::HasSlots(from), Self::HasSlots(to)) = (self, to) else { return false };
        (&from.group, from.slots, from.batch) == (&to.group, to.slots, to.batch)
    }
}

impl From<&Task> for Standing {
    fn from(task: &Task) -> Self {
        let plan = task.plan();
        let demand = || {
            let (group, priority, slots) = (plan.group.clone(), plan.priority, plan.slots);
            Demand { group, priority, slots, batch: plan.batch }
        };
        match &task.state {
            State::Queued { .. } if plan.is_open() => Self::Waits(demand()),
            State::Starting { .. } | State::Running { .. } | State::Stopping { .. } | State::Resuming(_) => {
                Self::HasSlots(demand())
            }
            State::Queued { .. } | State::Finished(_) => Self::Out,
        }
    }
}

/// Whether pending tasks may start at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starts {
    Allowed,
    /// The daemon could not persist them.
    Stalled,
    /// The daemon is shutting down.
    Closed,
}

/// The slot numbers of a group. The lowest free number is always handed out first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Numbers {
    /// Free numbers below `top`.
    holes: BTreeSet<u32>,
    /// The highest number in use.
    top: u32,
}

impl Numbers {
    fn taken(&self) -> u32 {
        self.top - u32::try_from(self.holes.len()).unwrap_or(u32::MAX)
    }

    fn take(&mut self) -> u32 {
        self.holes.pop_first().unwrap_or_else(|| {
            self.top += 1;
            self.top
        })
    }

    /// Takes this number if it is free.
    fn take_this(&mut self, number: u32) {
        if number > self.top {
            self.holes.extend(self.top + 1..number);
            self.top = number;
        } else {
            self.holes.remove(&number);
        }
    }

    fn give_back(&mut self, number: u32) {
        self.holes.insert(number);
        while self.top > 0 && self.holes.remove(&self.top) {
            self.top -= 1;
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Group {
    #[serde(rename = "slots")]
    settings: GroupSettings,
    is_paused: bool,
    numbers: Numbers,
    /// The waiting tasks in starting order, each with the number of slots that it occupies.
    waiting: BTreeSet<(Reverse<i32>, Ordinal, u32)>,
}

impl Group {
    /// Returns the first waiting task if it can start now. A task that wants more slots than the group has, because the
    /// limit was lowered later, starts once no other task has any.
    fn next(&self) -> Option<Ordinal> {
        let (_, ordinal, slots) = *self.waiting.first().filter(|_| !self.is_paused)?;
        let taken = self.numbers.taken();
        let fits = slots == 0 || taken == 0 || taken.saturating_add(slots) <= self.settings.slots;
        fits.then_some(ordinal)
    }
}

/// A batch that limits how many of its tasks run at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct BatchLane {
    jobs: u32,
    /// How many of its tasks compete for slots or have slots.
    admitted: u32,
    /// The tasks waiting to be admitted, in order.
    parked: BTreeSet<Parked>,
}

/// A task waiting to be admitted. The field order defines the order of admission.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Parked {
    priority: Reverse<i32>,
    task: Ordinal,
    group: Option<Arc<str>>,
    slots: u32,
}

impl Parked {
    fn new(task: Ordinal, demand: &Demand) -> Self {
        let Demand { group, priority, slots, .. } = demand;
        Self { priority: Reverse(*priority), task, group: group.clone(), slots: *slots }
    }
}

/// The state of a group at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSlots {
    pub name: Arc<str>,
    pub slots: u32,
    pub taken: u32,
    /// Whether it is paused, so that none of its tasks start.
    pub is_paused: bool,
}

/// The groups and their waiting tasks. Tasks that must not wait take slots even above the limit.
#[derive(Debug, Serialize, Deserialize)]
pub struct Queue {
    default: Arc<str>,
    groups: BTreeMap<Arc<str>, Group>,
    /// The groups whose first task can start.
    startable: BTreeSet<Arc<str>>,
    /// The slot numbers of the tasks that have slots.
    numbers: HashMap<Ordinal, Box<[u32]>>,
    /// The groups as last configured.
    configured: BTreeMap<Arc<str>, GroupSettings>,
    /// The groups that were configured before.
    #[serde(default)]
    former: BTreeSet<Arc<str>>,
    /// The batches that limit how many of their tasks run at once.
    lanes: BTreeMap<TaskId, BatchLane>,
    /// The batches in `lanes` that may have room for another task.
    roomy: BTreeSet<TaskId>,
    /// Whether groups were changed, created or removed since [`Queue::take_groups`].
    #[serde(skip)]
    is_changed: bool,
}

/// A group as set by clients and the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RecordedGroup", into = "RecordedGroup")]
pub struct GroupRow {
    pub name: Arc<str>,
    pub settings: GroupSettings,
    /// Whether it is paused, so that none of its tasks start.
    pub is_paused: bool,
}

/// The recorded form, which other releases read.
type RecordedGroup = (Arc<str>, GroupSettings, bool);

impl From<GroupRow> for RecordedGroup {
    fn from(row: GroupRow) -> Self {
        let GroupRow { name, settings, is_paused } = row;
        (name, settings, is_paused)
    }
}

impl From<RecordedGroup> for GroupRow {
    fn from((name, settings, is_paused): RecordedGroup) -> Self {
        Self { name, settings, is_paused }
    }
}

/// The groups as set by clients and the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    pub all: Vec<GroupRow>,
    /// The groups as last configured.
    pub configured: BTreeMap<Arc<str>, GroupSettings>,
    /// The groups that were configured before.
    #[serde(default)]
    pub former: BTreeSet<Arc<str>>,
}

impl Queue {
    /// Creates a queue with only the default group, which gets this many slots.
    pub fn new(slots: u32) -> Self {
        let default: Arc<str> = DEFAULT_GROUP.into();
        let mut queue = Self {
            groups: BTreeMap::new(),
            startable: BTreeSet::new(),
            numbers: HashMap::new(),
            configured: BTreeMap::new(),
            former: BTreeSet::new(),
            lanes: BTreeMap::new(),
            roomy: BTreeSet::new(),
            is_changed: true,
            default: default.clone(),
        };
        queue.configure([(default, GroupSettings { slots })].into());
        queue
    }

    /// Moves a task from one standing to another. Returns the lowest of its slots, if it has any.
    pub fn change(&mut self, task: Ordinal, from: &Standing, to: &Standing) -> Option<u32> {
        if from == to || from.has_same_slots(to) {
            return self.slot(task);
        }
        match from {
            Standing::Waits(demand) if self.unpark(task, demand) => {}
            Standing::Waits(demand) => {
                self.with(demand, |group| {
                    group.waiting.remove(&(Reverse(demand.priority), task, demand.slots));
                });
                self.leave_lane(demand);
            }
            Standing::HasSlots(demand) => {
                self.leave_lane(demand);
                let numbers = self.numbers.remove(&task).unwrap_or_default();
                self.with(demand, |group| {
                    numbers.iter().for_each(|number| group.numbers.give_back(*number));
                });
            }
            Standing::Out => {}
        }
        match to {
            Standing::Waits(demand) if self.park(task, demand) => {}
            Standing::Waits(demand) => self.with(demand, |group| {
                group.waiting.insert((Reverse(demand.priority), task, demand.slots));
            }),
            Standing::HasSlots(demand) => {
                if let Some(lane) = demand.batch.and_then(|batch| self.lanes.get_mut(&batch)) {
                    lane.admitted += 1;
                }
                let mut numbers = Vec::with_capacity(demand.slots as usize);
                self.with(demand, |group| numbers.extend((0..demand.slots).map(|_| group.numbers.take())));
                if !numbers.is_empty() {
                    self.numbers.insert(task, numbers.into());
                }
            }
            Standing::Out => {}
        }
        self.slot(task)
    }

    /// Returns the lowest of a task's slots.
    pub fn slot(&self, task: Ordinal) -> Option<u32> {
        self.numbers(task).first().copied()
    }

    /// Returns the numbers of a task's slots in ascending order.
    pub fn numbers(&self, task: Ordinal) -> &[u32] {
        self.numbers.get(&task).map_or(&[], |numbers| numbers)
    }

    /// Limits how many tasks of a batch run at once.
    pub fn limit_batch(&mut self, batch: TaskId, jobs: u32) {
        self.lanes.insert(batch, BatchLane { jobs, ..BatchLane::default() });
    }

    pub fn forget_batch(&mut self, batch: TaskId) {
        self.lanes.remove(&batch);
        self.roomy.remove(&batch);
    }

    /// Returns the place of a task with this standing.
    pub fn place(&self, task: Ordinal, standing: &Standing, starts: Starts) -> QueuePlace {
        match standing {
            Standing::Out => QueuePlace::Out,
            Standing::HasSlots(_) => self.slot(task).map_or(QueuePlace::Out, QueuePlace::Slot),
            Standing::Waits(_) if self.next(starts) == Some(task) => QueuePlace::Next,
            Standing::Waits(demand) => QueuePlace::Blocked(self.blocked(task, demand, starts)),
        }
    }

    /// Returns why a waiting task is not the next to start.
    fn blocked(&self, task: Ordinal, demand: &Demand, starts: Starts) -> Blocked {
        if self.is_parked(task, demand) {
            return Blocked::Batch;
        }
        if self.is_paused(demand.group.as_deref()) {
            return Blocked::Paused;
        }
        match starts {
            Starts::Stalled => Blocked::Journal,
            Starts::Allowed | Starts::Closed => Blocked::Slots,
        }
    }

    /// Reports whether a task waits for other tasks of its batch.
    fn is_parked(&self, task: Ordinal, demand: &Demand) -> bool {
        let lane = demand.batch.and_then(|batch| self.lanes.get(&batch));
        lane.is_some_and(|lane| lane.parked.contains(&Parked::new(task, demand)))
    }

    /// Lets parked tasks compete for slots where their batches have room.
    pub fn admit(&mut self) {
        while let Some(batch) = self.roomy.pop_first() {
            while let Some(lane) = self.lanes.get_mut(&batch).filter(|lane| lane.admitted < lane.jobs)
                && let Some(Parked { priority: Reverse(priority), task, group, slots }) =
                    lane.parked.pop_first()
            {
                lane.admitted += 1;
                let demand = Demand { group, priority, slots, batch: Some(batch) };
                self.with(&demand, |group| {
                    group.waiting.insert((Reverse(priority), task, slots));
                });
            }
        }
    }

    /// Parks a task if its batch is limited. Returns whether it was.
    fn park(&mut self, task: Ordinal, demand: &Demand) -> bool {
        let Some(batch) = demand.batch else { return false };
        let Some(lane) = self.lanes.get_mut(&batch) else { return false };
        lane.parked.insert(Parked::new(task, demand));
        self.roomy.insert(batch);
        true
    }

    /// Unparks a task. Returns whether it was parked.
    fn unpark(&mut self, task: Ordinal, demand: &Demand) -> bool {
        let lane = demand.batch.and_then(|batch| self.lanes.get_mut(&batch));
        lane.is_some_and(|lane| lane.parked.remove(&Parked::new(task, demand)))
    }

    fn leave_lane(&mut self, demand: &Demand) {
        let Some(batch) = demand.batch else { return };
        if let Some(lane) = self.lanes.get_mut(&batch) {
            lane.admitted = lane.admitted.saturating_sub(1);
            self.roomy.insert(batch);
        }
    }

    /// Returns the task to start next. The cost does not depend on how many tasks and groups there are.
    pub fn next(&self, starts: Starts) -> Option<Ordinal> {
        match starts {
            Starts::Allowed => {
                self.startable.first().and_then(|name| self.groups.get(name)).and_then(Group::next)
            }
            Starts::Stalled | Starts::Closed => None,
        }
    }

    /// Returns the group's name as plans store it, where the default group is an inner `None`. Returns `None` if
    /// there is no such group.
    #[allow(clippy::option_option, reason = "the inner one is the name, which the default group has not")]
    pub fn find(&self, name: &str) -> Option<Option<Arc<str>>> {
        if name == &*self.default {
            return Some(None);
        }
        self.groups.get_key_value(name).map(|(name, _)| Some(name.clone()))
    }

    /// Returns how many slots a group has; 0 if there is no such group.
    pub fn slots_of(&self, group: Option<&str>) -> u32 {
        self.groups.get(group.unwrap_or(&self.default)).map_or(0, |group| group.settings.slots)
    }

    fn is_paused(&self, group: Option<&str>) -> bool {
        self.groups.get(group.unwrap_or(&self.default)).is_some_and(|group| group.is_paused)
    }

    /// Returns every group: the default one first, then the others by name.
    pub fn groups(&self) -> impl Iterator<Item = GroupSlots> {
        let others = self.groups.keys().filter(|name| **name != self.default);
        std::iter::once(&self.default).chain(others).filter_map(|name| self.group(name))
    }

    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Returns the state of one group.
    pub fn group(&self, name: &str) -> Option<GroupSlots> {
        let (name, group) = self.groups.get_key_value(name)?;
        let (slots, taken, is_paused) = (group.settings.slots, group.numbers.taken(), group.is_paused);
        Some(GroupSlots { name: name.clone(), slots, taken, is_paused })
    }

    /// Returns the groups if they were changed since the last call.
    pub fn take_groups(&mut self) -> Option<Groups> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let all = self.groups.iter().map(|(name, group)| GroupRow {
            name: name.clone(),
            settings: group.settings.clone(),
            is_paused: group.is_paused,
        });
        let (configured, former) = (self.configured.clone(), self.former.clone());
        Some(Groups { all: all.collect(), configured, former })
    }

    /// Restores the groups.
    pub fn set_groups(&mut self, groups: Groups) {
        for GroupRow { name, settings, is_paused } in groups.all {
            self.set(&name, settings);
            self.pause(&name, is_paused);
        }
        (self.configured, self.former) = (groups.configured, groups.former);
    }

    /// Gives a task the same slots as before, as its processes know their numbers.
    pub fn resume(&mut self, task: Ordinal, demand: &Demand, numbers: &[u32]) {
        self.change(task, &Standing::Out, &Standing::HasSlots(demand.clone()));
        let drawn = self.numbers.remove(&task).unwrap_or_default();
        self.with(demand, |group| {
            drawn.iter().for_each(|number| group.numbers.give_back(*number));
            for number in numbers {
                group.numbers.take_this(*number);
            }
        });
        if !numbers.is_empty() {
            self.numbers.insert(task, numbers.into());
        }
    }

    /// Creates a group, or changes its settings.
    pub fn set(&mut self, name: &str, settings: GroupSettings) {
        self.is_changed = true;
        self.former.remove(name);
        let name = match self.groups.get_key_value(name) {
            Some((name, _)) => name.clone(),
            None => name.into(),
        };
        self.groups.entry(name.clone()).or_default().settings = settings;
        self.update_startable(&name);
    }

    pub fn pause(&mut self, name: &str, is_paused: bool) {
        self.is_changed = true;
        if let Some((name, _)) = self.groups.get_key_value(name) {
            let name = name.clone();
            self.groups.entry(name.clone()).or_default().is_paused = is_paused;
            self.update_startable(&name);
        }
    }

    /// Removes a group that has no waiting and no running tasks.
    pub fn remove(&mut self, name: &str) {
        self.is_changed = true;
        self.groups.remove(name);
        self.startable.remove(name);
        // If the configuration still lists the group, the next reload creates it again.
        self.configured.remove(name);
        self.former.remove(name);
    }

    /// Returns the groups that were configured before and not set otherwise since.
    pub fn former(&self) -> impl Iterator<Item = &Arc<str>> {
        self.former.iter()
    }

    /// Applies the groups of the configuration. New and changed ones get their configured settings. A group that was
    /// changed at runtime keeps its settings until its entry changes. Groups that are no longer configured stay, as they
    /// may have tasks.
    pub fn configure(&mut self, groups: BTreeMap<Arc<str>, GroupSettings>) {
        for (name, settings) in &groups {
            if self.configured.get(name) != Some(settings) {
                self.set(name, settings.clone());
            }
        }
        self.is_changed |= self.configured != groups;
        let before = std::mem::replace(&mut self.configured, groups);
        let is_gone = |name: &Arc<str>| !self.configured.contains_key(name);
        self.former.extend(before.into_keys().filter(is_gone));
    }

    fn with(&mut self, demand: &Demand, change: impl FnOnce(&mut Group)) {
        let name = demand.group.clone().unwrap_or_else(|| self.default.clone());
        change(self.groups.entry(name.clone()).or_default());
        self.update_startable(&name);
    }

    /// Updates whether the group is in `startable`.
    fn update_startable(&mut self, name: &Arc<str>) {
        if self.groups.get(name).and_then(Group::next).is_some() {
            self.startable.insert(name.clone());
        } else {
            self.startable.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
