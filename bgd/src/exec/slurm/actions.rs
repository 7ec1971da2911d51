//! Orders for jobs. Touches only jobs known to be this daemon's, and carries out concurrent orders of the same kind
//! together. Pure.
//!
//! A controller that was reset assigns ids again, perhaps to jobs of the same user that are not this daemon's. So an
//! order waits until an answer of the cluster lists its job under this daemon's name, with the key of its submission.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;

use super::commands::{self, Argv};
use super::job::JobId;
use super::pace::SPACING;
use crate::core::Control;
use crate::exec::executor::DoneSender;
use crate::exec::host::SIGKILL;

/// The maximum age of an answer that still proves the ownership of a job. No controller is reset and assigns the same
/// id again within this time. Queries may be this close together, so an order never waits only because of a query a
/// moment ago.
const FRESH: Duration = SPACING;

/// An action on jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// End the job in the cluster's own way.
    Cancel,
    /// Kill the job.
    Kill,
    /// End the job with a signal chosen by its submitter.
    End(i32),
    Signal(i32),
    /// Stop the job's processes, or continue them.
    Pause(bool),
    /// Hold the job, or release it.
    Hold {
        held: bool,
        /// Whether the task counts as held or released already.
        is_again: bool,
    },
    /// Lower the job's priority.
    Nice {
        /// By how much.
        nice: u32,
        /// The task's priority before.
        before: i32,
    },
}

impl Action {
    /// Returns the control that requested this action; `None` if the action ends the job.
    pub fn control(self) -> Option<Control> {
        match self {
            Self::Cancel | Self::Kill | Self::End(_) => None,
            Self::Signal(signal) => Some(Control::Signal { signal, tree: true }),
            Self::Pause(true) => Some(Control::Pause),
            Self::Pause(false) => Some(Control::Continue),
            Self::Hold { held, is_again } => Some(Control::Hold { held, is_again }),
            Self::Nice { nice, before } => {
                i32::try_from(nice).ok().map(|nice| Control::Priority { priority: -nice, before })
            }
        }
    }

    /// Returns whether doing it twice has the effect of doing it once.
    pub const fn is_idempotent(self) -> bool {
        matches!(self, Self::Hold { .. } | Self::Nice { .. })
    }

    /// Returns whether this action and a later one set the same property, so that only the later one counts.
    pub fn is_replaced_by(self, later: Self) -> bool {
        self.is_idempotent() && std::mem::discriminant(&self) == std::mem::discriminant(&later)
    }

    /// Returns whether the action ends the job.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Cancel | Self::Kill | Self::End(_))
    }
}

/// An order for one job.
#[derive(Debug)]
pub struct JobAction {
    pub action: Action,
    pub task: TaskId,
    pub run: u32,
    pub id: JobId,
    /// The key of its submission.
    pub key: Arc<str>,
    /// When it was ordered, or last tried without success.
    pub since: Instant,
    /// Whether Slurm itself must check the job's name.
    pub by_name: bool,
    /// How often it was repeated because the job could not be changed at that moment.
    pub repeats: u8,
    /// Dropped when the order is done.
    pub done: Option<DoneSender>,
}

impl JobAction {
    /// Returns whether only the later one of these orders counts.
    fn is_replaced_by(&self, later: &Self) -> bool {
        (self.task, self.run) == (later.task, later.run) && self.action.is_replaced_by(later.action)
    }
}

/// The orders that are not carried out yet.
#[derive(Debug, Default)]
pub struct JobActions {
    /// Orders for jobs whose ids may belong to other jobs by now.
    doubtful: Vec<JobAction>,
    /// Orders that may be carried out.
    open: Vec<JobAction>,
    /// The tasks with an order in progress. Orders for one task are carried out one after the other.
    busy: HashSet<TaskId>,
}

impl JobActions {
    /// Adds an order. `listed`: the start of the last query that listed its job as this daemon's.
    pub fn add(&mut self, act: JobAction, listed: Option<Instant>) {
        // An order that waits to be repeated would be carried out after this one.
        let stays = |old: &JobAction| old.repeats == 0 || !old.is_replaced_by(&act);
        self.doubtful.retain(stays);
        self.open.retain(stays);
        if listed.is_some_and(|asked| asked + FRESH >= act.since) {
            self.open.push(act);
        } else {
            self.doubtful.push(act);
        }
    }

    /// Has an order carried out once more when the job is listed again, which spaces the repetitions; not if a later
    /// order replaces it.
    pub fn repeat(&mut self, act: JobAction, now: Instant) {
        let is_later = |later: &JobAction| act.is_replaced_by(later);
        if !self.open.iter().chain(&self.doubtful).any(is_later) {
            self.doubtful.push(JobAction { since: now, repeats: act.repeats + 1, ..act });
        }
    }

    /// Returns whether the cluster must be asked for the ownership of some jobs.
    pub fn has_doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// Returns whether an order may be carried out now.
    pub fn is_due(&self) -> bool {
        self.open.iter().any(|act| !self.busy.contains(&act.task))
    }

    /// Handles an answer to a query that began at `asked`. Returns the orders for jobs that don't exist or are not this
    /// daemon's.
    pub fn answered(&mut self, asked: Instant, is_ours: impl Fn(&JobAction) -> bool) -> Vec<JobAction> {
        self.open.extend(self.doubtful.extract_if(.., |act| asked + FRESH >= act.since && is_ours(act)));
        self.doubtful.extract_if(.., |act| asked >= act.since).collect()
    }

