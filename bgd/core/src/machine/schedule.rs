//! Ordering pending tasks: holds, delays, edits and groups (R100 to R107).

use std::collections::BTreeSet;
use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::limits::GROUPS;
use bgd_shared::order::{After, Condition, DEFAULT_GROUP};
use bgd_shared::task::Kind;

use super::{Core, commands};
use crate::caller::ReplyTo;
use crate::control::Control;
use crate::effect::{CoreError, OrderError, Reply};
use crate::filter::Filter;
use crate::group::{GroupSettings, GroupState};
use crate::input::{Edit, PlanRequest, Selection, StartTime};
use crate::plan::{Dependency, HeldBy, NotBefore, PLAIN, Plan, Repetition};
use crate::queue::GroupSlots;
use crate::room::{GivesWay, Stays};
use crate::task::{Ordinal, State, Task};
use crate::time::Now;

impl Core {
    /// Returns the plan of a new task; `None` if it asks for nothing special.
    pub(super) fn plan_of(&self, now: Now, request: PlanRequest) -> Result<Option<Box<Plan>>, CoreError> {
        if request == PlanRequest::default() {
            return Ok(None);
        }
        let group = self.group_named(request.group.as_deref())?;
        self.check_slots(None, group.as_deref(), request.slots)?;
        let again = request.again.map(|rule| Box::new(Repetition::new(rule)));
        Ok(Some(Box::new(Plan {
            group,
            batch: None,
            priority: request.priority,
            slots: request.slots,
            held: request.hold,
            not_before: request.start.and_then(|start| not_before(now, start)),
            after: self.conditions(&request.after)?,
            description: None,
            again,
            rerun_of: None,
        })))
    }

    pub(super) fn group_named(&self, name: Option<&str>) -> Result<Option<Arc<str>>, CoreError> {
        let Some(name) = name else { return Ok(None) };
        self.queue.find(name).ok_or_else(|| self.unknown_group(name))
    }

    /// Resolves the batch that a filter names, if any. A named group must exist, or still have tasks that ended in it
    /// before it was removed.
    pub(super) fn resolve(&self, filter: &Filter) -> Result<Option<TaskId>, CoreError> {
        if let Some(name) = &filter.group
            && self.queue.find(name).is_none()
            && self.registry.iter().all(|(_, task)| task.plan().group() != &**name)
        {
            return Err(self.unknown_group(name));
        }
        filter.batch.as_ref().map(|batch| self.batch_named(batch)).transpose()
    }

    fn unknown_group(&self, name: &str) -> CoreError {
        CoreError::Order(OrderError::UnknownGroup(
            name.into(),
            self.queue.groups().map(|group| group.name).collect(),
        ))
    }

    /// Refuses more slots than the group has, naming the task if it is one of several. Only a task that was accepted
    /// before the limit was lowered gets them, once no other task has any: otherwise it would wait forever, and all
    /// tasks behind it.
    pub(super) fn check_slots(
        &self,
        task: Option<TaskId>,
        group: Option<&str>,
        wanted: u32,
    ) -> Result<(), CoreError> {
        let slots = self.queue.slots_of(group);
        if wanted > slots {
            let group = group.unwrap_or(DEFAULT_GROUP).into();
            return Err(CoreError::Order(OrderError::TooManySlots { task, wanted, group, slots }));
        }
        Ok(())
    }

    pub(super) fn conditions(&self, after: &[After]) -> Result<Vec<Dependency>, CoreError> {
        let mut conditions: Vec<Dependency> = Vec::with_capacity(after.len());
        for After { id, condition } in after {
            let ordinal = self.find(id)?;
            let Some(task) = self.registry.get(ordinal) else { continue };
            // Conditions on ended tasks are judged like any others.
            if *condition == Condition::Ready && task.spec.ready.is_none() && !task.is_finished() {
                return Err(CoreError::Order(OrderError::NeverReady(task.id)));
            }
            let dependency = Dependency {
                task: task.id,
                ordinal,
                condition: *condition,
                met: false,
                held_by: HeldBy::Core,
            };
            if !conditions.contains(&dependency) {
                conditions.push(dependency);
            }
        }
        Ok(conditions)
    }

