//! What is to be done to jobs: only what is known to be ours is touched, and orders of one kind that come together are
//! carried out together. Pure.
//!
//! A controller that was reset gives ids away again, perhaps to jobs of the same user that are none of this daemon's. So
//! an order waits until an answer of the cluster lists its job under this daemon's name, with the key of its submission.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use tokio::sync::oneshot;

use super::commands::{self, Words};
use super::job::JobId;
use super::pace::SPACING;
use crate::core::Control;
use crate::exec::host::SIGKILL;

/// How old an answer may be that still says whose a job is. No controller is reset and gives the same id away sooner. As
/// queries may be this close to each other, an order never waits only because there was one a moment ago.
const FRESH: Duration = SPACING;

/// The signals by which processes are paused and continued.
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

/// Something that is done to jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// End it in the cluster's own way.
    Cancel,
    /// End it at once.
    Kill,
    /// End it by a signal that its submitter has chosen.
    End(i32),
    /// Send it a signal.
    Signal(i32),
    /// Stop its processes, or let them go on.
    Pause(bool),
    /// Keep it from starting, or no longer.
    Hold(bool),
    /// Lower its priority.
    Nice(u32),
}

impl Deed {
    /// What was asked for, if it was that.
    pub fn control(self) -> Option<Control> {
        match self {
            Self::Cancel | Self::Kill | Self::End(_) => None,
            Self::Signal(signal) => Some(Control::Signal { signal, tree: true }),
            Self::Pause(true) => Some(Control::Pause),
            Self::Pause(false) => Some(Control::Continue),
            Self::Hold(held) => Some(Control::Hold { held }),
            Self::Nice(nice) => i32::try_from(nice).ok().map(|nice| Control::Priority { priority: -nice }),
        }
    }

    /// Whether it is to end the job.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Cancel | Self::Kill | Self::End(_))
    }
}

/// An order for one job.
#[derive(Debug)]
pub struct Act {
    /// What is done.
    pub deed: Deed,
    pub task: TaskId,
    pub run: u32,
    pub id: JobId,
    /// The key of its submission.
    pub key: Arc<str>,
    /// When it was ordered, or tried in vain.
    pub since: Instant,
    /// Whether Slurm itself is to look at the job's name.
    pub by_name: bool,
    /// Is told when it is done.
    pub done: Option<oneshot::Sender<()>>,
}

/// The orders that were not carried out yet.
#[derive(Debug, Default)]
pub struct Acts {
    /// Those whose jobs may be somebody else's by now.
    doubtful: Vec<Act>,
    /// Those that may be carried out.
    open: Vec<Act>,
    /// The tasks for which something is being done. Orders for one task keep their order.
    busy: HashSet<TaskId>,
}

impl Acts {
    /// Adds an order. `listed` is when the question was asked to which its job was last listed as ours.
    pub fn add(&mut self, act: Act, listed: Option<Instant>) {
        if listed.is_some_and(|asked| asked + FRESH >= act.since) {
            self.open.push(act);
        } else {
            self.doubtful.push(act);
        }
    }

    /// Whether the cluster must be asked whose jobs some are.
    pub fn has_doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// Whether something may be carried out now.
    pub fn is_due(&self) -> bool {
        self.open.iter().any(|act| !self.busy.contains(&act.task))
    }

    /// Takes in an answer to a question that was asked then. Returns the orders for jobs that are not there, or not ours.
    pub fn answered(&mut self, asked: Instant, is_ours: impl Fn(&Act) -> bool) -> Vec<Act> {
        self.open.extend(self.doubtful.extract_if(.., |act| asked + FRESH >= act.since && is_ours(act)));
        self.doubtful.extract_if(.., |act| asked >= act.since).collect()
    }

    /// Notes that the cluster can't be asked: what was known of jobs is old when it can. Returns the orders that do not
    /// wait for that.
    pub fn doubt(&mut self) -> Vec<Act> {
        self.doubtful.append(&mut self.open);
        self.doubtful.extract_if(.., |act| !act.deed.ends()).collect()
    }

