//! The life of tasks on real processes: R01 to R08, R10, R11, R54, time limits, ids and idempotency.

use std::collections::HashMap;
use std::fs;

use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{
    CancelParams, ClearParams, DaemonShutdown, IdParams, ListParams, SessionEnd, SessionEndParams,
    ShutdownParams, SignalParams, SubmitParams, TaskCancel, TaskClear, TaskGet, TaskList, TaskResultOf,
    TaskSignal,
};
use bgd_shared::task::{Exit, Kind, Origin, Status, Task};
use bgd_tests::{Process, TestDaemon, wait};

use super::order::{self, open};

/// A task that runs until [`open`] is called.
fn gate(daemon: &TestDaemon) -> TaskId {
    gate_of(daemon, None)
}

fn gate_of(daemon: &TestDaemon, session: Option<&str>) -> TaskId {
    order::gate(daemon, SubmitParams { session: session.map(Into::into), ..daemon.params() })
}

fn one_at_once() -> TestDaemon {
    TestDaemon::builder().config("max_concurrent_tasks = 1").start()
}

fn list(daemon: &TestDaemon, params: &ListParams) -> Vec<Task> {
    daemon.client().call::<TaskList>(params).expect("task.list").tasks
}

#[test]
fn r01_submit_returns_uuid_and_task_is_listed_at_once() {
    let daemon = TestDaemon::start();
    let params = SubmitParams {
        argv: Some(vec!["sleep".into(), "1000".into()]),
        description: Some("a nap".into()),
        session: Some("discord:4711".into()),
        channel: Some("desktop".into()),
        tags: vec!["one".into(), "two".into()],
        ..daemon.params()
    };
    let task = daemon.submit_with(&params);
    assert_eq!((task.kind, task.origin, task.run), (Kind::Process, Origin::Submit, 1));
    assert!(task.status.is_active() && task.exit.is_none() && task.completed_at.is_none());
    let text = task.id.to_string();
    assert_eq!((text.len(), text.as_bytes()[14]), (36, b'4'), "a random UUID: {text}");
    let listed = list(&daemon, &ListParams::default());
    assert_eq!(listed.len(), 1);
    for task in [&listed[0], &daemon.task(task.id)] {
        assert_eq!(task.description, "a nap");
        assert_eq!(task.session.as_deref(), Some("discord:4711"));
        assert_eq!(task.channel.as_deref(), Some("desktop"));
        assert_eq!(task.tags, ["one", "two"]);
        assert_eq!(task.argv.as_deref(), Some(&["sleep".into(), "1000".into()][..]));
    }
    daemon.cancel(&[task.id]);
}

#[test]
fn r02_tasks_start_pending_and_run_in_fifo_order() {
    let daemon = one_at_once();
    let first = gate(&daemon);
    daemon.wait_running(first);
    let mut watch = daemon.watch();
    let tasks: Vec<TaskId> = (0..12).map(|n| daemon.submit_shell(&format!("echo {n} >> order"))).collect();
    for id in &tasks {
        let task = daemon.task(*id);
        assert_eq!((task.status, task.pid, task.started_at), (Status::Pending, None, None));
    }
    open(&daemon, first);
    daemon.block(&tasks);
    let wanted: Vec<String> = (0..12).map(|n| n.to_string()).collect();
    let order = fs::read_to_string(daemon.home().join("order")).unwrap();
    assert_eq!(order.lines().collect::<Vec<_>>(), wanted);
    for id in tasks {
        assert_eq!(watch.until(|event| event.kind == EventKind::Started).task.id, id);
    }
}

#[test]
fn r03_concurrency_stays_within_limit_and_no_task_is_rejected() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 3").start();
    // Each counts the tasks that run beside it, including itself.
    let line = "mkdir here.$$; set -- here.*; echo $#; rmdir here.$$";
    let tasks: Vec<TaskId> = (0..40).map(|_| daemon.submit_shell(line)).collect();
    for task in daemon.block(&tasks) {
        assert_eq!(task.status, Status::Completed, "{task:?}");
        let count: u32 = String::from_utf8(daemon.output(task.id)).unwrap().trim().parse().unwrap();
        assert!((1..=3).contains(&count), "{count} run at once");
    }
}

