//! Example tests of the rules about tasks on other machines and clusters.

use std::sync::Arc;

use crate::wire::failures;
use bgd_core::{
    Cause, Conclusion, Control, CoreError, CoreLimits, Edit, Effect, Fact, Lingering, OrderError, Outcome,
    PlaceFact, Placement, Reply, Request, Rule, StopReason, Verdict,
};
use bgd_shared::event::EventKind;
use bgd_shared::failure::FailureKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition, Restart};
use bgd_shared::request::Chosen;
use bgd_shared::resources::{ExecutorKind, Resources};
use bgd_shared::task::{Exit, Status};
use bgd_shared::time::Timestamp;

use super::support::{
    Desk, TERM, command, configure, ends, events, exited, id, ids, limits, only_reply, refusal, starts,
};

/// Submits a task for a cluster, with a slot of its own in the default group.
fn submitted(desk: &mut Desk, number: u16, change: impl FnOnce(&mut bgd_core::Command)) -> TaskId {
    submitted_to(desk, number, ExecutorKind::Slurm, change)
}

/// Like [`submitted`], for a place of this kind.
fn submitted_to(
    desk: &mut Desk,
    number: u16,
    kind: ExecutorKind,
    change: impl FnOnce(&mut bgd_core::Command),
) -> TaskId {
    let mut command = command(id(number));
    let on = Placement {
        name: "cluster".into(),
        kind,
        resources: Resources::default(),
        chosen: Chosen::default(),
    };
    command.spec.on = Some(Arc::new(on));
    change(&mut command);
    let id = command.id;
    let effects = desk.ask(Request::Submit(Box::new(command)));
    assert_eq!(starts(&effects), [id]);
    id
}

fn place(fact: PlaceFact) -> Fact {
    Fact::Elsewhere(fact)
}

fn waiting(reason: &str) -> Fact {
    place(PlaceFact::Waiting { reason: reason.into() })
}

fn started(at: Option<Timestamp>) -> Fact {
    place(PlaceFact::Started { at })
}

fn concluded(verdict: Verdict, exit: Option<Exit>) -> Fact {
    place(PlaceFact::Concluded(Conclusion { exit, verdict, at: None }))
}

/// Returns the edit that gives a task this priority.
fn prioritize(task: TaskId, priority: i32) -> Request {
    let (description, group, slots, after, start) = (None, None, None, None, None);
    let priority = Some(priority);
    Request::Edit(Box::new(Edit { id: task.into(), description, group, priority, slots, after, start }))
}

