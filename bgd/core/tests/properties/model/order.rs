//! Naive model of the order of tasks: groups, conditions, times and further attempts.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_core::{
    CoreError, Dependency, Edit, Now, OrderError, Plan, PlanRequest, Repetition, ReplyTo, Rule, Selection,
    Snapshot, StartTime, draw,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition, DEFAULT_GROUP, Restart};
use bgd_shared::task::{Exit, Status};

use super::super::expected::Answer;
use super::super::support::TERM;
use super::early::Attempt;
use super::{End, Known, Model, Phase, number};

/// When a task may start: by the monotonic clock, or by the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Mono(u64),
    Wall(i64),
}

/// A condition on another task, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub other: u64,
    pub condition: Condition,
    pub met: bool,
}

/// The state of a task, for the tasks that wait for it.
#[derive(Clone, Debug)]
pub struct DependencyStatus {
    id: TaskId,
    /// Its status and the way it ended, if it has.
    ended: Option<(Status, String)>,
    has_begun: bool,
    was_ready: bool,
}

/// How a task is ordered among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    group: Option<Arc<str>>,
    priority: i32,
    pub slots: u32,
    pub batch: Option<TaskId>,
    /// Whether it competes for slots; only with a batch that limits how many tasks run at once.
    pub admitted: bool,
    held: bool,
    start: Option<Start>,
    pub after: Vec<Wait>,
    rule: Option<Rule>,
    /// Number of attempts that have ended.
    pub ended: u32,
    /// Number of attempts in a row that ended early.
    early: u32,
    pub has_begun: bool,
    pub attempt: Attempt,
    pub exit: Option<Exit>,
    /// Why it can no longer start.
    pub blame: Option<String>,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            group: None,
            priority: 0,
            slots: 1,
            batch: None,
            admitted: false,
            held: false,
            start: None,
            after: Vec::new(),
            rule: None,
            ended: 0,
            early: 0,
            has_begun: false,
            attempt: Attempt::default(),
            exit: None,
            blame: None,
        }
    }
}

