//! Conditions on other tasks (R103): who waits for whom, and what follows when a task starts or ends. A condition
//! that can no longer come true cancels its task, and transitively the tasks after it, in the same step.

use std::collections::BTreeSet;

use super::Core;
use crate::core::effect::AfterTask;
use crate::core::plan::{Became, Dependency, EndedTask, HowEnded};
use crate::core::task::{Failure, Finished, Ordinal, Outcome, State, StopReason, Task};
use crate::core::time::Now;
use bgd_shared::task::Exit;

impl Core {
    /// Registers a pending task with the tasks that it comes after, and judges what has already happened to those.
    pub(super) fn watch_dependencies(&mut self, now: Now, ordinal: Ordinal) {
        let watched: Vec<Ordinal> = self.unmet(ordinal).map(|dependency| dependency.ordinal).collect();
        for other in watched {
            self.dependents.entry(other).or_default().insert(ordinal);
        }
        let others: BTreeSet<Ordinal> = self.unmet(ordinal).map(|dependency| dependency.ordinal).collect();
        for other in others {
            let Some(became) = self.registry.get(other).and_then(became) else { continue };
            if !self.judge_one(now, ordinal, other, became) {
                return;
            }
        }
    }

    /// Unregisters a task from all tasks that it comes after.
    pub(super) fn unwatch_dependencies(&mut self, ordinal: Ordinal) {
        let watched: Vec<Ordinal> = self.unmet(ordinal).map(|dependency| dependency.ordinal).collect();
        for other in watched {
            self.forget_dependent(other, ordinal);
        }
    }

    /// Notes that a task started, became ready or ended. Its dependents are judged before this step is over.
    pub(super) fn became(&mut self, ordinal: Ordinal) {
        if (self.dependents.contains_key(&ordinal) || self.entering_watches(ordinal))
            && let Some(became) = self.registry.get(ordinal).and_then(became)
        {
            self.became.push_back((ordinal, became));
        }
    }

    /// Judges the dependents of the noted tasks, and in turn their dependents. A queue instead of recursion: a
    /// chain may be as long as there are tasks.
    pub(super) fn settle_dependents(&mut self, now: Now) {
        while let Some((watched, became)) = self.became.pop_front() {
            let dependents: Vec<Ordinal> =
                self.dependents.get(&watched).into_iter().flatten().copied().collect();
            for dependent in dependents {
                self.judge_one(now, dependent, watched, became);
            }
            self.tell_entering(watched, became);
        }
    }

    /// Judges a task's conditions on one other task. Returns false if that cancelled the task.
    fn judge_one(&mut self, now: Now, ordinal: Ordinal, other: Ordinal, became: Became) -> bool {
        let outlook =
            self.pending(ordinal).map(|task| task.plan().outlook(other, became)).unwrap_or_default();
        if let Some((condition, ended)) = outlook.never {
            let reason = StopReason::Dependency(condition, ended);
            self.finish_unstarted(now, ordinal, Outcome::Cancelled(reason));
            return false;
        }
        if !outlook.is_open {
            self.forget_dependent(other, ordinal);
        }
        if outlook.is_met {
            self.replan(ordinal, |plan| plan.meet(other, became));
        }
        true
    }

    /// Returns a predicate for whether a condition's task comes after `other`, directly or through pending tasks.
    /// Over several calls it visits each task only once.
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

    /// Returns the tasks that a task comes after, as they are now.
    pub(super) fn seen_after(&self, task: &Task) -> Box<[AfterTask]> {
        let of = |dependency: &Dependency| {
            let mut task = self.snapshot(dependency.ordinal);
            if let Some(task) = &mut task {
                task.drop_env();
            }
            AfterTask { id: dependency.task, task }
        };
        task.plan().after.iter().map(of).collect()
    }

    /// Returns the conditions of a pending task that have not come true.
    fn unmet(&self, ordinal: Ordinal) -> impl Iterator<Item = &Dependency> {
        let pending = self.pending(ordinal).into_iter();
        pending.flat_map(|task| &task.plan().after).filter(|dependency| !dependency.met)
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

/// Returns what has happened to a task; `None` if it has not started.
pub(super) fn became(task: &Task) -> Option<Became> {
    let ended = |finished: &Finished| {
        Became::Ended(EndedTask {
            task: task.id,
            status: task.status(),
            has_begun: finished.started_at.is_some(),
            was_ready: task.ready_at.is_some(),
            how: how(finished),
        })
    };
    match &task.state {
        State::Queued { .. } | State::Starting { .. } => task.has_begun().then_some(Became::Started),
        State::Running { .. } | State::Stopping { .. } if task.ready_at.is_some() => Some(Became::Ready),
        State::Running { .. } | State::Stopping { .. } => Some(Became::Started),
        State::Finished(finished) => Some(ended(finished)),
        State::Resuming(resuming) => Some(ended(&resuming.finished)),
    }
}

/// Returns a short reason for an end, if there is one.
const fn how(finished: &Finished) -> Option<HowEnded> {
    match (&finished.outcome, &finished.exit) {
        (Outcome::Failed(Failure::TimedOut { .. }), _) => Some(HowEnded::TimedOut),
        (Outcome::Failed(Failure::NotReady { .. }), _) => Some(HowEnded::NotReady),
        (_, Some(Exit::Code(code))) => Some(HowEnded::Code(*code)),
        (_, Some(Exit::Signal(signal))) => Some(HowEnded::Signal(*signal)),
        (_, Some(Exit::Unknown(_)) | None) => None,
    }
}