    /// Notes that the cluster can't be queried: knowledge about jobs will be outdated when it can. Returns the orders
    /// that don't wait for that.
    pub fn doubt(&mut self) -> Vec<JobAction> {
        self.doubtful.append(&mut self.open);
        self.doubtful.extract_if(.., |act| !act.action.ends()).collect()
    }

    /// Takes the orders that are carried out together with the first one.
    pub fn take(&mut self) -> Vec<JobAction> {
        let mut seen = self.busy.clone();
        let mut kind = None;
        let taken: Vec<JobAction> = self
            .open
            .extract_if(.., |act| {
                if !seen.insert(act.task) {
                    return false;
                }
                // Each priority needs its own command.
                let is_alone = kind.is_some() && matches!(act.action, Action::Nice { .. });
                *kind.get_or_insert((act.action, act.by_name)) == (act.action, act.by_name) && !is_alone
            })
            .collect();
        self.busy.extend(taken.iter().map(|act| act.task));
        taken
    }

    /// Notes that these orders are no longer in progress.
    pub fn done(&mut self, actions: &[JobAction]) {
        for act in actions {
            self.busy.remove(&act.task);
        }
    }
}

/// Returns the commands for these orders, which are of one kind. `name` is the name of all jobs of this daemon.
pub fn commands(name: &str, actions: &[JobAction]) -> Vec<Argv> {
    let Some(first) = actions.first() else { return Vec::new() };
    let jobs: Vec<JobId> = actions.iter().map(|act| act.id).collect();
    match first.action {
        _ if first.by_name => commands::cancel_named(name, jobs),
        Action::Cancel => commands::cancel(jobs),
        Action::Kill => [commands::cancel(jobs.clone()), commands::signal(jobs, SIGKILL)].concat(),
        Action::End(signal) | Action::Signal(signal) => commands::signal(jobs, signal),
        Action::Pause(is_paused) => commands::pause(jobs, is_paused),
        Action::Hold { held, .. } => commands::hold(jobs, held),
        Action::Nice { nice, .. } => vec![commands::nice(first.id, nice)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(action: Action, number: u32, since: Instant) -> JobAction {
        let (task, id) = (TaskId::from_u128(number.into()), JobId { job: number.into(), index: None });
        JobAction { action, task, run: 1, id, key: "k".into(), since, by_name: false, repeats: 0, done: None }
    }

    fn jobs(actions: &[JobAction]) -> Vec<u64> {
        actions.iter().map(|act| act.id.job).collect()
    }

    #[test]
    fn r151_order_waits_until_its_job_is_confirmed_as_ours() {
        let (mut actions, now) = (JobActions::default(), Instant::now());
        for number in 1..=3 {
            actions.add(act(Action::Cancel, number, now), None);
        }
        actions.add(act(Action::Cancel, 4, now), Some(now.checked_sub(FRESH).unwrap()));
        assert!(actions.has_doubts() && actions.is_due());
        assert_eq!(jobs(&actions.take()), [4]);
        assert!(!actions.is_due() && actions.take().is_empty());
        // A slightly older answer proves the ownership of a job, but not that a job is gone.
        let before = now.checked_sub(FRESH / 2).unwrap();
        assert!(actions.answered(before, |act| act.id.job == 1).is_empty());
        assert_eq!(jobs(&actions.take()), [1]);
        assert_eq!(jobs(&actions.answered(now, |act| act.id.job == 2)), [3]);
        assert_eq!(jobs(&actions.doubt()), [0; 0]);
        assert!(!actions.is_due() && actions.has_doubts(), "what was known is old");
    }

    #[test]
    fn r150_later_order_replaces_one_that_is_to_be_repeated() {
        let (mut actions, now) = (JobActions::default(), Instant::now());
        let hold = |held, number| act(Action::Hold { held, is_again: false }, number, now);
        // One comes while the other is in progress, or waits to be repeated; another task's stays.
        actions.add(hold(true, 1), Some(now));
        let under_way = actions.take();
        actions.add(hold(false, 1), Some(now));
        actions.done(&under_way);
        for act in under_way {
            actions.repeat(act, now);
        }
        actions.repeat(hold(true, 2), now);
        actions.repeat(hold(true, 3), now);
        actions.add(hold(false, 2), Some(now));
        assert!(actions.answered(now, |_| true).is_empty());
        let (first, second) = (actions.take(), actions.take());
        assert_eq!((jobs(&first), first[0].action), (vec![1, 2], hold(false, 1).action));
        assert_eq!((jobs(&second), second[0].action, second[0].repeats), (vec![3], hold(true, 3).action, 1));
        assert!(!actions.is_due());
    }

    #[test]
    fn r150_equal_orders_are_grouped_and_orders_per_task_keep_their_sequence() {
        let (mut actions, now) = (JobActions::default(), Instant::now());
        let hold = |held| Action::Hold { held, is_again: false };
        let all = [
            (hold(true), 1),
            (hold(true), 2),
            (hold(false), 1),
            (hold(false), 3),
            (Action::Nice { nice: 5, before: 0 }, 4),
            (Action::Nice { nice: 5, before: 0 }, 5),
        ];
        for (action, number) in all {
            actions.add(act(action, number, now), Some(now));
        }
        let first = actions.take();
        assert_eq!(jobs(&first), [1, 2]);
        assert_eq!(jobs(&actions.take()), [3]);
        assert_eq!(jobs(&actions.take()), [4]);
        assert_eq!(jobs(&actions.take()), [5]);
        assert!(!actions.is_due() && actions.take().is_empty());
        actions.done(&first);
        assert_eq!(jobs(&actions.take()), [1]);
    }
}