impl Order {
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(DEFAULT_GROUP)
    }

    /// Returns when it must be checked while it is pending.
    pub fn deadline(&self) -> Option<u64> {
        match self.start {
            Some(Start::Mono(at)) => Some(at),
            Some(Start::Wall(_)) | None => None,
        }
    }

    /// Moves a task whose group was removed to the default group.
    pub fn stays_in(&mut self, groups: &Groups) {
        self.group = self.group.take().filter(|name| groups.contains_key(&**name));
    }

    pub fn is_kept_alive(&self) -> bool {
        matches!(self.rule, Some(Rule::Restart(_)))
    }

    pub fn has_rule(&self) -> bool {
        self.rule.is_some()
    }

    /// Records that it is running.
    pub fn begins(&mut self, now: Now) {
        (self.has_begun, self.attempt, self.exit) = (true, Attempt::begun(now), None);
    }

    pub fn priority(&self) -> i32 {
        self.priority
    }

    pub fn is_open(&self) -> bool {
        !self.held && self.start.is_none() && self.after.iter().all(|wait| wait.met)
    }

    /// Returns the result according to its leader's exit.
    pub fn result(&self) -> Result<(), String> {
        match &self.exit {
            None | Some(Exit::Code(0)) => Ok(()),
            Some(Exit::Code(code)) => Err(format!("exited with code {code}")),
            Some(Exit::Signal(9)) => Err("ended by signal 9 (SIGKILL)".to_owned()),
            Some(Exit::Signal(15)) => Err("ended by signal 15 (SIGTERM)".to_owned()),
            Some(Exit::Signal(signal)) => Err(format!("ended by signal {signal}")),
            Some(Exit::Unknown(why)) => Err(format!("its exit status is unknown: {why}")),
        }
    }

    /// Returns the delay until the next attempt after this end, or after it was not ready in time (`is_late`). `None` if
    /// there is no next attempt.
    fn delay(&self, id: TaskId, now: Now, result: &Result<(), String>, is_late: bool) -> Option<u64> {
        let attempt = self.ended + 1;
        match self.rule.as_ref()? {
            Rule::Retry { times, delay_ms, max_delay_ms, codes, signal } => {
                let is_covered = match (&self.exit, codes.is_empty() && !signal) {
                    (_, true) => true,
                    (Some(Exit::Code(code)), false) => codes.contains(code),
                    (Some(Exit::Signal(_)), false) => *signal,
                    (Some(Exit::Unknown(_)) | None, false) => false,
                };
                let longest = (*max_delay_ms).min(*delay_ms << (attempt - 1).min(30));
                let goes_on = result.is_err() && is_covered && attempt <= *times;
                goes_on.then(|| draw(id.as_u128(), attempt, longest))
            }
            Rule::Restart(restart) => {
                let goes_on = result.is_err() || *restart == Restart::Always;
                let early = self.early_with(now, is_late);
                (goes_on && early < 10).then(|| 60_000.min(1000 << early.saturating_sub(1)))
            }
        }
    }

    fn early_with(&self, now: Now, is_late: bool) -> u32 {
        if is_late || self.attempt.is_early(now) { self.early + 1 } else { 0 }
    }

    /// Reports whether it ended early once too often.
    pub fn loops(&self, now: Now, result: &Result<(), String>, is_late: bool) -> bool {
        let goes_on = match self.rule {
            Some(Rule::Restart(Restart::Always)) => true,
            Some(Rule::Restart(Restart::OnFailure)) => result.is_err(),
            Some(Rule::Retry { .. }) | None => false,
        };
        goes_on && self.early_with(now, is_late) >= 10
    }

    /// Reports whether a snapshot matches.
    pub fn agrees(&self, task: &Snapshot) -> bool {
        let plan = task.plan();
        let after = plan.after.iter().map(|one| (number(one.task), one.condition, one.met));
        let waits = self.after.iter().map(|wait| (wait.other, wait.condition, wait.met));
        let ended = plan.again.as_ref().map_or(0, |again| again.attempt - 1);
        (plan.group(), plan.priority, plan.slots, plan.held)
            == (self.group(), self.priority, self.slots, self.held)
            && after.eq(waits)
            && ended == self.ended
            && plan.not_before.is_some() == self.start.is_some()
    }
}

/// Returns the size of the plan for this request with this many dependencies. Two references to the same task are one
/// dependency.
pub fn bytes(request: &PlanRequest, dependencies: usize) -> usize {
    if *request == PlanRequest::default() { 0 } else { plan_bytes(request, dependencies) }
}

/// Like [`bytes`], for a task that has a plan in any case.
pub fn plan_bytes(request: &PlanRequest, dependencies: usize) -> usize {
    let again = match &request.again {
        Some(Rule::Retry { codes, .. }) => size_of::<Repetition>() + size_of_val(&**codes),
        Some(Rule::Restart(_)) => size_of::<Repetition>(),
        None => 0,
    };
    size_of::<Plan>() + dependencies * (size_of::<Dependency>() + 64) + again
}

fn start(now: Now, start: StartTime) -> Option<Start> {
    match start {
        StartTime::In(0) => None,
        StartTime::In(ms) => Some(Start::Mono(now.mono.plus_ms(ms).0)),
        StartTime::At(at) => (at > now.wall).then(|| Start::Wall(at.unix_ms())),
    }
}

impl Model {
    pub(super) fn order_of(&mut self, now: Now, request: &PlanRequest) -> Result<Order, CoreError> {
        let group = self.group_named(request.group.as_deref())?;
        self.fits(group.as_deref(), request.slots)?;
        Ok(Order {
            group,
            priority: request.priority,
            slots: request.slots,
            held: request.hold,
            start: request.start.and_then(|at| start(now, at)),
            after: self.waits(&request.after)?,
            rule: request.again.clone(),
            ..Order::default()
        })
    }

