//! Example tests of R100 to R109 and R116 in the core, for situations that the random histories reach too rarely or
//! never.

use std::ops::RangeInclusive;

use bgd_core::{
    Begin, CoreError, CoreLimits, Edit, Effect, Fact, Filter, GroupSettings, Input, LeavePolicy, OrderError,
    PlanRequest, Reply, Request, Rerun, Rule, Selection, SpawnFailure,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition, Restart};
use bgd_shared::ready::Ready;
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::{Exit, Status};
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;

use super::support::{
    Desk, TERM, command, configure, ends, env, events, exited, id, ids, limits, only_reply, refs, refusal,
    starts,
};

fn submit(desk: &mut Desk, number: u16, plan: PlanRequest) -> TaskId {
    let mut command = command(id(number));
    command.plan = plan;
    desk.ask(Request::Submit(Box::new(command)));
    id(number)
}

fn kept_alive() -> PlanRequest {
    PlanRequest { again: Some(Rule::Restart(Restart::OnFailure)), ..PlanRequest::default() }
}

fn after(task: TaskId, condition: Condition) -> Vec<After> {
    vec![After { id: task.into(), condition }]
}

fn edit(task: TaskId) -> Edit {
    let (description, group, priority, slots, after, start) = (None, None, None, None, None, None);
    Edit { id: task.into(), description, group, priority, slots, after, start }
}

fn in_group(name: &str) -> Selection {
    Selection::Matching(Box::new(Filter { group: Some(name.into()), ..Filter::default() }))
}

fn order_error(effects: &[Effect]) -> &OrderError {
    let CoreError::Order(error) = refusal(effects) else { panic!("{effects:?}") };
    error
}

fn missing() -> Fact {
    Fact::StartFailed { failure: SpawnFailure::from("no such file: /opt/server") }
}

/// Begins the next attempt of a task. Returns its run, which has the same number.
fn begin(desk: &mut Desk, task: TaskId) -> u32 {
    desk.wait(60_000);
    let run = desk.task(task).run;
    desk.fact_of_run(task, run, Fact::Started { pid: Some(100) });
    run
}

#[test]
fn r109_service_is_restarted_while_its_program_is_missing() {
    let mut desk = Desk::new(1);
    let task = submit(&mut desk, 1, kept_alive());
    desk.fact(task, Fact::Started { pid: Some(100) });
    desk.wait(3_600_000);
    assert_eq!(events(&desk.fact(task, exited(1, false))), [(EventKind::Retrying, task)]);
    desk.wait(1000);
    desk.now.wall = desk.now.wall.plus_ms(1000);
    assert_eq!(events(&desk.fact_of_run(task, 2, missing())), [(EventKind::Retrying, task)]);
    let again = desk.task(task).plan.unwrap().again.unwrap();
    let said = again.attempts.iter().map(crate::wire::failures::of_attempt).collect::<Vec<_>>();
    let texts = ["exited with code 1", "no such file: /opt/server"].map(|text| Some(text.to_owned()));
    assert_eq!(said, texts);
    // The second one has no process: exit and start of the first one are not its own.
    let second = &again.attempts[1];
    assert_eq!((&second.exit, second.pid, second.started_at), (&None, None, second.completed_at));
    assert!(second.started_at > again.attempts[0].completed_at);
    assert_eq!(begin(&mut desk, task), 3);
    assert_eq!(desk.status(task), Status::Running);
}

/// Lets these attempts fail to start.
fn fail_to_start(desk: &mut Desk, task: TaskId, runs: RangeInclusive<u32>) {
    for run in runs {
        desk.wait(60_000);
        desk.now.wall = desk.now.wall.plus_ms(60_000);
        desk.fact_of_run(task, run, missing());
    }
}

