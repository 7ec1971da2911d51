//! R112 in the core: batches too large to be added in one step, unlike the small ones of the random histories.

use bgd_core::{
    BatchItem, BatchLimits, CoreError, Effect, Fact, Filter, Input, LeavePolicy, OrderError, Outcome, Part,
    Reply, Request, Selection, StopReason,
};
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::Status;
use bgd_shared::text::OsText;

use super::support::{Desk, blocked, command, events, exited, id, only_reply, refusal, replies};

const BATCH: TaskId = TaskId::from_u128(7);

/// Returns the first part of a batch of `count` tasks that all start after the given ones.
fn part(count: u64, after: &[TaskId], more: bool) -> Part {
    let mut common = command(BATCH);
    common.plan.after = after.iter().map(|id| After { id: (*id).into(), condition: Condition::Ok }).collect();
    Part {
        batch: BATCH,
        first: Some((Box::new(common), BatchLimits::default())),
        items: items(0, count),
        more,
    }
}

/// Returns a batch of 1000 tasks in the parent session `s`, possibly with another part to follow.
fn in_session(batch: u128, more: bool) -> Part {
    let mut part = Part { batch: TaskId::from_u128(batch), ..part(1000, &[], more) };
    if let Some((common, _)) = &mut part.first {
        common.spec.session = Some("s".into());
    }
    part
}

/// Adds all tasks of a batch. Returns the effects of the last step.
fn enter(desk: &mut Desk) -> Vec<Effect> {
    let mut last = Vec::new();
    while desk.core.has_more() {
        last = desk.input(Input::Continue);
    }
    last
}

fn items(first: u64, count: u64) -> Vec<BatchItem> {
    let item = |number| BatchItem { id: member(number), argv: [OsText::from("true")].into() };
    (first..first + count).map(item).collect()
}

fn member(number: u64) -> TaskId {
    TaskId::from_u128((1_u128 << 127) | u128::from(number))
}

fn submit(desk: &mut Desk, part: Part) -> Vec<Effect> {
    desk.ask(Request::SubmitMany(Box::new(part)))
}

/// Returns a desk with room for more tasks than are added in one step.
fn desk() -> Desk {
    let mut desk = Desk::new(1);
    let mut limits = super::support::limits(1);
    (limits.tasks, limits.memory) = (5000, 64 << 20);
    desk.input(Input::Configure { limits, groups: std::collections::BTreeMap::new() });
    desk
}

#[test]
fn r112_large_batch_enters_in_steps_without_delaying_other_requests() {
    let mut desk = desk();
    let effects = submit(&mut desk, part(1000, &[], false));
    assert!(replies(&effects).is_empty() && desk.core.has_more());
    let there = desk.core.summary().total();
    assert!((1..1000).contains(&there), "{there}");
    // Other requests get replies meanwhile, and the remaining room.
    let other = desk.submit(1);
    assert_eq!(desk.status(other), Status::Pending);
    let mut last = Vec::new();
    while desk.core.has_more() {
        assert!(replies(&last).is_empty());
        last = desk.input(Input::Continue);
    }
    let Reply::Many { batch: BATCH, ids } = only_reply(&last) else { panic!("{last:?}") };
    assert_eq!((ids.len(), ids[999]), (1000, member(999)));
    assert_eq!(desk.core.summary().total(), 1001);
}

/// Returns a wait for all tasks of the parent session `s`.
fn wait_for_session(timeout_ms: Option<u64>) -> Request {
    let which = Selection::All { session: Some("s".into()) };
    Request::Block { which, timeout_ms, mode: BlockMode::All, until: BlockUntil::Ended }
}

#[test]
fn r112_wait_for_tasks_of_a_batch_begins_once_all_are_added() {
    let mut desk = desk();
    let batch = |number: u64| Part { items: items(number * 1000, 1000), ..in_session(number.into(), false) };
    submit(&mut desk, batch(0));
    // Whatever is there of this batch has ended.
    desk.cancel(Selection::All { session: Some("s".into()) });
    submit(&mut desk, batch(1));
    assert!((1..2000).contains(&desk.core.summary().total()) && desk.core.has_more());
    for client in [9, 10] {
        let effects = desk.ask_as(client, wait_for_session(Some(0)));
        assert!(replies(&effects).iter().all(|reply| matches!(reply, Reply::Many { .. })), "{effects:?}");
    }
    desk.input(Input::Disconnected { client: 10 });
    // A later batch holds up no wait.
    submit(&mut desk, batch(2));
    let effects = loop {
        let effects = desk.wait(0);
        if !replies(&effects).is_empty() {
            break effects;
        }
        desk.input(Input::Continue);
    };
    let (tasks, timed_out) = blocked(&effects);
    assert_eq!((tasks.len(), timed_out, desk.core.has_more()), (2000, true, true));
    enter(&mut desk);
    // Without tasks still to be added, it begins at once.
    desk.ask(wait_for_session(Some(0)));
    assert_eq!(blocked(&desk.wait(0)).0.len(), 3000);
}

