//! How the turn of a template agent ends: cancelled, timed out, with the daemon, with children that outlive
//! it, and with more output than is kept.

use std::fs;
use std::path::PathBuf;

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::limits::OUTPUT_HEAD_BYTES;
use bgd_shared::request::{CancelParams, Stream, SubmitParams, TaskCancel};
use bgd_shared::task::{Status, Task};
use bgd_tests::templates::{Gate, REMEMBER, remembering_agent, shell_agent};
use bgd_tests::{TestDaemon, wait};

/// A grace period so long that a test that needs it to expire fails.
const LONG_GRACE: &str = "[grace]\ncancel = \"1h\"\n";

fn daemon(config: impl Into<String>) -> TestDaemon {
    TestDaemon::builder().config(config).start()
}

#[track_caller]
fn ended(daemon: &TestDaemon, id: TaskId, status: Status) -> Task {
    let task = daemon.block(&[id]).remove(0);
    assert_eq!(task.status, status, "{task:?}");
    task
}

fn cancel_with(daemon: &TestDaemon, id: TaskId, grace_ms: u64) -> Task {
    let params = CancelParams { ids: vec![id.into()], grace_ms: Some(grace_ms), ..CancelParams::default() };
    daemon.client().call::<TaskCancel>(&params).expect("task.cancel").tasks.remove(0)
}

#[test]
fn r05_cancel_sends_sigterm_and_waits_for_exit() {
    let line = "trap 'echo asked; exit 0' TERM; echo pid $$ > \"$HOME/noted\"; sleep 1000 & wait";
    let daemon = daemon(format!("{LONG_GRACE}{}", shell_agent("x", line, "")));
    let id = daemon.submit_prompt("x", "go");
    let process = daemon.recorded_process_after("noted", "pid");
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!(task.status, Status::Cancelled);
    assert!(!process.is_alive(), "it has ended when the cancel returns");
    assert_eq!(daemon.output(id), b"asked\n");
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled, "again changes nothing");
}

#[test]
fn cancel_right_after_submit_is_not_lost() {
    let daemon = daemon(format!("{LONG_GRACE}{}", shell_agent("x", "exec sleep 1000", "")));
    for _ in 0..20 {
        let id = daemon.submit_prompt("x", "go");
        assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    }
}

#[test]
fn r05_program_ignoring_sigterm_is_killed_with_its_children() {
    let line = "trap '' TERM; echo leader $$ > \"$HOME/noted\"; \
         setsid sh -c 'trap \"\" TERM; echo child $$ >> \"$HOME/noted\"; read _ < \"$HOME/gate\"' & \
         read _ < \"$HOME/gate\"";
    let daemon = daemon(shell_agent("x", line, ""));
    let _gate = Gate::new(daemon.home(), "gate");
    let id = daemon.submit_prompt("x", "go");
    let processes = ["leader", "child"].map(|word| daemon.recorded_process_after("noted", word));
    assert_eq!(cancel_with(&daemon, id, 50).status, Status::Cancelled);
    for process in processes {
        assert!(!process.is_alive(), "{process:?} has ended when the cancel returns");
    }
}

#[test]
fn child_that_outlives_program_ends_with_turn() {
    let line = "setsid sh -c 'echo child $$ > \"$HOME/noted\"; exec sleep 1000' & \
         read _ < \"$HOME/gate\"; echo \"$1\"";
    let daemon = daemon(shell_agent("x", line, ""));
    let mut gate = Gate::new(daemon.home(), "gate");
    let mut watch = daemon.watch();
    let id = daemon.submit_prompt("x", "done");
    let process = daemon.recorded_process_after("noted", "child");
    gate.open();
    watch.until_kind(id, EventKind::Completed);
    assert!(!process.is_alive(), "it is gone before anybody hears of the answer");
    let task = daemon.task(id);
    assert_eq!((task.status, task.lingering), (Status::Completed, false));
    assert_eq!(daemon.result(id), "done");
}

