//! The ends of runs on a machine: told here, written down, and cleared there.

use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::request::{ClearParams, TaskClear};
use bgd_shared::task::Task;

use super::{Called, Machine, Outcome};
use crate::core::Fact;
use crate::exec::remote::run::{Run, conclusion};
use crate::exec::remote::sweep;

impl Machine {
    /// Tells how a run has ended.
    pub(super) fn conclude(&mut self, task: TaskId, end: &Task, output: Option<Fact>) {
        let Some(run) = self.runs.get(&task) else { return };
        let (number, there, is_given_up) = (run.number, end.id, run.is_given_up);
        for fact in output.into_iter().chain([conclusion(end, &self.ssh.shell.host)]) {
            self.context.facts.send(task, number, fact);
        }
        self.remove(task);
        // If the daemon is killed before the end is written down, the next one looks for it there.
        if self.is_durable && !is_given_up {
            self.unwritten.insert((task, number), there);
        } else {
            self.concluded.push(there.into());
        }
    }

    /// Clears the concluded runs that pass the filter from now on, as their ends are written down.
    pub(super) fn over(&mut self, filter: impl Fn(TaskId, u32) -> bool) {
        let over = self.unwritten.extract_if(|(task, run), _| filter(*task, *run));
        self.concluded.extend(over.map(|(_, there)| there.into()));
    }

    /// Clears the concluded tasks there, as all of them is here. One call at a time, so that many go together. What a
    /// broken connection leaves is cleared with the session.
    pub(super) fn clear_concluded(&mut self) {
        let Some(bridge) = self.bridge().filter(|_| !self.is_clearing && !self.concluded.is_empty()) else {
            return;
        };
        self.is_clearing = true;
        let params = ClearParams { ids: Some(std::mem::take(&mut self.concluded)), ..ClearParams::default() };
        let origin = Arc::clone(&self.origin);
        self.calls.push(Box::pin(async move {
            if let Err(error) = bridge.call::<TaskClear>(&params).await {
                tracing::warn!(%error, "ended tasks on another machine not cleared");
            } else {
                sweep::forget_notices(&bridge, &origin).await;
            }
            Called { task: TaskId::from_u128(0), run: 0, bridge: None, outcome: Outcome::Cleared }
        }));
    }

    /// Tells the dispatcher that the end of a run can't be confirmed. The machine is still told to end it.
    pub(super) fn give_up_on(&mut self, task: TaskId, number: u32) {
        let why =
            format!("{}: it may still run there, and is ended once that is possible", self.unreachable());
        let is_ending = |run: &&mut Run| run.number == number && run.stop.is_some() && !run.is_given_up;
        let Some(run) = self.runs.get_mut(&task).filter(is_ending) else { return };
        run.is_given_up = true;
        let fact = if run.is_waiting() {
            Fact::StartFailed { failure: why.into() }
        } else {
            Fact::GaveUp { why: why.into() }
        };
        self.context.facts.send(task, run.number, fact);
    }
}
