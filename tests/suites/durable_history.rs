//! Finished tasks of a durable daemon give way to new ones (R129), also those that clients wait for.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::{Outcome, Process, TestDaemon};
use rustix::process::Signal;

use super::channel_tty::Gate;

/// Submits a batch of `count` tasks with a word of this many bytes each, in the given parent session.
fn each(daemon: &TestDaemon, session: &str, count: usize, bytes: usize, options: &[&str]) -> Outcome {
    let file = daemon.home().join("items");
    let lines: Vec<String> = (0..count).map(|number| format!("{number:0bytes$}\n")).collect();
    fs::write(&file, lines.concat()).unwrap();
    let file = file.to_str().unwrap();
    let args = [&["submit", "--each", file], options, &["--", "true"]].concat();
    Outcome::of(daemon.bgctl(&args).env("BGD_SESSION", session))
}

/// Waits for the end of a batch's tasks.
#[track_caller]
fn block(daemon: &TestDaemon, submitted: Outcome) {
    let batch = submitted.success().word::<TaskId>();
    daemon.run(&["block", "--timeout", "none", &format!("@{batch}")]).success();
}

#[test]
fn r129_long_history_and_unread_notices_keep_no_new_task_out() {
    let mut daemon = TestDaemon::durable("[limits]\nmemory = \"1MiB\"");
    // Together, these tasks and their notices need more than twice the memory.
    for session in ["a", "b", "c", "d"] {
        block(&daemon, each(&daemon, session, 60, 4000, &["--jobs", "20"]));
    }
    let submit = |daemon: &TestDaemon| {
        Outcome::of(daemon.bgctl(&["submit", "--hold", "--", "true"]).env("BGD_SESSION", "last"))
    };
    for _ in 0..20 {
        submit(&daemon).success();
        let status = daemon.status();
        assert!(status.held_bytes <= status.limits.memory, "{} bytes", status.held_bytes);
    }
    daemon.kill9();
    daemon.launch();
    submit(&daemon).success();
    assert_eq!(daemon.status().summary.active(), 21);
}

#[test]
fn r129_history_gives_way_to_batches_and_pending_tasks_up_to_the_limit() {
    let mut daemon = TestDaemon::durable("[limits]\ntasks = 100");
    for session in ["a", "b", "c"] {
        block(&daemon, each(&daemon, session, 30, 1, &[]));
    }
    let ended = daemon.status().summary.total();
    assert_eq!(ended, 75, "a quarter is left");
    let refused = each(&daemon, "d", 101, 1, &["--hold"]).expect_code(70);
    assert!(refused.stderr.contains("(limits.tasks)"), "{}", refused.stderr);
    assert_eq!(daemon.status().summary.total(), ended, "a refused batch costs nothing");
    let mut watch = daemon.watch();
    each(&daemon, "d", 30, 1, &["--hold"]).success();
    watch.until(|event| event.kind == EventKind::Cleared);
    let summary = daemon.status().summary;
    assert_eq!((summary.total(), summary.active()), (100, 30));
    each(&daemon, "e", 69, 1, &["--hold"]).success();
    daemon.run(&["submit", "--hold", "--", "true"]).success();
    let refused = daemon.run(&["submit", "--hold", "--", "true"]).expect_code(70);
    assert!(refused.stderr.contains("(limits.tasks)"), "{}", refused.stderr);
    daemon.kill9();
    daemon.launch();
    let summary = daemon.status().summary;
    assert_eq!((summary.total(), summary.active()), (100, 100), "what was cleared does not come back");
}

#[test]
fn r126_follow_of_a_task_cleared_while_there_was_no_connection_ends_with_0() {
    let mut daemon = TestDaemon::durable("");
    let gate = Gate::new(&daemon, "gate");
    let id = daemon.submit_shell("echo so far; read x <gate; echo more");
    daemon.wait_running(id);
    let mut follow = daemon.bgctl(&["output", "-f", &id.to_string()]);
    let follow = follow.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = follow.spawn().expect("bgctl");
    let mut text = BufReader::new(child.stdout.take().unwrap());
    let mut shown = String::new();
    text.read_line(&mut shown).unwrap();
    // It waits by now, and learns only later that the daemon has ended.
    let process = Process::open(child.id().cast_signed()).expect("it lives");
    process.signal(Signal::STOP).unwrap();
    daemon.kill9();
    daemon.launch();
    gate.open();
    daemon.block(&[id]);
    daemon.run(&["clear", &id.to_string()]).success();
    process.signal(Signal::CONT).unwrap();
    text.read_to_string(&mut shown).unwrap();
    let outcome = child.wait_with_output().unwrap();
    let said = String::from_utf8(outcome.stderr).unwrap();
    assert!(outcome.status.success() && said.contains("was cleared"), "{:?}: {said}", outcome.status);
    assert_eq!(shown, "so far\nmore\n");
}