#[test]
fn exceeded_time_limit_fails_turn_of_each_run() {
    let line = format!("[ \"$1\" = one ] || exec sleep 1000; {REMEMBER}");
    let daemon = daemon(format!("{LONG_GRACE}{}", remembering_agent("x", &line)));
    let limited = |prompt| SubmitParams { time_limit_ms: Some(5000), ..daemon.prompt_for("x", prompt) };
    let id = daemon.submit_with(&limited("one")).id;
    ended(&daemon, id, Status::Completed);
    daemon.resume(id, "two");
    // Each run has the limit to itself.
    for id in [id, daemon.submit_with(&limited("two")).id] {
        let task = ended(&daemon, id, Status::Failed);
        assert!(task.error.as_deref().is_some_and(|error| error.contains("timed out after")), "{task:?}");
    }
    assert!(daemon.task_processes().is_empty());
}

#[test]
fn cancelling_resumed_turn_marks_task_cancelled() {
    let line =
        format!("[ \"$1\" = one ] || {{ echo pid $$ > \"$HOME/noted\"; exec sleep 1000; }}; {REMEMBER}");
    let daemon = daemon(format!("{LONG_GRACE}{}", remembering_agent("x", &line)));
    let id = daemon.submit_prompt("x", "one");
    ended(&daemon, id, Status::Completed);
    assert_eq!(daemon.resume(id, "two").status, Status::Resumed);
    let process = daemon.recorded_process_after("noted", "pid");
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.resume_count), (Status::Cancelled, 1));
    assert!(!process.is_alive());
    let error = daemon.try_resume(id, "three").unwrap_err();
    assert!(error.message.contains("only completed tasks can be resumed"), "{error}");
    assert!(error.message.contains("cancelled"), "{error}");
}

#[test]
fn r11_daemon_stop_ends_running_turn() {
    let line = "echo pid $$ > \"$HOME/noted\"; exec sleep 1000";
    let mut daemon = daemon(format!("{LONG_GRACE}{}", shell_agent("x", line, "")));
    let id = daemon.submit_prompt("x", "go");
    let process = daemon.recorded_process_after("noted", "pid");
    let mut watch = daemon.watch();
    daemon.run(&["daemon", "stop"]).success();
    watch.until_kind(id, EventKind::Cancelled);
    assert!(daemon.ended().success());
    assert!(!process.is_alive(), "nothing of it is left");
}

#[test]
fn r09_restart_after_kill_ends_leftover_turn() {
    let line = "echo pid $$ > \"$HOME/noted\"; exec sleep 1000";
    let mut daemon = daemon(shell_agent("x", line, ""));
    let id = daemon.submit_prompt("x", "go");
    let process = daemon.recorded_process_after("noted", "pid");
    let path = daemon.task(id).output.path;
    daemon.kill9();
    daemon.launch();
    process.gone();
    wait_gone(&path);
    daemon.run(&["status", &id.to_string()]).expect_code(66);
}

fn wait_gone(path: &str) {
    let path = PathBuf::from(path);
    if path.parent().is_some_and(std::path::Path::exists) {
        wait::for_no_file(&path);
    }
}

#[test]
fn stdout_and_stderr_are_kept_separate() {
    let daemon = daemon(shell_agent("x", "echo out; echo err >&2; echo out again", ""));
    let id = daemon.submit_prompt("x", "go");
    ended(&daemon, id, Status::Completed);
    let id = id.to_string();
    assert_eq!(daemon.run(&["output", &id]).success().stdout, b"out\nout again\n");
    assert_eq!(daemon.run(&["output", "--stderr", &id]).success().stdout, b"err\n");
    assert_eq!(daemon.run(&["output", "--result", &id]).success().stdout_text().trim_end(), "out\nout again");
}

/// The limit of the tests below, shared by the two streams.
const LIMIT: &str = "[limits]\noutput_bytes = \"1MiB\"\n";

