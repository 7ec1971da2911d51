//! Blocking on tasks (R22 to R24): immediate, with a timeout, for all or for one, with many waiters, and with
//! clients that disconnect.

use std::process::{Child, Stdio};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, BlockResult, ClearParams, DaemonStatusOf, Encoding, Hello, HelloParams, Matching,
    NoParams, Stdin, SubmitParams, TaskBlock, TaskClear, TaskWrite, WriteParams,
};
use bgd_shared::task::Status;
use bgd_tests::{Terminal, TestDaemon, wait};

/// Tasks that run, all at once, until [`open`] is called.
fn gates(daemon: &TestDaemon, count: usize) -> Vec<TaskId> {
    let argv = Some(vec!["cat".into()]);
    let params = SubmitParams { argv, stdin: Some(Stdin::Pipe), ..daemon.params() };
    let gates: Vec<TaskId> = (0..count).map(|_| daemon.submit_with(&params).id).collect();
    for gate in &gates {
        daemon.wait_running(*gate);
    }
    gates
}

fn open(daemon: &TestDaemon, gate: TaskId) {
    let eof = WriteParams { id: gate.into(), data: String::new(), encoding: Encoding::Utf8, eof: true };
    daemon.client().call::<TaskWrite>(&eof).expect("task.write");
}

fn params(ids: &[TaskId], timeout_ms: Option<u64>, mode: BlockMode) -> BlockParams {
    BlockParams {
        ids: ids.iter().copied().map(Into::into).collect(),
        timeout_ms,
        mode,
        ..BlockParams::default()
    }
}

fn all(ids: &[TaskId], timeout_ms: Option<u64>) -> BlockParams {
    params(ids, timeout_ms, BlockMode::All)
}

fn call(daemon: &TestDaemon, params: &BlockParams) -> BlockResult {
    daemon.client().call::<TaskBlock>(params).expect("task.block")
}

/// Starts a block and waits until the daemon has begun it: the daemon accepts the requests of a connection in order,
/// and has answered a later one.
fn begin(daemon: &TestDaemon, params: &BlockParams) -> (Client, u64) {
    let mut client = daemon.client();
    let call = client.send::<TaskBlock>(params, &[]).expect("a request");
    client.call::<Hello>(&HelloParams::default()).expect("hello");
    (client, call)
}

#[test]
fn r22_block_waits_only_for_unfinished_tasks() {
    let daemon = TestDaemon::start();
    let done = daemon.submit(&["true"]);
    daemon.block(&[done]);
    let gate = gates(&daemon, 1)[0];
    let (mut client, number) = begin(&daemon, &all(&[done, gate], None));
    open(&daemon, gate);
    let result = client.answer::<TaskBlock>(number).unwrap();
    assert!(!result.timed_out && result.active.is_empty());
    assert_eq!(result.finished, [done, gate]);
    assert!(result.tasks.iter().all(|task| task.status == Status::Completed && task.exit.is_some()));
}

#[test]
fn r22_block_timeout_defaults_to_one_minute() {
    let params: BlockParams = serde_json::from_str(r#"{"ids":[]}"#).unwrap();
    assert_eq!((params.timeout_ms, params.mode), (Some(60_000), BlockMode::All));
    let params: BlockParams = serde_json::from_str(r#"{"ids":[],"timeout_ms":null}"#).unwrap();
    assert_eq!(params.timeout_ms, None);
}

#[test]
fn r23_block_on_finished_tasks_returns_immediately() {
    let daemon = TestDaemon::start();
    let ids = [daemon.submit(&["true"]), daemon.submit(&["false"]), daemon.submit(&["no-such-program"])];
    daemon.block(&ids);
    // Without a timeout, and with one of zero: neither may wait.
    for timeout_ms in [None, Some(0)] {
        let result = call(&daemon, &all(&ids, timeout_ms));
        assert!(!result.timed_out);
        assert_eq!(result.finished, ids);
    }
    let result = call(&daemon, &all(&[], None));
    assert!(!result.timed_out && result.tasks.is_empty(), "on nothing likewise");
}

#[test]
fn r24_timed_out_block_reports_every_task_and_which_are_active() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
    let done = daemon.submit(&["false"]);
    daemon.block(&[done]);
    let running = gates(&daemon, 2);
    let pending = daemon.submit(&["true"]);
    let ids = [running[0], done, pending, running[1]];
    let result = call(&daemon, &all(&ids, Some(20)));
    assert!(result.timed_out);
    assert_eq!(result.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), ids, "in the order of naming");
    assert_eq!(result.finished, [done]);
    assert_eq!(result.active, [running[0], pending, running[1]]);
    let statuses = result.tasks.iter().map(|task| task.status).collect::<Vec<_>>();
    assert_eq!(statuses, [Status::Running, Status::Failed, Status::Pending, Status::Running]);
    assert!(call(&daemon, &all(&ids, Some(0))).timed_out, "a timeout of 0 only looks");
    for gate in running {
        open(&daemon, gate);
    }
    daemon.block(&ids);
}

