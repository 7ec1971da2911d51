//! Example tests of the requirements that the core implements.

use std::sync::Arc;

use crate::wire::{failures, refusals};
use bgd_core::{
    Begin, Cancel, CoreError, Effect, Fact, Input, LeavePolicy, Reply, Request, Selection, StopReason,
};
use bgd_core::{Finished, GIVE_UP_MS, Lingering, Outcome, State};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::limits::WAITED_TASKS;
use bgd_shared::request::{
    BlockMode::{All, Any},
    BlockUntil,
};
use bgd_shared::task::{Exit, Status};

use super::support::{
    Desk, KILL, TERM, blocked, command, configure, ends, env, events, exited, exited_as, id, ids, limits,
    of_session, only_reply, refs, refusal, replies, starts,
};

/// Submits a task of this parent session.
fn submit_for(desk: &mut Desk, number: u16, session: &str) -> TaskId {
    let mut command = command(id(number));
    command.spec.session = Some(session.into());
    assert_eq!(replies(&desk.ask(Request::Submit(Box::new(command)))).len(), 1);
    id(number)
}

#[test]
fn r01_submit_replies_at_once_with_the_id() {
    let mut desk = Desk::new(1);
    desk.submit(1);
    let effects = desk.ask(Request::Submit(Box::new(command(id(2)))));
    assert!(matches!(only_reply(&effects), Reply::Task(task) if task.id == id(2) && !task.is_finished()));
    assert_eq!(events(&effects), [(EventKind::Submitted, id(2))]);
}

