//! Tests of the harness itself, on a real daemon: the properties that the suites rely on.

use bgd_shared::event::EventKind;
use bgd_shared::task::Status;
use bgd_tests::{Process, TestDaemon, Word};

#[test]
fn daemon_runs_a_task_and_stops() {
    let mut daemon = TestDaemon::start();
    let process = daemon.process();
    let task = daemon.submit(&["printf", "%s|", "a b", "$HOME"]);
    assert_eq!(daemon.block(&[task])[0].status, Status::Completed);
    assert_eq!(daemon.output(task), b"a b|$HOME|");
    assert_eq!(daemon.output(daemon.submit_shell("true")), b"");
    assert!(daemon.stop().success());
    assert!(!process.is_alive());
    assert!(!daemon.socket().exists());
}

#[test]
fn tests_can_wait_for_events() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let task = daemon.submit(&["sleep", "1000"]);
    let pid = watch.until_kind(task, EventKind::Started).task.pid.expect("a running task has a pid");
    assert_eq!(daemon.wait_running(task).pid, Some(pid));
    assert_eq!(daemon.task_processes().len(), 1);
    let sleeper = Process::open(pid).expect("it lives");
    daemon.cancel(&[task]);
    assert!(!sleeper.is_alive());
    assert_eq!(watch.until_kind(task, EventKind::Cancelled).task.status, Status::Cancelled);
}

#[test]
fn next_start_ends_processes_of_killed_daemon() {
    let mut daemon = TestDaemon::start();
    let task = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(task);
    daemon.kill9();
    daemon.launch();
    assert_eq!(daemon.task_processes().len(), 0);
    assert_eq!(daemon.status().summary.total(), 0);
}

#[test]
fn dropping_a_home_ends_daemon_started_by_bgctl() {
    let home = TestDaemon::home_only();
    let id = home.run(&["submit", "--", "true"]).success().stdout_text();
    home.run(&["block", id.trim()]).success();
    let daemon = home.process();
    drop(home);
    assert!(!daemon.is_alive());
}

#[test]
fn second_daemon_of_a_home_reports_that_socket_is_taken() {
    let daemon = TestDaemon::start();
    assert_eq!(daemon.second().word, Word::Taken);
    assert!(daemon.process().is_alive());
}