#[test]
fn r109_service_cancelled_after_failed_starts_shows_its_last_start() {
    let mut desk = Desk::new(1);
    let task = submit(&mut desk, 1, kept_alive());
    desk.fact(task, Fact::Started { pid: Some(100) });
    desk.fact(task, exited(1, false));
    fail_to_start(&mut desk, task, 2..=3);
    desk.now.wall = desk.now.wall.plus_ms(60_000);
    let began = desk.now.wall;
    assert_eq!(begin(&mut desk, task), 4);
    desk.fact_of_run(task, 4, exited(1, false));
    fail_to_start(&mut desk, task, 5..=6);
    desk.cancel(ids(&[task]));
    let task = desk.task(task);
    let end = task.finished().unwrap();
    assert_eq!((end.started_at, end.pid, &end.exit), (Some(began), None, &None));
}

#[test]
fn r109_never_started_service_fails_and_crash_loop_is_given_up() {
    let mut desk = Desk::new(1);
    let task = submit(&mut desk, 1, kept_alive());
    assert_eq!(events(&desk.fact(task, missing())), [(EventKind::Failed, task)]);
    let task = submit(&mut desk, 2, kept_alive());
    let began = desk.now.wall;
    desk.fact(task, Fact::Started { pid: Some(100) });
    desk.fact(task, exited(1, false));
    fail_to_start(&mut desk, task, 2..=10);
    let task = desk.task(task);
    assert_eq!(task.finished().unwrap().started_at, Some(began), "the others never started");
    let failure = crate::wire::failures::wire(task.finished().unwrap()).1.unwrap();
    let message = "crash loop: ended 10 times in a row within a minute of its start; the last time: no such file: \
                   /opt/server";
    assert_eq!(failure.message, message);
    assert_eq!(failure.kind, bgd_shared::failure::FailureKind::Spawn);
}

#[test]
fn r109_service_never_ready_is_given_up_however_long_it_may_take() {
    let mut desk = Desk::new(1);
    let mut server = command(id(1));
    server.plan = kept_alive();
    server.spec.ready = Some(Box::new(Ready::Notify));
    server.spec.ready_timeout_ms = Some(90_000);
    let task = server.id;
    desk.ask(Request::Submit(Box::new(server)));
    for run in 1..=10 {
        desk.fact_of_run(task, run, Fact::Started { pid: Some(100) });
        desk.wait(90_000);
        desk.fact_of_run(task, run, Fact::NotReady);
        desk.fact_of_run(task, run, exited(0, false));
        desk.wait(60_000);
    }
    let task = desk.task(task);
    let failure = crate::wire::failures::wire(task.finished().unwrap()).1.unwrap();
    let message =
        "crash loop: ended 10 times in a row before it was ready; the last time: not ready after 1m 30s";
    assert_eq!(failure.message, message);
}

#[test]
fn r109_service_not_ready_in_time_is_retried_unless_cancelled() {
    for is_cancelled in [false, true] {
        let mut desk = Desk::new(1);
        let mut server = command(id(1));
        server.plan = kept_alive();
        server.spec.ready = Some(Box::new(Ready::Notify));
        server.spec.ready_timeout_ms = Some(5000);
        let task = server.id;
        desk.ask(Request::Submit(Box::new(server)));
        desk.fact(task, Fact::Started { pid: Some(100) });
        assert_eq!(ends(&desk.fact(task, Fact::NotReady)), [(task, TERM)]);
        if is_cancelled {
            desk.cancel(ids(&[task]));
        }
        let effects = desk.fact(task, exited(0, false));
        if is_cancelled {
            assert_eq!(desk.status(task), Status::Cancelled);
            continue;
        }
        assert_eq!(events(&effects), [(EventKind::Retrying, task)]);
        let again = desk.task(task).plan.unwrap().again.unwrap();
        assert_eq!(crate::wire::failures::of_attempt(&again.attempts[0]).unwrap(), "not ready after 5s");
        begin(&mut desk, task);
        assert_eq!(desk.status(task), Status::Running);
    }
}

#[test]
fn r109_crash_loop_detection_uses_the_monotonic_clock() {
    let mut desk = Desk::new(1);
    let task = submit(&mut desk, 1, kept_alive());
    desk.fact(task, Fact::Started { pid: Some(100) });
    for run in 1..=20 {
        // An hour passes; the wall clock is set back by the same amount.
        let wall = desk.now.wall;
        desk.wait(3_600_000);
        assert_eq!(desk.now.wall, wall);
        desk.fact_of_run(task, run, exited(1, false));
        assert_eq!(begin(&mut desk, task), run + 1, "it is no crash loop");
    }
}