#[test]
fn r03_next_task_starts_when_slot_becomes_free() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
    let gates: Vec<TaskId> = (0..5).map(|_| gate(&daemon)).collect();
    for (place, id) in gates.iter().enumerate() {
        daemon.wait_running(*id);
        if let Some(next) = gates.get(place + 1) {
            daemon.wait_running(*next);
        }
        let summary = daemon.status().summary;
        assert_eq!(summary.running, 2.min(5 - place as u64));
        assert_eq!(summary.pending, 3_u64.saturating_sub(place as u64));
        assert_eq!(daemon.task_processes().len() as u64, summary.running);
        open(&daemon, *id);
        daemon.block(&[*id]);
    }
}

#[test]
fn r04_success_and_failure_are_recorded_with_result_times_and_reason() {
    let daemon = TestDaemon::start();
    let outcome = |line: &str| {
        let id = daemon.submit_shell(line);
        daemon.block(&[id]).remove(0)
    };
    let good = outcome("echo fine");
    assert_eq!((good.status, good.exit.clone(), good.error), (Status::Completed, Some(Exit::Code(0)), None));
    assert!(good.started_at.unwrap() <= good.completed_at.unwrap());
    let params = IdParams { id: good.id.into() };
    assert_eq!(daemon.client().call::<TaskResultOf>(&params).unwrap().result, "fine\n");
    let bad = outcome("exit 3");
    assert_eq!((bad.status, bad.exit), (Status::Failed, Some(Exit::Code(3))));
    assert_eq!(bad.error.as_deref(), Some("exited with code 3"));
    let killed = outcome("kill -KILL $$");
    assert_eq!((killed.status, killed.exit), (Status::Failed, Some(Exit::Signal(9))));
    assert!(killed.error.unwrap().contains("SIGKILL"));
    let unknown = daemon.submit(&["no-such-program-here"]);
    let unknown = daemon.block(&[unknown]).remove(0);
    assert_eq!((unknown.status, unknown.exit, unknown.pid), (Status::Failed, None, None));
    assert!(unknown.error.unwrap().contains("no-such-program-here"));
}

#[test]
fn r05_cancel_ends_the_whole_tree() {
    let daemon = TestDaemon::start();
    let line = "sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & (sleep 1000 &) ; echo up; wait";
    let id = daemon.submit_shell(line);
    daemon.wait_running(id);
    let path = daemon.task(id).output.path;
    wait::for_line(path.as_ref(), "up");
    assert!(daemon.task_processes().len() >= 3);
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!(task.status, Status::Cancelled);
    assert!(task.completed_at.is_some() && !task.lingering);
    assert_eq!(daemon.task_processes().len(), 0, "{:?}", daemon.task_processes());
}

#[test]
fn r05_cancelled_pending_task_never_starts() {
    let daemon = one_at_once();
    let first = gate(&daemon);
    let never = daemon.submit_shell("touch started");
    let mut watch = daemon.watch();
    let task = daemon.cancel(&[never]).remove(0);
    assert_eq!((task.status, task.pid, task.started_at), (Status::Cancelled, None, None));
    open(&daemon, first);
    let later = daemon.submit(&["true"]);
    watch.until(|event| {
        assert!(event.task.id != never || event.kind != EventKind::Started);
        event.task.id == later && event.kind == EventKind::Completed
    });
    assert!(!daemon.home().join("started").exists());
}

#[test]
fn r05_cancel_sends_requested_signal_and_kills_after_grace_period() {
    let daemon = TestDaemon::start();
    let polite =
        daemon.submit_shell("trap 'echo interrupted; kill $!; exit 0' INT; sleep 1000 & echo up; wait");
    let stubborn = daemon.submit_shell("trap '' TERM INT; echo up; while :; do sleep 1000; done");
    for id in [polite, stubborn] {
        daemon.wait_running(id);
        wait::for_line(daemon.task(id).output.path.as_ref(), "up");
    }
    let cancel = |id: TaskId, grace_ms| {
        let params = CancelParams {
            ids: vec![id.into()],
            signal: Some("INT".into()),
            grace_ms: Some(grace_ms),
            ..CancelParams::default()
        };
        daemon.client().call::<TaskCancel>(&params).expect("task.cancel").tasks.remove(0)
    };
    let task = cancel(polite, 30_000);
    assert_eq!((task.status, task.exit), (Status::Cancelled, Some(Exit::Code(0))));
    assert!(String::from_utf8(daemon.output(polite)).unwrap().contains("interrupted"));
    let task = cancel(stubborn, 50);
    assert_eq!((task.status, task.exit), (Status::Cancelled, Some(Exit::Signal(9))));
}

