//! What executors saw.

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;

use super::Core;
use super::stop::{verdict, verdict_of_stop};
use crate::core::input::Fact;
use crate::core::task::{Finished, Lingering, Ordinal, Outcome, State};
use crate::core::time::Now;
use crate::core::waiters::Until;

impl Core {
    pub(super) fn fact(&mut self, now: Now, task: TaskId, run: u32, fact: Fact) {
        let Some(ordinal) = self.registry.ordinal(task) else { return };
        if self.registry.get(ordinal).is_none_or(|task| task.run != run) {
            return;
        }
        match fact {
            Fact::Started { pid } => self.started(now, ordinal, pid),
            Fact::StartFailed { error } => self.start_failed(now, ordinal, error),
            Fact::Exited { exit, others } => self.exited(now, ordinal, exit, others),
            Fact::TreeEmpty => self.tree_empty(now, ordinal),
            Fact::Output { bytes, dropped, tell } => self.output(now, ordinal, bytes, dropped, tell),
        }
    }

    fn started(&mut self, now: Now, ordinal: Ordinal, pid: i32) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let stop = match &task.state {
            State::Starting { stop } => *stop,
            State::Queued { .. } | State::Running { .. } | State::Stopping { .. } | State::Finished(_) => {
                return;
            }
        };
        let time_limit = task.spec.time_limit_ms.map(|limit| now.mono.plus_ms(limit));
        self.set_state(ordinal, State::Running { pid, started_at: now.wall, time_limit });
        self.event(now, EventKind::Started, ordinal);
        if let Some(order) = stop {
            self.stop(now, ordinal, order);
        }
    }

    fn start_failed(&mut self, now: Now, ordinal: Ordinal, error: Box<str>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        match &task.state {
            State::Starting { stop: None } => self.finish_unstarted(now, ordinal, Outcome::Failed(error)),
            State::Starting { stop: Some(order) } => {
                let outcome = verdict_of_stop(order.reason);
                self.finish_unstarted(now, ordinal, outcome);
            }
            State::Queued { .. } | State::Running { .. } | State::Stopping { .. } | State::Finished(_) => {}
        }
    }

    fn exited(&mut self, now: Now, ordinal: Ordinal, exit: Exit, others: bool) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let lingering = if others { Lingering::Yes } else { Lingering::No };
        match &task.state {
            State::Running { pid, started_at, .. } => {
                let finished = Finished {
                    outcome: verdict(&exit),
                    pid: Some(*pid),
                    started_at: Some(*started_at),
                    completed_at: now.wall,
                    exit: Some(exit),
                    lingering,
                };
                self.finish(now, ordinal, finished);
            }
            State::Stopping { pid, started_at, reason, kill_at, exit: None } => {
                let (pid, started_at, reason, kill_at) = (*pid, *started_at, *reason, *kill_at);
                if others {
                    let exit = Some(exit);
                    self.set_state(ordinal, State::Stopping { pid, started_at, reason, kill_at, exit });
                } else {
                    let finished = Finished {
                        outcome: verdict_of_stop(reason),
                        pid: Some(pid),
                        started_at: Some(started_at),
                        completed_at: now.wall,
                        exit: Some(exit),
                        lingering: Lingering::No,
                    };
                    self.finish(now, ordinal, finished);
                }
            }
            State::Stopping { exit: Some(_), .. }
            | State::Queued { .. }
            | State::Starting { .. }
            | State::Finished(_) => {}
        }
    }

    fn tree_empty(&mut self, now: Now, ordinal: Ordinal) {
        let Some(task) = self.registry.get(ordinal) else { return };
        match &task.state {
            State::Stopping { pid, started_at, reason, exit: Some(exit), .. } => {
                let finished = Finished {
                    outcome: verdict_of_stop(*reason),
                    pid: Some(*pid),
                    started_at: Some(*started_at),
                    completed_at: now.wall,
                    exit: Some(exit.clone()),
                    lingering: Lingering::No,
                };
                self.finish(now, ordinal, finished);
            }
            State::Finished(finished) => match finished.lingering {
                Lingering::No => {}
                Lingering::Yes | Lingering::Ending(_) => {
                    let settled = Finished { lingering: Lingering::No, ..finished.clone() };
                    self.set_state(ordinal, State::Finished(settled));
                    self.wake(now, ordinal, Until::Settled);
                }
            },
            State::Stopping { exit: None, .. }
            | State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. } => {}
        }
    }

    fn output(&mut self, now: Now, ordinal: Ordinal, bytes: u64, dropped: [u64; 2], tell: bool) {
        self.registry.change(ordinal, |task| {
            if bytes > task.output_bytes {
                task.updated_at = Some(now.wall);
            }
            task.output_bytes = bytes;
            task.dropped = dropped;
        });
        if tell && self.registry.get(ordinal).is_some_and(|task| !task.is_finished()) {
            self.event(now, EventKind::Output, ordinal);
        }
    }
}
