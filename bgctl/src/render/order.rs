//! Renders why a task has not started yet, and what it starts after.

use bgd_shared::order::{CancelReason, DEFAULT_GROUP, Dependency, Restart, Retry, Waiting, WaitingFor};
use bgd_shared::show;
use bgd_shared::task::{Attempt, Exit, Task};

use super::wall::Clock;
use super::{clean, listed};

/// Maximum number of ids to list; the rest are counted.
const IDS: usize = 2;

/// Returns in a few words what a pending task waits for.
pub fn waits_for(task: &Task, clock: &Clock) -> Option<String> {
    let Waiting { reason, ids, until } = task.waiting.as_ref()?;
    let until = until.map(|until| clock.near(until));
    match reason {
        WaitingFor::Held => Some("held".to_owned()),
        WaitingFor::After => Some(format!("after {}", listed(ids.iter().map(|id| id.short()), IDS))),
        WaitingFor::Until => Some(format!("until {}", until?)),
        WaitingFor::Retry => Some(format!("retry at {}", until?)),
        WaitingFor::Batch => Some("batch".to_owned()),
        WaitingFor::Paused => Some(format!("{} paused", clean(&task.group))),
        WaitingFor::Elsewhere => Some(elsewhere(task)),
        WaitingFor::Slot => Some(slots(task)),
        WaitingFor::Journal => Some("journal".to_owned()),
        WaitingFor::Unknown => None,
    }
}

/// Returns in a few words which slots a task waits for.
fn slots(task: &Task) -> String {
    let slots = match task.slots {
        0 => "turn".to_owned(),
        1 => "slot".to_owned(),
        slots => format!("{slots} slots"),
    };
    match task.group.as_str() {
        DEFAULT_GROUP => slots,
        group => format!("{slots} of {}", clean(group)),
    }
}

/// Like [`waits_for`], as a full sentence.
pub fn waiting(task: &Task, clock: &Clock) -> Option<String> {
    let Waiting { reason, ids, until } = task.waiting.as_ref()?;
    let group = clean(&task.group);
    let until = until.map(|until| clock.near(until));
    Some(match (reason, until) {
        (WaitingFor::Held, _) => format!("it is held: `bgctl release {}` releases it", task.id.short()),
        (WaitingFor::After, _) => {
            let ids: Vec<String> = ids.iter().map(|id| id.short()).collect();
            format!("for {}", ids.join(", "))
        }
        (WaitingFor::Until, Some(until)) => format!("until {until}"),
        (WaitingFor::Retry, Some(until)) => format!("until its next attempt at {until}"),
        (WaitingFor::Until | WaitingFor::Retry | WaitingFor::Unknown, _) => return None,
        (WaitingFor::Elsewhere, _) => elsewhere(task),
        (WaitingFor::Batch, _) => "for other tasks of its batch (--jobs)".to_owned(),
        (WaitingFor::Paused, _) => {
            format!("the group {group} is paused: `bgctl group continue {group}` continues it")
        }
        (WaitingFor::Slot, _) => match task.slots {
            0 => format!("for its turn in the group {group}: tasks before it wait for slots"),
            1 => format!("for a free slot of the group {group}"),
            slots => format!("for {slots} free slots of the group {group}"),
        },
        (WaitingFor::Journal, _) => {
            "until its start can be recorded: the disk of the journal is full or read-only".to_owned()
        }
    })
}

/// Returns in a few words why a task waits on a remote machine or cluster.
fn elsewhere(task: &Task) -> String {
    let place = clean(task.on.as_deref().unwrap_or("elsewhere"));
    let known = task.elsewhere.as_ref();
    match known.and_then(|known| known.unknown_because.as_deref().or(known.reason.as_deref())) {
        Some(why) => format!("{place}: {}", clean(why)),
        None => place,
    }
}

/// Formats a condition on another task.
pub fn dependency(after: &Dependency) -> String {
    let met = if after.met { "met" } else { "not met" };
    format!("{} {} ({met})", after.id, after.condition)
}

/// Describes how often a task is retried, and after which failures.
pub fn retries(retry: &Retry) -> String {
    let codes: Vec<String> = retry.codes.iter().map(ToString::to_string).collect();
    let word = if codes.len() == 1 { "exit code" } else { "exit codes" };
    let exits = (!codes.is_empty()).then(|| format!("{word} {}", codes.join(", ")));
    let on: Vec<String> = exits.into_iter().chain(retry.signal.then(|| "a signal".to_owned())).collect();
    let on = if on.is_empty() { String::new() } else { format!(", on {}", on.join(" or ")) };
    format!("up to {}{on}", retry.times)
}

/// Describes when a task is restarted.
pub const fn restarts(restart: Restart) -> &'static str {
    match restart {
        Restart::OnFailure => "on failure",
        Restart::Always => "always",
    }
}

/// Describes the course of an attempt.
pub fn attempt(attempt: &Attempt, clock: &Clock) -> String {
    // The error may say more: "not ready after 5s" of an attempt that was ended by a signal because of that.
    let how = match (&attempt.error, &attempt.exit) {
        (Some(error), _) => clean(error),
        (None, Some(exit @ (Exit::Code(_) | Exit::Signal(_)))) => exit.words(),
        (None, Some(Exit::Unknown(_)) | None) => "ended".to_owned(),
    };
    let from = clock.show(attempt.started_at);
    // Leave out a negligible CPU time.
    let used = attempt.usage.filter(|usage| usage.cpu_ms() >= 1000);
    let used = used.map(|usage| format!("; used {}", show::usage(&usage))).unwrap_or_default();
    format!("{} from {from}, {how}; its output starts at {}{used}", attempt.attempt, attempt.offset)
}