#[test]
fn r01_same_key_in_same_session_returns_same_task() {
    let mut desk = Desk::new(1);
    let submit = |desk: &mut Desk, number: u16, session: Option<&str>| {
        let mut command = command(id(number));
        command.key = Some("nightly".into());
        command.spec.session = session.map(Arc::from);
        match only_reply(&desk.ask(Request::Submit(Box::new(command)))) {
            Reply::Task(task) => task.id,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(submit(&mut desk, 1, Some("a")), id(1));
    assert_eq!(submit(&mut desk, 2, Some("a")), id(1));
    assert_eq!(submit(&mut desk, 3, Some("b")), id(3));
    assert_eq!(submit(&mut desk, 4, None), id(4));
    assert_eq!(desk.core.summary().total(), 3);
    // A cleared task no longer holds its key.
    let effects = desk.ask(Request::Clear { which: ids(&[id(4)]), active_too: true });
    assert!(matches!(only_reply(&effects), Reply::Cleared { cleared: 1, .. }), "it was still pending");
    assert_eq!(submit(&mut desk, 5, None), id(5));
}

#[test]
fn r02_tasks_start_in_submission_order() {
    let mut desk = Desk::new(1);
    let tasks = [4, 2, 3, 1].map(|number| desk.submit(number));
    assert_eq!(desk.status(tasks[0]), Status::Running);
    for pair in tasks.windows(2) {
        assert_eq!(desk.status(pair[1]), Status::Pending);
        assert!(starts(&desk.fact(pair[0], Fact::Started { pid: Some(1) })).is_empty());
        assert_eq!(starts(&desk.fact(pair[0], exited(0, false))), [pair[1]]);
    }
}

#[test]
fn r03_concurrency_limit_queues_tasks_instead_of_refusing_them() {
    let mut desk = Desk::new(2);
    let tasks: Vec<TaskId> = (1..=50).map(|number| desk.submit(number)).collect();
    assert_eq!((desk.core.summary().running, desk.core.summary().pending), (2, 48));
    let mut wider = limits(5);
    assert_eq!(starts(&desk.input(configure(wider))), tasks[2..5]);
    wider.max_concurrent_tasks = 1;
    assert!(starts(&desk.input(configure(wider))).is_empty());
    for task in &tasks[..4] {
        let error = "no such program";
        assert!(
            starts(&desk.fact(*task, Fact::StartFailed { failure: error.into() })).is_empty(),
            "above the new limit"
        );
    }
    assert_eq!(starts(&desk.fact(tasks[4], Fact::StartFailed { failure: "no".into() })), tasks[5..6]);
}

#[test]
fn r03_submit_is_refused_if_registry_is_full() {
    let mut desk = Desk::new(1);
    let narrow = bgd_core::CoreLimits { tasks: 1, ..limits(1) };
    assert!(desk.input(configure(narrow)).is_empty());
    desk.finished(1, 0);
    let effects = desk.ask(Request::Submit(Box::new(command(id(2)))));
    assert_eq!(refusal(&effects), &CoreError::Full(1));
    assert!(events(&effects).is_empty());
}

#[test]
fn r04_status_follows_the_exit() {
    let cases = [
        (Fact::StartFailed { failure: "not executable".into() }, Status::Failed, Some("not executable")),
        (exited(0, false), Status::Completed, None),
        (exited(3, false), Status::Failed, Some("exited with code 3")),
        (exited_as(Exit::Signal(11), false), Status::Failed, Some("ended by signal 11 (SIGSEGV)")),
        (
            exited_as(Exit::Unknown("who knows".into()), false),
            Status::Failed,
            Some("its exit status is unknown: who knows"),
        ),
    ];
    for (fact, status, error) in cases {
        let mut desk = Desk::new(1);
        let task = desk.submit(1);
        if !matches!(fact, Fact::StartFailed { .. }) {
            assert_eq!(
                events(&desk.fact(task, Fact::Started { pid: Some(7) })),
                [(EventKind::Started, task)]
            );
        }
        assert_eq!(events(&desk.fact(task, fact)).len(), 1);
        let task = desk.task(task);
        assert_eq!((task.status(), failures::error(&task).as_deref()), (status, error));
        let State::Finished(Finished { completed_at, .. }) = task.state else { panic!("{task:?}") };
        assert_eq!(completed_at, desk.now.wall);
    }
}

#[test]
fn r05_cancel_of_running_task_replies_when_its_tree_is_gone() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    let effects = desk.cancel(ids(&[task]));
    assert_eq!(ends(&effects), [(task, TERM)]);
    assert!(replies(&effects).is_empty());
    assert_eq!(desk.core.deadline(), Some(desk.now.mono.plus_ms(5000)));
    assert!(desk.wait(4999).is_empty());
    assert_eq!(ends(&desk.wait(1)), [(task, KILL)]);
    assert!(desk.fact(task, exited_as(Exit::Signal(9), true)).is_empty(), "others live on");
    let effects = desk.fact(task, Fact::TreeEmpty);
    assert_eq!(events(&effects), [(EventKind::Cancelled, task)]);
    assert!(matches!(only_reply(&effects), Reply::Tasks(tasks) if tasks[0].status() == Status::Cancelled));
}

#[test]
fn r05_cancelled_pending_task_never_starts() {
    let mut desk = Desk::new(1);
    let first = desk.running(1);
    let second = desk.submit(2);
    let effects = desk.cancel(ids(&[second]));
    assert!(ends(&effects).is_empty());
    assert!(matches!(only_reply(&effects), Reply::Tasks(tasks) if tasks[0].status() == Status::Cancelled));
    assert!(starts(&desk.fact(first, exited(0, false))).is_empty());
}

#[test]
fn r05_cancelled_starting_task_is_signalled_as_soon_as_it_runs() {
    let order = |signal, grace_ms| Cancel { which: ids(&[id(1)]), signal: Some(signal), grace_ms };
    // Orders, the signal that is sent once it runs, and when SIGKILL follows.
    let cases = [
        (vec![order(2, Some(70))], 2, Some(70)),
        (vec![order(2, Some(70)), order(15, Some(900))], 15, Some(70)),
        (vec![order(KILL, None), order(15, Some(900))], KILL, None),
    ];
    for (orders, signal, grace) in cases {
        let mut desk = Desk::new(1);
        let task = desk.submit(1);
        for order in orders {
            assert!(desk.ask(Request::Cancel(order)).is_empty());
        }
        let effects = desk.fact(task, Fact::Started { pid: Some(7) });
        assert_eq!(events(&effects), [(EventKind::Started, task)]);
        assert_eq!(ends(&effects), [(task, signal)]);
        assert_eq!(desk.core.deadline(), grace.map(|grace| desk.now.mono.plus_ms(grace)));
    }
}

#[test]
fn r22_tasks_in_pending_replies_of_a_client_are_limited() {
    const TASKS: u16 = 1000;
    let mut desk = Desk::new(1);
    (1..=TASKS).for_each(|number| _ = desk.submit(number));
    let all = || Selection::All { session: None };
    let block = || Request::Block { which: all(), timeout_ms: None, mode: All, until: BlockUntil::Ended };
    let cancel = || Request::Cancel(Cancel { which: all(), signal: None, grace_ms: None });
    for _ in 0..WAITED_TASKS / usize::from(TASKS) {
        assert!(desk.ask(block()).is_empty());
    }
    let too_many = CoreError::TooManyWaits(WAITED_TASKS);
    assert_eq!(refusal(&desk.ask(block())), &too_many);
    assert_eq!(refusal(&desk.ask(cancel())), &too_many, "none is cancelled");
    assert_eq!(desk.status(id(1)), Status::Running);
    // A call that need not wait gets its reply, and so do other calls.
    let any = Request::Block { which: all(), timeout_ms: None, mode: Any, until: BlockUntil::Ended };
    assert!(desk.ask_as(2, any.clone()).is_empty());
    assert_eq!(replies(&desk.fact(id(1), Fact::StartFailed { failure: "no".into() })).len(), 1);
    assert!(matches!(only_reply(&desk.ask(any)), Reply::Blocked { .. }));
    // The waits of a client that is gone do not count.
    assert!(desk.input(Input::Disconnected { client: 1 }).is_empty());
    assert!(desk.ask(block()).is_empty());
}

#[test]
fn r05_cancel_gives_up_on_a_hanging_start() {
    let order = |signal, grace_ms| Cancel { which: ids(&[id(1)]), signal: Some(signal), grace_ms };
    // Orders, and how long the last of them waits for the start.
    let cases = [
        (vec![order(TERM, Some(70))], 70 + GIVE_UP_MS),
        (vec![order(TERM, Some(70)), order(TERM, Some(900))], 70 + GIVE_UP_MS),
        (vec![order(TERM, Some(70)), order(KILL, None)], GIVE_UP_MS),
    ];
    for (orders, waits) in cases {
        let mut desk = Desk::new(1);
        let (task, next) = (desk.submit(1), desk.submit(2));
        let count = orders.len();
        for order in orders {
            assert!(desk.ask(Request::Cancel(order)).is_empty());
        }
        assert!(desk.wait(waits - 1).is_empty());
        let effects = desk.wait(1);
        assert_eq!(
            (events(&effects), ends(&effects)),
            (vec![(EventKind::Cancelled, task)], vec![(task, KILL)])
        );
        assert_eq!(replies(&effects).len(), count);
        assert_eq!(desk.status(next), Status::Running, "its slot is free");
        let lingering = |desk: &Desk| desk.task(task).finished().map(|finished| finished.lingering);
        assert_eq!(lingering(&desk), Some(Lingering::Stuck));
        // The process gets no further orders, and its end counts.
        assert!(desk.fact(task, Fact::Started { pid: Some(7) }).is_empty());
        assert_eq!(desk.core.deadline(), None);
        assert_eq!(events(&desk.fact(task, exited(0, false))), [(EventKind::Progress, task)]);
        assert_eq!(lingering(&desk), Some(Lingering::No));
    }
}

#[test]
fn r05_concurrent_clear_leaves_task_in_the_cancel_reply() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    assert!(replies(&desk.ask(Request::Clear { which: ids(&[task]), active_too: true })).is_empty());
    assert!(replies(&desk.cancel(ids(&[task]))).is_empty());
    let effects = desk.fact(task, exited(0, false));
    let [Reply::Tasks(tasks), Reply::Cleared { cleared: 1, .. }] = replies(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(tasks[0].id, task);
}

#[test]
fn r06_cancel_all_lists_tasks_oldest_first() {
    let mut desk = Desk::new(1);
    let tasks = [desk.running(3), desk.submit(2), desk.submit(1)];
    assert!(replies(&desk.cancel(Selection::All { session: None })).is_empty());
    let effects = desk.fact(tasks[0], exited(0, false));
    let Reply::Tasks(cancelled) = only_reply(&effects) else { panic!("{effects:?}") };
    assert_eq!(cancelled.iter().map(|task| task.id).collect::<Vec<_>>(), tasks);
}

#[test]
fn r07_result_of_unfinished_or_failed_task_is_refused() {
    let mut desk = Desk::new(1);
    let (running, pending) = (desk.running(1), desk.submit(2));
    for (task, status) in [(running, Status::Running), (pending, Status::Pending)] {
        let effects = desk.ask(Request::Retrieve { id: task.into(), complete: true });
        assert_eq!(refusal(&effects), &CoreError::NotComplete(task, status, None));
        let message = refusals::of_core(refusal(&effects).clone()).message;
        assert!(message.contains("is not complete yet"), "{message}");
    }
    assert_eq!(events(&desk.fact(running, exited(1, false))).len(), 1);
    let effects = desk.ask(Request::Retrieve { id: running.into(), complete: true });
    let CoreError::NotComplete(id, Status::Failed, Some(finished)) = refusal(&effects) else {
        panic!("{effects:?}")
    };
    assert_eq!(*id, running);
    assert_eq!(failures::error_of(finished).as_deref(), Some("exited with code 1"));
}

#[test]
fn r08_summary_counts_tasks_by_status() {
    let mut desk = Desk::new(1);
    desk.finished(1, 0);
    desk.finished(2, 1);
    desk.running(3);
    desk.submit(4);
    let summary = desk.core.summary();
    assert_eq!(Status::ALL.map(|status| summary.count(status)), [1, 1, 0, 1, 1, 0]);
    assert_eq!((summary.active(), summary.total()), (2, 4));
}

#[test]
fn r10_finished_task_stays_until_cleared() {
    let mut desk = Desk::new(1);
    let (done, running) = (desk.finished(1, 0), desk.running(2));
    assert!(desk.wait(1_000_000_000).is_empty());
    assert_eq!(desk.status(done), Status::Completed);
    let effects = desk.ask(Request::Clear { which: ids(&[running]), active_too: false });
    assert_eq!(refusal(&effects), &CoreError::StillActive(running, Status::Running));
    let effects = desk.ask(Request::Clear { which: Selection::All { session: None }, active_too: false });
    assert!(matches!(only_reply(&effects), Reply::Cleared { cleared: 1, .. }));
    assert!(matches!(effects[0], Effect::Forget { task, .. } if task == done));
    assert_eq!(events(&effects), [(EventKind::Cleared, done)]);
    assert_eq!(desk.core.get(&done.into()).unwrap_err(), CoreError::NotFound(done.to_string()));
    assert_eq!(desk.status(running), Status::Running);
}

#[test]
fn r11_shutdown_ends_all_tasks_then_exits() {
    let mut desk = Desk::new(1);
    let (running, pending) = (desk.running(1), desk.submit(2));
    let effects = desk.ask(Request::Shutdown { grace_ms: Some(100), leaves: LeavePolicy::All });
    assert_eq!(ends(&effects), [(running, TERM)]);
    assert_eq!(events(&effects), [(EventKind::Cancelled, pending)]);
    assert_eq!(
        refusal(&desk.ask(Request::Submit(Box::new(command(id(3)))))),
        &CoreError::ShuttingDown,
        "nothing new meanwhile"
    );
    assert!(
        replies(&desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All })).is_empty(),
        "told twice"
    );
    assert!(replies(&desk.block(&[running], None, All)).is_empty());
    assert_eq!(ends(&desk.wait(100)), [(running, KILL)]);
    let effects = desk.fact(running, exited(0, false));
    let [
        Reply::Blocked { .. },
        Reply::ShutDown { cancelled: 2, left: 0 },
        Reply::ShutDown { cancelled: 1, left: 0 },
    ] = replies(&effects)[..]
    else {
        panic!("{effects:?}")
    };
    assert!(matches!(effects.last(), Some(Effect::Exit)), "{effects:?}");
    assert_eq!(failures::error(&desk.task(running)).as_deref(), Some("the daemon was shut down"));
    let effects = desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    assert!(matches!(effects[..], [Effect::Reply { reply: Reply::ShutDown { cancelled: 0, left: 0 }, .. }]));
}