    /// Reports whether a task defines its readiness.
    pub(super) fn can_be_ready(&self, task: TaskId) -> bool {
        let task = self.registry.ordinal(task).and_then(|ordinal| self.registry.get(ordinal));
        task.is_some_and(|task| task.spec.ready.is_some())
    }

    /// Changes a task's plan, and updates the queue and the timers.
    pub(super) fn replan(&mut self, ordinal: Ordinal, change: impl FnOnce(&mut Plan)) {
        self.change_task(ordinal, |task| {
            let plan = task.plan.get_or_insert_with(|| Box::new(PLAIN.clone()));
            change(plan);
            if **plan == PLAIN {
                task.plan = None;
            }
        });
    }

    pub(super) fn hold(
        &mut self,
        now: Now,
        to: ReplyTo,
        which: &Selection,
        held: bool,
    ) -> Result<(), CoreError> {
        let tasks = self.pending_of(which)?;
        self.hold_entering(which, held)?;
        let kind = if held { EventKind::Held } else { EventKind::Released };
        for ordinal in &tasks {
            let Some(task) = self.registry.get(*ordinal) else { continue };
            let is_again = task.plan().held == held;
            if is_again && !task.was_refused() {
                continue;
            }
            self.replan(*ordinal, |plan| plan.held = held);
            self.control_elsewhere(*ordinal, Control::Hold { held, is_again });
            if !is_again {
                self.event(now, kind, *ordinal);
            }
        }
        let snapshots = tasks.iter().filter_map(|ordinal| self.snapshot(*ordinal)).collect();
        self.reply(Some(to), Reply::Tasks(snapshots));
        Ok(())
    }

    /// Returns the selected tasks that are pending. A task named by id that is not pending is an error.
    fn pending_of(&self, which: &Selection) -> Result<Vec<Ordinal>, CoreError> {
        let is_pending = |task: &Task| matches!(task.state, State::Queued { .. }) || task.waits_elsewhere();
        let mut tasks = self.select(which)?;
        if let Selection::Ids(_) = which {
            let other = tasks.iter().filter_map(|ordinal| self.registry.get(*ordinal));
            if let Some(task) = other.into_iter().find(|task| !is_pending(task)) {
                return Err(CoreError::Order(OrderError::NotPending(task.id, task.status())));
            }
        }
        tasks.retain(|ordinal| self.registry.get(*ordinal).is_some_and(is_pending));
        Ok(tasks)
    }

    /// Changes a pending task's plan. Checks everything before changing anything.
    pub(super) fn edit(&mut self, now: Now, to: ReplyTo, edit: Edit) -> Result<(), CoreError> {
        let ordinal = self.find(&edit.id)?;
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        if task.waits_elsewhere() {
            return self.edit_elsewhere(now, to, ordinal, edit);
        }
        if !matches!(task.state, State::Queued { .. }) {
            return Err(CoreError::Order(OrderError::NotPending(task.id, task.status())));
        }
        let ties_anew = edit.after.is_some();
        let plan = self.edited(now, ordinal, task, edit)?;
        self.give_way_to_plan(ordinal, &plan);
        if ties_anew {
            self.unwatch_dependencies(ordinal);
        }
        self.replan(ordinal, |known| *known = plan);
        self.event(now, EventKind::Edited, ordinal);
        if ties_anew {
            self.watch_dependencies(now, ordinal);
            self.settle_dependents(now);
        }
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        Ok(())
    }

