//! Conditions on other tasks (R103): which task waits for which, and what happens when a task starts or ends. A
//! condition that can no longer be met cancels its task, and transitively the tasks after it, in the same step.

use std::collections::BTreeSet;
use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::order::Condition;
use bgd_shared::task::Exit;
use bgd_shared::text::Env;

use super::Core;
use crate::effect::AfterTask;
use crate::plan::{Dependency, DependencyStatus, EndReason, EndedTask, HeldBy};
use crate::task::{Failure, Finished, Ordinal, Outcome, SIGTERM, State, StopOrder, StopReason, Task};
use crate::time::Now;

/// The most conditions of a task that are left to a cluster: they go on a command line.
const PASSED_ON: usize = 64;

impl Core {
    /// Registers a pending task with the tasks that it comes after, and judges the current states of those. Ends the task
    /// if one of those was lost with a damaged journal while the rest of a batch was still to be added.
    pub(super) fn watch_dependencies(&mut self, now: Now, ordinal: Ordinal) {
        let watched: Vec<Ordinal> = self.unmet(ordinal).map(|dependency| dependency.ordinal).collect();
        for other in watched {
            self.dependents.entry(other).or_default().insert(ordinal);
        }
        let others: BTreeSet<Ordinal> = self.unmet(ordinal).map(|dependency| dependency.ordinal).collect();
        for other in others {
            let Some(task) = self.registry.get(other) else { return self.end_after_lost(now, ordinal) };
            let Some(became) = became(task) else { continue };
            if !self.judge_one(now, ordinal, other, became) {
                return;
            }
        }
        self.pass_on(ordinal);
    }

    /// Leaves the open conditions of a pending task to its cluster, if that has all of the tasks they refer to.
    ///
    /// Only conditions on success: a cluster gives these the same meaning. It interprets the others differently: to a
    /// cluster, a task that was cancelled before it started has ended.
    fn pass_on(&mut self, ordinal: Ordinal) {
        let Some(task) = self.pending(ordinal) else { return };
        let (mut count, mut is_left) = (0, true);
        for dependency in self.unmet(ordinal) {
            count += 1;
            is_left &= self.is_left_to_place(task, dependency);
        }
        if !is_left || count == 0 || count > PASSED_ON {
            return;
        }
        self.replan(ordinal, |plan| {
            for dependency in plan.after.iter_mut().filter(|one| !one.met) {
                dependency.held_by = HeldBy::Place;
            }
        });
    }

    /// Takes back conditions that a cluster can no longer check: while the task waited for slots, a task that it comes
    /// after has begun to end, or was given back. Returns whether the task has to wait here.
    pub(super) fn take_back_conditions(&mut self, ordinal: Ordinal) -> bool {
        let Some(task) = self.pending(ordinal).filter(|task| task.plan().is_held_by_place()) else {
            return false;
        };
        if self.unmet(ordinal).all(|dependency| self.is_left_to_place(task, dependency)) {
            return false;
        }
        self.replan(ordinal, |plan| {
            for dependency in plan.after.iter_mut().filter(|one| one.held_by == HeldBy::Place) {
                dependency.held_by = HeldBy::Core;
            }
        });
        true
    }

    /// Reports whether a condition can be left to the cluster that is to get the task.
    fn is_left_to_place(&self, task: &Task, dependency: &Dependency) -> bool {
        let Some(other) = self.registry.get(dependency.ordinal) else { return false };
        let is_same = match (&task.spec.on, &other.spec.on) {
            (Some(one), Some(other)) => one.kind.tracks_dependencies() && one.name == other.name,
            (Some(_) | None, Some(_) | None) => false,
        };
        // The cluster would track the first attempt only.
        let has_one_attempt = other.plan().again.is_none();
        let is_there = matches!(other.state, State::Starting { stop: None, .. } | State::Running { .. });
        let is_fit = dependency.condition == Condition::Ok && dependency.held_by != HeldBy::CoreAgain;
        is_same && has_one_attempt && is_there && is_fit
    }