/// Advances both clocks, by these numbers of milliseconds, without the core.
fn pass(desk: &mut Desk, mono_ms: u64, wall_ms: u64) {
    desk.now.mono = desk.now.mono.plus_ms(mono_ms);
    desk.now.wall = desk.now.wall.plus_ms(wall_ms);
}

#[test]
fn r109_crash_without_a_daemon_is_early_by_the_time_of_its_end() {
    let mut desk = Desk::new(1);
    let task = submit(&mut desk, 1, kept_alive());
    desk.fact(task, Fact::Started { pid: Some(100) });
    for run in 1..=10 {
        pass(&mut desk, 1000, 1000);
        let (others, at) = (run % 2 == 1, Some(desk.now.wall));
        // The next daemon starts an hour later.
        pass(&mut desk, 3_600_000, 3_600_000);
        let mut effects = desk.fact_of_run(task, run, Fact::Exited { exit: Exit::Code(1), others, at });
        if others {
            assert_eq!(ends(&effects), [(task, TERM)]);
            effects = desk.fact_of_run(task, run, Fact::TreeEmpty);
        }
        if run == 10 {
            assert_eq!(events(&effects), [(EventKind::Failed, task)], "it is a crash loop");
            break;
        }
        assert_eq!(events(&effects), [(EventKind::Retrying, task)]);
        assert_eq!(begin(&mut desk, task), run + 1);
    }
}

/// Only the wall clock tells when a process ended without a daemon.
#[test]
fn r109_clock_set_around_an_end_without_a_daemon_makes_no_crash_loop() {
    // It runs for an hour each time. The wall clock advances while the machine is suspended after the end, or it was set
    // back by an hour before.
    for (on_wall, until_next) in [(3_600_000, 3_610_000), (0, 10_000)] {
        let mut desk = Desk::new(1);
        let task = submit(&mut desk, 1, kept_alive());
        desk.fact(task, Fact::Started { pid: Some(100) });
        for run in 1..=12 {
            pass(&mut desk, 3_600_000, on_wall);
            let at = Some(desk.now.wall);
            pass(&mut desk, 10_000, until_next);
            desk.fact_of_run(task, run, Fact::Exited { exit: Exit::Code(1), others: false, at });
            assert_eq!(begin(&mut desk, task), run + 1, "it is no crash loop");
        }
    }
}

#[test]
fn r109_attempt_ends_with_its_leader_however_long_its_tree_takes() {
    let mut desk = Desk::new(1);
    let task = submit(&mut desk, 1, kept_alive());
    desk.fact(task, Fact::Started { pid: Some(100) });
    for run in 1..=9 {
        desk.wait(59_000);
        assert_eq!(ends(&desk.fact_of_run(task, run, exited(1, true))), [(task, TERM)]);
        desk.wait(2_000);
        let effects = desk.fact_of_run(task, run, Fact::TreeEmpty);
        assert_eq!(events(&effects), [(EventKind::Retrying, task)]);
        assert_eq!(begin(&mut desk, task), run + 1);
    }
    desk.wait(59_000);
    let effects = desk.fact_of_run(task, 10, exited(1, true));
    assert_eq!(events(&effects), [(EventKind::Failed, task)], "it has ended early ten times in a row");
}

/// A task that has started may be pending again.
#[test]
fn r104_tasks_do_not_see_the_environments_of_those_they_come_after() {
    let mut desk = Desk::new(1);
    let first = submit(&mut desk, 1, kept_alive());
    let plan = PlanRequest { after: after(first, Condition::Start), ..PlanRequest::default() };
    let second = submit(&mut desk, 2, plan);
    desk.fact(first, Fact::Started { pid: Some(100) });
    let effects = desk.fact(first, exited(1, false));
    let mut places = effects.iter().filter_map(|effect| match effect {
        Effect::Start { task, begin: Begin::Process { place, .. }, .. } if *task == second => Some(place),
        _ => None,
    });
    let seen = places.next().expect("it starts").after[0].task.as_deref().expect("it is still there");
    assert_eq!(seen.status(), Status::Pending);
    assert_eq!(seen.state.env().map(|env| &**env), Some(&Env::default()));
    let task = desk.task(first);
    assert_eq!(task.state.env().map(|env| &**env), Some(&env(0)));
}