#[test]
fn r11_shutdown_without_tasks_exits_at_once() {
    let effects = Desk::new(1).ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    assert!(matches!(effects[..], [Effect::Reply { .. }, Effect::Exit]), "{effects:?}");
}

#[test]
fn r21_retrieved_at_is_the_time_of_first_retrieval_after_the_end() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    let ask = |desk: &mut Desk| {
        let effects = desk.ask(Request::Retrieve { id: task.into(), complete: false });
        assert!(matches!(only_reply(&effects), Reply::Task(shown) if shown.id == task));
        desk.task(task).retrieved_at
    };
    assert_eq!(ask(&mut desk), None, "it still runs");
    assert_eq!(events(&desk.fact(task, exited(0, false))).len(), 1);
    let first = desk.now.wall;
    assert_eq!(ask(&mut desk), Some(first));
    desk.now.wall = bgd_shared::time::Timestamp::from_unix_ms(5);
    assert_eq!(ask(&mut desk), Some(first));
}

#[test]
fn r22_block_waits_for_all_unfinished_tasks() {
    let mut desk = Desk::new(2);
    let (done, one, two) = (desk.finished(3, 0), desk.running(1), desk.running(2));
    assert!(desk.block(&[done, one, two, one], None, All).is_empty());
    assert!(replies(&desk.fact(two, exited(0, true))).is_empty());
    let effects = desk.fact(one, exited(1, false));
    let named = vec![(done, Status::Completed), (one, Status::Failed), (two, Status::Completed)];
    assert_eq!(blocked(&effects), (named, false), "each once, in the order of naming");
}