/// Describes why a task was cancelled; `None` if unknown.
pub const fn cancel_reason(reason: CancelReason) -> Option<&'static str> {
    match reason {
        CancelReason::User => Some("by request"),
        CancelReason::Session => Some("its parent session ended"),
        CancelReason::Client => Some("its client disconnected"),
        CancelReason::Shutdown => Some("the daemon ended"),
        CancelReason::Dependency => Some("a task that it waited for did not end as required"),
        CancelReason::MaxFails => Some("too many tasks of its batch failed"),
        CancelReason::Elsewhere => Some("somebody else cancelled it where it ran"),
        CancelReason::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;
    use bgd_shared::id::TaskId;
    use bgd_shared::order::Condition;
    use bgd_shared::time::Timestamp;

    fn waits(reason: WaitingFor, ids: u32, until: Option<i64>) -> Task {
        let ids = (1..=ids).map(|bits| TaskId::from_u128(u128::from(bits) << 96)).collect();
        let until = until.map(|seconds| Timestamp::from_unix_ms(seconds * 1000));
        Task { waiting: Some(Waiting { reason, ids, until }), group: "gpu".into(), ..task() }
    }

    #[test]
    fn r115_waiting_reason_is_short_in_lists_and_a_sentence_on_the_page() {
        let clock = Clock::of_tests();
        for (task, word, sentence) in [
            (waits(WaitingFor::Held, 0, None), "held", "it is held: `bgctl release 3f2a9c1e` releases it"),
            (waits(WaitingFor::After, 1, None), "after 00000001", "for 00000001"),
            (
                waits(WaitingFor::After, 4, None),
                "after 00000001, 00000002 and 2 more",
                "for 00000001, 00000002, 00000003, 00000004",
            ),
            (waits(WaitingFor::Until, 0, Some(50_400)), "until 14:00:00", "until 14:00:00"),
            (
                waits(WaitingFor::Until, 0, Some(86_400)),
                "until 1970-01-02 00:00:00",
                "until 1970-01-02 00:00:00",
            ),
            (
                waits(WaitingFor::Retry, 0, Some(43_390)),
                "retry at 12:03:10",
                "until its next attempt at 12:03:10",
            ),
            (waits(WaitingFor::Batch, 0, None), "batch", "for other tasks of its batch (--jobs)"),
            (
                waits(WaitingFor::Paused, 0, None),
                "gpu paused",
                "the group gpu is paused: `bgctl group continue gpu` continues it",
            ),
        ] {
            assert_eq!(waits_for(&task, &clock).as_deref(), Some(word));
            assert_eq!(waiting(&task, &clock).as_deref(), Some(sentence));
        }
        let slot = waits(WaitingFor::Slot, 0, None);
        assert_eq!(waits_for(&slot, &clock).unwrap(), "slot of gpu");
        assert_eq!(
            waits_for(&Task { slots: 2, group: DEFAULT_GROUP.into(), ..slot.clone() }, &clock).unwrap(),
            "2 slots"
        );
        assert_eq!(waiting(&slot, &clock).unwrap(), "for a free slot of the group gpu");
        assert_eq!(waiting(&Task { slots: 2, ..slot }, &clock).unwrap(), "for 2 free slots of the group gpu");
        for nothing in [waits(WaitingFor::Unknown, 0, None), waits(WaitingFor::Until, 0, None), task()] {
            assert_eq!((waits_for(&nothing, &clock), waiting(&nothing, &clock)), (None, None));
        }
    }

    #[test]
    fn r103_r108_dependencies_and_attempts_are_described() {
        let after = Dependency { id: TaskId::from_u128(1), condition: Condition::Fail, met: false };
        assert_eq!(dependency(&after), "00000000-0000-0000-0000-000000000001 fail (not met)");
        let mut tried = Attempt {
            attempt: 2,
            started_at: Timestamp::from_unix_ms(1_000_000),
            completed_at: Timestamp::from_unix_ms(1_001_000),
            exit: Some(Exit::Code(3)),
            error: Some("exited with code 3".into()),
            usage: None,
            offset: 42,
            stderr_offset: None,
        };
        let clock = Clock::of_tests();
        assert_eq!(
            attempt(&tried, &clock),
            "2 from 1970-01-01 00:16:40, exited with code 3; its output starts at 42"
        );
        (tried.exit, tried.error) = (Some(Exit::Signal(9)), None);
        assert!(attempt(&tried, &clock).contains(", ended by signal 9 (SIGKILL);"));
        (tried.exit, tried.error) = (Some(Exit::Signal(15)), Some("not ready after 5s".into()));
        assert!(attempt(&tried, &clock).contains(", not ready after 5s;"));
        (tried.exit, tried.error) = (Some(Exit::Code(0)), None);
        assert!(attempt(&tried, &clock).contains(", exited with code 0;"));
        (tried.exit, tried.error) = (None, Some("lost\x1b".into()));
        assert!(attempt(&tried, &clock).contains(", lost\u{fffd};"));
    }
}
