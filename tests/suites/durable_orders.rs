//! Commands to running tasks that a durable daemon had not finished, and results it had not handled, when it was killed
//! or stopped (R106, R126, R131): the next daemon takes care of them.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::thread;

use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    CancelParams, SelectParams, SignalParams, TaskCancel, TaskContinue, TaskPause, TaskSignal,
};
use bgd_tests::shared::task::Status;
use bgd_tests::{Process, TestDaemon, wait};
use rustix::process::Signal;

/// Enough that a kill comes before all of their processes have been signalled.
const MANY: usize = 30;

/// Starts a durable daemon with a grace period of an hour.
fn durable() -> TestDaemon {
    TestDaemon::durable(&format!("max_concurrent_tasks = {MANY}\n[grace]\ncancel = \"1h\""))
}

/// Starts `MANY` tasks with this script, which appends a line to `there` when it runs.
#[track_caller]
fn start_many(daemon: &TestDaemon, script: &str) -> Vec<TaskId> {
    let tasks: Vec<TaskId> = (0..MANY).map(|_| daemon.submit_shell(script)).collect();
    wait::for_lines(&daemon.home().join("there"), MANY as u64, "");
    for task in &tasks {
        daemon.wait_running(*task);
    }
    tasks
}

fn select(tasks: &[TaskId]) -> SelectParams {
    SelectParams { ids: tasks.iter().copied().map(Into::into).collect(), ..SelectParams::default() }
}

