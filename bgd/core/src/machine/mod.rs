//! The state machine: handles every input in every state, explicitly.

mod agent;
mod batch;
mod commands;
mod delivery;
mod dependencies;
mod durable;
mod elsewhere;
mod facts;
mod foreground;
mod notices;
mod pause;
mod portions;
mod ready;
mod requests;
mod rerun;
mod retry;
mod room;
mod schedule;
mod stop;
mod wait;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::request::InboxesStatus;
use bgd_shared::task::{Kind, Status, Summary};
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::batch::Batches;
use super::caller::{Asker, ReplyTo};
use super::effect::{Begin, CoreError, Effect, Reply, RunPlace};
use super::group::GroupSettings;
use super::inbox::{InboxWaitId, Inboxes};
use super::input::{Input, Selection};
use super::limits::CoreLimits;
use super::owners::Owners;
use super::plan::{DependencyStatus, NotBefore};
use super::portions::Portions;
use super::query::{ListQuery, Page};
use super::queue::{Queue, Standing, Starts};
use super::registry::Registry;
use super::room::GivesWay;
use super::sharing::KeptEnv;
use super::task::{Ordinal, Snapshot, State, Task, Work};
use super::time::{Mono, Now};
use super::waiters::{Postponed, WaiterId, Waiters};

/// The part of the memory that inboxes may use where finished tasks give way to new ones: one in this many. Otherwise,
/// unread items could keep all new tasks out.
const INBOXES_SHARE: usize = 2;

/// The owner of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Timer {
    Task(Ordinal),
    Waiter(WaiterId),
    Inbox(InboxWaitId),
}

/// The state of the daemon's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Open,
    Closing,
    Closed,
}

/// Owns all tasks and decides what happens to them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Core {
    limits: CoreLimits,
    registry: Registry,
    waiters: Waiters,
    timers: BTreeSet<(Mono, Timer)>,
    /// Foreground jobs by client.
    foreground: BTreeSet<(u64, Ordinal)>,
    inboxes: Inboxes,
    owners: Owners,
    queue: Queue,
    batches: Batches,
    /// Pending tasks with an earliest start on the wall clock.
    wall_timers: BTreeSet<(Timestamp, Ordinal)>,
    /// For each task, the pending tasks with open conditions on it.
    dependents: BTreeMap<Ordinal, BTreeSet<Ordinal>>,
    seq: u64,
    #[serde(default)]
    last_notice: u64,
    phase: Phase,
    /// Whether pending tasks may not start for now.
    #[serde(default)]
    holds_starts: bool,
    /// Whether the history has to give way to a request.
    #[serde(default)]
    gives_way: GivesWay,
    /// Work on many tasks that is done in portions.
    #[serde(default)]
    portions: Portions,
    /// State changes of tasks in this step whose dependents are still to be judged.
    #[serde(skip)]
    became: VecDeque<(Ordinal, DependencyStatus)>,
    /// Batches that reached their failure limit in this step.
    #[serde(skip)]
    failed_batches: Vec<TaskId>,
    /// Waits for tasks of a batch that are still to be added. Empty during an upgrade, which waits for these tasks.
    #[serde(skip)]
    postponed: Vec<Postponed>,
    /// Batches persisted as having tasks to add.
    #[serde(skip)]
    written_entering: BTreeSet<TaskId>,
    /// The number of the last persisted event.
    #[serde(skip)]
    written_seq: u64,
    /// Restored tasks that differ from their persisted form.
    #[serde(skip)]
    unwritten: BTreeSet<Ordinal>,
    #[serde(skip)]
    effects: Vec<Effect>,
    /// Whether the shutdown became complete in this step.
    #[serde(skip)]
    exits: bool,
    /// Set while a request that ends tasks is handled, as some tasks end at once.
    #[serde(skip)]
    asker: Option<Asker>,
}

