//! The scheduling part of the task object, and groups.

use bgd_shared::order::{Dependency, Group, Restart, Retry, Waiting, WaitingFor};
use bgd_shared::task::Attempt;
use bgd_shared::time::Timestamp;

use crate::core::{Blocked, GroupState, NotBefore, Plan, QueuePlace, Rule, Snapshot, State};
use crate::wire::failures;

/// Converts a group.
pub fn group(group: &GroupState) -> Group {
    let GroupState { name, slots, used, is_paused, pending, oversized, running, finished } = group;
    Group {
        name: name.to_string(),
        slots: *slots,
        used: *used,
        paused: *is_paused,
        pending: *pending,
        oversized: *oversized,
        running: *running,
        finished: *finished,
    }
}

/// Lists the tasks that a task depends on.
pub fn after(plan: &Plan) -> Vec<Dependency> {
    let dependencies = plan.after.iter();
    dependencies.map(|one| Dependency { id: one.task, condition: one.condition, met: one.met }).collect()
}

/// Returns what a pending task waits for. `None` if it is not pending, or is the next to start.
pub fn waiting(snapshot: &Snapshot) -> Option<Waiting> {
    let plan = snapshot.plan();
    if snapshot.waits_elsewhere() {
        let reason = if plan.held { WaitingFor::Held } else { WaitingFor::Elsewhere };
        return Some(Waiting { reason, ids: Vec::new(), until: None });
    }
    let State::Queued { .. } = snapshot.state else { return None };
    let ids: Vec<_> = plan.after.iter().filter(|one| !one.met).map(|one| one.task).collect();
    let (reason, until) = match plan.not_before {
        _ if plan.held => (WaitingFor::Held, None),
        _ if !ids.is_empty() => return Some(Waiting { reason: WaitingFor::After, ids, until: None }),
        Some(NotBefore::Delay { wall, .. } | NotBefore::Wall(wall)) => (WaitingFor::Until, Some(wall)),
        Some(NotBefore::Attempt { wall, .. }) => (WaitingFor::Retry, Some(wall)),
        None => match snapshot.place {
            QueuePlace::Next => return None,
            QueuePlace::Blocked(Blocked::Batch) => (WaitingFor::Batch, None),
            QueuePlace::Blocked(Blocked::Paused) => (WaitingFor::Paused, None),
            QueuePlace::Blocked(Blocked::Journal) => (WaitingFor::Journal, None),
            // Recorded places distinguish no further.
            QueuePlace::Blocked(Blocked::Slots) | QueuePlace::Out | QueuePlace::Slot(_) => {
                (WaitingFor::Slot, None)
            }
        },
    };
    Some(Waiting { reason, ids: Vec::new(), until })
}

/// Returns the earliest start of a pending task, also if it waits for something else.
pub fn start_at(snapshot: &Snapshot) -> Option<Timestamp> {
    let State::Queued { .. } = snapshot.state else { return None };
    let (NotBefore::Delay { wall, .. } | NotBefore::Wall(wall) | NotBefore::Attempt { wall, .. }) =
        snapshot.plan().not_before?;
    Some(wall)
}

/// Returns when a task is retried.
pub fn retry(plan: &Plan) -> Option<Retry> {
    let Rule::Retry { times, delay_ms, max_delay_ms, codes, signal } = &plan.again.as_deref()?.rule else {
        return None;
    };
    Some(Retry {
        times: *times,
        delay_ms: Some(*delay_ms),
        max_delay_ms: Some(*max_delay_ms),
        codes: codes.to_vec(),
        signal: *signal,
    })
}

/// Returns when a task is restarted.
pub fn restart(plan: &Plan) -> Option<Restart> {
    match plan.again.as_deref()?.rule {
        Rule::Restart(restart) => Some(restart),
        Rule::Retry { .. } => None,
    }
}

/// Lists the attempts that have ended.
pub fn attempts(snapshot: &Snapshot) -> Vec<Attempt> {
    let is_split = snapshot.spec.split;
    let attempts = snapshot.plan().again.as_deref().map_or(&[][..], |again| &again.attempts);
    let of = |attempt: &crate::core::Attempt| Attempt {
        attempt: attempt.attempt,
        started_at: attempt.started_at,
        completed_at: attempt.completed_at,
        exit: attempt.exit.clone(),
        error: failures::of_attempt(attempt),
        usage: attempt.usage,
        offset: attempt.offset[0],
        stderr_offset: is_split.then_some(attempt.offset[1]),
    };
    attempts.iter().map(of).collect()
}