    fn group_named(&self, name: Option<&str>) -> Result<Option<Arc<str>>, CoreError> {
        match name {
            None | Some(DEFAULT_GROUP) => Ok(None),
            Some(name) if self.groups.contains_key(name) => Ok(Some(name.into())),
            Some(name) => Err(self.unknown(name)),
        }
    }

    pub(super) fn unknown(&self, name: &str) -> CoreError {
        let others = self.groups.keys().filter(|name| *name != DEFAULT_GROUP);
        let names = std::iter::once(DEFAULT_GROUP).chain(others.map(String::as_str));
        CoreError::Order(OrderError::UnknownGroup(name.into(), names.map(Arc::from).collect()))
    }

    fn fits(&self, group: Option<&str>, wanted: u32) -> Result<(), CoreError> {
        let name = group.unwrap_or(DEFAULT_GROUP);
        let slots = self.groups[name].0;
        if wanted > slots {
            let group = name.into();
            return Err(CoreError::Order(OrderError::TooManySlots { task: None, wanted, group, slots }));
        }
        Ok(())
    }

    fn waits(&mut self, after: &[After]) -> Result<Vec<Wait>, CoreError> {
        let mut waits = Vec::new();
        for After { id, condition } in after {
            let task = self.find(id)?;
            if *condition == Condition::Ready && !task.becomes_ready && task.phase != Phase::Done {
                return Err(CoreError::Order(OrderError::NeverReady(task.id)));
            }
            let other = number(task.id);
            let wait = Wait { other, condition: *condition, met: false };
            if !waits.contains(&wait) {
                waits.push(wait);
            }
        }
        Ok(waits)
    }

    /// Returns the state of a task for its dependents, if it has started or ended.
    fn became(&self, id: TaskId) -> Option<DependencyStatus> {
        let task = self.get(id)?;
        let ended = match task.phase {
            Phase::Done | Phase::Resuming => Some((task.status(), task.how_it_ended())),
            Phase::Pending | Phase::Starting | Phase::Running => None,
        };
        let has_begun = task.order.has_begun;
        let was_ready = task.ready_at.is_some();
        (ended.is_some() || has_begun).then_some(DependencyStatus { id, ended, has_begun, was_ready })
    }

    /// Records that a task has started, become ready or ended.
    pub(super) fn notify_dependents(&mut self, id: TaskId) {
        if let Some(became) = self.became(id) {
            self.news.push_back(became);
        }
    }

    /// Judges a new or edited task by the states of the tasks that it waits for.
    pub(super) fn judge(&mut self, now: Now, task: u64) {
        let Some(known) = self.live.get(&task) else { return };
        let mut others: Vec<u64> = known.order.after.iter().map(|wait| wait.other).collect();
        others.sort_unstable();
        others.dedup();
        for other in others {
            let id = self.live.get(&other).map(|task| task.id);
            if let Some(became) = id.and_then(|id| self.became(id)) {
                self.hear(now, task, &became);
            }
        }
    }

    /// Judges the dependents of tasks that have started or ended, and in turn their dependents.
    pub(super) fn judge_all(&mut self, now: Now) {
        while let Some(became) = self.news.pop_front() {
            let pending: Vec<u64> = self.live.keys().copied().collect();
            for task in pending {
                self.hear(now, task, &became);
            }
        }
    }