    /// Leaves conditions to a cluster, for the tasks that come after one that was given to it.
    pub(super) fn pass_on_dependents(&mut self, ordinal: Ordinal) {
        let tracks = |task: &Task| task.spec.on.as_ref().is_some_and(|on| on.kind.tracks_dependencies());
        if self.registry.get(ordinal).is_some_and(tracks) {
            let dependents: Vec<Ordinal> =
                self.dependents.get(&ordinal).into_iter().flatten().copied().collect();
            for dependent in dependents {
                self.pass_on(dependent);
            }
        }
    }

    /// Notes that a cluster has started a task, so that all conditions left to it are met.
    pub(super) fn note_met_by_cluster(&mut self, ordinal: Ordinal) {
        let Some(task) = self.registry.get(ordinal) else { return };
        if !task.plan().is_held_by_place() {
            return;
        }
        self.unwatch_dependencies(ordinal);
        self.replan(ordinal, |plan| plan.after.iter_mut().for_each(|dependency| dependency.met = true));
    }

    /// Takes back a task that a cluster did not start. Its conditions are judged here from now on.
    pub(super) fn reclaim(&mut self, now: Now, ordinal: Ordinal, env: Arc<Env>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        match &task.state {
            State::Starting { stop: None, .. } if task.waits_elsewhere() => {}
            State::Starting { stop: Some(order), .. } => {
                let outcome = Outcome::Cancelled(order.reason);
                return self.finish_unstarted(now, ordinal, outcome);
            }
            State::Starting { stop: None, .. }
            | State::Queued { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Finished(_)
            | State::Resuming { .. } => return,
        }
        self.change_task(ordinal, |task| {
            if let Some(plan) = task.plan.as_deref_mut() {
                for dependency in plan.after.iter_mut().filter(|one| !one.met) {
                    dependency.held_by = HeldBy::CoreAgain;
                }
            }
            task.state = State::Queued { env };
            task.run += 1;
            task.elsewhere = None;
        });
        self.event(now, EventKind::Progress, ordinal);
    }

    /// Unregisters a task from all tasks that it comes after.
    pub(super) fn unwatch_dependencies(&mut self, ordinal: Ordinal) {
        let watched: Vec<Ordinal> = self.unmet(ordinal).map(|dependency| dependency.ordinal).collect();
        for other in watched {
            self.forget_dependent(other, ordinal);
        }
    }

    /// Notes that a task has started, become ready or ended. Its dependents are judged before this step is over.
    pub(super) fn became(&mut self, ordinal: Ordinal) {
        if (self.dependents.contains_key(&ordinal) || self.entering_watches(ordinal))
            && let Some(became) = self.registry.get(ordinal).and_then(became)
        {
            self.became.push_back((ordinal, became));
        }
    }

    /// Judges the dependents of the noted tasks, and in turn their dependents. Uses a queue instead of recursion: a
    /// chain may be as long as there are tasks.
    pub(super) fn settle_dependents(&mut self, now: Now) {
        while let Some((watched, became)) = self.became.pop_front() {
            let dependents: Vec<Ordinal> =
                self.dependents.get(&watched).into_iter().flatten().copied().collect();
            for dependent in dependents {
                self.judge_one(now, dependent, watched, became);
            }
            self.judge_entering(watched, became);
        }
    }

    /// Judges a task's conditions on one other task. Returns false if the task was cancelled.
    fn judge_one(&mut self, now: Now, ordinal: Ordinal, other: Ordinal, became: DependencyStatus) -> bool {
        let waits = |task: &&Task| matches!(task.state, State::Queued { .. }) || task.waits_elsewhere();
        let task = self.registry.get(ordinal).filter(waits);
        let outlook = task.map(|task| task.plan().outlook(other, became)).unwrap_or_default();
        if let Some((condition, ended)) = outlook.never {
            let reason = StopReason::Dependency(condition, ended);
            // If a cluster has the task, it may have ended it already; otherwise it is told to.
            let grace_ms = self.limits.grace_ms;
            self.stop(now, ordinal, StopOrder { reason, signal: SIGTERM, grace_ms });
            return false;
        }
        if !outlook.is_open {
            self.forget_dependent(other, ordinal);
        }
        if outlook.is_met {
            self.replan(ordinal, |plan| plan.meet(other, became));
            self.pass_on(ordinal);
        }
        true
    }

    /// Returns a predicate for whether a condition's task comes after `other`, directly or through pending tasks.
    /// Visits each task only once, even over several calls.
    pub(super) fn comes_after(&self, other: Ordinal) -> impl FnMut(&&Dependency) -> bool {
        let mut seen = BTreeSet::new();
        move |dependency| {
            let mut open = vec![dependency.ordinal];
            while let Some(task) = open.pop() {
                if task == other {
                    return true;
                }
                if seen.insert(task) {
                    open.extend(self.unmet(task).map(|dependency| dependency.ordinal));
                }
            }
            false
        }
    }

    /// Returns the tasks that a task comes after, in their current states.
    pub(super) fn seen_after(&self, task: &Task) -> Box<[AfterTask]> {
        let of = |dependency: &Dependency| {
            let mut task = self.snapshot(dependency.ordinal);
            if let Some(task) = &mut task {
                task.drop_env();
            }
            let is_awaited = !dependency.met && dependency.held_by == HeldBy::Place;
            AfterTask { id: dependency.task, task, is_awaited }
        };
        task.plan().after.iter().map(of).collect()
    }

    /// Returns the open conditions of a task that is pending, here or elsewhere.
    fn unmet(&self, ordinal: Ordinal) -> impl Iterator<Item = &Dependency> {
        let waits = |task: &&Task| matches!(task.state, State::Queued { .. }) || task.waits_elsewhere();
        let waiting = self.registry.get(ordinal).filter(waits).into_iter();
        waiting.flat_map(|task| &task.plan().after).filter(|dependency| !dependency.met)
    }

    fn pending(&self, ordinal: Ordinal) -> Option<&Task> {
        self.registry.get(ordinal).filter(|task| matches!(task.state, State::Queued { .. }))
    }

    fn forget_dependent(&mut self, watched: Ordinal, dependent: Ordinal) {
        if let Some(dependents) = self.dependents.get_mut(&watched) {
            dependents.remove(&dependent);
            if dependents.is_empty() {
                self.dependents.remove(&watched);
            }
        }
    }
}

/// Returns the state of a task as its dependents see it; `None` if it has not started.
pub(super) fn became(task: &Task) -> Option<DependencyStatus> {
    let ended = |finished: &Finished| {
        DependencyStatus::Ended(EndedTask {
            task: task.id,
            status: task.status(),
            has_begun: finished.started_at.is_some(),
            was_ready: task.ready_at.is_some(),
            how: end_reason(finished),
        })
    };
    match &task.state {
        State::Queued { .. } | State::Starting { .. } => {
            task.has_begun().then_some(DependencyStatus::Started)
        }
        State::Running { .. } | State::Stopping { .. } if task.ready_at.is_some() => {
            Some(DependencyStatus::Ready)
        }
        State::Running { .. } | State::Stopping { .. } => Some(DependencyStatus::Started),
        State::Finished(finished) => Some(ended(finished)),
        State::Resuming(resuming) => Some(ended(&resuming.finished)),
    }
}

/// Returns a short reason for an end, if there is one.
const fn end_reason(finished: &Finished) -> Option<EndReason> {
    match (&finished.outcome, &finished.exit) {
        (Outcome::Failed(Failure::TimedOut { .. }), _) => Some(EndReason::TimedOut),
        (Outcome::Failed(Failure::NotReady { .. }), _) => Some(EndReason::NotReady),
        (_, Some(Exit::Code(code))) => Some(EndReason::Code(*code)),
        (_, Some(Exit::Signal(signal))) => Some(EndReason::Signal(*signal)),
        (_, Some(Exit::Unknown(_)) | None) => None,
    }
}