#[test]
fn r24_task_named_twice_is_reported_once() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["true"]);
    let mut params = all(&[id, id], None);
    params.ids.push(id.to_string()[..13].parse().unwrap());
    let result = call(&daemon, &params);
    assert_eq!((result.tasks.len(), result.finished), (1, vec![id]));
}

#[test]
fn r24_task_cleared_during_block_is_reported_with_last_status() {
    let daemon = TestDaemon::start();
    let gates = gates(&daemon, 2);
    let (mut client, number) = begin(&daemon, &all(&gates, None));
    let clear = ClearParams { ids: Some(vec![gates[0].into()]), all: true, ..ClearParams::default() };
    assert_eq!(daemon.client().call::<TaskClear>(&clear).unwrap().cleared, 1);
    open(&daemon, gates[1]);
    let result = client.answer::<TaskBlock>(number).unwrap();
    assert_eq!(result.finished, gates);
    assert_eq!(result.tasks[0].status, Status::Cancelled);
}

#[test]
fn block_any_returns_when_first_task_ends() {
    let daemon = TestDaemon::start();
    let gates = gates(&daemon, 3);
    let (mut client, number) = begin(&daemon, &params(&gates, None, BlockMode::Any));
    open(&daemon, gates[1]);
    let result = client.answer::<TaskBlock>(number).unwrap();
    assert_eq!((result.timed_out, &result.finished), (false, &vec![gates[1]]));
    assert_eq!(result.active, [gates[0], gates[2]]);
    let result = call(&daemon, &params(&gates, None, BlockMode::Any));
    assert_eq!(result.finished, [gates[1]], "one has ended already");
    let result = call(&daemon, &params(&[gates[0], gates[2]], Some(10), BlockMode::Any));
    assert!(result.timed_out && result.finished.is_empty());
    daemon.cancel(&gates);
}

#[test]
fn block_on_unknown_id_fails_without_waiting() {
    let daemon = TestDaemon::start();
    let gate = gates(&daemon, 1)[0];
    let unknown = TaskId::random();
    match daemon.client().call::<TaskBlock>(&all(&[gate, unknown], None)) {
        Err(ClientError::Rpc(error)) => {
            assert_eq!(error.kind(), ErrorKind::TaskNotFound);
            assert!(error.message.contains(&unknown.to_string()), "{error}");
        }
        other => panic!("{other:?}"),
    }
    daemon.run(&["block", &unknown.to_string()]).expect_code(66);
    daemon.cancel(&[gate]);
}

#[test]
fn failed_and_cancelled_tasks_wake_their_waiters() {
    let daemon = TestDaemon::start();
    let gates = gates(&daemon, 2);
    let waiters: Vec<_> = gates.iter().map(|gate| begin(&daemon, &all(&[*gate], None))).collect();
    bgd_tests::Process::open(daemon.task(gates[0]).pid.unwrap()).unwrap().kill();
    daemon.cancel(&gates[1..]);
    for ((mut client, number), status) in waiters.into_iter().zip([Status::Failed, Status::Cancelled]) {
        assert_eq!(client.answer::<TaskBlock>(number).unwrap().tasks[0].status, status);
    }
}

#[test]
fn all_remaining_waiters_of_one_task_are_woken() {
    let daemon = TestDaemon::start();
    let gate = gates(&daemon, 1)[0];
    let mut waiters: Vec<_> = (0..200).map(|_| begin(&daemon, &all(&[gate], None))).collect();
    // Every third one disconnects, which must not affect the others.
    let mut place = 0;
    waiters.retain(|_| {
        place += 1;
        place % 3 != 0
    });
    open(&daemon, gate);
    for (client, number) in &mut waiters {
        let result = client.answer::<TaskBlock>(*number).unwrap();
        assert_eq!((result.timed_out, &result.finished), (false, &vec![gate]));
    }
    assert_eq!(waiters.len(), 134);
}