#[test]
fn r112_room_for_a_batch_is_reserved_before_it_is_complete() {
    let mut desk = desk();
    let effects = submit(&mut desk, part(4999, &[], true));
    assert!(matches!(only_reply(&effects), Reply::Many { .. }));
    assert_eq!(desk.core.summary().total(), 0);
    desk.submit(1);
    let refused = desk.ask(Request::Submit(Box::new(command(id(2)))));
    assert!(matches!(refusal(&refused), CoreError::Full(5000)), "{refused:?}");
    // A part that does not fit discards the whole batch, and its room is free again.
    let more = Part { batch: BATCH, first: None, items: items(4999, 1), more: false };
    let refused = submit(&mut desk, more.clone());
    let CoreError::Order(OrderError::LargeBatch { wanted: 5000, room: 4999 }) = refusal(&refused) else {
        panic!("{refused:?}")
    };
    let staged = submit(&mut desk, more);
    assert!(matches!(refusal(&staged), CoreError::Order(OrderError::NotStaged(BATCH))));
    desk.submit(2);
    assert_eq!((desk.core.summary().total(), desk.core.held_by_tasks()), (2, desk.core.held()));
}

/// Returns a part of a batch that has a key.
fn keyed(batch: u128, count: u64, more: bool) -> Part {
    let mut part = Part { batch: TaskId::from_u128(batch), ..part(count, &[], more) };
    let (common, _) = part.first.as_mut().expect("the first part");
    common.key = Some("key".into());
    part
}

#[test]
fn r112_refused_part_discards_its_batch() {
    let mut desk = desk();
    let (batch, _) = taken(&submit(&mut desk, part(2, &[], true)));
    let rest = || Part { batch, first: None, items: items(2, 1), more: false };
    assert!(desk.input(Input::PartRefused { client: 99 }).is_empty());
    assert!(desk.input(Input::PartRefused { client: 1 }).is_empty());
    assert!(matches!(only_reply(&submit(&mut desk, rest())), Reply::Error(_)));
    assert_eq!((desk.core.summary().total(), desk.core.held()), (0, 0));
}

/// Returns the reply to a part.
fn taken(effects: &[Effect]) -> (TaskId, Vec<TaskId>) {
    let Reply::Many { batch, ids } = only_reply(effects) else { panic!("{effects:?}") };
    (*batch, ids.clone())
}

#[test]
fn r142_batch_with_same_key_is_submitted_once() {
    let mut desk = desk();
    let (batch, mut ids) = taken(&submit(&mut desk, keyed(7, 600, true)));
    let rest = |batch| Part { batch, first: None, items: items(600, 400), more: false };
    assert!(replies(&submit(&mut desk, rest(batch))).is_empty() && desk.core.has_more());
    // Another client repeats the batch before all of its tasks are added, and gets the same ids once they are.
    let again = |part| Request::SubmitMany(Box::new(part));
    let first = taken(&desk.ask_as(9, again(keyed(8, 600, true))));
    assert_eq!(first, (batch, ids.clone()));
    assert!(replies(&desk.ask_as(9, again(rest(batch)))).is_empty());
    let mut last = Vec::new();
    while desk.core.has_more() {
        last = desk.input(Input::Continue);
    }
    let [Reply::Many { ids: one, .. }, Reply::Many { ids: other, .. }] = replies(&last)[..] else {
        panic!("{last:?}")
    };
    assert_eq!((one, one.len()), (other, 400));
    ids.extend(one);
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000);
    assert!(ids.iter().all(|id| desk.core.get(&(*id).into()).is_ok()));
    // The same again; tasks beyond the first submission are not submitted.
    assert_eq!(taken(&desk.ask(again(keyed(11, 2000, false)))), (batch, ids.clone()));
    assert_eq!(desk.core.summary().total(), 1000);
    // A batch without tasks is forgotten together with its key. An incomplete batch is dropped for the next one with
    // its key.
    let held = desk.core.held();
    desk.ask(Request::Cancel(bgd_core::Cancel {
        which: bgd_core::Selection::All { session: None },
        signal: None,
        grace_ms: None,
    }));
    enter(&mut desk);
    desk.fact(ids[0], Fact::Started { pid: Some(100) });
    desk.fact(ids[0], exited(0, false));
    desk.ask(Request::Clear { which: bgd_core::Selection::All { session: None }, active_too: false });
    enter(&mut desk);
    assert_eq!(desk.core.summary().total(), 0);
    assert!(desk.core.held() < held && desk.core.held() == desk.core.held_by_tasks(), "{}", desk.core.held());
    let (dropped, _) = taken(&desk.ask_as(9, again(keyed(12, 10, true))));
    let (batch, _) = taken(&desk.ask(again(keyed(13, 10, false))));
    assert_eq!((dropped, batch), (TaskId::from_u128(12), TaskId::from_u128(13)));
    let refused = desk.ask_as(9, again(rest(dropped)));
    assert!(matches!(refusal(&refused), CoreError::Order(OrderError::NotStaged(_))), "{refused:?}");
    assert_eq!(desk.core.summary().total(), 10);
}

