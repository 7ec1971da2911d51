//! R05, R10, R11 and R113 in the core: more tasks than are ended or removed in one step, unlike those of the random
//! histories.

use bgd_core::{
    BatchItem, BatchLimits, Cancel, Core, Effect, Fact, Input, LeavePolicy, Part, Reply, Request, Selection,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::task::Status;
use bgd_shared::text::OsText;

use super::support::{
    Desk, command, configure, events, exited, id, ids, limits, only_reply, replies, starts,
};

/// More tasks than one step deals with.
const TASKS: u64 = 2000;

fn member(number: u64) -> TaskId {
    TaskId::from_u128((1_u128 << 127) | u128::from(number))
}

fn all() -> Selection {
    Selection::All { session: None }
}

fn of_session() -> Selection {
    Selection::All { session: Some("s".into()) }
}

fn cancel(which: Selection) -> Request {
    Request::Cancel(Cancel { which, signal: None, grace_ms: None })
}

/// Returns a desk with one slot, which a task has, and with pending tasks in the parent session `s`.
fn crowded(batch: BatchLimits) -> (Desk, TaskId) {
    let mut desk = Desk::new(1);
    let mut roomy = limits(1);
    roomy.tasks = 5000;
    desk.input(configure(roomy));
    let running = desk.running(1);
    let mut common = command(TaskId::from_u128(7));
    common.spec.session = Some("s".into());
    let item = |number| BatchItem { id: member(number), argv: [OsText::from("true")].into() };
    let first = Some((Box::new(common), batch));
    let items = (0..TASKS).map(item).collect();
    desk.ask(Request::SubmitMany(Box::new(Part { batch: TaskId::from_u128(7), first, items, more: false })));
    desk.go_on();
    assert_eq!(desk.core.summary().pending, TASKS);
    (desk, running)
}

fn cancelled(effects: &[Effect]) -> Vec<TaskId> {
    let ends = events(effects).into_iter().filter(|(kind, _)| *kind == EventKind::Cancelled);
    ends.map(|(_, task)| task).collect()
}

/// Returns the position of the only reply of this kind.
fn place(effects: &[Effect], is_meant: impl Fn(&Reply) -> bool) -> usize {
    let is_meant = |effect: &Effect| matches!(effect, Effect::Reply { reply, .. } if is_meant(reply));
    let places: Vec<usize> = (0..effects.len()).filter(|place| is_meant(&effects[*place])).collect();
    assert_eq!(places.len(), 1, "{places:?}");
    places[0]
}

#[test]
fn r05_cancel_of_many_goes_on_in_steps_and_answers_once_all_have_ended() {
    let (mut desk, running) = crowded(BatchLimits::default());
    let mut effects = desk.ask(cancel(of_session()));
    let at_once = cancelled(&effects).len() as u64;
    assert!((1..TASKS).contains(&at_once) && replies(&effects).is_empty() && desk.core.has_more());
    // Others get their replies meanwhile, and the selection is fixed.
    let mut late = command(id(2));
    late.spec.session = Some("s".into());
    let submitted = desk.ask_as(2, Request::Submit(Box::new(late)));
    assert!(matches!(only_reply(&submitted), Reply::Task(task) if task.id == id(2)));
    effects.extend(submitted);
    let single = desk.ask_as(2, cancel(ids(&[member(TASKS - 1)])));
    assert!(matches!(only_reply(&single), Reply::Tasks(tasks) if tasks.len() == 1), "{single:?}");
    effects.extend(single);
    // None of those that are still to be asked may take the slot that is free now.
    let end = desk.fact(running, exited(0, false));
    assert!(starts(&end).is_empty() && desk.core.summary().pending > 1, "{end:?}");
    assert!(starts(&desk.wait(0)).is_empty());
    let rest = desk.go_on();
    assert_eq!(starts(&rest), [id(2)]);
    let Reply::Tasks(tasks) = only_reply(&rest) else { panic!("{:?}", replies(&rest)) };
    let expected: Vec<(TaskId, Status)> =
        (0..TASKS).map(|number| (member(number), Status::Cancelled)).collect();
    assert_eq!(tasks.iter().map(|task| (task.id, task.status())).collect::<Vec<_>>(), expected);
    effects.extend(rest);
    assert_eq!(cancelled(&effects).len() as u64, TASKS, "each once");
}

#[test]
fn r05_cancel_of_many_is_carried_out_after_its_client_has_gone_and_by_the_next_program() {
    let (mut desk, running) = crowded(BatchLimits::default());
    desk.ask_as(2, cancel(of_session()));
    desk.input(Input::Disconnected { client: 2 });
    desk.fact(running, exited(0, false));
    assert!(desk.core.has_more());
    let json = serde_json::to_string(&desk.core).unwrap();
    desk.core = serde_json::from_str::<Core>(&json).unwrap();
    let effects = desk.go_on();
    assert!(replies(&effects).is_empty() && starts(&effects).is_empty());
    assert_eq!(desk.core.summary().cancelled, TASKS);
}

#[test]
fn r103_dependents_of_many_cancelled_tasks_do_not_start() {
    let (mut desk, running) = crowded(BatchLimits::default());
    for (number, condition) in [(2, Condition::Ok), (3, Condition::Any)] {
        let mut command = command(id(number));
        command.plan.after = vec![After { id: member(TASKS - 1).into(), condition }];
        desk.ask(Request::Submit(Box::new(command)));
    }
    let mut effects = desk.ask(cancel(of_session()));
    effects.extend(desk.fact(running, exited(0, false)));
    effects.extend(desk.go_on());
    assert!(starts(&effects).is_empty());
    assert_eq!([2, 3].map(|number| desk.status(id(number))), [Status::Cancelled; 2]);
}

#[test]
fn r10_clear_of_many_goes_on_in_steps_and_counts_all() {
    let (mut desk, _running) = crowded(BatchLimits::default());
    desk.cancel(of_session());
    desk.go_on();
    let effects = desk.ask(Request::Clear { which: of_session(), active_too: false });
    let there = desk.core.summary().total();
    assert!((2..TASKS).contains(&there) && replies(&effects).is_empty() && desk.core.has_more(), "{there}");
    // Another client's clear of one of them counts for that one.
    let one = desk.ask_as(2, Request::Clear { which: ids(&[member(TASKS - 1)]), active_too: false });
    assert!(matches!(only_reply(&one), Reply::Cleared { cleared: 1, .. }), "{one:?}");
    let effects = desk.go_on();
    let Reply::Cleared { cleared, tasks } = only_reply(&effects) else { panic!("{:?}", replies(&effects)) };
    assert_eq!((*cleared, tasks.len() as u64), (TASKS - 1, TASKS));
    assert_eq!(desk.core.summary().total(), 1);
    let json = serde_json::to_value(&desk.core).unwrap();
    assert_eq!(json["waiters"]["removals"].as_object().map(serde_json::Map::len), Some(0));
}

#[test]
fn r10_clear_of_many_is_carried_out_after_its_client_has_gone() {
    for active_too in [true, false] {
        let (mut desk, _running) = crowded(BatchLimits::default());
        if !active_too {
            desk.cancel(of_session());
            desk.go_on();
        }
        desk.ask_as(2, Request::Clear { which: of_session(), active_too });
        desk.input(Input::Disconnected { client: 2 });
        assert!(desk.core.has_more());
        assert!(replies(&desk.go_on()).is_empty());
        assert_eq!(desk.core.summary().total(), 1);
    }
}

#[test]
fn r54_end_of_a_session_with_many_tasks_goes_on_in_steps() {
    let (mut desk, _running) = crowded(BatchLimits::default());
    let effects = desk.ask(Request::EndSession { session: "s".into() });
    assert!(replies(&effects).is_empty() && desk.core.has_more());
    let effects = desk.go_on();
    let Reply::SessionEnded { cancelled: TASKS, cleared: TASKS, tasks } = only_reply(&effects) else {
        panic!("{:?}", replies(&effects))
    };
    assert_eq!((tasks.len() as u64, desk.core.summary().total()), (TASKS, 1));
}

#[test]
fn r11_shutdown_waits_for_the_clear_of_many() {
    let (mut desk, running) = crowded(BatchLimits::default());
    desk.cancel(of_session());
    desk.fact(running, exited(0, false));
    desk.go_on();
    let mut effects = desk.ask(Request::Clear { which: all(), active_too: false });
    assert!(desk.core.has_more());
    effects.extend(desk.ask_as(2, Request::Shutdown { grace_ms: None, leaves: LeavePolicy::Nothing }));
    assert!(replies(&effects).is_empty(), "{:?}", replies(&effects));
    effects.extend(desk.go_on());
    let cleared =
        place(&effects, |reply| matches!(reply, Reply::Cleared { cleared, .. } if *cleared == TASKS + 1));
    let ended = place(&effects, |reply| matches!(reply, Reply::ShutDown { cancelled: 0, left: 0 }));
    assert!(cleared < ended && matches!(effects.last(), Some(Effect::Exit)));
}

/// Pending tasks outlive the daemon, but not those that were to be cancelled.
#[test]
fn r131_stop_of_a_durable_daemon_waits_for_the_cancel_of_many() {
    let (mut desk, running) = crowded(BatchLimits::default());
    desk.core.track();
    desk.fact(running, exited(0, false));
    // The first of them has the slot, and begins.
    desk.fact(member(0), Fact::Started { pid: Some(100) });
    let mut effects = desk.ask(cancel(of_session()));
    effects.extend(desk.fact(member(0), exited(0, false)));
    effects.extend(desk.ask_as(2, Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All }));
    assert!(replies(&effects).is_empty() && desk.core.has_more());
    effects.extend(desk.go_on());
    let answered = place(&effects, |reply| matches!(reply, Reply::Tasks(_)));
    let ended = place(&effects, |reply| matches!(reply, Reply::ShutDown { .. }));
    assert!(answered < ended && matches!(effects.last(), Some(Effect::Exit)));
    assert_eq!((desk.core.summary().pending, starts(&effects)), (0, vec![]));
}

#[test]
fn r11_shutdown_of_many_pending_tasks_starts_none_of_them() {
    let (mut desk, running) = crowded(BatchLimits::default());
    let mut effects = desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::Nothing });
    effects.extend(desk.fact(running, exited(0, false)));
    effects.extend(desk.go_on());
    let Reply::ShutDown { cancelled, left: 0 } = only_reply(&effects) else {
        panic!("{:?}", replies(&effects))
    };
    assert_eq!((*cancelled, starts(&effects)), (TASKS + 1, vec![]));
    assert!(matches!(effects.last(), Some(Effect::Exit)));
}

#[test]
fn r113_rest_of_a_large_batch_does_not_start_once_too_many_have_failed() {
    let (mut desk, running) = crowded(BatchLimits { max_fails: Some(1), ..BatchLimits::default() });
    assert_eq!(starts(&desk.fact(running, exited(0, false))), [member(0)]);
    let mut effects = desk.fact(member(0), Fact::StartFailed { failure: "no such file".into() });
    effects.extend(desk.go_on());
    assert_eq!((starts(&effects), cancelled(&effects).len() as u64), (vec![], TASKS - 1));
}