    fn hear(&mut self, now: Now, task: u64, became: &DependencyStatus) {
        let Some(known) = self.live.get_mut(&task).filter(|task| task.phase == Phase::Pending) else {
            return;
        };
        let other = number(became.id);
        let mut never = None;
        let mut met = Vec::new();
        for wait in known.order.after.iter().filter(|wait| wait.other == other && !wait.met) {
            let status = became.ended.as_ref().map(|(status, _)| *status);
            let holds = match wait.condition {
                Condition::Ok => status == Some(Status::Completed),
                Condition::Any => status.is_some() && (became.has_begun || status == Some(Status::Failed)),
                Condition::Fail => status == Some(Status::Failed),
                Condition::Start => became.has_begun,
                Condition::Ready => became.was_ready,
            };
            if holds {
                met.push(*wait);
            } else if let Some((_, how)) = &became.ended {
                let why = match wait.condition {
                    Condition::Ok => "but had to complete first",
                    Condition::Any => "so the condition `any` can't be met",
                    Condition::Fail => "but had to fail first",
                    Condition::Start => "but had to start first",
                    Condition::Ready => "but had to be ready first",
                };
                never = Some(format!("task {} {how}, {why}", became.id));
            }
        }
        if never.is_some() {
            known.order.blame = never;
            return self.done(now, task, &Ok(()));
        }
        for wait in &mut known.order.after {
            wait.met |= met.contains(wait);
        }
    }

    /// Reports whether the first task waits for the second, directly or indirectly.
    fn comes_after(&self, task: u64, other: u64) -> bool {
        let waits = self.live.get(&task).filter(|task| task.phase == Phase::Pending);
        let mut others = waits.into_iter().flat_map(|task| &task.order.after).filter(|wait| !wait.met);
        task == other || others.any(|wait| self.comes_after(wait.other, other))
    }

    pub(super) fn hold(&mut self, to: ReplyTo, which: &Selection, held: bool) -> Result<(), CoreError> {
        let tasks = self.select(which, |task| task.phase == Phase::Pending)?;
        let named = tasks.iter().filter_map(|id| self.get(*id));
        if let Some(task) = named.into_iter().find(|task| task.phase != Phase::Pending) {
            return Err(CoreError::Order(OrderError::NotPending(task.id, task.status())));
        }
        for id in &tasks {
            let Some(task) = self.live.get_mut(&number(*id)) else { continue };
            if task.order.held != held {
                task.order.held = held;
                let kind = if held { EventKind::Held } else { EventKind::Released };
                self.expected.events.push((*id, kind));
            }
        }
        let tasks = self.statuses(&tasks);
        self.reply(Some(to), Answer::Tasks(tasks));
        Ok(())
    }

    pub(super) fn edit(&mut self, now: Now, to: ReplyTo, edit: &Edit) -> Result<(), CoreError> {
        let task = self.find(&edit.id)?;
        let (id, mut order) = (task.id, task.order.clone());
        if task.phase != Phase::Pending {
            return Err(CoreError::Order(OrderError::NotPending(id, task.status())));
        }
        if let Some(group) = &edit.group {
            order.group = self.group_named(Some(group))?;
        }
        let is_larger = edit.slots.is_some_and(|slots| slots != order.slots);
        order.slots = edit.slots.unwrap_or(order.slots);
        if is_larger || order.group != self.live[&number(id)].order.group {
            self.fits(order.group.as_deref(), order.slots)?;
        }
        order.priority = edit.priority.unwrap_or(order.priority);
        if let Some(after) = &edit.after {
            order.after = self.waits(after)?;
            for wait in &order.after {
                if self.comes_after(wait.other, number(id)) {
                    return Err(CoreError::Order(OrderError::Cycle(self.live[&wait.other].id, id)));
                }
            }
        }
        if let Some(at) = edit.start {
            order.start = start(now, at);
        }
        let more = order.after.len().saturating_sub(self.live[&number(id)].order.after.len());
        if more > 0 {
            self.memory_for(more * (size_of::<Dependency>() + 64))?;
        }
        if let Some(task) = self.live.get_mut(&number(id)) {
            let standing = |order: &Order| (order.group.clone(), order.priority, order.slots);
            order.admitted &= standing(&order) == standing(&task.order);
            task.order = order;
        }
        self.expected.events.push((id, EventKind::Edited));
        if edit.after.is_some() {
            self.judge(now, number(id));
            self.judge_all(now);
        }
        let status = self.get(id).map_or(Status::Cancelled, Known::status);
        self.reply(Some(to), Answer::Task(id, status));
        Ok(())
    }