#[test]
fn r103_waiting_for_readiness_is_refused_if_task_reports_none() {
    let mut desk = Desk::new(2);
    let plain = desk.running(1);
    let mut command = command(id(2));
    command.plan.after = after(plain, Condition::Ready);
    let refused = desk.ask(Request::Submit(Box::new(command)));
    assert_eq!(order_error(&refused), &OrderError::NeverReady(plain));
    let (timeout_ms, mode, until) = (None, BlockMode::All, BlockUntil::Ready);
    let wait = |task| Request::Block { which: ids(&[task]), timeout_ms, mode, until };
    assert_eq!(order_error(&desk.ask(wait(plain))), &OrderError::NeverReady(plain));
    desk.fact(plain, exited(0, false));
    assert!(matches!(only_reply(&desk.ask(wait(plain))), Reply::Blocked { .. }), "it has ended");
}

#[test]
fn r100_unknown_group_in_a_selection_is_refused() {
    let mut desk = Desk::new(1);
    desk.ask(Request::SetGroup { name: "gpu".into(), slots: 1 });
    let of_group = PlanRequest { group: Some("gpu".into()), ..PlanRequest::default() };
    let task = submit(&mut desk, 1, of_group);
    let OrderError::UnknownGroup(name, known) =
        order_error(&desk.ask(Request::SetPaused { which: in_group("gpuu"), paused: true })).clone()
    else {
        panic!("it is unknown")
    };
    assert_eq!((&*name, known.len()), ("gpuu", 2));
    desk.fact(task, Fact::Started { pid: Some(100) });
    desk.fact(task, exited(0, false));
    desk.ask(Request::RemoveGroup { name: "gpu".into() });
    let cleared = desk.ask(Request::Clear { which: in_group("gpu"), active_too: false });
    assert!(matches!(only_reply(&cleared), Reply::Cleared { cleared: 1, .. }), "its tasks keep the name");
    let refused = desk.ask(Request::Clear { which: in_group("gpu"), active_too: false });
    assert!(matches!(order_error(&refused), OrderError::UnknownGroup(..)));
}

#[test]
fn r103_task_that_could_not_be_started_has_failed_for_its_dependents() {
    use Condition::{Any, Fail, Ok, Start};
    // Those that wait for it, and those that are submitted later.
    for waits in [true, false] {
        let mut desk = Desk::new(9);
        let absent = desk.submit(1);
        let fail = |desk: &mut Desk| starts(&desk.fact(absent, missing()));
        let mut started = if waits { Vec::new() } else { fail(&mut desk) };
        let dependents = [(2, Ok), (3, Any), (4, Fail), (5, Start)];
        for (number, condition) in dependents {
            let plan = PlanRequest { after: after(absent, condition), ..PlanRequest::default() };
            submit(&mut desk, number, plan);
        }
        if waits {
            started = fail(&mut desk);
            assert_eq!(started, [id(3), id(4)]);
        }
        let statuses = dependents.map(|(number, _)| desk.status(id(number)));
        let (running, cancelled) = (Status::Running, Status::Cancelled);
        assert_eq!(statuses, [cancelled, running, running, cancelled], "{started:?}");
    }
}

#[test]
fn r103_task_cancelled_while_pending_fulfils_no_condition() {
    let mut desk = Desk::new(1);
    let (_running, pending) = (desk.running(1), desk.submit(2));
    for (number, condition) in [(3, Condition::Any), (4, Condition::Fail)] {
        submit(&mut desk, number, PlanRequest { after: after(pending, condition), ..PlanRequest::default() });
    }
    desk.cancel(ids(&[pending]));
    assert_eq!([3, 4].map(|number| desk.status(id(number))), [Status::Cancelled; 2]);
}