fn controls(effects: &[Effect]) -> Vec<Control> {
    let of = |effect: &Effect| match effect {
        Effect::Control { control, .. } => Some(control.clone()),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

#[test]
fn r148_remote_task_is_pending_until_the_cluster_runs_it() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    assert_eq!(desk.status(task), Status::Pending);
    desk.fact(task, place(PlaceFact::Unsent { awaits: "far".into(), reason: "its tasks".into() }));
    assert_eq!(desk.task(task).elsewhere.unwrap().awaits.as_deref(), Some("far"));
    let effects = desk.fact(task, place(PlaceFact::Accepted { id: "77".into() }));
    assert_eq!(events(&effects), [(EventKind::Progress, task)]);
    assert_eq!(events(&desk.fact(task, waiting("Priority"))), [(EventKind::Progress, task)]);
    assert!(desk.fact(task, waiting("Priority")).is_empty(), "nothing has changed");
    assert_eq!(desk.core.summary().pending, 1);
    assert_eq!(events(&desk.fact(task, started(None))), [(EventKind::Started, task)]);
    assert_eq!((desk.status(task), desk.core.summary().running), (Status::Running, 1));
    // The cluster requeues the task, and runs it again.
    let requeued = place(PlaceFact::Requeued { reason: "BeginTime".into() });
    assert_eq!(events(&desk.fact(task, requeued)), [(EventKind::Retrying, task)]);
    assert_eq!(desk.status(task), Status::Pending);
    let known = desk.task(task).elsewhere.unwrap();
    assert!(known.requeued == 1 && known.reason.as_deref() == Some("BeginTime") && known.awaits.is_none());
    desk.fact(task, started(None));
    desk.fact(task, concluded(Verdict::ByExit, Some(Exit::Code(0))));
    assert_eq!(desk.status(task), Status::Completed);
    assert!(desk.fact(task, waiting("late")).is_empty(), "it has ended");
}

#[test]
fn r148_remote_failures_keep_their_cause() {
    let mut desk = Desk::new(9);
    for (number, verdict, exit, kind) in [
        (1, Verdict::ByExit, Some(Exit::Code(3)), FailureKind::Exit),
        (2, Verdict::Failed(Cause::Memory, "out of memory".into()), None, FailureKind::Memory),
        (3, Verdict::Failed(Cause::Node, "node n1 failed".into()), None, FailureKind::Node),
        (4, Verdict::Failed(Cause::Lost, "lost by the cluster".into()), None, FailureKind::Lost),
        (5, Verdict::Failed(Cause::Timeout, "its limit".into()), None, FailureKind::Timeout),
    ] {
        let task = submitted(&mut desk, number, |_| {});
        desk.fact(task, started(None));
        desk.fact(task, concluded(verdict, exit));
        let failure = failures::wire(desk.task(task).finished().unwrap()).1.unwrap();
        assert_eq!((desk.status(task), failure.kind), (Status::Failed, kind));
    }
    // If the task has its own limit, that one counts, whichever side notices first.
    let limited = submitted(&mut desk, 6, |command| command.spec.time_limit_ms = Some(5000));
    desk.fact(limited, started(None));
    desk.fact(limited, concluded(Verdict::Failed(Cause::Timeout, "its limit".into()), None));
    assert!(desk.task(limited).timed_out());
    // Cancelled on the cluster, without having run.
    let cancelled = submitted(&mut desk, 7, |_| {});
    desk.fact(cancelled, concluded(Verdict::Cancelled, None));
    let task = desk.task(cancelled);
    let finished = task.finished().unwrap();
    assert_eq!(finished.outcome, Outcome::Cancelled(StopReason::Elsewhere));
    assert_eq!(finished.started_at, None);
}

#[test]
fn r145_task_that_is_not_ready_in_time_fails_there_as_here() {
    let mut desk = Desk::new(4);
    let rule = Rule::Retry { times: 3, delay_ms: 0, max_delay_ms: 0, codes: [].into(), signal: false };
    let task = submitted_to(&mut desk, 1, ExecutorKind::Ssh, |command| {
        command.spec.ready_timeout_ms = Some(5000);
        command.plan.again = Some(rule);
    });
    desk.fact(task, started(None));
    desk.fact(task, concluded(Verdict::NotReady("not ready".into()), Some(Exit::Signal(15))));
    let failure = failures::wire(desk.task(task).finished().unwrap()).1.unwrap();
    assert_eq!((failure.kind, &*failure.message), (FailureKind::Timeout, "not ready after 5s"));
    assert_eq!((desk.status(task), desk.task(task).timed_out()), (Status::Failed, false));
}

#[test]
fn r151_time_limit_is_left_to_the_place_that_enforces_it() {
    let mut desk = Desk::new(4);
    let unknown = || place(PlaceFact::Unknown { why: "no route".into() });
    for (number, kind, is_cut) in
        [(1, ExecutorKind::Slurm, true), (2, ExecutorKind::Ssh, true), (3, ExecutorKind::Ssh, false)]
    {
        let task = submitted_to(&mut desk, number, kind, |command| command.spec.time_limit_ms = Some(5000));
        desk.fact(task, started(None));
        if is_cut {
            desk.fact(task, unknown());
        }
        assert!(desk.wait(6000).is_empty(), "it may have ended there");
        desk.fact(task, place(PlaceFact::Known));
        assert!(desk.wait(6000).is_empty() && desk.core.deadline().is_none(), "its end is on its way");
        desk.fact(task, concluded(Verdict::ByExit, Some(Exit::Code(0))));
        assert_eq!(desk.status(task), Status::Completed, "{kind:?}");
    }
    // A cluster only has minutes, so this daemon enforces the limit as long as it knows about the job.
    let task = submitted(&mut desk, 4, |command| command.spec.time_limit_ms = Some(5000));
    desk.fact(task, started(None));
    assert_eq!(ends(&desk.wait(6000)), [(task, TERM)]);
    desk.fact(task, concluded(Verdict::Cancelled, None));
    assert!(desk.task(task).timed_out());
}

#[test]
fn r145_end_of_a_remote_task_carries_its_grace() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    desk.fact(task, started(None));
    let graces = |effects: &[Effect]| -> Vec<(i32, u64)> {
        let of = |effect: &Effect| match effect {
            Effect::End { signal, grace_ms, .. } => Some((*signal, *grace_ms)),
            _ => None,
        };
        effects.iter().filter_map(of).collect()
    };
    let cancel = |grace_ms| {
        Request::Cancel(bgd_core::Cancel { which: ids(&[task]), signal: None, grace_ms: Some(grace_ms) })
    };
    assert_eq!(graces(&desk.ask(cancel(60_000))), [(TERM, 60_000)]);
    desk.wait(20_000);
    let known = desk.core.run_elsewhere(desk.now, task).unwrap().stop.unwrap();
    assert_eq!((known.signal, known.grace_ms), (TERM, 40_000), "the rest of it");
    assert_eq!(graces(&desk.ask(cancel(1000))), [(TERM, 1000)]);
    assert_eq!(graces(&desk.wait(1000)), [(9, 0)]);
}

