//! Orders for the jobs of runs: the dispatcher's orders, and the commands that carry them out on jobs known to be this
//! daemon's.

use std::collections::HashMap;
use std::time::Instant;

use bgd_shared::id::TaskId;

use super::Cluster;
use crate::core::{Control, Fact, PlaceFact};
use crate::exec::elsewhere::places;
use crate::exec::executor::DoneSender;
use crate::exec::host::{SIGKILL, SIGTERM};
use crate::exec::slurm::actions::{Action, JobAction};
use crate::exec::slurm::batch::JobRequest;
use crate::exec::slurm::error::{self, CommandError};
use crate::exec::slurm::job::{self, JobId};
use crate::exec::slurm::parse;
use crate::exec::slurm::run::Run;

/// How often an order is repeated for a job that can't be changed at the moment. Slurm itself waits for up to 5 s each
/// time.
const REPEATS: u8 = 10;

/// Why a priority above 0 is refused.
pub(super) const ONLY_LOWER: &str = "a cluster lets its users only lower a priority: use 0 to -100";

impl Cluster {
    /// Orders the end of a run, unless the cluster was already asked at least as strongly.
    pub(super) fn order_end(&mut self, task: TaskId) {
        let Some(run) = self.runs.get_mut(&task).filter(|run| !run.is_concluded) else { return };
        let (Some(_), Some(signal)) = (run.id, run.stop) else { return };
        if run.ordered == Some(signal) || run.ordered == Some(SIGKILL) {
            return;
        }
        run.ordered = Some(signal);
        let action = match signal {
            _ if run.is_waiting() => Action::Cancel,
            SIGTERM => Action::Cancel,
            SIGKILL => Action::Kill,
            other => Action::End(other),
        };
        self.order_action(Instant::now(), action, task, None);
    }