impl Core {
    /// Creates a core without tasks, with the configured groups.
    pub fn new(limits: CoreLimits, groups: BTreeMap<Arc<str>, GroupSettings>) -> Self {
        let mut core = Self {
            limits,
            registry: Registry::default(),
            waiters: Waiters::default(),
            timers: BTreeSet::new(),
            foreground: BTreeSet::new(),
            inboxes: Inboxes::default(),
            owners: Owners::default(),
            queue: Queue::new(slots(limits.max_concurrent_tasks)),
            batches: Batches::default(),
            wall_timers: BTreeSet::new(),
            dependents: BTreeMap::new(),
            seq: 0,
            last_notice: 0,
            phase: Phase::Open,
            holds_starts: false,
            gives_way: GivesWay::default(),
            portions: Portions::default(),
            became: VecDeque::new(),
            failed_batches: Vec::new(),
            postponed: Vec::new(),
            written_entering: BTreeSet::new(),
            written_seq: 0,
            unwritten: BTreeSet::new(),
            effects: Vec::new(),
            exits: false,
            asker: None,
        };
        core.configure(limits, groups);
        core
    }

    /// Handles an input. Returns the effects to carry out.
    #[must_use]
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Effect> {
        // Not with facts: however many there are, a batch must not enter faster than its steps can be persisted, nor many
        // tasks end or go.
        let adds = matches!(input, Input::Request { .. } | Input::Continue);
        match input {
            Input::Request { to, request } => self.request(now, to, request),
            Input::Fact { task, run, fact } => self.fact(now, task, run, fact),
            Input::Disconnected { client } => {
                self.disconnect(now, client);
                self.batches.leave(client);
                let jobs = self.abandon(now, client);
                self.leave_sessions(now, client, &jobs);
            }
            Input::PartRefused { client } => self.batches.leave(client),
            Input::Configure { limits, groups } => self.configure(limits, groups),
            Input::Continue => {}
            Input::HoldStarts(holds) => self.holds_starts = holds,
        }
        self.propagate(now);
        if adds {
            self.do_portion(now);
            self.propagate(now);
            // Only now, as a task that the batch comes after may have just been removed.
            self.add_next_members(now);
            self.propagate(now);
        }
        self.begin_postponed(now);
        self.fill_slots();
        self.forget_old(now);
        self.take_effects()
    }

    /// Ends a step. Returns its effects, with the exit at the end if the shutdown is complete.
    fn take_effects(&mut self) -> Vec<Effect> {
        if std::mem::take(&mut self.exits) {
            self.refuse_reads();
            self.effects.push(Effect::Exit);
        }
        std::mem::take(&mut self.effects)
    }

    /// Returns when to call [`Core::on_deadline`] if nothing else happens.
    pub fn deadline(&self) -> Option<Mono> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the wall-clock time at which to call [`Core::on_deadline`], even if the wall clock is set meanwhile.
    pub fn wall_deadline(&self) -> Option<Timestamp> {
        let old = self.registry.history().due().filter(|_| self.phase == Phase::Open);
        self.wall_timers.first().map(|(at, _)| *at).into_iter().chain(old).min()
    }

    /// Does the work that is due at this time. Returns the effects to carry out.
    #[must_use]
    pub fn on_deadline(&mut self, now: Now) -> Vec<Effect> {
        while let Some((at, timer)) = self.timers.first().copied() {
            if at > now.mono {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Task(ordinal) => self.task_deadline(now, ordinal),
                Timer::Waiter(id) => self.waiter_deadline(id),
                Timer::Inbox(id) => self.inbox_deadline(id),
            }
        }
        while let Some((at, ordinal)) = self.wall_timers.first().copied()
            && at <= now.wall
        {
            self.clear_not_before(ordinal);
        }
        self.propagate(now);
        self.fill_slots();
        self.forget_old(now);
        self.take_effects()
    }

    /// Returns how many tasks are in each status.
    pub fn summary(&self) -> Summary {
        self.registry.summary()
    }

    /// Returns how full the inboxes of parent sessions are.
    pub fn inboxes(&self) -> InboxesStatus {
        self.inboxes.status()
    }

