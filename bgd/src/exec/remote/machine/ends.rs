//! The ends of runs on a machine: reported to the dispatcher, then written to the journal, and cleared on the machine.
//! Also handles ends caused by failed calls.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use bgd_shared::client::ClientError;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{CancelParams, ClearParams, TaskCancel, TaskClear};
use bgd_shared::task::Task;

use super::{CONFIRMED_WITHIN, CallResult, Machine, Outcome, PAUSES};
use crate::core::{Fact, PlaceFact};
use crate::exec::elsewhere::places;
use crate::exec::host::SIGKILL;
use crate::exec::remote::bridge::{Bridge, BridgeError};
use crate::exec::remote::link::Link;
use crate::exec::remote::run::{Ending, Run, Stop, conclusion};
use crate::exec::remote::sweep;

/// How many tasks are cleared by one call, which has room for many times more.
const CLEARED_AT_ONCE: usize = 1000;

/// How many tasks are ended by one call, which is answered when the last of them has ended.
const ENDED_AT_ONCE: usize = 1000;

/// The unit in milliseconds to which the grace of a run is rounded up, so that runs that are cancelled together are
/// ended by one call. This daemon sends SIGKILL on time.
const GRACE_UNIT_MS: u64 = 100;

/// Returns how long the machine waits before it sends SIGKILL; `None` if SIGKILL is the signal.
fn grace_ms(signal: i32, kill_at: Instant) -> Option<u64> {
    let grace = kill_at.saturating_duration_since(Instant::now()).as_millis();
    let grace_ms = u64::try_from(grace).ok().filter(|_| signal != SIGKILL)?;
    grace_ms.checked_next_multiple_of(GRACE_UNIT_MS)
}

/// What follows from a refused order to end runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// There was no room for it, so it is given again after a moment.
    Soon,
    /// The task may be gone.
    Look,
    /// The refusal would be repeated at once, but need not be for ever.
    Later,
}

/// Returns what follows from this refusal of an order to end runs.
const fn after(kind: ErrorKind) -> Again {
    match kind {
        ErrorKind::ShuttingDown | ErrorKind::TooManyRequests => Again::Soon,
        ErrorKind::TaskNotFound => Again::Look,
        _ => Again::Later,
    }
}

/// Clears tasks one by one. Returns those that could not be cleared for now, without refused ones: a refusal would be
/// repeated.
async fn clear_each(bridge: &Bridge, ids: Vec<TaskRef>) -> Vec<TaskRef> {
    let mut left = Vec::new();
    for id in ids {
        let params = ClearParams { ids: Some(vec![id.clone()]), ..ClearParams::default() };
        if let Err(error) = bridge.call::<TaskClear>(&params).await
            && sweep::unless_refused(error).is_err()
        {
            left.push(id);
        }
    }
    left
}