#[test]
fn r05_cancelling_finished_task_changes_nothing() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["true"]);
    let before = daemon.block(&[id]).remove(0);
    assert_eq!(daemon.cancel(&[id]).remove(0), before);
}

#[test]
fn r05_cancel_all_can_be_limited_to_parent_session() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
    let mine: Vec<TaskId> = (0..3).map(|_| gate_of(&daemon, Some("mine"))).collect();
    let other = gate_of(&daemon, Some("other"));
    let params = CancelParams { all: true, session: Some("mine".into()), ..CancelParams::default() };
    let tasks = daemon.client().call::<TaskCancel>(&params).unwrap().tasks;
    assert_eq!(tasks.iter().map(|task| task.id).collect::<Vec<_>>(), mine);
    assert!(tasks.iter().all(|task| task.status == Status::Cancelled));
    daemon.wait_running(other);
    let params = CancelParams { all: true, ..CancelParams::default() };
    assert_eq!(daemon.client().call::<TaskCancel>(&params).unwrap().tasks[0].id, other);
}

#[test]
fn r06_list_is_newest_first_paged_and_filtered() {
    let daemon = one_at_once();
    let mut ids: Vec<TaskId> = (0..7).map(|_| daemon.submit(&["true"])).collect();
    daemon.block(&ids);
    ids.push(gate_of(&daemon, Some("s")));
    daemon.wait_running(ids[7]);
    ids.push(gate_of(&daemon, Some("s")));
    ids.reverse();
    let mut found = Vec::new();
    let mut params = ListParams { limit: Some(4), ..ListParams::default() };
    loop {
        let page = daemon.client().call::<TaskList>(&params).unwrap();
        assert_eq!(page.summary.total(), 9);
        found.extend(page.tasks.iter().map(|task| task.id));
        let Some(next) = page.next else { break };
        params.after = Some(next);
    }
    assert_eq!(found, ids);
    let filtered = |session: Option<&str>, status: &[Status]| {
        let params =
            ListParams { session: session.map(Into::into), status: status.to_vec(), ..ListParams::default() };
        list(&daemon, &params).iter().map(|task| task.id).collect::<Vec<_>>()
    };
    assert_eq!(filtered(Some("s"), &[]), ids[..2]);
    assert_eq!(filtered(None, &[Status::Running]), ids[1..2]);
    assert_eq!(filtered(None, &[Status::Pending, Status::Completed]), [&ids[..1], &ids[2..]].concat());
    assert_eq!(filtered(Some("s"), &[Status::Completed]), []);
    assert_eq!(filtered(Some("nobody"), &[]), []);
    daemon.cancel(&ids[..2]);
}

#[test]
fn r07_result_of_uncompleted_task_is_an_error() {
    let daemon = one_at_once();
    let failed = daemon.submit_shell("exit 4");
    daemon.block(&[failed]);
    let running = gate(&daemon);
    daemon.wait_running(running);
    let pending = gate(&daemon);
    let cancelled = gate(&daemon);
    daemon.cancel(&[cancelled]);
    for (id, status) in
        [(failed, "failed"), (running, "running"), (pending, "pending"), (cancelled, "cancelled")]
    {
        let error = daemon.refusal::<TaskResultOf>(&IdParams { id: id.into() });
        assert_eq!(error.kind(), ErrorKind::NotComplete);
        assert!(error.message.contains(status) && error.message.contains(&id.to_string()), "{error}");
        assert_eq!(daemon.task(id).retrieved_at, None);
    }
    daemon.cancel(&[running, pending]);
}