#[test]
fn r22_block_any_returns_when_one_has_ended() {
    let mut desk = Desk::new(2);
    let (one, two) = (desk.running(1), desk.running(2));
    assert!(desk.block(&[one, two], None, Any).is_empty());
    let named = vec![(one, Status::Running), (two, Status::Completed)];
    assert_eq!(blocked(&desk.fact(two, exited(0, false))), (named.clone(), false));
    assert_eq!(blocked(&desk.block(&[one, two], None, Any)), (named, false), "one has ended already");
}

#[test]
fn r23_block_on_finished_tasks_returns_at_once() {
    let mut desk = Desk::new(1);
    let (one, two) = (desk.finished(1, 0), desk.finished(2, 1));
    for mode in [All, Any] {
        let named = vec![(two, Status::Failed), (one, Status::Completed)];
        assert_eq!(blocked(&desk.block(&[two, one], Some(0), mode)), (named, false));
        assert_eq!(blocked(&desk.block(&[], None, mode)), (vec![], false));
    }
    assert_eq!(desk.core.deadline(), None);
}

#[test]
fn r24_block_timeout_reports_status_of_each_task() {
    let mut desk = Desk::new(2);
    let (one, two, three) = (desk.running(1), desk.running(2), desk.submit(3));
    assert!(desk.block(&[one, two, three], Some(250), All).is_empty());
    assert!(replies(&desk.fact(one, exited(0, false))).is_empty());
    assert_eq!(desk.core.deadline(), Some(desk.now.mono.plus_ms(250)));
    assert!(desk.wait(249).is_empty());
    let named = vec![(one, Status::Completed), (two, Status::Running), (three, Status::Running)];
    assert_eq!(blocked(&desk.wait(1)), (named, true));
    assert_eq!(desk.core.deadline(), None);
}