#[test]
fn r145_task_given_up_is_settled_by_its_late_end() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    desk.fact(task, started(None));
    desk.fact(task, place(PlaceFact::Unknown { why: "no route".into() }));
    desk.ask(Request::Cancel(bgd_core::Cancel { which: ids(&[task]), signal: None, grace_ms: Some(0) }));
    desk.wait(0);
    desk.fact(task, Fact::GaveUp { why: "no route: it may still run there".into() });
    let before = desk.task(task).finished().cloned().unwrap();
    assert_eq!(before.lingering, Lingering::Stuck);
    let effects = desk.fact(task, concluded(Verdict::ByExit, Some(Exit::Code(0))));
    assert_eq!(events(&effects), [(EventKind::Progress, task)]);
    let after = desk.task(task).finished().cloned().unwrap();
    assert_eq!(after, bgd_core::Finished { lingering: Lingering::No, ..before });
    assert_eq!(desk.task(task).elsewhere.unwrap().unknown, None);
    assert!(desk.fact(task, concluded(Verdict::Cancelled, None)).is_empty());
}

#[test]
fn r145_task_given_up_before_its_start_may_still_run() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    desk.fact(task, place(PlaceFact::Unknown { why: "no route".into() }));
    desk.ask(Request::Cancel(bgd_core::Cancel { which: ids(&[task]), signal: None, grace_ms: Some(0) }));
    desk.fact(task, Fact::GaveUp { why: "no route: it may still run there".into() });
    let before = desk.task(task).finished().cloned().unwrap();
    assert_eq!((before.lingering, before.started_at), (Lingering::Stuck, None));
    assert!(matches!(&before.exit, Some(Exit::Unknown(why)) if why.contains("may still run")));
    // The machine is back, and has not started it.
    desk.fact(task, Fact::StartFailed { failure: "cancelled".into() });
    assert_eq!(desk.task(task).finished().unwrap().lingering, Lingering::No);
}

#[test]
fn r150_hold_and_priority_are_ordered_again_after_a_refusal() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    let hold = |held| Request::Hold { which: ids(&[task]), held };
    let refused = |control| place(PlaceFact::Refused { control: Some(control), why: "silent".into() });
    assert!(controls(&desk.ask(hold(false))).is_empty(), "nothing is refused yet");
    let asked = controls(&desk.ask(hold(true)));
    // The place has held it, but its answer is lost.
    desk.fact(task, refused(asked[0].clone()));
    let again = Control::Hold { held: false, is_again: true };
    let effects = desk.ask(hold(false));
    assert_eq!((controls(&effects), events(&effects)), (vec![again.clone()], vec![]));
    assert_eq!(events(&desk.fact(task, refused(again))), [], "it was not held before either");
    assert!(!desk.task(task).plan().held);
    let lowered = Control::Priority { priority: -10, before: 0 };
    for _ in 0..2 {
        assert_eq!(controls(&desk.ask(prioritize(task, -10))), std::slice::from_ref(&lowered));
        desk.fact(task, refused(lowered.clone()));
    }
}