    pub(super) fn set_group(&mut self, to: ReplyTo, name: &str, slots: u32) -> Result<(), CoreError> {
        self.groups.entry(name.to_owned()).or_insert((slots, false)).0 = slots;
        self.show_group(to, name)
    }

    pub(super) fn pause_group(&mut self, to: ReplyTo, name: &str, paused: bool) -> Result<(), CoreError> {
        if let Some(group) = self.groups.get_mut(name) {
            group.1 = paused;
        }
        self.show_group(to, name)
    }

    pub(super) fn remove_group(&mut self, to: ReplyTo, name: &str) -> Result<(), CoreError> {
        if !self.groups.contains_key(name) {
            return Err(self.unknown(name));
        }
        let active =
            self.live.values().filter(|task| task.order.group() == name && task.phase != Phase::Done);
        let active = active.count() as u64;
        if name == DEFAULT_GROUP {
            return Err(CoreError::Order(OrderError::DefaultGroup));
        }
        if active > 0 {
            return Err(CoreError::Order(OrderError::GroupInUse(name.into(), active)));
        }
        self.show_group(to, name)?;
        self.groups.remove(name);
        Ok(())
    }

    fn show_group(&mut self, to: ReplyTo, name: &str) -> Result<(), CoreError> {
        let Some((slots, paused)) = self.groups.get(name).copied() else { return Err(self.unknown(name)) };
        let used = self.used(name);
        let queued = self.live.values().filter(|task| task.phase == Phase::Pending);
        let oversized = queued.filter(|task| task.order.group() == name && task.order.slots > slots).count();
        self.reply(Some(to), Answer::Group(name.to_owned(), slots, used, paused, oversized as u64));
        Ok(())
    }

    /// Returns the number of slots in use in a group.
    pub fn used(&self, group: &str) -> u32 {
        let theirs = self.live.values().filter(|task| task.has_slot() && task.order.group() == group);
        theirs.map(|task| task.order.slots).sum()
    }

    /// Returns the task that starts next in a group: no task overtakes the first one.
    pub fn next_of(&self, group: &str) -> Option<u64> {
        let (slots, paused) = self.groups[group];
        let waiting = self.live.iter().filter(|(_, task)| {
            let is_open = task.phase == Phase::Pending && task.order.is_open();
            is_open && task.order.group() == group && !self.is_parked(task)
        });
        let (number, first) = waiting.min_by_key(|(number, task)| (-task.order.priority, **number))?;
        let (wanted, used) = (first.order.slots, self.used(group));
        let fits = wanted == 0 || used == 0 || used + wanted <= slots;
        (fits && !paused).then_some(*number)
    }

    /// Reports whether pending tasks start once they can.
    pub fn starts_tasks(&self) -> bool {
        !(self.closing || self.holds_starts)
    }

    pub(super) fn fill(&mut self) {
        self.admit();
        while self.starts_tasks()
            && let Some(next) = self.groups.keys().find_map(|group| self.next_of(group))
            && let Some(task) = self.live.get_mut(&next)
        {
            task.phase = Phase::Starting;
            // That of the attempt before, which counts until this one begins, even if this one can't be started.
            task.order.exit = None;
            self.expected.starts.push(task.id);
        }
    }

    /// Applies a changed number of configured slots to the default group. Other groups are not affected.
    pub(super) fn configure_groups(&mut self, configured: u32) {
        if self.configured != configured {
            self.groups.entry(DEFAULT_GROUP.to_owned()).or_default().0 = configured;
        }
        self.configured = configured;
    }

    /// Returns when the core must ask to be called by the wall clock.
    pub fn wall_deadline(&self) -> Option<i64> {
        let pending = self.live.values().filter(|task| task.phase == Phase::Pending);
        let times = pending.filter_map(|task| match task.order.start {
            Some(Start::Wall(at)) => Some(at),
            Some(Start::Mono(_)) | None => None,
        });
        times.chain(self.next_old()).min()
    }