    /// Takes the orders that are carried out together with the first one.
    pub fn take(&mut self) -> Vec<Act> {
        let mut seen = self.busy.clone();
        let mut kind = None;
        let taken: Vec<Act> = self
            .open
            .extract_if(.., |act| {
                if !seen.insert(act.task) {
                    return false;
                }
                // Each priority takes a command of its own.
                let is_alone = kind.is_some() && matches!(act.deed, Deed::Nice(_));
                *kind.get_or_insert((act.deed, act.by_name)) == (act.deed, act.by_name) && !is_alone
            })
            .collect();
        self.busy.extend(taken.iter().map(|act| act.task));
        taken
    }

    /// Notes that these are no longer under way.
    pub fn done(&mut self, acts: &[Act]) {
        for act in acts {
            self.busy.remove(&act.task);
        }
    }
}

/// Returns the commands for these orders, which are of one kind. `name` is that of all jobs of this daemon.
pub fn commands(name: &str, acts: &[Act]) -> Vec<Words> {
    let Some(first) = acts.first() else { return Vec::new() };
    let jobs: Vec<JobId> = acts.iter().map(|act| act.id).collect();
    match first.deed {
        _ if first.by_name => commands::cancel_named(name, jobs),
        Deed::Cancel => commands::cancel(jobs),
        Deed::Kill => [commands::cancel(jobs.clone()), commands::signal(jobs, SIGKILL)].concat(),
        Deed::End(signal) | Deed::Signal(signal) => commands::signal(jobs, signal),
        Deed::Pause(is_paused) => commands::signal(jobs, if is_paused { SIGSTOP } else { SIGCONT }),
        Deed::Hold(is_held) => commands::hold(jobs, is_held),
        Deed::Nice(nice) => vec![commands::nice(first.id, nice)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(deed: Deed, number: u32, since: Instant) -> Act {
        let (task, id) = (TaskId::from_u128(number.into()), JobId { job: number.into(), index: None });
        Act { deed, task, run: 1, id, key: "k".into(), since, by_name: false, done: None }
    }

    fn jobs(acts: &[Act]) -> Vec<u64> {
        acts.iter().map(|act| act.id.job).collect()
    }

    #[test]
    fn r151_an_order_waits_until_its_job_is_known_to_be_ours() {
        let (mut acts, now) = (Acts::default(), Instant::now());
        for number in 1..=3 {
            acts.add(act(Deed::Cancel, number, now), None);
        }
        acts.add(act(Deed::Cancel, 4, now), Some(now.checked_sub(FRESH).unwrap()));
        assert!(acts.has_doubts() && acts.is_due());
        assert_eq!(jobs(&acts.take()), [4]);
        assert!(!acts.is_due() && acts.take().is_empty());
        // An answer that is a moment older says whose a job is, but not that one is gone.
        let before = now.checked_sub(FRESH / 2).unwrap();
        assert!(acts.answered(before, |act| act.id.job == 1).is_empty());
        assert_eq!(jobs(&acts.take()), [1]);
        assert_eq!(jobs(&acts.answered(now, |act| act.id.job == 2)), [3]);
        assert_eq!(jobs(&acts.doubt()), [0; 0]);
        assert!(!acts.is_due() && acts.has_doubts(), "what was known is old");
    }

    #[test]
    fn r150_orders_of_one_kind_go_together_and_those_of_one_task_in_their_order() {
        let (mut acts, now) = (Acts::default(), Instant::now());
        let all = [
            (Deed::Hold(true), 1),
            (Deed::Hold(true), 2),
            (Deed::Hold(false), 1),
            (Deed::Hold(false), 3),
            (Deed::Nice(5), 4),
            (Deed::Nice(5), 5),
        ];
        for (deed, number) in all {
            acts.add(act(deed, number, now), Some(now));
        }
        let first = acts.take();
        assert_eq!(jobs(&first), [1, 2]);
        assert_eq!(jobs(&acts.take()), [3]);
        assert_eq!(jobs(&acts.take()), [4]);
        assert_eq!(jobs(&acts.take()), [5]);
        assert!(!acts.is_due() && acts.take().is_empty());
        acts.done(&first);
        assert_eq!(jobs(&acts.take()), [1]);
    }
}