#[test]
fn disconnected_waiters_are_dropped() {
    let daemon = TestDaemon::start();
    let gate = gates(&daemon, 1)[0];
    let mut watch = daemon.watch();
    for _ in 0..50 {
        let (client, _) = begin(&daemon, &all(&[gate], Some(3_600_000)));
        drop(client);
    }
    open(&daemon, gate);
    watch.until_kind(gate, EventKind::Completed);
    // The watch's connection and this one.
    let mut client = daemon.client();
    let mut connections = || client.call::<DaemonStatusOf>(&NoParams {}).unwrap().connections;
    wait::poll_until("the end of the waiters' connections", || (connections() <= 2).then_some(()));
}

fn spawn(daemon: &TestDaemon, args: &[&str]) -> Child {
    let mut bgctl = daemon.bgctl(args);
    bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("bgctl")
}

#[test]
fn bgctl_block_exit_code_reflects_outcome() {
    let daemon = TestDaemon::start();
    let good = daemon.submit(&["true"]).to_string();
    let bad = daemon.submit_shell("exit 7").to_string();
    let killed = daemon.submit_shell("kill -TERM $$").to_string();
    assert_eq!(daemon.run(&["block", &good]).success().stdout_text().lines().count(), 1);
    let both = daemon.run(&["block", &good, &bad]).expect_code(1);
    assert_eq!(both.stdout_text().lines().count(), 2, "a line a task");
    assert!(both.stdout_text().contains("failed (7)") && both.stderr.is_empty());
    daemon.run(&["block", "--exit-code", &good]).expect_code(0);
    daemon.run(&["block", "--exit-code", &bad]).expect_code(7);
    daemon.run(&["block", "--exit-code", &killed]).expect_code(128 + 15);
    daemon.run(&["block", "--exit-code", &good, &bad]).expect_code(2);
    let gate = gates(&daemon, 1)[0];
    let id = gate.to_string();
    let timed_out = daemon.run(&["block", "--timeout", "10ms", &good, &id]).expect_code(75);
    assert!(timed_out.stdout_text().contains("running"), "{}", timed_out.stdout_text());
    assert_eq!(timed_out.stderr, "bgctl: timed out after 10ms\n");
    let timed_out = daemon.run(&["block", "--timeout", "10ms", "--exit-code", &id]).expect_code(75);
    assert_eq!(timed_out.stderr, "bgctl: timed out after 10ms\n");
    assert_eq!(daemon.run(&["block", "--timeout", "0", &id]).expect_code(75).stderr, "", "it only looks");
    daemon.run(&["block", "--any", &id, &good]).expect_code(0);
    daemon.run(&["block", "--any", &id, &bad]).expect_code(1);
    let result: BlockResult =
        daemon.run(&["--json", "block", "--timeout", "0", &id, &good]).expect_code(75).json();
    assert_eq!((result.timed_out, result.active), (true, vec![gate]));
    let waiting = spawn(&daemon, &["block", "--timeout", "none", &id]);
    open(&daemon, gate);
    let outcome = waiting.wait_with_output().unwrap();
    assert_eq!(outcome.status.code(), Some(0));
    daemon.run(&["cancel", &id]).success();
}

/// Starts a `bgctl block` in a terminal. Its progress is drawn once it waits for the task.
#[track_caller]
fn blocked(daemon: &TestDaemon, task: TaskId) -> Terminal {
    let mut block = Terminal::bgctl(daemon, &["block", "--no-start", "--timeout", "none", &task.to_string()]);
    block.wait_text(" cat");
    block
}

#[test]
fn bgctl_block_fails_when_daemon_stops_or_is_killed() {
    let mut daemon = TestDaemon::start();
    let mut block = blocked(&daemon, gates(&daemon, 1)[0]);
    assert!(daemon.stop().success());
    assert_eq!(block.ended().code(), Some(1));
    assert!(block.screen().contains("cancelled"), "{block:?}");
    daemon.launch();
    let mut block = blocked(&daemon, gates(&daemon, 1)[0]);
    daemon.kill9();
    assert_eq!(block.ended().code(), Some(69));
    assert!(block.screen().contains("the daemon closed the connection before it answered"), "{block:?}");
}

#[test]
fn r22_connection_stays_responsive_while_blocking_on_many_tasks() {
    let daemon = TestDaemon::start();
    let gate = gates(&daemon, 1)[0];
    let matching = Some(Matching { status: vec![Status::Running], ..Matching::default() });
    let many = BlockParams { ids: vec![gate.into(); 1000], ..BlockParams::default() };
    for params in [BlockParams { matching, ..BlockParams::default() }, many] {
        let mut client = daemon.client();
        client.send::<TaskBlock>(&params, &[]).expect("task.block");
        // After waiting for a while, a client sends this to check whether the daemon is still alive.
        client.call::<Hello>(&HelloParams::default()).expect("hello");
    }
    daemon.cancel(&[gate]);
}