#[test]
fn r24_task_cleared_during_block_is_still_in_the_reply() {
    let mut desk = Desk::new(2);
    let (one, two) = (desk.running(1), desk.running(2));
    assert!(desk.block(&[one, two], None, All).is_empty());
    assert_eq!(events(&desk.fact(one, exited(1, false))).len(), 1);
    let effects = desk.ask(Request::Clear { which: ids(&[one]), active_too: false });
    assert!(matches!(only_reply(&effects), Reply::Cleared { cleared: 1, .. }));
    let named = vec![(one, Status::Failed), (two, Status::Completed)];
    assert_eq!(blocked(&desk.fact(two, exited(0, false))), (named, false));
}

#[test]
fn r24_disconnected_client_gets_no_reply_and_leaves_no_timer() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    assert!(desk.block(&[task], Some(100), All).is_empty());
    assert!(desk.input(Input::Disconnected { client: 1 }).is_empty());
    assert_eq!(desk.core.deadline(), None);
    assert!(replies(&desk.fact(task, exited(0, false))).is_empty());
}

#[test]
fn r38_process_task_has_no_resumes() {
    let mut desk = Desk::new(1);
    let task = desk.finished(1, 0);
    assert_eq!((desk.task(task).resume_count, desk.task(task).run), (0, 1));
}