#[test]
fn r142_repeat_of_partly_withdrawn_batch_is_refused_as_torn() {
    let mut desk = desk();
    let mut effects = submit(&mut desk, keyed(7, 10, false));
    while desk.core.has_more() {
        effects = desk.input(Input::Continue);
    }
    let (batch, ids) = taken(&effects);
    let _ = desk.core.withdraw(desk.now, &ids[5..], &[], "the disk is full");
    assert_eq!(desk.core.summary().total(), 5);
    let again = submit(&mut desk, keyed(8, 10, false));
    assert!(
        matches!(refusal(&again), CoreError::Order(OrderError::Torn(torn)) if *torn == batch),
        "{again:?}"
    );
    assert_eq!(desk.core.summary().total(), 5);
}

#[test]
fn r112_dependency_may_end_and_be_cleared_while_batch_enters() {
    for (code, expected) in [(0, Status::Pending), (3, Status::Cancelled)] {
        let mut desk = desk();
        let first = desk.submit(1);
        desk.fact(first, Fact::Started { pid: Some(100) });
        // Keep everything else from starting.
        desk.ask(Request::PauseGroup { name: "default".into(), paused: true });
        submit(&mut desk, part(1000, &[first], false));
        desk.fact(first, exited(code, false));
        let which = bgd_core::Selection::Ids(vec![first.into()]);
        let cleared = desk.ask(Request::Clear { which, active_too: false });
        assert!(!events(&cleared).is_empty() && desk.core.has_more(), "{cleared:?}");
        while desk.core.has_more() {
            desk.input(Input::Continue);
        }
        for number in [0, 300, 999] {
            assert_eq!(desk.status(member(number)), expected, "{number} after {code}");
        }
        assert!(desk.core.list(&bgd_core::ListQuery::default()).is_ok());
    }
}

#[test]
fn r103_pending_dependency_cleared_while_batch_enters_cancels_all_its_tasks() {
    let mut desk = desk();
    desk.ask(Request::PauseGroup { name: "default".into(), paused: true });
    let first = desk.submit(1);
    submit(&mut desk, part(1000, &[first], false));
    assert!(desk.core.has_more());
    // It ends and is removed in the step that adds the next tasks.
    let which = Selection::Ids(vec![first.into()]);
    desk.ask_as(2, Request::Clear { which, active_too: true });
    assert!(desk.core.get(&first.into()).is_err() && desk.core.has_more());
    enter(&mut desk);
    assert_eq!(desk.core.summary().total(), 1000);
    for number in 0..1000 {
        let finished = desk.task(member(number)).finished().cloned();
        let outcome = finished.map(|finished| finished.outcome);
        assert!(
            matches!(outcome, Some(Outcome::Cancelled(StopReason::Dependency(..)))),
            "{number}: {outcome:?}"
        );
    }
}

#[test]
fn r112_shutdown_accepts_entering_batch_without_adding_the_rest() {
    let mut desk = desk();
    submit(&mut desk, part(1000, &[], false));
    let there = desk.core.summary().total();
    let effects = desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    // The batch was accepted, so its client must not submit it again to the next daemon.
    let is_taken = |reply: &&Reply| matches!(reply, Reply::Many { batch, .. } if *batch == BATCH);
    assert!(replies(&effects).iter().any(is_taken));
    assert!(!desk.core.has_more());
    assert_eq!(desk.core.summary().total(), there);
}

/// Submits a batch that is only partly added so far. Returns the number of tasks that exist by then.
fn entering(desk: &mut Desk) -> u64 {
    desk.ask(Request::PauseGroup { name: "default".into(), paused: true });
    assert!(replies(&submit(desk, in_session(7, false))).is_empty());
    let there = desk.core.summary().total();
    assert!(desk.core.has_more() && (1..1000).contains(&there), "{there}");
    there
}