#[test]
fn r150_refused_priority_is_reverted_to_the_one_that_the_place_kept() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    let refused = |priority, before| {
        let control = Some(Control::Priority { priority, before });
        place(PlaceFact::Refused { control, why: "only lower".into() })
    };
    desk.ask(prioritize(task, -3));
    let asked = controls(&desk.ask(prioritize(task, 5)));
    assert_eq!(asked, [Control::Priority { priority: 5, before: -3 }]);
    assert_eq!(desk.task(task).plan().priority, 5);
    assert_eq!(
        events(&desk.fact(task, refused(5, -3))),
        [(EventKind::Progress, task), (EventKind::Edited, task)]
    );
    assert_eq!(desk.task(task).plan().priority, -3);
    // One that was changed again since then is not the refused one.
    desk.ask(prioritize(task, 7));
    desk.ask(prioritize(task, -8));
    assert!(desk.fact(task, refused(7, -3)).is_empty(), "the reason is known");
    assert_eq!(desk.task(task).plan().priority, -8);
}

#[test]
fn r150_priority_before_several_refused_ones_comes_back() {
    for order in [[0, 1, 2], [0, 2, 1], [2, 1, 0]] {
        let mut desk = Desk::new(4);
        let task = submitted(&mut desk, 1, |_| {});
        let refused = |control| place(PlaceFact::Refused { control: Some(control), why: "no".into() });
        // All are ordered before the first answer.
        let asked = [5, 7, 9].map(|priority| controls(&desk.ask(prioritize(task, priority))).remove(0));
        for index in order {
            desk.fact(task, refused(asked[index].clone()));
        }
        assert_eq!(desk.task(task).plan().priority, 0, "{order:?}");
        // One that was refused once may be accepted later.
        desk.ask(prioritize(task, 7));
        let control = controls(&desk.ask(prioritize(task, 8))).remove(0);
        desk.fact(task, refused(control));
        assert_eq!(desk.task(task).plan().priority, 7, "{order:?}");
    }
}

#[test]
fn r150_paused_state_follows_the_remote_place() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    desk.fact(task, started(None));
    let pause = |paused| Request::SetPaused { which: ids(&[task]), paused };
    let refused = |control| place(PlaceFact::Refused { control: Some(control), why: "late".into() });
    let reported = |paused| place(PlaceFact::Paused { paused });
    assert_eq!(controls(&desk.ask(pause(true))), [Control::Pause]);
    assert!(desk.task(task).paused);
    assert_eq!(
        events(&desk.fact(task, refused(Control::Pause))),
        [(EventKind::Progress, task), (EventKind::Continued, task)]
    );
    assert!(!desk.task(task).paused, "nothing was stopped");
    // Somebody pauses it there, or the refused pause took effect after all.
    assert_eq!(events(&desk.fact(task, reported(true))), [(EventKind::Paused, task)]);
    assert!(desk.fact(task, reported(true)).is_empty() && desk.task(task).paused);
    desk.ask(pause(false));
    desk.fact(task, refused(Control::Continue));
    assert!(desk.task(task).paused);
    assert_eq!(events(&desk.fact(task, reported(false))), [(EventKind::Continued, task)]);
    desk.fact(task, concluded(Verdict::ByExit, Some(Exit::Code(0))));
    assert!(desk.fact(task, reported(true)).is_empty(), "it has ended");
}