#[test]
fn output_beyond_limit_drops_its_middle_and_reports_size() {
    let line = "yes 0123456 | head -c 4000000; read _ < \"$HOME/gate\"; echo the end";
    let daemon = daemon(format!("{LIMIT}{}", shell_agent("x", line, "")));
    let mut gate = Gate::new(daemon.home(), "gate");
    let mut watch = daemon.watch();
    let id = daemon.submit_prompt("x", "go");
    // The program continues once a part has been dropped, so that the text searched for the answer has a hole.
    watch.until(|event| event.task.output.dropped_bytes > 3_000_000);
    gate.open();
    let task = ended(&daemon, id, Status::Completed);
    assert_eq!((task.output.bytes, task.output.stderr_dropped_bytes), (4_000_008, 0));
    assert!(task.output.dropped_bytes > 3_000_000, "{:?}", task.output);
    let output = daemon.output(id);
    assert_eq!(output.len() as u64, task.output.bytes - task.output.dropped_bytes);
    assert!(!output.contains(&0), "no invented NULs");
    let result = daemon.result(id);
    assert!(result.ends_with("the end") && !result.contains('\0'), "the result is what was kept last");
    assert!((300_000..1 << 20).contains(&result.len()), "{}", result.len());
}

#[test]
fn resume_keeps_dropped_output_of_earlier_run_dropped() {
    let line = "[ -n \"$2\" ] || yes 0123456 | head -c 4000000; \
         printf '\\n{\"session_id\":\"s1\",\"result\":\"%s\"}\\n' \"$1\"";
    let daemon = daemon(format!("{LIMIT}{}", remembering_agent("x", line)));
    let id = daemon.submit_prompt("x", "one");
    let before = ended(&daemon, id, Status::Completed);
    assert_eq!(daemon.result(id), "one", "the answer stands at the end, which is kept");
    daemon.resume(id, "two");
    let after = ended(&daemon, id, Status::Completed);
    assert_eq!(daemon.result(id), "two");
    assert!(after.output.bytes > before.output.bytes);
    assert!(
        after.output.dropped_bytes >= before.output.dropped_bytes && before.output.dropped_bytes > 3_000_000
    );
    let output = daemon.output(id);
    assert_eq!(output.len() as u64, after.output.bytes - after.output.dropped_bytes);
    assert!(!output.contains(&0), "no invented NULs");
    let head = usize::try_from(OUTPUT_HEAD_BYTES).unwrap();
    assert!(output[..head].starts_with(b"0123456\n") && output.ends_with(b"\"result\":\"two\"}\n"));
}

#[test]
fn r10_clearing_task_removes_its_files() {
    let daemon = daemon(remembering_agent("x", REMEMBER));
    let id = daemon.submit_prompt("x", "one");
    let task = ended(&daemon, id, Status::Completed);
    let files = [task.output.path.clone(), task.output.stderr_path.expect("two files")];
    let result = task.output.path.replace(".out", ".result.1");
    assert_eq!(daemon.stream(id, Stream::Stderr), b"");
    assert_eq!(fs::read_to_string(&result).unwrap(), "one;");
    daemon.run(&["clear", &id.to_string()]).success();
    for file in files.iter().chain([&result]) {
        assert!(fs::metadata(file).is_err(), "{file} is left");
    }
}

#[test]
fn r54_ending_parent_session_ends_only_its_turns() {
    let line = "echo \"pid $1 $$\" >> \"$HOME/noted\"; exec sleep 1000";
    let daemon = daemon(format!("{LONG_GRACE}{}", shell_agent("x", line, "")));
    let [mine, other] = ["mine", "other"].map(|session| {
        let params = SubmitParams { session: Some(session.into()), ..daemon.prompt_for("x", session) };
        (daemon.submit_with(&params).id, daemon.recorded_process_after("noted", &format!("pid {session}")))
    });
    daemon.run(&["session", "end", "mine"]).success();
    assert!(!mine.1.is_alive() && other.1.is_alive());
    daemon.run(&["status", &mine.0.to_string()]).expect_code(66);
    assert_eq!(daemon.cancel(&[other.0])[0].status, Status::Cancelled);
}