#[test]
fn r54_end_of_session_drops_the_rest_of_entering_batches() {
    for by_owner in [false, true] {
        let mut desk = desk();
        if by_owner {
            desk.ask_as(2, Request::OwnSession { session: "s".into() });
        }
        let there = entering(&mut desk);
        // Another batch whose last part has not arrived, and a batch of another session.
        desk.ask_as(3, Request::SubmitMany(Box::new(in_session(8, true))));
        let other = Part { batch: TaskId::from_u128(9), ..part(0, &[], true) };
        desk.ask_as(4, Request::SubmitMany(Box::new(other)));
        let there_now = desk.core.summary().total();
        assert!(there_now > there);
        let mut effects = if by_owner {
            desk.input(Input::Disconnected { client: 2 })
        } else {
            desk.ask_as(2, Request::EndSession { session: "s".into() })
        };
        effects.extend(desk.go_on());
        let all = replies(&effects);
        let is_taken = |reply: &&Reply| matches!(reply, Reply::Many { ids, .. } if ids.len() == 1000);
        assert!(all.iter().any(is_taken), "{effects:?}");
        let is_reported =
            |reply: &&Reply| matches!(reply, Reply::SessionEnded { cleared, .. } if *cleared == there_now);
        assert_eq!(all.iter().any(is_reported), !by_owner, "{effects:?}");
        assert_eq!(desk.core.summary().total(), 0);
        let rest =
            |batch| Part { batch: TaskId::from_u128(batch), first: None, items: items(2000, 1), more: true };
        let refused = desk.ask_as(3, Request::SubmitMany(Box::new(rest(8))));
        assert!(matches!(refusal(&refused), CoreError::Order(OrderError::NotStaged(_))), "{refused:?}");
        taken(&desk.ask_as(4, Request::SubmitMany(Box::new(rest(9)))));
        desk.input(Input::Disconnected { client: 4 });
        assert_eq!(desk.core.held(), 0);
    }
}

#[test]
fn r05_cancel_by_selection_covers_the_rest_of_an_entering_batch() {
    let matching = |filter: Filter| Selection::Matching(Box::new(filter));
    let of_batch = || matching(Filter { batch: Some(BATCH.into()), ..Filter::default() });
    let pending = || matching(Filter { status: [Status::Pending].into(), ..Filter::default() });
    let of_session = |session: &str| Selection::All { session: Some(session.into()) };
    for which in [Selection::All { session: None }, of_session("s"), of_batch(), pending()] {
        let mut desk = desk();
        let there = entering(&mut desk);
        let effects = desk.cancel(which);
        let answered = |reply: &&Reply| matches!(reply, Reply::Tasks(tasks) if tasks.len() as u64 == there);
        assert!(replies(&effects).iter().any(answered), "{effects:?}");
        let last = enter(&mut desk);
        assert!(matches!(only_reply(&last), Reply::Many { .. }), "{last:?}");
        assert_eq!((desk.core.summary().cancelled, desk.core.summary().total()), (1000, 1000));
    }
    let group =
        Filter { group: Some("default".into()), status: [Status::Running].into(), ..Filter::default() };
    for which in [of_session("t"), matching(group)] {
        let mut desk = desk();
        entering(&mut desk);
        desk.cancel(which);
        enter(&mut desk);
        assert_eq!((desk.core.summary().cancelled, desk.core.summary().total()), (0, 1000));
    }
}

#[test]
fn r10_clear_with_active_tasks_covers_the_rest_of_an_entering_batch() {
    for active_too in [true, false] {
        let mut desk = desk();
        let there = entering(&mut desk);
        let effects = desk.ask_as(2, Request::Clear { which: Selection::All { session: None }, active_too });
        let cleared = replies(&effects).into_iter().find_map(|reply| match reply {
            Reply::Cleared { cleared, .. } => Some(*cleared),
            _ => None,
        });
        assert_eq!(cleared, Some(if active_too { there } else { 0 }));
        enter(&mut desk);
        assert_eq!(desk.core.summary().total(), if active_too { 0 } else { 1000 });
    }
}

#[test]
fn r103_hold_by_selection_covers_the_rest_of_an_entering_batch() {
    let mut desk = desk();
    entering(&mut desk);
    let all = || Selection::All { session: None };
    desk.ask(Request::Hold { which: all(), held: true });
    let held =
        |desk: &Desk| desk.core.list(&bgd_core::ListQuery { limit: 1000, ..Default::default() }).unwrap();
    enter(&mut desk);
    assert!(held(&desk).tasks.iter().all(|task| task.plan().held));
    desk.ask(Request::Hold { which: all(), held: false });
    assert!(held(&desk).tasks.iter().all(|task| !task.plan().held));
}

#[test]
fn r11_shutdown_replies_to_all_clients_with_entering_batches() {
    let mut desk = desk();
    entering(&mut desk);
    desk.ask_as(2, Request::SubmitMany(Box::new(Part { items: items(1000, 1000), ..in_session(8, false) })));
    let mut effects = desk.ask_as(3, Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    effects.extend(desk.go_on());
    let is_taken = |reply: &&&Reply| matches!(reply, Reply::Many { .. });
    assert_eq!(replies(&effects).iter().filter(is_taken).count(), 2, "{effects:?}");
    assert!(matches!(effects.last(), Some(Effect::Exit)), "{effects:?}");
}