impl Machine {
    /// Ends a run, as soon as the machine can be reached.
    pub(super) fn end(&mut self, task: TaskId, number: u32, stop: Stop) {
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number) else { return };
        run.stop_by(stop);
        // A run that waits on the machine ends at once, so that SIGKILL never follows.
        let is_kill = stop.signal == SIGKILL;
        if is_kill || run.is_waiting() {
            self.give_up.add(Instant::now() + CONFIRMED_WITHIN, (task, number, is_kill));
        }
        self.order_end(task);
        self.ready.push_back(task);
    }

    /// Marks a run that the machine must be ordered to end, which [`Self::order_ends`] does.
    pub(super) fn order_end(&mut self, task: TaskId) {
        let stop = self.runs.get(&task).and_then(|run| run.stop);
        self.to_end.insert((stop.is_none_or(|stop| stop.signal != SIGKILL), task));
    }

    /// Orders the machine to end the marked runs, unless that was already ordered at least as strongly. One call stands
    /// for many runs: it is answered only once they have ended, and the machine's daemon limits pending calls.
    pub(super) fn order_ends(&mut self) {
        if self.to_end.is_empty() || self.ends_at.is_some() {
            return;
        }
        let Some(bridge) = self.bridge() else { return self.to_end.clear() };
        let at_once = self.calls_at_once();
        let mut marked = std::mem::take(&mut self.to_end);
        if self.ending >= at_once {
            // Runs that are to be killed do not wait for those that take their time.
            self.to_end = marked.split_off(&(true, TaskId::from_u128(0)));
        }
        let mut groups: BTreeMap<(i32, Option<u64>), Vec<Ending>> = BTreeMap::new();
        for (_, task) in marked {
            let Some(run) = self.runs.get_mut(&task) else { continue };
            let (Some(there), Some(Stop { signal, kill_at })) = (run.there, run.stop) else { continue };
            if run.ordered == Some(signal) || run.ordered == Some(SIGKILL) {
                continue;
            }
            run.ordered = Some(signal);
            let ending = Ending { task, run: run.number, there };
            groups.entry((signal, grace_ms(signal, kill_at))).or_default().push(ending);
        }
        for ((signal, grace_ms), endings) in groups {
            for part in endings.chunks(ENDED_AT_ONCE) {
                if self.ending < at_once || signal == SIGKILL {
                    self.cancel(&bridge, signal, grace_ms, part.to_vec());
                } else {
                    self.end_later(signal, part);
                }
            }
        }
    }

    /// Marks runs again that were to be ended with this signal.
    fn end_later(&mut self, signal: i32, endings: &[Ending]) {
        for Ending { task, run: number, .. } in endings {
            let run = self.runs.get_mut(task).filter(|run| run.number == *number);
            if let Some(run) = run.filter(|run| run.ordered == Some(signal)) {
                run.ordered = None;
                self.to_end.insert((signal != SIGKILL, *task));
            }
        }
    }

    fn cancel(&mut self, bridge: &Arc<Bridge>, signal: i32, grace_ms: Option<u64>, endings: Vec<Ending>) {
        let params = CancelParams {
            ids: endings.iter().map(|ending| ending.there.into()).collect(),
            signal: Some(signal.to_string()),
            // The machine kills them at that time even if it can't be reached then.
            grace_ms,
            ..CancelParams::default()
        };
        let caller = Arc::clone(bridge);
        self.ending += 1;
        self.spawn(TaskId::from_u128(0), 0, Some(Arc::clone(bridge)), async move {
            let result = caller.wait::<TaskCancel>(&params).await.map(drop);
            Outcome::EndOrdered { signal, grace_ms, endings, result }
        });
    }

    /// Handles the answer to an order to end runs. A refused order is repeated, so that no run misses its signal.
    pub(super) fn end_ordered(
        &mut self,
        bridge: &Arc<Bridge>,
        (signal, grace_ms): (i32, Option<u64>),
        endings: Vec<Ending>,
        error: &ClientError,
    ) {
        if !self.is_current(bridge) {
            return;
        }
        let Some(kind) = error.kind() else { return self.cut(&error.to_string()) };
        let again = after(kind);
        if again == Again::Soon {
            self.end_later(signal, &endings);
            self.ends_at.get_or_insert_with(|| Instant::now() + PAUSES[0]);
            return;
        }
        // One of the tasks may be gone: halves are tried, so that the others are ended.
        if endings.len() > 1 {
            let (some, others) = endings.split_at(endings.len() / 2);
            self.cancel(bridge, signal, grace_ms, some.to_vec());
            return self.cancel(bridge, signal, grace_ms, others.to_vec());
        }
        for Ending { task, run: number, .. } in endings {
            let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number) else { continue };
            if run.ordered == Some(signal) {
                run.ordered = None;
            }
            if again == Again::Look {
                run.look_again();
                self.ready.push_back(task);
            } else {
                self.end_again.add(Instant::now() + PAUSES[1], task);
            }
        }
    }

    /// Marks the runs again whose ends were refused, if that is due.
    pub(super) fn repeat_ends(&mut self, now: Instant) {
        while let Some(task) = self.end_again.take_due(now) {
            self.order_end(task);
        }
    }

    /// Reports how a run has ended.
    pub(super) fn conclude(&mut self, task: TaskId, end: &Task, output: Option<Fact>) {
        let Some(run) = self.runs.get(&task) else { return };
        let (number, there, is_given_up) = (run.number, end.id, run.is_given_up);
        for fact in output.into_iter().chain([conclusion(end, &self.ssh.shell.host)]) {
            self.context.facts.send(task, number, fact);
        }
        // If the daemon is killed before the end is in the journal, the next daemon looks for the task on the machine.
        if self.is_durable && !is_given_up {
            self.unwritten.insert((task, number), there);
        } else {
            self.concluded.push(there.into());
        }
        self.remove(task);
    }

    /// Marks these concluded runs of a task for clearing, as their ends are in the journal.
    pub(super) fn clear_recorded(&mut self, task: TaskId, runs: RangeInclusive<u32>) {
        let (first, last) = runs.into_inner();
        let range = (task, first)..=(task, last);
        for ((_, run), there) in self.unwritten.extract_if(range, |_, _| true) {
            self.known.remove(task, run);
            self.concluded.push(there.into());
        }
    }

    /// Clears the concluded tasks on the machine, as all of their data is here. Makes one call at a time, so that each
    /// clears many.
    pub(super) fn clear_concluded(&mut self) {
        let Some(bridge) = self.bridge().filter(|_| !self.is_clearing && !self.concluded.is_empty()) else {
            return;
        };
        self.is_clearing = true;
        let ids: Vec<TaskRef> = self.concluded.drain(..self.concluded.len().min(CLEARED_AT_ONCE)).collect();
        let params = ClearParams { ids: Some(ids.clone()), ..ClearParams::default() };
        let origin = Arc::clone(&self.origin);
        self.calls.push(Box::pin(async move {
            let left = match bridge.call::<TaskClear>(&params).await {
                Ok(_) => {
                    sweep::forget_notices(&bridge, &origin).await;
                    Vec::new()
                }
                Err(error) => match sweep::unless_refused(error) {
                    // One of the tasks may be gone, because an earlier answer was lost.
                    Ok(()) => clear_each(&bridge, ids).await,
                    Err(error) => {
                        tracing::warn!(%error, "ended tasks on another machine not cleared");
                        ids
                    }
                },
            };
            let (task, outcome) = (TaskId::from_u128(0), Outcome::Cleared(left));
            CallResult { task, run: 0, bridge: Some(bridge), outcome }
        }));
    }

    /// Marks the tasks that could not be cleared, as the connection broke or is silent, for another attempt.
    pub(super) fn cleared(&mut self, bridge: Option<&Arc<Bridge>>, left: Vec<TaskRef>) {
        self.is_clearing = false;
        if left.is_empty() {
            return;
        }
        self.concluded.extend(left);
        if bridge.is_some_and(|asked| self.is_current(asked)) {
            self.cut("it did not answer");
        } else if matches!(self.link, Link::Idle) {
            self.disconnect_idle();
        }
    }

    /// Reports to the dispatcher that the end of a run can't be confirmed. The machine is still ordered to end it.
    pub(super) fn report_unconfirmed_end(&mut self, task: TaskId, number: u32) {
        let why = match &self.link {
            Link::Open(..) => format!("{} has not ended it yet", self.ssh.shell.host),
            Link::Idle | Link::Opening(_) | Link::Broken(..) => self.unreachable(),
        };
        let why = format!("{why}: it may still run there, and will be ended as soon as possible");
        let is_ending = |run: &&mut Run| run.number == number && run.has_no_grace() && !run.is_given_up;
        let Some(run) = self.runs.get_mut(&task).filter(is_ending) else { return };
        run.is_given_up = true;
        let fact = Fact::GaveUp { why: why.into() };
        self.context.facts.send(task, run.number, fact);
    }

    /// Ends a run whose task the machine no longer has. If the task's end is known, only its last output is lost.
    pub(super) fn vanish(&mut self, task: TaskId, why: &str) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        let number = run.number;
        if !run.has_ended() {
            self.context.facts.send(task, number, places::lost(why));
            return self.remove(task);
        }
        if let Some((stream, bytes)) = run.miss_rest() {
            run.unwritten_losses += usize::from(self.is_durable);
            let why = format!("its last output is missing: {why}").into();
            self.context.facts.send(task, number, Fact::Elsewhere(PlaceFact::Lost { stream, bytes, why }));
        }
        self.ready.push_back(task);
    }

    /// Handles a failed call: the daemon's refusal, or a broken connection.
    pub(super) fn call_failed(&mut self, task: TaskId, error: &ClientError) {
        let Some(run) = self.runs.get(&task) else { return };
        let (number, is_known) = (run.number, run.there.is_some());
        let host = &self.ssh.shell.host;
        let fact = match error.kind() {
            None | Some(ErrorKind::ShuttingDown | ErrorKind::TooManyRequests) => {
                return self.cut(&error.to_string());
            }
            Some(ErrorKind::TaskNotFound) if is_known => {
                let why = format!("the daemon of {host} no longer knows it");
                return self.vanish(task, &why);
            }
            Some(_) if is_known => {
                // Whatever the reason, asking again at once would not help.
                let trouble = BridgeError { message: error.to_string().into(), hint: None, is_final: false };
                self.runs.values_mut().for_each(Run::cut);
                return self.failed(trouble, PAUSES[1]);
            }
            // Tasks that end make room, as does whoever frees a disk.
            Some(ErrorKind::RegistryFull | ErrorKind::JournalUnwritable) => {
                return self.put_off(task, error);
            }
            Some(_) => Fact::StartFailed { failure: refusal(host, error).into() },
        };
        self.context.facts.send(task, number, fact);
        self.remove(task);
    }
}

/// Describes why a machine does not accept a task. A request that is too long for the machine was not sent, so only
/// this message can contain the hint.
fn refusal(host: &str, error: &ClientError) -> String {
    match error {
        ClientError::Rpc(RpcError { message, data, .. })
            if error.kind() == Some(ErrorKind::FrameTooLarge) =>
        {
            format!("it is too long for {host}: {message}; {}", data.hint.as_deref().unwrap_or_default())
        }
        error => format!("{host} rejected it: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r145_kind_of_refusal_decides_when_to_order_the_end_again() {
        assert_eq!(after(ErrorKind::ShuttingDown), Again::Soon);
        assert_eq!(after(ErrorKind::TooManyRequests), Again::Soon);
        assert_eq!(after(ErrorKind::TaskNotFound), Again::Look);
        for kind in [ErrorKind::InvalidParams, ErrorKind::Internal] {
            assert_eq!(after(kind), Again::Later);
        }
    }
}