    /// Orders an action for the job of a run, to be done once the cluster confirms that the job is still this daemon's.
    pub(super) fn order_action(
        &mut self,
        now: Instant,
        action: Action,
        task: TaskId,
        done: Option<DoneSender>,
    ) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        let (Some(id), Some(key)) = (run.id, run.key().cloned()) else { return };
        if matches!(action, Action::Pause(_)) {
            run.orders_pause();
        }
        let act = JobAction {
            action,
            task,
            run: run.number,
            id,
            key,
            since: now,
            by_name: false,
            repeats: 0,
            done,
        };
        self.actions.add(act, run.listed_at());
        if self.actions.has_doubts() {
            self.pace.ask_now(now);
        }
    }

    pub(super) fn control(&mut self, task: TaskId, control: &Control, done: DoneSender) {
        let Some(run) = self.runs.get_mut(&task) else {
            return places::refuse(task, control, done, places::GONE);
        };
        let (number, turn, is_waiting) = (run.number, run.turn, run.is_waiting());
        let action = match *control {
            Control::Signal { signal, tree: _ } => Action::Signal(signal),
            Control::Pause => Action::Pause(true),
            Control::Continue => Action::Pause(false),
            Control::Hold { held, is_again } if is_waiting => Action::Hold { held, is_again },
            Control::Priority { priority, before } if priority <= 0 => {
                Action::Nice { nice: priority.unsigned_abs(), before }
            }
            Control::Priority { .. } => {
                return self.refuse((task, number), Some(control.clone()), Some(done), ONLY_LOWER);
            }
            Control::Hold { held: true, .. } => {
                let why = "it has started there";
                return self.refuse((task, number), Some(control.clone()), Some(done), why);
            }
            // A process asks no questions, and has no terminal here.
            Control::Hold { held: false, .. } | Control::Answer { .. } | Control::Detach { .. } => return,
        };
        if run.id.is_none() {
            match *control {
                Control::Hold { held, .. } => run.hold = held,
                Control::Priority { priority, .. } => run.priority = priority,
                _ => {
                    let why = "it is still being submitted there";
                    return self.refuse((task, number), action.control(), Some(done), why);
                }
            }
            // Its requests now differ from those of the runs that it was to be submitted with.
            if self.gathering.withdraw(turn) {
                self.gather(Instant::now(), task);
            }
            return;
        }
        if let Some(why) = self.reach.why() {
            let why = format!("the cluster can't be queried: {why}");
            return self.refuse((task, number), action.control(), Some(done), &why);
        }
        self.order_action(Instant::now(), action, task, Some(done));
    }

    /// Orders the changes that came too late to be included in a run's submission.
    pub(super) fn order_late(&mut self, now: Instant, task: TaskId, wish: &JobRequest) {
        let Some((hold, nice)) = self.runs.get(&task).map(|run| (run.hold, run.nice())) else { return };
        if hold != wish.is_held {
            self.order_action(now, Action::Hold { held: hold, is_again: false }, task, None);
        }
        if nice != wish.nice {
            // It is at most 100.
            let before = -i32::try_from(wish.nice).unwrap_or_default();
            self.order_action(now, Action::Nice { nice, before }, task, None);
        }
    }

    pub(super) fn refused(&self, task: TaskId, run: u32, control: Option<Control>, why: &str) {
        self.send(task, run, Fact::Elsewhere(PlaceFact::Refused { control, why: why.into() }));
    }

    /// Reports that an order was refused, also to the client that waits for it.
    fn refuse(
        &self,
        (task, run): (TaskId, u32),
        control: Option<Control>,
        done: Option<DoneSender>,
        why: &str,
    ) {
        tell(task, control.as_ref(), done, why);
        self.refused(task, run, control, why);
    }

    /// Handles an answer to a query that began at `asked`: it shows which jobs are this daemon's.
    pub(super) fn answer_acts(&mut self, now: Instant, asked: Instant, text: &str) {
        if !self.actions.has_doubts() {
            return;
        }
        let keys: HashMap<JobId, &str> = parse::queue(text).map(|line| (line.id, line.key)).collect();
        let is_ours =
            |act: &JobAction| keys.get(&act.id).is_some_and(|key| **key == *act.key || !job::is_key(key));
        let gone = self.actions.answered(asked, is_ours);
        let is_named =
            |act: &JobAction| act.action.ends() && act.id.index.is_none() && !keys.contains_key(&act.id);
        let (named, gone): (Vec<JobAction>, Vec<JobAction>) = gone.into_iter().partition(is_named);
        // If the cluster has such a job after all, it must be ended: then Slurm itself checks the job's name.
        for act in named {
            self.actions.add(JobAction { by_name: true, ..act }, Some(act.since));
        }
        self.settle_actions(now, gone, &Err(CommandError::Gone));
        if self.actions.has_doubts() {
            self.pace.ask_now(now);
        }
    }

    /// Refuses the orders that are not repeated later, as the cluster can't be queried.
    pub(super) fn refuse_acts(&mut self, now: Instant, why: &str) {
        let why = format!("the cluster can't be queried: {why}");
        for JobAction { action, task, run: number, done, .. } in self.actions.doubt() {
            let is_open = |run: &&mut Run| run.number == number && !run.is_concluded;
            let Some(run) = self.runs.get_mut(&task).filter(is_open) else {
                tell(task, action.control().as_ref(), done, &why);
                continue;
            };
            if matches!(action, Action::Pause(_)) {
                run.pause_settled(now, None);
            }
            self.refuse((task, number), action.control(), done, &why);
        }
    }

    /// Handles the result of orders.
    pub(super) fn acted(&mut self, now: Instant, actions: Vec<JobAction>, result: &Result<(), CommandError>) {
        self.under_way[1] -= 1;
        self.actions.done(&actions);
        match result {
            Err(
                trouble @ (CommandError::Unreachable(_)
                | CommandError::NoAccess(_)
                | CommandError::Unanswered(_)
                | CommandError::Full(_)),
            ) => self.failed(now, trouble),
            Ok(()) | Err(CommandError::Gone | CommandError::Refused(_)) => self.reached(),
        }
        self.settle_actions(now, actions, result);
    }

    /// Reports the result of orders. Repeats the orders that end a run as soon as possible.
    fn settle_actions(&mut self, now: Instant, actions: Vec<JobAction>, result: &Result<(), CommandError>) {
        let why = match result {
            Ok(()) => None,
            Err(CommandError::Gone) => Some("it has ended there, or is already running".to_owned()),
            Err(
                CommandError::Unreachable(why)
                | CommandError::NoAccess(why)
                | CommandError::Unanswered(why)
                | CommandError::Full(why),
            ) => Some(format!("the cluster can't be queried: {why}")),
            Err(CommandError::Refused(why)) => Some(why.clone()),
        };
        let is_passing = self.reach.why().is_some();
        let is_busy = matches!(result, Err(CommandError::Refused(why)) if error::is_about_moment(why));
        for act in actions {
            if is_busy && act.action.is_idempotent() && act.repeats < REPEATS {
                self.actions.repeat(act, now);
                continue;
            }
            let JobAction { action, task, run: number, done, .. } = act;
            let task = self.name_of(task, number);
            let mut run = self.runs.get_mut(&task).filter(|run| run.number == number && !run.is_concluded);
            let pause = match (action, &mut run) {
                (Action::Pause(stopped), Some(run)) => {
                    run.pause_settled(now, why.is_none().then_some(stopped))
                }
                _ => None,
            };
            match (&why, run) {
                (Some(_), Some(_)) if action.ends() && is_passing => {
                    self.order_action(now, action, task, done);
                }
                (Some(why), Some(run)) if !matches!(result, Err(CommandError::Gone)) || !action.ends() => {
                    // One refusal stands for all jobs of a command, and its reason may pass.
                    let mut is_news = true;
                    if action.ends() {
                        let (pause, is_other) = run.end_refused(why);
                        is_news = is_other;
                        self.end_again.set(now + pause, task);
                    }
                    if is_news {
                        self.refuse((task, number), action.control(), done, why);
                    }
                }
                (why, _) => {
                    if let Some(why) = why {
                        tell(task, action.control().as_ref(), done, why);
                    }
                    if let Some(pause) = pause {
                        self.send(task, number, pause);
                    }
                }
            }
        }
        // The cluster's next answer shows whether the orders have worked.
        self.pace.ask_now(now);
    }
}

/// Tells the client that waits for an order, if any, why it was refused.
fn tell(task: TaskId, control: Option<&Control>, done: Option<DoneSender>, why: &str) {
    if let (Some(control), Some(done)) = (control, done) {
        places::refuse(task, control, done, why);
    }
}