#[test]
fn r150_waiting_remote_task_is_held_edited_and_cancelled_remotely() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    let held = desk.ask(Request::Hold { which: ids(&[task]), held: true });
    assert_eq!(controls(&held), [Control::Hold { held: true, is_again: false }]);
    assert!(desk.task(task).plan().held);
    let edit = |group: Option<&str>| Edit {
        id: task.into(),
        description: None,
        group: group.map(Into::into),
        priority: Some(5),
        slots: None,
        after: None,
        start: None,
    };
    let edited = desk.ask(Request::Edit(Box::new(edit(None))));
    assert_eq!(controls(&edited), [Control::Priority { priority: 5, before: 0 }]);
    let refused = desk.ask(Request::Edit(Box::new(edit(Some("default")))));
    assert_eq!(refusal(&refused), &CoreError::Order(OrderError::GivenAway(task)));
    // An operation that the place refuses is reverted.
    let refused = |held| {
        let control = Some(Control::Hold { held, is_again: false });
        place(PlaceFact::Refused { control, why: "late".into() })
    };
    assert_eq!(
        events(&desk.fact(task, refused(true))),
        [(EventKind::Progress, task), (EventKind::Released, task)]
    );
    assert!(!desk.task(task).plan().held);
    assert_eq!(desk.task(task).elsewhere.unwrap().refused.as_deref(), Some("late"));
    assert!(desk.fact(task, refused(true)).is_empty(), "it is not held any more");
    desk.ask(Request::Hold { which: ids(&[task]), held: true });
    // Somebody releases it there.
    desk.fact(task, started(None));
    assert!(!desk.task(task).plan().held);
    desk.fact(task, place(PlaceFact::Requeued { reason: "Requeued".into() }));
    let cancel =
        desk.ask(Request::Cancel(bgd_core::Cancel { which: ids(&[task]), signal: None, grace_ms: None }));
    assert_eq!(ends(&cancel), [(task, TERM)], "it is ended there");
    let effects = desk.fact(task, concluded(Verdict::Cancelled, None));
    assert!(matches!(only_reply(&effects), Reply::Tasks(_)));
    let finished = desk.task(task).finished().cloned().unwrap();
    assert_eq!(finished.outcome, Outcome::Cancelled(StopReason::Cancelled), "the user's reason counts");
}

#[test]
fn r103_requeued_task_that_ends_while_waiting_counts_as_started() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    let dependent = |number, condition| {
        let mut command = command(id(number));
        command.plan.after = vec![After { id: task.into(), condition }];
        command
    };
    let any = dependent(2, Condition::Any);
    desk.ask(Request::Submit(Box::new(any.clone())));
    desk.wait(1000);
    desk.fact(task, started(None));
    let began = desk.now.wall;
    desk.wait(1000);
    desk.fact(task, place(PlaceFact::Requeued { reason: "Preempted".into() }));
    let effects = desk.fact(task, concluded(Verdict::Cancelled, None));
    assert_eq!(desk.task(task).finished().unwrap().started_at, Some(began));
    assert_eq!(starts(&effects), [any.id]);
}

#[test]
fn run_time_of_a_task_that_is_cancelled_after_it_was_requeued_does_not_include_the_wait() {
    for end in [concluded(Verdict::Cancelled, None), Fact::StartFailed { failure: "cancelled".into() }] {
        for knows_start in [false, true] {
            let mut desk = Desk::new(4);
            let task = submitted(&mut desk, 1, |_| {});
            let start = knows_start.then_some(desk.now.wall);
            desk.fact(task, started(start));
            let pass = |desk: &mut Desk, ms| {
                desk.now.wall = desk.now.wall.plus_ms(ms);
                desk.wait(ms);
            };
            pass(&mut desk, 1000);
            desk.fact(task, place(PlaceFact::Requeued { reason: "Preempted".into() }));
            pass(&mut desk, 4000);
            desk.cancel(ids(&[task]));
            desk.fact(task, end.clone());
            let run_time = desk.task(task).run_time.ms();
            assert_eq!((desk.status(task), run_time), (Status::Cancelled, Some(1000)), "{end:?}");
        }
    }
}

#[test]
fn r151_unknown_remote_state_leaves_task_running() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    desk.fact(task, started(None));
    let unknown = |why: &str| place(PlaceFact::Unknown { why: why.into() });
    assert_eq!(events(&desk.fact(task, unknown("no route"))), [(EventKind::Progress, task)]);
    let since = desk.now.wall;
    desk.wait(5000);
    desk.fact(task, unknown("still no route"));
    let known = desk.task(task).elsewhere.unwrap();
    assert_eq!(known.unknown, Some((since, "still no route".into())), "since the first time");
    assert_eq!(desk.status(task), Status::Running);
    desk.fact(task, place(PlaceFact::Known));
    assert_eq!(desk.task(task).elsewhere.unwrap().unknown, None);
}