#[test]
fn r08_active_tasks_and_all_statuses_are_counted() {
    let daemon = one_at_once();
    let ended: Vec<TaskId> = ["true", "true", "false"].map(|program| daemon.submit(&[program])).into();
    daemon.block(&ended);
    let gates: Vec<TaskId> = (0..3).map(|_| gate(&daemon)).collect();
    daemon.wait_running(gates[0]);
    daemon.cancel(&gates[2..]);
    let status = daemon.status();
    assert_eq!(status.active, 2);
    let counts: HashMap<Status, u64> =
        Status::ALL.iter().map(|known| (*known, status.summary.count(*known))).collect();
    assert_eq!(counts[&Status::Pending], 1);
    assert_eq!(counts[&Status::Running], 1);
    assert_eq!(counts[&Status::Completed], 2);
    assert_eq!(counts[&Status::Failed], 1);
    assert_eq!(counts[&Status::Cancelled], 1);
    daemon.cancel(&gates);
    assert_eq!(daemon.status().active, 0);
}

#[test]
fn r09_restart_leaves_no_task_process_or_output_behind() {
    let mut daemon = TestDaemon::start();
    let done = daemon.submit(&["echo", "x"]);
    let output = daemon.block(&[done]).remove(0).output.path;
    let running = gate(&daemon);
    let process = Process::open(daemon.wait_running(running).pid.unwrap()).unwrap();
    daemon.restart();
    assert!(!process.is_alive());
    assert!(!fs::exists(&output).unwrap());
    for id in [done, running] {
        let error = daemon.refusal::<TaskGet>(&IdParams { id: id.into() });
        assert_eq!(error.kind(), ErrorKind::TaskNotFound);
    }
    assert_eq!(daemon.status().summary.total(), 0);
}

#[test]
fn r10_a_finished_task_stays_until_it_is_cleared() {
    let daemon = TestDaemon::start();
    let ids = [daemon.submit(&["echo", "a"]), daemon.submit(&["echo", "b"])];
    let tasks = daemon.block(&ids);
    let running = gate(&daemon);
    let clear = |params: &ClearParams| daemon.client().call::<TaskClear>(params).unwrap().cleared;
    let of = |ids: &[TaskId]| ClearParams {
        ids: Some(ids.iter().copied().map(TaskRef::from).collect()),
        ..ClearParams::default()
    };
    let error = daemon.refusal::<TaskClear>(&of(&[ids[0], running]));
    assert!(error.message.contains(&running.to_string()), "{error}");
    assert_eq!(daemon.status().summary.total(), 3, "an error clears nothing");
    assert_eq!(clear(&of(&ids[..1])), 1);
    wait::for_no_file(tasks[0].output.path.as_ref());
    let error = daemon.refusal::<TaskGet>(&IdParams { id: ids[0].into() });
    assert_eq!(error.kind(), ErrorKind::TaskNotFound);
    assert_eq!(daemon.output(ids[1]), b"b\n");
    assert_eq!(clear(&ClearParams::default()), 1);
    assert_eq!(daemon.status().summary.total(), 1);
    assert_eq!(clear(&ClearParams { all: true, ..ClearParams::default() }), 1);
    assert_eq!((daemon.status().summary.total(), daemon.task_processes().len()), (0, 0));
}

#[test]
fn r10_clearing_a_parent_session_leaves_others_alone() {
    let daemon = TestDaemon::start();
    let gates = ["a", "b"].map(|session| gate_of(&daemon, Some(session)));
    let done = daemon.submit_with(&SubmitParams {
        shell: Some(":".into()),
        session: Some("b".into()),
        ..daemon.params()
    });
    daemon.block(&[done.id]);
    let params = ClearParams { all: true, session: Some("a".into()), ..ClearParams::default() };
    assert_eq!(daemon.client().call::<TaskClear>(&params).unwrap().cleared, 1);
    let left: Vec<TaskId> = list(&daemon, &ListParams::default()).iter().map(|task| task.id).collect();
    assert_eq!(left, [done.id, gates[1]]);
    daemon.wait_running(gates[1]);
    daemon.cancel(&gates[1..]);
}