#[test]
fn r54_end_of_session_cancels_and_clears_only_its_tasks() {
    let mut desk = Desk::new(1);
    let mine = submit_for(&mut desk, 1, "tmux:%1");
    assert_eq!(events(&desk.fact(mine, Fact::Started { pid: Some(1) })).len(), 1);
    let mine_pending = submit_for(&mut desk, 2, "tmux:%1");
    let theirs = submit_for(&mut desk, 3, "tmux:%2");
    let effects = desk.ask(Request::EndSession { session: "tmux:%1".into() });
    assert_eq!(ends(&effects), [(mine, TERM)]);
    assert_eq!(events(&effects), [(EventKind::Cancelled, mine_pending)]);
    let effects = desk.fact(mine, exited(0, false));
    let Reply::SessionEnded { cancelled: 2, cleared: 2, .. } = only_reply(&effects) else {
        panic!("{effects:?}")
    };
    assert_eq!(starts(&effects), [theirs]);
    let page = desk.core.list(&of_session("tmux:%1", 10)).unwrap();
    assert!(page.tasks.is_empty() && page.summary.total() == 0);
    let effects = desk.ask(Request::EndSession { session: "nobody's".into() });
    assert!(matches!(only_reply(&effects), Reply::SessionEnded { cancelled: 0, cleared: 0, .. }));
}

#[test]
fn r54_cancel_reason_survives_a_failed_start() {
    let mut desk = Desk::new(1);
    let task = submit_for(&mut desk, 1, "s");
    assert!(desk.cancel(ids(&[task])).is_empty());
    let effects = desk.fact(task, Fact::StartFailed { failure: "no".into() });
    let Reply::Tasks(tasks) = only_reply(&effects) else { panic!("{effects:?}") };
    let State::Finished(finished) = &tasks[0].state else { panic!("{tasks:?}") };
    assert_eq!(finished.outcome, Outcome::Cancelled(StopReason::Cancelled));
}

#[test]
fn r55_completion_event_is_sent_with_or_without_a_waiter() {
    for blocks in [false, true] {
        let mut desk = Desk::new(1);
        let task = desk.running(1);
        if blocks {
            assert!(desk.block(&[task], None, All).is_empty());
        }
        let effects = desk.fact(task, exited(0, false));
        assert!(matches!(effects[0], Effect::Event { kind: EventKind::Completed, .. }), "before any answer");
        assert_eq!(replies(&effects).len(), usize::from(blocks));
    }
}

#[test]
fn time_limit_ends_task_as_failed() {
    let mut desk = Desk::new(1);
    let mut command = command(id(1));
    command.spec.time_limit_ms = Some(1500);
    assert_eq!(starts(&desk.ask(Request::Submit(Box::new(command)))), [id(1)]);
    assert!(desk.wait(60_000).is_empty(), "it counts from the start");
    assert_eq!(events(&desk.fact(id(1), Fact::Started { pid: Some(7) })).len(), 1);
    assert_eq!(ends(&desk.wait(1500)), [(id(1), TERM)]);
    assert_eq!(ends(&desk.wait(5000)), [(id(1), KILL)]);
    assert_eq!(events(&desk.fact(id(1), exited(0, false))), [(EventKind::Failed, id(1))]);
    assert_eq!(failures::error(&desk.task(id(1))).as_deref(), Some("timed out after 1.500s"));
    assert!(desk.task(id(1)).timed_out());
}