    /// Returns the numbers of pending and running tasks of an executor; `None` means the tasks of this machine.
    pub fn count_on(&self, name: Option<&str>) -> (u64, u64) {
        let is_on = |task: &Task| task.spec.on.as_ref().map(|on| &*on.name) == name;
        let mut counts = (0, 0);
        for (_, task) in self.registry.iter().filter(|(_, task)| is_on(task)) {
            match task.status() {
                Status::Pending => counts.0 += 1,
                Status::Running | Status::Resumed => counts.1 += 1,
                Status::Completed | Status::Failed | Status::Cancelled => {}
            }
        }
        counts
    }

    /// Returns the memory of tasks, in bytes.
    pub fn held_by_tasks(&self) -> usize {
        self.registry.held()
    }

    /// Returns the memory of inboxes, in bytes.
    pub fn held_by_inboxes(&self) -> usize {
        self.inboxes.held()
    }

    /// Lists the inboxes whose oldest item comes after this number, oldest first: parent session, number of the
    /// oldest item, and number of items.
    pub fn list_inboxes(&self, after: u64) -> impl Iterator<Item = (&Arc<str>, u64, usize)> {
        self.inboxes.list(after)
    }

    /// Returns the memory of tasks, inboxes, batches and the waits for cleared tasks, in bytes.
    pub fn held(&self) -> usize {
        self.registry.held() + self.inboxes.held() + self.batches.held() + self.waiters.held()
    }

    /// Reports whether work was put off so as not to delay other inputs. [`Input::Continue`] does the next part of it.
    pub fn has_more(&self) -> bool {
        !self.batches.entering.is_empty() || !self.portions.is_empty() || self.has_too_much_history()
    }

    /// Returns the number of the latest event.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns a page of tasks.
    ///
    /// # Errors
    /// The query names an unknown group or batch, or an ambiguous batch.
    pub fn list(&self, query: &ListQuery) -> Result<Page, CoreError> {
        let batch = self.resolve(&query.filter)?;
        let mut page = self.registry.list(query, batch);
        page.cleared = batch.and_then(|batch| self.cleared_of(batch));
        for task in &mut page.tasks {
            self.place(task);
        }
        Ok(page)
    }

    /// Reports whether a submit with this idempotency key returns an existing task.
    pub fn has_key(&self, session: Option<&str>, key: &str) -> bool {
        self.registry.by_key(session, key).is_some()
    }

    /// Reports whether a submit of a batch with this idempotency key returns an existing batch.
    pub fn has_batch_key(&self, session: Option<&str>, key: &str) -> bool {
        self.batches.by_key(session, key).is_some()
    }

    /// Returns one task.
    ///
    /// # Errors
    /// No task has this id, or several do.
    pub fn get(&self, id: &TaskRef) -> Result<Snapshot, CoreError> {
        let ordinal = self.find(id)?;
        self.snapshot(ordinal).ok_or_else(|| CoreError::NotFound(id.as_str().to_owned()))
    }

    /// Returns the first of these tasks whose process is being started on this machine.
    pub fn starting(&self, ids: &[TaskRef]) -> Option<TaskId> {
        let known = |id: &TaskRef| self.registry.find(id).ok().and_then(|ordinal| self.registry.get(ordinal));
        let mut tasks = ids.iter().filter_map(known);
        let is_starting = |task: &&Task| {
            let is_process = task.spec.kind() == Kind::Process && !task.waits_elsewhere();
            matches!(task.state, State::Starting { .. }) && is_process
        };
        tasks.find(is_starting).map(|task| task.id)
    }