#[test]
fn r11_shutdown_cancels_everything_and_ends_the_daemon() {
    let mut daemon = one_at_once();
    let done = daemon.submit(&["echo", "x"]);
    let output = daemon.block(&[done]).remove(0).output.path;
    let running = gate(&daemon);
    let pending = gate(&daemon);
    let sleeper = Process::open(daemon.wait_running(running).pid.unwrap()).unwrap();
    let mut watch = daemon.watch();
    let params = ShutdownParams { grace_ms: None, cancel: true };
    let mut client = daemon.client();
    assert_eq!(client.call::<DaemonShutdown>(&params).unwrap().cancelled, 2);
    assert!(!sleeper.is_alive());
    for id in [pending, running] {
        assert_eq!(watch.until(|event| event.task.id == id).kind, EventKind::Cancelled);
    }
    assert!(daemon.ended().success());
    assert!(!daemon.socket().exists() && !fs::exists(output).unwrap());
}

#[test]
fn r54_ending_parent_session_cancels_and_clears_its_tasks() {
    let daemon = one_at_once();
    let mut params = SubmitParams { shell: Some(":".into()), session: Some("s".into()), ..daemon.params() };
    let done = daemon.submit_with(&params).id;
    daemon.block(&[done]);
    let gates = [gate_of(&daemon, Some("s")), gate_of(&daemon, Some("s"))];
    params.session = Some("t".into());
    let other = daemon.submit_with(&params).id;
    daemon.wait_running(gates[0]);
    let mut watch = daemon.watch();
    let ended = SessionEndParams { session: "s".into() };
    let result = daemon.client().call::<SessionEnd>(&ended).unwrap();
    assert_eq!((result.cancelled, result.cleared), (2, 3));
    // The pending one ends first.
    for id in [gates[1], gates[0]] {
        let task = watch.until_kind(id, EventKind::Cancelled).task;
        assert!(task.error.unwrap().contains("session"));
    }
    daemon.block(&[other]);
    let left: Vec<TaskId> = list(&daemon, &ListParams::default()).iter().map(|task| task.id).collect();
    assert_eq!(left, [other]);
    let result = daemon.client().call::<SessionEnd>(&ended).unwrap();
    assert_eq!((result.cancelled, result.cleared), (0, 0), "nothing is left of it");
}

#[test]
fn time_limit_fails_task_and_ends_its_tree() {
    let daemon = TestDaemon::start();
    let params = SubmitParams {
        shell: Some("sleep 1000 & sleep 1000".into()),
        time_limit_ms: Some(100),
        ..daemon.params()
    };
    let id = daemon.submit_with(&params).id;
    let task = daemon.block(&[id]).remove(0);
    assert_eq!(task.status, Status::Failed);
    assert!(task.error.as_deref().unwrap().starts_with("timed out after "), "{:?}", task.error);
    assert!(task.timed_out);
    assert_eq!(daemon.task_processes().len(), 0);
    let params = SubmitParams { shell: Some("true".into()), time_limit_ms: Some(60_000), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
}

#[test]
fn signal_reaches_leader_or_whole_tree_of_running_task() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell("trap 'echo got it' USR1; sh -c 'trap \"echo child too\" USR1; echo up; while :; do sleep 1000 & wait; done' & while :; do wait; done");
    daemon.wait_running(id);
    let path = daemon.task(id).output.path;
    wait::for_line(path.as_ref(), "up");
    let signal = |tree| {
        let params = SignalParams { id: id.into(), signal: "SIGUSR1".into(), tree };
        daemon.client().call::<TaskSignal>(&params).expect("task.signal");
    };
    signal(false);
    wait::for_line(path.as_ref(), "got it");
    assert!(!fs::read_to_string(&path).unwrap().contains("child too"));
    signal(true);
    wait::for_line(path.as_ref(), "child too");
    daemon.cancel(&[id]);
    let params = SignalParams { id: id.into(), signal: "15".into(), tree: false };
    assert_eq!(daemon.refusal::<TaskSignal>(&params).kind(), ErrorKind::NotRunning);
    let params = SignalParams { signal: "NOSUCH".into(), ..params };
    assert_eq!(daemon.refusal::<TaskSignal>(&params).kind(), ErrorKind::InvalidParams);
}
