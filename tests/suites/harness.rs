//! Tests of the harness itself, on a real daemon: the properties that the suites rely on.

use bgd_shared::event::EventKind;
use bgd_shared::task::Status;
use bgd_tests::{Process, TestDaemon, Word};

#[test]
fn a_daemon_runs_a_task_and_ends() {
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
fn events_are_what_a_test_waits_for() {
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
fn a_killed_daemon_may_leave_processes_until_the_next_start() {
    let mut daemon = TestDaemon::start();
    let task = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(task);
    daemon.kill9();
    daemon.launch();
    assert_eq!(daemon.task_processes().len(), 0);
    assert_eq!(daemon.status().summary.total(), 0);
}

#[test]
fn bgctl_starts_a_daemon_and_the_harness_ends_it() {
    let home = TestDaemon::home_only();
    let id = home.run(&["submit", "--", "true"]).success().stdout_text();
    home.run(&["block", id.trim()]).success();
    let daemon = home.process();
    drop(home);
    assert!(!daemon.is_alive());
}

#[test]
fn the_second_daemon_of_a_home_is_told_that_the_place_is_taken() {
    let daemon = TestDaemon::start();
    assert_eq!(daemon.second().word, Word::Taken);
    assert!(daemon.process().is_alive());
}