    /// Reports whether the daemon is shutting down, so that new work is refused.
    pub fn is_closing(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Reports whether the shutdown is complete: no later order changes what it leaves.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Reports whether a durable daemon that ends now leaves runs on other machines or clusters.
    pub fn leaves_runs_elsewhere(&self) -> bool {
        let is_left = |task: &Task| task.spec.is_elsewhere() && task.outlives_daemon();
        self.registry.iter().any(|(_, task)| task.has_run() && !task.is_finished() && is_left(task))
    }

    fn snapshot(&self, ordinal: Ordinal) -> Option<Snapshot> {
        let mut snapshot = self.registry.get(ordinal).cloned().map(Box::new)?;
        self.place(&mut snapshot);
        Some(snapshot)
    }

    /// Fills in the queue place of the snapshot's task.
    fn place(&self, snapshot: &mut Snapshot) {
        let Some(ordinal) = self.registry.ordinal(snapshot.id) else { return };
        snapshot.place = self.queue.place(ordinal, &Standing::from(&**snapshot), self.starts());
    }

    fn reply(&mut self, to: Option<ReplyTo>, reply: Reply) {
        if let Some(to) = to {
            self.effects.push(Effect::Reply { to, reply });
        }
    }

    fn event(&mut self, now: Now, kind: EventKind, ordinal: Ordinal) {
        if let Some(task) = self.snapshot(ordinal) {
            self.event_of(now, kind, task);
        }
    }

    fn event_of(&mut self, now: Now, kind: EventKind, task: Snapshot) {
        self.seq += 1;
        self.effects.push(Effect::Event { seq: self.seq, at: now.wall, kind, task });
    }

    /// Changes a task's state, and updates its timers and its standing in the queue.
    fn set_state(&mut self, ordinal: Ordinal, state: State) {
        self.change_task(ordinal, |task| task.state = state);
    }

    /// Changes a task, and updates its timers and its standing in the queue.
    fn change_task(&mut self, ordinal: Ordinal, change: impl FnOnce(&mut Task)) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let (before, old_deadline, old_time) = (Standing::from(task), task.deadline(), wall_time(task));
        let Some((after, deadline, time)) = self.registry.change(ordinal, |task| {
            change(task);
            (Standing::from(&*task), task.deadline(), wall_time(task))
        }) else {
            return;
        };
        self.queue.change(ordinal, &before, &after);
        self.retime_to(ordinal, old_deadline, deadline);
        if let Some(at) = old_time {
            self.wall_timers.remove(&(at, ordinal));
        }
        if let Some(at) = time {
            self.wall_timers.insert((at, ordinal));
        }
    }

    fn configure(&mut self, limits: CoreLimits, mut groups: BTreeMap<Arc<str>, GroupSettings>) {
        self.limits = limits;
        self.limit_inboxes();
        self.registry.limit_kept_envs(limits.environments);
        if self.registry.history().limits() != limits.history {
            self.registry.limit_history(limits.history);
        }
        groups.insert(DEFAULT_GROUP.into(), GroupSettings { slots: slots(limits.max_concurrent_tasks) });
        self.queue.configure(groups);
    }

    fn limit_inboxes(&mut self) {
        let limits = self.limits;
        self.inboxes.limit(limits.history.map(|_| limits.memory / INBOXES_SHARE));
    }

    /// Updates a task's timer after a change that may have moved its deadline.
    fn retime(&mut self, ordinal: Ordinal, before: Option<Mono>) {
        let after = self.registry.get(ordinal).and_then(Task::deadline);
        self.retime_to(ordinal, before, after);
    }

    /// Replaces the timer even if both deadlines are equal: the old one may just have fired, as with a time limit and
    /// no grace.
    fn retime_to(&mut self, ordinal: Ordinal, before: Option<Mono>, after: Option<Mono>) {
        if let Some(at) = before {
            self.timers.remove(&(at, Timer::Task(ordinal)));
        }
        if let Some(at) = after {
            self.timers.insert((at, Timer::Task(ordinal)));
        }
    }

    /// Handles the consequences of this step for other tasks.
    fn propagate(&mut self, now: Now) {
        self.settle_dependents(now);
        while self.stop_failed_batches(now) {
            self.settle_dependents(now);
        }
    }