#[test]
fn r107_edit_exceeding_the_memory_limit_is_refused() {
    let mut desk = Desk::new(1);
    desk.ask(Request::PauseGroup { name: "default".into(), paused: true });
    let tasks: Vec<TaskId> = (1..=8).map(|number| desk.submit(number)).collect();
    let memory = desk.core.held() + 1000;
    desk.input(configure(CoreLimits { memory, ..limits(1) }));
    let conditions = |task: TaskId| {
        [Condition::Ok, Condition::Any, Condition::Fail, Condition::Start]
            .map(|condition| After { id: task.into(), condition })
    };
    let all: Vec<After> = tasks[1..].iter().copied().flat_map(conditions).collect();
    let edited = desk.ask(Request::Edit(Box::new(Edit { after: Some(all), ..edit(tasks[0]) })));
    assert!(matches!(refusal(&edited), CoreError::FullMemory { .. }), "{} bytes are held", desk.core.held());
    assert!(desk.task(tasks[0]).plan().after.is_empty(), "nothing is changed");
}

#[test]
fn r107_invalid_edit_is_reported_even_at_the_memory_limit() {
    let mut desk = Desk::new(1);
    desk.ask(Request::PauseGroup { name: "default".into(), paused: true });
    let task = desk.submit(1);
    let memory = desk.core.held();
    desk.input(configure(CoreLimits { memory, ..limits(1) }));
    let after = Some(after(task, Condition::Ok));
    let edited = desk.ask(Request::Edit(Box::new(Edit { after, ..edit(task) })));
    assert!(matches!(order_error(&edited), OrderError::Cycle(..)), "{edited:?}");
}

#[test]
fn r116_rerun_of_mutually_dependent_tasks_is_refused_as_a_cycle() {
    let mut desk = Desk::new(2);
    let rule = Rule::Retry { times: 1, delay_ms: 0, max_delay_ms: 0, codes: [].into(), signal: false };
    let second = submit(&mut desk, 2, PlanRequest { again: Some(rule), ..PlanRequest::default() });
    let first = submit(
        &mut desk,
        1,
        PlanRequest { after: after(second, Condition::Start), ..PlanRequest::default() },
    );
    assert_eq!(starts(&desk.fact(second, Fact::Started { pid: Some(100) })), [first]);
    desk.fact(first, Fact::Started { pid: Some(101) });
    desk.ask(Request::PauseGroup { name: "default".into(), paused: true });
    desk.fact(second, exited(1, false));
    let edited =
        desk.ask(Request::Edit(Box::new(Edit { after: Some(after(first, Condition::Ok)), ..edit(second) })));
    assert!(matches!(only_reply(&edited), Reply::Task(_)), "{edited:?}");
    desk.ask(Request::PauseGroup { name: "default".into(), paused: false });
    desk.fact(first, exited(0, false));
    desk.fact_of_run(second, 2, Fact::Started { pid: Some(102) });
    desk.fact_of_run(second, 2, exited(0, false));
    let again = |which: &[TaskId]| {
        let which = Selection::Ids(refs(which));
        Request::Rerun(Box::new(Rerun { which, failed: false, with_dependents: false, key: None, seed: 7 }))
    };
    let total = desk.core.summary().total();
    assert!(matches!(order_error(&desk.ask(again(&[first, second]))), OrderError::Cycle(..)));
    assert_eq!(desk.core.summary().total(), total, "nothing is submitted");
    assert!(matches!(only_reply(&desk.ask(again(&[first]))), Reply::Rerun(_)), "one by one they are");
}

#[test]
fn r130_withdrawn_task_is_removed_even_if_it_ended_at_once() {
    let mut desk = Desk::new(2);
    let well = desk.finished(1, 0);
    let plan = PlanRequest { after: after(well, Condition::Fail), ..PlanRequest::default() };
    let never = submit(&mut desk, 2, plan);
    assert_eq!(desk.status(never), Status::Cancelled);
    let effects = desk.core.withdraw(desk.now, &[never], &[], "the disk is full");
    assert_eq!(events(&effects), [(EventKind::Cleared, never)]);
    assert_eq!(desk.core.summary().total(), 1);
}