#[test]
fn r151_remote_clock_skew_keeps_timestamps_in_order() {
    let mut desk = Desk::new(4);
    let hour = 3_600_000;
    for (number, skew) in [(1, hour), (2, -hour)] {
        let task = submitted(&mut desk, number, |_| {});
        desk.wait(1000);
        let there = |desk: &Desk, more| Timestamp::from_unix_ms(desk.now.wall.unix_ms() + skew + more);
        let at = there(&desk, 0);
        desk.fact(task, started(Some(at)));
        desk.wait(1000);
        let at = Some(there(&desk, 0));
        let end = Conclusion { exit: Some(Exit::Code(0)), verdict: Verdict::ByExit, at };
        desk.fact(task, place(PlaceFact::Concluded(end)));
        let task = desk.task(task);
        let finished = task.finished().unwrap();
        let times = [task.created_at, finished.started_at.unwrap(), finished.completed_at, desk.now.wall];
        assert!(times.is_sorted(), "{times:?}");
    }
}

#[test]
fn r151_duration_is_right_if_the_start_time_becomes_known_after_the_start() {
    let mut desk = Desk::new(4);
    let there = |desk: &Desk| Some(Timestamp::from_unix_ms(desk.now.wall.unix_ms() - 3_600_000));
    let task = submitted(&mut desk, 1, |_| {});
    desk.fact(task, started(None));
    let at = there(&desk);
    assert!(desk.fact(task, started(at)).is_empty(), "nothing that is shown has changed");
    desk.now.wall = desk.now.wall.plus_ms(1000);
    let end = Conclusion { exit: Some(Exit::Code(0)), verdict: Verdict::ByExit, at: there(&desk) };
    desk.fact(task, place(PlaceFact::Concluded(end)));
    let task = desk.task(task);
    let finished = task.finished().unwrap();
    assert_eq!(finished.completed_at.unix_ms() - finished.started_at.unwrap().unix_ms(), 1000);
}

#[test]
fn r148_node_failure_is_retried_and_timeout_is_not() {
    let mut desk = Desk::new(4);
    let rule = || Rule::Retry { times: 1, delay_ms: 0, max_delay_ms: 0, codes: [].into(), signal: false };
    for (number, cause, status) in [(1, Cause::Node, Status::Pending), (2, Cause::Timeout, Status::Failed)] {
        let task = submitted(&mut desk, number, |command| command.plan.again = Some(rule()));
        desk.fact(task, place(PlaceFact::Accepted { id: "7".into() }));
        desk.fact(task, started(None));
        desk.fact(task, concluded(Verdict::Failed(cause, "why".into()), None));
        assert_eq!(desk.status(task), status, "{cause:?}");
        assert_eq!(
            desk.task(task).elsewhere.is_none(),
            status == Status::Pending,
            "the next attempt is another job"
        );
    }
}

/// The start is reported only afterwards, so that an attempt may have begun without it.
#[test]
fn r108_attempt_lost_elsewhere_before_its_start_was_reported_is_followed_by_another() {
    let retry = |codes: &[i32]| Rule::Retry {
        times: 2,
        delay_ms: 0,
        max_delay_ms: 0,
        codes: codes.into(),
        signal: false,
    };
    let lost = |cause| Verdict::Failed(cause, "why".into());
    let restart = Rule::Restart(Restart::OnFailure);
    for (number, rule, verdict, exit, status) in [
        (1, retry(&[]), lost(Cause::Lost), None, Status::Pending),
        (2, retry(&[]), lost(Cause::Node), None, Status::Pending),
        (3, retry(&[]), Verdict::ByExit, Some(Exit::Code(3)), Status::Pending),
        (4, retry(&[3]), Verdict::ByExit, Some(Exit::Code(3)), Status::Pending),
        (5, restart.clone(), lost(Cause::Lost), None, Status::Pending),
        (6, retry(&[3]), lost(Cause::Lost), None, Status::Failed),
        // It could not be launched.
        (7, retry(&[]), lost(Cause::Other), None, Status::Failed),
        (8, restart, lost(Cause::Other), None, Status::Failed),
    ] {
        let mut desk = Desk::new(4);
        let task = submitted(&mut desk, number, |command| command.plan.again = Some(rule));
        desk.fact(task, place(PlaceFact::Accepted { id: "7".into() }));
        desk.fact(task, concluded(verdict, exit.clone()));
        let known = desk.task(task);
        let attempts = &known.plan().again.as_ref().unwrap().attempts;
        assert_eq!(known.status(), status, "{number}");
        assert_eq!(attempts.len(), usize::from(status == Status::Pending), "{number}");
        assert!(attempts.iter().all(|attempt| attempt.exit == exit), "{number}: {attempts:?}");
    }
    // The lost attempt does not have the exit of the one before it.
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 9, |command| command.plan.again = Some(retry(&[3])));
    desk.fact(task, started(None));
    desk.fact(task, concluded(Verdict::ByExit, Some(Exit::Code(3))));
    let run = desk.task(task).run;
    desk.fact_of_run(task, run, concluded(lost(Cause::Lost), None));
    assert_eq!((desk.status(task), &desk.task(task).finished().unwrap().exit), (Status::Failed, &None));
}