#[test]
fn time_limit_without_grace_kills_at_once() {
    let mut desk = Desk::new(1);
    let no_grace = bgd_core::CoreLimits { grace_ms: 0, ..limits(1) };
    assert!(desk.input(configure(no_grace)).is_empty());
    let mut command = command(id(1));
    command.spec.time_limit_ms = Some(1000);
    assert_eq!(starts(&desk.ask(Request::Submit(Box::new(command)))), [id(1)]);
    assert_eq!(events(&desk.fact(id(1), Fact::Started { pid: Some(7) })).len(), 1);
    assert_eq!(ends(&desk.wait(1000)), [(id(1), TERM), (id(1), KILL)]);
}

#[test]
fn ambiguous_prefix_error_lists_candidates() {
    let mut desk = Desk::new(1);
    let twins = [1, 2].map(|low| TaskId::from_u128((0xabcd << 112) | low));
    for twin in twins {
        assert_eq!(replies(&desk.ask(Request::Submit(Box::new(command(twin))))).len(), 1);
    }
    let effects = desk.ask(Request::Cancel(Cancel {
        which: Selection::Ids(vec!["abcd".parse().unwrap()]),
        signal: None,
        grace_ms: None,
    }));
    assert_eq!(refusal(&effects), &CoreError::Ambiguous("abcd".to_owned(), twins.to_vec()));
    assert_eq!(desk.core.summary().cancelled, 0, "nothing was guessed");
}

#[test]
fn request_with_one_unknown_id_does_nothing() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    let error = CoreError::NotFound(id(9).to_string());
    let which = || ids(&[task, id(9)]);
    assert_eq!(refusal(&desk.cancel(which())), &error);
    assert_eq!(refusal(&desk.ask(Request::Clear { which: which(), active_too: true })), &error);
    let both = Selection::Ids(refs(&[task, id(9)]));
    let block = Request::Block { which: both, timeout_ms: None, mode: Any, until: BlockUntil::Ended };
    assert_eq!(refusal(&desk.ask(block)), &error);
    assert_eq!(desk.status(task), Status::Running);
}

#[test]
fn lost_output_is_recorded_without_changing_the_status() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    let lost = |bytes| Fact::Lost { bytes, why: "no space".into() };
    assert_eq!(events(&desk.fact(task, lost(3))), [(EventKind::Output, task)]);
    assert_eq!(events(&desk.fact(task, lost(4))), [(EventKind::Output, task)]);
    desk.fact(task, exited(0, true));
    assert!(desk.fact(task, lost(5)).is_empty(), "what goes on writing is lost, too");
    let task = desk.task(task);
    assert_eq!(task.status(), Status::Completed);
    assert_eq!(task.lost.map(|lost| (lost.bytes, lost.why)), Some((12, "no space".into())));
}

#[test]
fn r20_erased_output_counts_as_lost_and_later_output_anew() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    let output = |bytes, dropped| Fact::Output { bytes, dropped, publish: false };
    desk.fact(task, output([9, 5], [4, 2]));
    let erased = Fact::Erased { bytes: [9, 0], why: "truncated".into() };
    assert_eq!(events(&desk.fact(task, erased)), [(EventKind::Output, task)]);
    desk.fact(task, output([3, 6], [0, 2]));
    let task = desk.task(task);
    assert_eq!((task.output_bytes, task.dropped), ([3, 6], [0, 2]));
    assert_eq!(task.lost.map(|lost| lost.bytes), Some(9));
}

#[test]
fn environment_is_shared_and_dropped_after_the_last_start() {
    let mut desk = Desk::new(1);
    // No environment is kept for a rerun.
    desk.input(configure(bgd_core::CoreLimits { environments: 0, ..limits(1) }));
    let effects = desk.ask(Request::Submit(Box::new(command(id(1)))));
    let Some(Effect::Start { begin: Begin::Process { env: shared, .. }, .. }) = effects.into_iter().last()
    else {
        panic!("no start")
    };
    assert_eq!(*shared, env(0));
    assert_eq!(Arc::strong_count(&shared), 1, "the core keeps none of a task that starts");
    for number in 2..10 {
        desk.submit(number);
    }
    assert_eq!(Arc::strong_count(&shared), 9, "one for all that wait, beside ours");
    assert!(replies(&desk.cancel(Selection::All { session: None })).is_empty());
    assert_eq!(Arc::strong_count(&shared), 1);
}