#[test]
fn r116_rerun_is_refused_during_shutdown() {
    let mut desk = Desk::new(2);
    let (_running, ended) = (desk.running(1), desk.finished(2, 1));
    desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    let which = Selection::Ids(refs(&[ended]));
    let rerun = Rerun { which, failed: false, with_dependents: false, key: None, seed: 7 };
    assert_eq!(refusal(&desk.ask(Request::Rerun(Box::new(rerun)))), &CoreError::ShuttingDown);
}

#[test]
fn r100_removed_group_returns_with_the_configuration() {
    let mut desk = Desk::new(1);
    let with_gpu = || {
        let groups = [("default", 1), ("gpu", 3)].map(|(name, slots)| (name.into(), GroupSettings { slots }));
        Input::Configure { limits: limits(1), groups: groups.into() }
    };
    let has_it = |desk: &Desk| desk.core.groups().iter().any(|group| &*group.name == "gpu");
    desk.input(with_gpu());
    assert!(has_it(&desk));
    desk.ask(Request::RemoveGroup { name: "gpu".into() });
    assert!(!has_it(&desk));
    desk.input(with_gpu());
    assert!(has_it(&desk));
}

#[test]
fn r100_task_larger_than_its_lowered_group_is_counted_and_runs_alone() {
    let mut desk = Desk::new(1);
    let resize = |slots| Request::SetGroup { name: "gpu".into(), slots };
    let taking = |slots| PlanRequest { group: Some("gpu".into()), slots, ..PlanRequest::default() };
    desk.ask(resize(3));
    let [first, large, last] =
        [(1, 1), (2, 3), (3, 1)].map(|(number, slots)| submit(&mut desk, number, taking(slots)));
    let sizes = |effects: &[Effect]| {
        let Reply::Group(group) = only_reply(effects) else { panic!("{effects:?}") };
        (group.slots, group.pending, group.oversized)
    };
    assert_eq!(sizes(&desk.ask(resize(3))), (3, 2, 0), "it waits, but fits");
    let lowered = desk.ask(resize(1));
    assert_eq!((sizes(&lowered), starts(&lowered)), ((1, 2, 1), vec![]));
    desk.fact(first, Fact::Started { pid: Some(100) });
    assert_eq!(starts(&desk.fact(first, exited(0, false))), [large], "nobody else has a slot");
    desk.fact(large, Fact::Started { pid: Some(101) });
    assert_eq!(sizes(&desk.ask(resize(1))), (1, 1, 0), "it does not wait any more");
    assert_eq!(starts(&desk.fact(large, exited(0, false))), [last], "nobody ran beside it");
}

#[test]
fn run_time_of_ended_task_follows_no_clock_that_people_set() {
    let mut desk = Desk::new(1);
    let begin = desk.now.wall.unix_ms();
    for (number, set_ms) in [(1, -3_600_000), (2, 40_000_000)] {
        desk.now.wall = Timestamp::from_unix_ms(begin);
        let task = desk.running(number);
        desk.wait(2000);
        assert_eq!(desk.task(task).run_time.ms(), None, "it is still running");
        desk.now.wall = Timestamp::from_unix_ms(begin + set_ms);
        desk.fact(task, exited(0, false));
        assert_eq!(desk.task(task).run_time.ms(), Some(2000));
    }
    // The wait for another attempt does not count, and an attempt that can't start has no run time.
    let rule = Rule::Retry { times: 2, delay_ms: 0, max_delay_ms: 0, codes: [].into(), signal: false };
    let tried = submit(&mut desk, 3, PlanRequest { again: Some(rule), ..PlanRequest::default() });
    desk.fact(tried, Fact::Started { pid: Some(100) });
    desk.wait(300);
    desk.fact(tried, exited(1, false));
    desk.wait(9000);
    desk.cancel(ids(&[tried]));
    desk.fact_of_run(tried, 2, Fact::StartFailed { failure: "gone".into() });
    assert_eq!((desk.status(tried), desk.task(tried).run_time.ms()), (Status::Cancelled, Some(300)));
    // What was handed over began before.
    desk.adopt(4);
    desk.wait(500);
    desk.now.wall = Timestamp::from_unix_ms(begin);
    desk.fact(id(4), exited(0, false));
    assert_eq!(desk.task(id(4)).run_time.ms(), Some(7500));
}