    /// Reports whether pending tasks may start at all.
    fn starts(&self) -> Starts {
        match self.phase {
            _ if self.holds_starts => Starts::Stalled,
            Phase::Open => Starts::Allowed,
            Phase::Closing | Phase::Closed => Starts::Closed,
        }
    }

    /// Starts tasks while slots are free. None while many are being ended, some in each step: those that are still to be
    /// asked must not start first.
    fn fill_slots(&mut self) {
        if !self.portions.stops.is_empty() {
            return;
        }
        self.queue.admit();
        while let Some(ordinal) = self.queue.next(self.starts()) {
            self.begin(ordinal);
        }
    }

    /// Starts a pending task.
    fn begin(&mut self, ordinal: Ordinal) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let State::Queued { env } = &task.state else { return };
        // A run here starts at once, unless a durable daemon is killed. Elsewhere, it may wait for its place for long.
        let is_kept = if task.spec.is_here() { self.registry.is_tracked() } else { task.spec.is_elsewhere() };
        let env = env.clone();
        if self.take_back_conditions(ordinal) {
            return;
        }
        let kept = is_kept.then(|| KeptEnv(env.clone()));
        self.set_state(ordinal, State::Starting { stop: None, env: kept, give_up_at: None });
        let Some(task) = self.registry.get(ordinal) else { return };
        let begin = match &task.spec.work {
            Work::Argv(_) | Work::Shell(_) => {
                Begin::Process { env, place: Box::new(self.run_place(ordinal, task)) }
            }
            Work::Agent(work) => {
                let agent = task.agent.as_deref();
                let prompt = agent.map(|agent| agent.prompt.clone()).unwrap_or_default();
                let settings = agent.map_or(&work.settings, |agent| &agent.settings).clone();
                Begin::Prompt { env, prompt, settings, session: None, after: self.seen_after(task) }
            }
        };
        let start = commands::start(task, begin);
        self.effects.push(start);
        self.pass_on_dependents(ordinal);
    }

    fn run_place(&self, ordinal: Ordinal, task: &Task) -> RunPlace {
        let plan = task.plan();
        let attempt = plan.again.as_ref().map(|again| again.attempt);
        let slots = self.queue.numbers(ordinal).into();
        let (group, priority) = (plan.group.clone(), plan.priority);
        RunPlace { slots, group, attempt, priority, after: self.seen_after(task) }
    }

    /// Resolves a selection to tasks, each once.
    fn select(&self, which: &Selection) -> Result<Vec<Ordinal>, CoreError> {
        match which {
            Selection::Ids(ids) => self.find_all(ids),
            Selection::All { session } => Ok(self.registry.of_session(session.as_deref())),
            Selection::Matching(filter) => Ok(self.registry.matching(filter, self.resolve(filter)?)),
        }
    }

    fn find_all(&self, ids: &[TaskRef]) -> Result<Vec<Ordinal>, CoreError> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            let ordinal = self.find(id)?;
            if seen.insert(ordinal) {
                found.push(ordinal);
            }
        }
        Ok(found)
    }

    fn with_ids(&self, ordinals: &[Ordinal]) -> Vec<(Ordinal, TaskId)> {
        ordinals.iter().filter_map(|ordinal| Some((*ordinal, self.registry.get(*ordinal)?.id))).collect()
    }
}

/// Returns the wall-clock time that a pending task waits for, if any.
fn wall_time(task: &Task) -> Option<Timestamp> {
    match (&task.state, task.plan().not_before) {
        (State::Queued { .. }, Some(NotBefore::Wall(at))) => Some(at),
        (State::Queued { .. }, Some(NotBefore::Delay { .. } | NotBefore::Attempt { .. }) | None)
        | (
            State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Finished(_)
            | State::Resuming(_),
            _,
        ) => None,
    }
}

/// Converts a configured number of tasks to a number of slots.
fn slots(tasks: usize) -> u32 {
    u32::try_from(tasks).unwrap_or(u32::MAX)
}