/// Returns the tasks' processes that are stopped by a signal.
fn stopped(daemon: &TestDaemon) -> BTreeSet<i32> {
    let is_stopped = |process: &Process| {
        let stat = fs::read_to_string(process.proc("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    daemon.task_processes().iter().filter(|process| is_stopped(process)).map(Process::pid).collect()
}

#[test]
fn r126_continue_cut_by_kill_is_completed_by_next_daemon() {
    let mut daemon = durable();
    let tasks = start_many(&daemon, "echo >> there; exec sleep 1000");
    let selected = select(&tasks);
    daemon.client().call::<TaskPause>(&selected).expect("they are paused");
    assert_eq!(stopped(&daemon).len(), MANY);
    let (mut watch, mut client, order) = (daemon.watch(), daemon.client(), selected.clone());
    let call = thread::spawn(move || client.call::<TaskContinue>(&order).map(drop));
    // By then all of them are in the journal.
    watch.until(|event| event.kind == EventKind::Continued);
    daemon.kill9();
    // The call may have been answered.
    let _ = call.join().expect("the call has ended");
    daemon.launch();

    assert!(tasks.iter().all(|task| !daemon.task(*task).paused));
    wait::poll_until("all processes go on", || stopped(&daemon).is_empty().then_some(()));

    // Tasks that stop by themselves from now on are left alone.
    daemon.client().call::<TaskContinue>(&selected).expect("it has nothing to do");
    let one = Process::open(daemon.task(tasks[0]).pid.expect("it runs")).expect("it runs");
    one.signal(Signal::STOP).unwrap();
    wait::poll_until("it has stopped", || stopped(&daemon).contains(&one.pid()).then_some(()));
    // Answered once it is in the journal, after all that happened before.
    let held = daemon.submitted(&["--hold", "--", "true"]);
    daemon.kill9();
    daemon.launch();
    // Carried out after what the daemon itself has ordered, and ignored.
    let ignored = SignalParams { id: tasks[0].into(), signal: "WINCH".to_owned(), tree: true };
    daemon.client().call::<TaskSignal>(&ignored).expect("it runs");
    assert_eq!(stopped(&daemon), BTreeSet::from([one.pid()]));
    daemon.client().call::<TaskContinue>(&selected).expect("it continues");
    wait::poll_until("it goes on", || stopped(&daemon).is_empty().then_some(()));
    daemon.cancel(&[&tasks[..], &[held]].concat());
}

#[test]
fn r126_cancel_cut_by_kill_is_completed_by_next_daemon() {
    let mut daemon = durable();
    let script = "trap 'echo $$ >> told; exit' HUP; echo >> there; while :; do sleep 1000; done";
    let tasks = start_many(&daemon, script);
    let mut client = daemon.client();
    let ids = tasks.iter().copied().map(Into::into).collect();
    let params = CancelParams { ids, signal: Some("HUP".to_owned()), ..CancelParams::default() };
    let call = thread::spawn(move || client.call::<TaskCancel>(&params).map(drop));
    let signalled = daemon.home().join("told");
    wait::for_lines(&signalled, 1, "");
    daemon.kill9();
    let _ = call.join().expect("the call has ended");
    daemon.launch();

    // Within the hour of the grace period.
    for task in daemon.block(&tasks) {
        assert_eq!(task.status, Status::Cancelled, "{task:?}");
    }
    let text = fs::read_to_string(signalled).unwrap();
    assert_eq!(text.lines().collect::<BTreeSet<_>>().len(), MANY, "each has got the signal");
}

#[test]
fn r131_attempts_ending_during_stop_are_retried_by_next_daemon() {
    let mut daemon = durable();
    let submit = |args: &[&str]| {
        let all = [&["submit"], args].concat();
        daemon.run(&all).success().word::<TaskId>()
    };
    let fails = "until [ -e end ]; do sleep 0.02; done; exit 1";
    let service = submit(&["--restart", "always", "--shell", fails]);
    let retried = submit(&["--retry", "5", "--retry-delay", "0", "--shell", fails]);
    let then = submit(&["--after", &format!("{retried}:ok"), "--", "true"]);
    for task in [service, retried] {
        daemon.wait_running(task);
    }
    // Foreground jobs are ended, and the stop waits for this one.
    let job = "trap 'echo told > told' TERM; echo begun > begun; until [ -e go ]; do sleep 0.02; done";
    let mut command = daemon.bgctl(&["run", "--shell", job]);
    let mut run = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let file = |name: &str| daemon.home().join(name);
    let (begun, signalled, end, go) = (file("begun"), file("told"), file("end"), file("go"));
    wait::for_line(&begun, "begun");
    let mut watch = daemon.watch();
    daemon.process().signal(Signal::TERM).unwrap();
    wait::for_line(&signalled, "told");
    fs::write(&end, "").unwrap();
    let is_over = |kind: EventKind| kind.is_terminal() || kind == EventKind::Retrying;
    let mut left = BTreeSet::from([service, retried]);
    while !left.is_empty() {
        let event = watch.until(|event| left.contains(&event.task.id) && is_over(event.kind));
        assert_eq!((event.kind, event.task.status), (EventKind::Retrying, Status::Pending));
        left.remove(&event.task.id);
    }
    fs::write(&go, "").unwrap();
    assert!(daemon.ended().success());
    run.wait().unwrap();
    fs::remove_file(&end).unwrap();

    daemon.launch();
    for task in [service, retried] {
        assert_eq!(daemon.wait_running(task).attempt, Some(2));
    }
    assert_eq!(daemon.task(then).status, Status::Pending);
    daemon.cancel(&[service, retried, then]);
}

/// A slot is free as soon as the next daemon begins, and the end of a foreground job, whose client is gone, makes the
/// daemon look for the next task to start.
#[test]
fn r126_task_waiting_for_slot_is_started_once_by_next_daemon() {
    let config = |slots: u32| format!("durable = true\nmax_concurrent_tasks = {slots}");
    let mut daemon = TestDaemon::builder().config(config(2)).start();
    let mut command = daemon.bgctl(&["run", "--shell", "echo begun > begun; exec sleep 1000"]);
    let mut run = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait::for_line(&daemon.home().join("begun"), "begun");
    let runs = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(runs);
    let next = daemon.submit_shell("echo ran >> ran; exec sleep 1000");
    daemon.write_config(&config(3));
    daemon.kill9();
    daemon.launch();
    run.kill().unwrap();
    run.wait().unwrap();
    daemon.wait_running(next);
    daemon.wait_running(runs);
    // A task that was started twice has written its line by then.
    let after = daemon.submit_shell("echo ran >> ran; exec sleep 1000");
    daemon.wait_running(after);
    wait::for_lines(&daemon.home().join("ran"), 2, "ran");
    daemon.cancel(&[runs, next, after]);
    wait::poll_until("their end", || daemon.task_processes().is_empty().then_some(()));
    assert_eq!(fs::read_to_string(daemon.home().join("ran")).unwrap(), "ran\nran\n");
}