    /// Changes a task that waits in the queue of another machine or a cluster.
    fn edit_elsewhere(
        &mut self,
        now: Now,
        to: ReplyTo,
        ordinal: Ordinal,
        edit: Edit,
    ) -> Result<(), CoreError> {
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        // The place may have carried out what it seemed to refuse, or the other way round: then it is told again.
        let (before, is_again) = (task.plan().priority, task.was_refused());
        let priority = edit.priority.filter(|priority| *priority != before || is_again);
        if edit.group.is_some() || edit.slots.is_some() || edit.after.is_some() || edit.start.is_some() {
            return Err(CoreError::Order(OrderError::GivenAway(task.id)));
        }
        let plan = self.edited(now, ordinal, task, edit)?;
        self.give_way_to_plan(ordinal, &plan);
        self.replan(ordinal, |known| *known = plan);
        if let Some(priority) = priority {
            // A refused one is the task's priority only if it was ordered again since then.
            self.registry.change(ordinal, |task| {
                if let Some(known) = &mut task.elsewhere {
                    known.refused_priority.take_if(|(refused, _)| *refused == before);
                }
            });
            self.control_elsewhere(ordinal, Control::Priority { priority, before });
        }
        self.event(now, EventKind::Edited, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        Ok(())
    }

    /// Passes a command on to the place in whose queue a task waits, if any.
    fn control_elsewhere(&mut self, ordinal: Ordinal, control: Control) {
        if let Some(task) = self.registry.get(ordinal).filter(|task| task.waits_elsewhere()) {
            let order = commands::control(task, control);
            self.effects.push(order);
        }
    }

    /// Returns a task's plan after an edit. Errors in the edit itself are reported before a lack of memory, which may
    /// be temporary.
    fn edited(&self, now: Now, ordinal: Ordinal, task: &Task, edit: Edit) -> Result<Plan, CoreError> {
        let before = task.plan();
        let mut plan = before.clone();
        if let Some(name) = edit.group {
            plan.group = self.group_named(Some(&name))?;
        }
        plan.slots = edit.slots.unwrap_or(plan.slots);
        if plan.slots != before.slots || plan.group != before.group {
            self.check_slots(None, plan.group.as_deref(), plan.slots)?;
        }
        plan.priority = edit.priority.unwrap_or(plan.priority);
        if let Some(description) = edit.description {
            // An empty one hides that of the submit, except for a prompt, which has nothing else to show.
            let hides = task.spec.description.is_some() && task.spec.kind() != Kind::Agent;
            plan.description = Some(description).filter(|text| hides || !text.is_empty());
        }
        if let Some(start) = edit.start {
            plan.not_before = not_before(now, start);
        }
        if let Some(after) = edit.after {
            plan.after = self.conditions(&after)?;
            if let Some(other) = plan.after.iter().find(self.comes_after(ordinal)) {
                return Err(CoreError::Order(OrderError::Cycle(other.task, task.id)));
            }
        }
        let more = plan.own_bytes().saturating_sub(before.own_bytes());
        if more > 0 {
            self.check_memory(more, &Stays::of(plan.needed()))?;
        }
        Ok(plan)
    }

    /// Lets the history give way to a task's new plan, if that needs more memory than the one before.
    fn give_way_to_plan(&mut self, ordinal: Ordinal, plan: &Plan) {
        let is_longer = |task: &Task| plan.own_bytes() > task.plan().own_bytes();
        if self.registry.get(ordinal).is_some_and(is_longer) {
            self.give_way(GivesWay::TO_TEXTS);
        }
    }

    /// Drops the earliest start of a pending task, as that time has come.
    pub(super) fn clear_not_before(&mut self, ordinal: Ordinal) {
        if self.registry.get(ordinal).is_some_and(|task| task.plan().not_before.is_some()) {
            self.replan(ordinal, |plan| plan.not_before = None);
        }
    }

    pub(super) fn set_group(&mut self, to: ReplyTo, name: &str, slots: u32) -> Result<(), CoreError> {
        if self.queue.find(name).is_none() && self.queue.len() >= GROUPS {
            return Err(CoreError::Order(OrderError::TooManyGroups(GROUPS)));
        }
        self.queue.set(name, GroupSettings { slots });
        self.reply_with_group(to, name)
    }

    pub(super) fn pause_group(&mut self, to: ReplyTo, name: &str, paused: bool) -> Result<(), CoreError> {
        self.queue.pause(name, paused);
        self.reply_with_group(to, name)
    }

    /// Removes a group. Its ended tasks keep the name.
    pub(super) fn remove_group(&mut self, to: ReplyTo, name: &str) -> Result<(), CoreError> {
        let group = self.group_state(name)?;
        let active = group.pending + group.running;
        if name == DEFAULT_GROUP {
            return Err(CoreError::Order(OrderError::DefaultGroup));
        }
        if active > 0 {
            return Err(CoreError::Order(OrderError::GroupInUse(group.name, active)));
        }
        self.queue.remove(name);
        self.reply(Some(to), Reply::Group(group));
        Ok(())
    }

    /// Removes the groups that are no longer configured and have no tasks that have not ended.
    pub(super) fn drop_former_groups(&mut self) {
        let former: BTreeSet<Arc<str>> = self.queue.former().cloned().collect();
        if former.is_empty() {
            return;
        }
        for group in self.groups() {
            if former.contains(&group.name) && group.pending + group.running == 0 {
                self.queue.remove(&group.name);
            }
        }
    }

    /// Moves a task whose group was removed to the default group when it is resumed.
    pub(super) fn leave_removed_group(&mut self, ordinal: Ordinal) {
        let group = self.registry.get(ordinal).and_then(|task| task.plan().group.as_ref());
        if group.is_some_and(|name| self.queue.find(name).is_none()) {
            self.replan(ordinal, |plan| plan.group = None);
        }
    }

    fn reply_with_group(&mut self, to: ReplyTo, name: &str) -> Result<(), CoreError> {
        let group = self.group_state(name)?;
        self.reply(Some(to), Reply::Group(group));
        Ok(())
    }

    fn group_state(&self, name: &str) -> Result<GroupState, CoreError> {
        let mut groups = self.queue.group(name).map(with_no_tasks).into_iter().collect::<Vec<_>>();
        self.count_tasks(&mut groups);
        groups.pop().ok_or_else(|| self.unknown_group(name))
    }

    /// Returns every group: the default one first, then the others by name.
    pub fn groups(&self) -> Vec<GroupState> {
        let mut groups: Vec<GroupState> = self.queue.groups().map(with_no_tasks).collect();
        self.count_tasks(&mut groups);
        groups
    }

    /// Counts the tasks of each group. Counted on demand, as groups are rarely queried.
    fn count_tasks(&self, groups: &mut [GroupState]) {
        let places: std::collections::HashMap<Arc<str>, usize> =
            groups.iter().enumerate().map(|(place, group)| (group.name.clone(), place)).collect();
        for (_, task) in self.registry.iter() {
            let Some(group) = places.get(task.plan().group()).and_then(|place| groups.get_mut(*place)) else {
                continue;
            };
            match &task.state {
                State::Queued { .. } => {
                    group.pending += 1;
                    group.oversized += u64::from(task.plan().slots > group.slots);
                }
                State::Starting { .. }
                | State::Running { .. }
                | State::Stopping { .. }
                | State::Resuming(_) => group.running += 1,
                State::Finished(_) => group.finished += 1,
            }
        }
        for entering in &self.batches.entering {
            let place = places.get(entering.plan.group());
            if let Some(group) = place.and_then(|place| groups.get_mut(*place)) {
                let tasks = entering.items.len() as u64;
                group.pending += tasks;
                group.oversized += if entering.plan.slots > group.slots { tasks } else { 0 };
            }
        }
    }
}

fn with_no_tasks(group: GroupSlots) -> GroupState {
    let GroupSlots { name, slots, taken, is_paused } = group;
    GroupState { name, slots, used: taken, is_paused, pending: 0, oversized: 0, running: 0, finished: 0 }
}

/// Returns the earliest start; `None` if that is now.
fn not_before(now: Now, start: StartTime) -> Option<NotBefore> {
    match start {
        StartTime::In(ms) => {
            (ms > 0).then(|| NotBefore::Delay { at: now.mono.plus_ms(ms), wall: now.wall.plus_ms(ms) })
        }
        StartTime::At(at) => (at > now.wall).then_some(NotBefore::Wall(at)),
    }
}