    /// Opens the tasks whose start time has come.
    pub(super) fn open_due(&mut self, now: Now) {
        for task in self.live.values_mut().filter(|task| task.phase == Phase::Pending) {
            let is_due = match task.order.start {
                Some(Start::Mono(at)) => at <= now.mono.0,
                Some(Start::Wall(at)) => at <= now.wall.unix_ms(),
                None => false,
            };
            if is_due {
                task.order.start = None;
            }
        }
    }

    /// Reports whether another attempt follows the leader's end, so that the rest of its tree must end first.
    pub(super) fn goes_on(&self, now: Now, task: u64) -> bool {
        let Some(task) = self.live.get(&task) else { return false };
        let is_free = self.tries_again() && task.why.is_none() && task.resumes == 0;
        is_free && task.order.delay(task.id, now, &task.order.result(), false).is_some()
    }

    pub(super) fn end_rest(&mut self, now: Now, task: u64) {
        let grace = self.limits.grace_ms;
        let Some(task) = self.live.get_mut(&task) else { return };
        task.order.attempt.decide(now);
        (task.end, task.paused) = (End::Grace(now.mono.plus_ms(grace).0), false);
        self.expected.ends.push((task.id, TERM));
    }

    /// Prepares the next attempt after a run that has ended by itself, if its rule asks for one. Returns whether there
    /// is one.
    pub(super) fn begins_again(&mut self, now: Now, number: u64, result: &Result<(), String>) -> bool {
        let tries = self.tries_again();
        let Some(task) = self.live.get_mut(&number) else { return false };
        if !tries || !task.may_begin_again() {
            return false;
        }
        let failed = Err(String::new());
        let is_late = matches!(task.why, Some(super::Why::NotReady(_)));
        let result = if is_late { &failed } else { result };
        let Some(delay) = task.order.delay(task.id, now, result, is_late) else { return false };
        (task.order.early, task.order.attempt) = (task.order.early_with(now, is_late), Attempt::default());
        (task.why, task.stop_order) = (None, None);
        task.order.ended += 1;
        task.order.start = (delay > 0).then(|| Start::Mono(now.mono.plus_ms(delay).0));
        (task.phase, task.end, task.limit_at) = (Phase::Pending, End::NotBegun, None);
        (task.left, task.stuck, task.leader_gone) = (false, false, false);
        task.run += 1;
        (task.ready_at, task.paused, task.usage) = (None, false, None);
        if let Some(chat) = &mut task.chat {
            chat.end();
            chat.session = None;
        }
        self.expected.events.push((task.id, EventKind::Retrying));
        true
    }
}

impl Known {
    /// Describes how it ended, for the tasks that depend on it.
    fn how_it_ended(&self) -> String {
        let is_timed_out = matches!(self.why, Some(super::Why::Time(_)));
        match (self.status(), &self.order.exit) {
            (Status::Failed, _) if matches!(self.why, Some(super::Why::NotReady(_))) => {
                "was not ready in time".to_owned()
            }
            (Status::Failed, _) if is_timed_out => "timed out".to_owned(),
            (Status::Failed, _) if !self.order.has_begun => "could not be started".to_owned(),
            (Status::Failed, Some(Exit::Code(code))) => format!("failed with code {code}"),
            (Status::Failed, Some(Exit::Signal(9))) => "failed by signal 9 (SIGKILL)".to_owned(),
            (Status::Failed, Some(Exit::Signal(15))) => "failed by signal 15 (SIGTERM)".to_owned(),
            (Status::Failed, Some(Exit::Signal(signal))) => format!("failed by signal {signal}"),
            (Status::Cancelled, _) if !self.order.has_begun => "was cancelled before it started".to_owned(),
            (Status::Cancelled, _) => "was cancelled".to_owned(),
            (status, _) => status.to_string(),
        }
    }
}

/// The slots of each group, and whether it is paused.
pub type Groups = BTreeMap<String, (u32, bool)>;