#[test]
fn r121_next_program_repeats_the_signal_that_was_sent_to_a_run_elsewhere() {
    let mut desk = Desk::new(4);
    let task = submitted(&mut desk, 1, |_| {});
    desk.fact(task, started(None));
    let usr1 = 10;
    let cancel = bgd_core::Cancel { which: ids(&[task]), signal: Some(usr1), grace_ms: Some(60_000) };
    desk.ask(Request::Cancel(cancel));
    desk.wait(20_000);
    let known = desk.core.run_elsewhere(desk.now, task).unwrap().stop.unwrap();
    assert_eq!((known.signal, known.grace_ms), (usr1, 40_000));
}

#[test]
fn r121_start_elsewhere_keeps_its_environment_until_its_place_starts_it() {
    let mut desk = Desk::new(4);
    desk.input(configure(CoreLimits { environments: 0, ..limits(4) }));
    let task = submitted(&mut desk, 1, |_| {});
    let env_of = |desk: &Desk| desk.core.run_elsewhere(desk.now, task).unwrap().env;
    assert_eq!(env_of(&desk), Some(Arc::new(command(task).env)), "no other copy is kept");
    desk.fact(task, place(PlaceFact::Accepted { id: "7".into() }));
    assert!(env_of(&desk).is_some(), "the place may give it back");
    let waiting = desk.core.held();
    desk.fact(task, started(None));
    assert_eq!(env_of(&desk), None);
    assert!(desk.core.held() < waiting, "it counted as memory");
}

#[test]
fn r151_time_limit_that_passed_unseen_waits_for_news_of_other_executors() {
    let mut desk = Desk::new(4);
    let far = submitted(&mut desk, 1, |command| command.spec.time_limit_ms = Some(1000));
    let ends_in_time = submitted(&mut desk, 2, |command| command.spec.time_limit_ms = Some(1000));
    for task in [far, ends_in_time] {
        desk.fact(task, started(None));
    }
    let mut here = command(id(3));
    here.spec.time_limit_ms = Some(1000);
    desk.ask(Request::Submit(Box::new(here)));
    desk.fact(id(3), Fact::Started { pid: Some(100) });
    desk.now.mono = desk.now.mono.plus_ms(60_000);
    desk.core.put_off_passed_limits(desk.now, 10_000);
    assert_eq!(ends(&desk.wait(0)), [(id(3), TERM)], "only the executor of this machine knows already");
    desk.fact(id(3), exited(0, false));
    desk.fact(ends_in_time, concluded(Verdict::ByExit, Some(Exit::Code(0))));
    assert_eq!(desk.status(ends_in_time), Status::Completed);
    assert!(ends(&desk.wait(9_999)).is_empty());
    assert_eq!(ends(&desk.wait(1)), [(far, TERM)]);
}

/// The cluster enforces it, too; it may have ended the job in time, or the job may have ended by itself.
#[test]
fn r151_time_limit_passed_without_a_daemon_is_left_to_the_cluster() {
    for (is_late, code, status) in [(true, 0, Status::Completed), (false, 0, Status::Failed)] {
        let mut desk = Desk::new(4);
        let task = submitted(&mut desk, 1, |command| command.spec.time_limit_ms = Some(1000));
        desk.fact(task, started(None));
        let leave = |desk: &mut Desk| desk.core.leave_passed_limit_to_place(desk.now, task);
        leave(&mut desk);
        assert_eq!(desk.core.deadline(), Some(desk.now.mono.plus_ms(1000)), "it has not passed");
        desk.now.mono = desk.now.mono.plus_ms(1000);
        if is_late {
            leave(&mut desk);
        }
        assert_eq!(ends(&desk.wait(0)).is_empty(), is_late);
        desk.fact(task, concluded(Verdict::ByExit, Some(Exit::Code(code))));
        assert_eq!(desk.status(task), status);
    }
}
