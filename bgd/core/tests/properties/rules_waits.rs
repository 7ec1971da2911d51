//! R10, R22 and R55 in the core: waits for tasks that others clear meanwhile, waits whose caller goes, and processes
//! that outlive their task.

use std::time::Duration;

use bgd_core::{
    BatchItem, BatchLimits, Cancel, Core, CoreError, Effect, Fact, Input, Part, Reply, Request, Selection,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::limits::WAITED_TASKS;
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::Status;
use bgd_shared::text::OsText;

use rustix::time::{ClockId, clock_gettime};

use super::support::{
    Desk, KILL, blocked, command, configure, events, exited, gave_up, id, ids, limits, only_reply, refusal,
    replies,
};

fn all() -> Selection {
    Selection::All { session: None }
}

fn block(desk: &mut Desk, client: u64) -> Vec<Effect> {
    let (mode, until) = (BlockMode::All, BlockUntil::Ended);
    desk.ask_as(client, Request::Block { which: all(), timeout_ms: None, mode, until })
}

/// Clears all tasks that have ended.
fn clear(desk: &mut Desk) -> u64 {
    let mut effects = desk.ask_as(9, Request::Clear { which: all(), active_too: false });
    effects.extend(desk.go_on());
    let Reply::Cleared { cleared, .. } = only_reply(&effects) else { panic!("{effects:?}") };
    *cleared
}

#[test]
fn r22_cleared_tasks_kept_for_waiters_are_kept_once_and_counted() {
    let mut desk = Desk::new(1);
    let (task, others) = (desk.running(1), [2, 3].map(|number| desk.submit(number)));
    for client in [1, 2, 3] {
        assert!(block(&mut desk, client).is_empty());
    }
    desk.cancel(ids(&others));
    let full = desk.core.held();
    assert_eq!(clear(&mut desk), 2);
    // About the memory of the tasks themselves, not three times as much.
    let (held, of_tasks) = (desk.core.held(), desk.core.held_by_tasks());
    assert!(of_tasks < held && held <= full + 500, "{held} and {of_tasks} of {full}");
    let mut tight = limits(1);
    tight.memory = held;
    desk.input(configure(tight));
    let refused = desk.ask(Request::Submit(Box::new(command(id(4)))));
    assert!(matches!(refusal(&refused), CoreError::FullMemory { .. }), "{refused:?}");
    // The next program counts the same, from the form that earlier releases wrote.
    let text = serde_json::to_string(&desk.core).unwrap();
    assert_eq!(text.matches("\"cleared\":[{").count(), 3);
    desk.core = serde_json::from_str::<Core>(&text).unwrap();
    assert!((of_tasks + 1..=full + 500).contains(&desk.core.held()), "{}", desk.core.held());
    // A waiter that disconnects no longer needs them.
    desk.input(Input::Disconnected { client: 3 });
    assert!(desk.core.held() > of_tasks);
    let effects = desk.fact(task, super::support::exited(0, false));
    let answers: Vec<&Effect> =
        effects.iter().filter(|effect| matches!(effect, Effect::Reply { .. })).collect();
    assert_eq!(answers.len(), 2);
    for answer in answers {
        let (cancelled, completed) = (Status::Cancelled, Status::Completed);
        let expected = vec![(task, completed), (others[0], cancelled), (others[1], cancelled)];
        let Effect::Reply { reply: Reply::Blocked { tasks, .. }, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(tasks.iter().map(|task| (task.id, task.status())).collect::<Vec<_>>(), expected);
    }
    assert_eq!(desk.core.held(), desk.core.held_by_tasks());
}

#[test]
fn r22_waiters_without_task_reply_keep_no_cleared_tasks() {
    let mut desk = Desk::new(1);
    let (_task, other) = (desk.running(1), desk.submit(2));
    // A clear of both tasks waits for the first one, and its client has gone.
    desk.ask_as(2, Request::Clear { which: all(), active_too: true });
    desk.ask_as(3, Request::Cancel(Cancel { which: all(), signal: None, grace_ms: None }));
    desk.input(Input::Disconnected { client: 3 });
    desk.ask(Request::Clear { which: ids(&[other]), active_too: false });
    assert_eq!(desk.core.held(), desk.core.held_by_tasks());
}

/// Each wait keeps its tasks, whatever becomes of them at its end.
#[test]
fn r22_tasks_that_clears_and_ends_of_sessions_wait_for_are_limited() {
    const TASKS: u16 = 500;
    let mut desk = Desk::new(usize::from(TASKS));
    for number in 1..=TASKS {
        let mut command = command(id(number));
        command.spec.session = Some("s".into());
        desk.ask(Request::Submit(Box::new(command)));
        desk.fact(id(number), Fact::Started { pid: Some(100) });
    }
    let requests: [fn() -> Request; 2] = [
        || Request::Clear { which: all(), active_too: true },
        || Request::EndSession { session: "s".into() },
    ];
    let too_many = CoreError::TooManyWaits(WAITED_TASKS);
    for request in requests {
        for _ in 0..WAITED_TASKS / usize::from(TASKS) {
            assert!(replies(&desk.ask(request())).is_empty());
        }
        for further in requests {
            assert_eq!(refusal(&desk.ask(further())), &too_many);
        }
        assert!(replies(&desk.ask_as(2, request())).is_empty(), "another client has its own limit");
        desk.input(Input::Disconnected { client: 1 });
    }
}

#[test]
fn r10_clear_whose_client_is_gone_still_removes_each_task_that_has_ended() {
    let mut desk = Desk::new(2);
    let (done, first, second) = (desk.finished(1, 0), desk.running(2), desk.running(3));
    for client in 2..100 {
        assert!(replies(&desk.ask_as(client, Request::Clear { which: all(), active_too: true })).is_empty());
        desk.ask_as(client, Request::Cancel(Cancel { which: all(), signal: None, grace_ms: None }));
        let effects = desk.input(Input::Disconnected { client });
        let cleared = if client == 2 { vec![(EventKind::Cleared, done)] } else { vec![] };
        assert_eq!(events(&effects), cleared);
    }
    // However many clients have come and gone, the core keeps only what is to be removed.
    let json = serde_json::to_value(&desk.core).unwrap();
    let kept = |index: &str| json["waiters"][index].as_object().map(serde_json::Map::len);
    assert_eq!(["by_id", "by_task", "by_client", "removals"].map(kept), [0, 0, 0, 2].map(Some));
    desk.core = serde_json::from_str::<Core>(&json.to_string()).unwrap();
    for task in [first, second] {
        let effects = desk.fact(task, exited(0, false));
        assert_eq!(events(&effects), [(EventKind::Cancelled, task), (EventKind::Cleared, task)]);
    }
    assert_eq!((desk.core.summary().total(), desk.core.held()), (0, 0));
}

/// Returns the processor time of this thread, which does not go on while others have the processor.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it is positive")
}

/// Submits a batch, and waits until all of its tasks are added.
fn submit_batch(desk: &mut Desk, batch: u64, tasks: u64, session: Option<&str>) {
    let item = |number| BatchItem {
        id: TaskId::from_u128((1_u128 << 127) | (u128::from(batch) << 64) | u128::from(number)),
        argv: [OsText::from("true")].into(),
    };
    let batch = TaskId::from_u128(batch.into());
    let mut common = command(batch);
    common.spec.session = session.map(Into::into);
    let first = Some((Box::new(common), BatchLimits::default()));
    let part = Part { batch, first, items: (0..tasks).map(item).collect(), more: false };
    desk.ask(Request::SubmitMany(Box::new(part)));
    desk.go_on();
}

fn cancel_pending(desk: &mut Desk) {
    let status = [Status::Pending].into();
    desk.cancel(Selection::Matching(Box::new(bgd_core::Filter { status, ..Default::default() })));
    desk.go_on();
}

/// The end of a wait looks up each task that was cleared meanwhile: searching 40,000 tasks for each of 40,000 would
/// take seconds.
#[test]
fn r22_block_on_40000_cleared_tasks_ends_in_linear_time() {
    const TASKS: u64 = 40_000;
    let mut desk = Desk::new(1);
    let mut roomy = limits(1);
    roomy.tasks = 50_000;
    desk.input(configure(roomy));
    let last = desk.running(1);
    submit_batch(&mut desk, 7, TASKS, None);
    assert!(block(&mut desk, 2).is_empty());
    cancel_pending(&mut desk);
    let began = thread_time();
    assert_eq!(clear(&mut desk), TASKS);
    let cleared_in = thread_time().saturating_sub(began);
    let began = thread_time();
    let effects = desk.fact(last, super::support::exited(0, false));
    let ended_in = thread_time().saturating_sub(began);
    assert_eq!(blocked(&effects).0.len() as u64, TASKS + 1);
    assert!(ended_in < cleared_in * 3, "cleared in {cleared_in:?}, ended in {ended_in:?}");
}

/// An item may have many before it: moving 10,000 for each of 10,000 would take seconds.
#[test]
fn r55_acknowledging_the_newest_items_one_by_one_takes_no_longer_than_the_oldest() {
    const TASKS: u64 = 10_000;
    let mut desk = Desk::new(1);
    let mut roomy = limits(1);
    (roomy.tasks, roomy.inbox_items) = (50_000, 50_000);
    desk.input(configure(roomy));
    // It has the only slot.
    desk.running(1);
    let taken_in = [7, 8].map(|batch| {
        submit_batch(&mut desk, batch, TASKS, Some("s"));
        cancel_pending(&mut desk);
        let first = (batch - 7) * TASKS + 1;
        let mut numbers: Vec<u64> = (first..first + TASKS).collect();
        if batch == 8 {
            numbers.reverse();
        }
        let began = thread_time();
        for (number, rest) in numbers.into_iter().zip((0..TASKS).rev()) {
            let effects = desk.ask(Request::TakeItem { session: "s".into(), number, removes: true });
            let Reply::Acknowledged { acknowledged, left } = only_reply(&effects) else {
                panic!("{effects:?}")
            };
            assert_eq!((*acknowledged, *left), (1, rest));
        }
        thread_time().saturating_sub(began)
    });
    let [oldest_first, newest_first] = taken_in;
    assert!(newest_first < oldest_first * 10, "oldest first in {oldest_first:?}, newest in {newest_first:?}");
}

#[test]
fn r10_clear_names_the_tasks_of_its_request_although_another_one_removes_them() {
    let mut desk = Desk::new(1);
    let (ended, running) = (desk.finished(1, 0), desk.running(2));
    for (client, tasks) in [(1, &[ended, running][..]), (2, &[running])] {
        let clear = Request::Clear { which: ids(tasks), active_too: true };
        assert!(replies(&desk.ask_as(client, clear)).is_empty());
    }
    let effects = desk.fact(running, exited(0, false));
    let [Reply::Cleared { cleared: 2, tasks: of_first }, Reply::Cleared { cleared: 0, tasks: of_second }] =
        replies(&effects)[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((&of_first[..], &of_second[..]), (&[ended, running][..], &[running][..]));
}

/// Only then is its output complete.
#[test]
fn r55_event_reports_when_the_last_process_of_an_ended_task_is_gone() {
    let facts = [vec![Fact::TreeEmpty], vec![gave_up(), exited(0, false)]];
    for (facts, ordered) in facts.into_iter().zip([None, Some(KILL)]) {
        let mut desk = Desk::new(1);
        let task = desk.running(1);
        assert_eq!(events(&desk.fact(task, exited(0, true))), [(EventKind::Completed, task)]);
        if let Some(signal) = ordered {
            let cancel = Cancel { which: ids(&[task]), signal: Some(signal), grace_ms: None };
            assert!(events(&desk.ask(Request::Cancel(cancel))).is_empty());
        }
        for fact in facts {
            let effects = desk.fact(task, fact);
            assert_eq!(events(&effects), [(EventKind::Progress, task)]);
            assert!(desk.task(task).is_settled());
        }
        assert!(events(&desk.fact(task, Fact::TreeEmpty)).is_empty(), "once");
    }
}

#[test]
fn r55_last_event_of_a_task_cleared_as_it_settles_is_its_removal() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    desk.fact(task, exited(0, true));
    desk.ask(Request::Clear { which: ids(&[task]), active_too: false });
    let effects = desk.fact(task, Fact::TreeEmpty);
    assert_eq!(events(&effects), [(EventKind::Progress, task), (EventKind::Cleared, task)]);
}
