//! Limits and settings of tasks on other machines (R145): time limits, graces, readiness timeouts, and changes of the
//! machine.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use bgd_tests::TestDaemon;
use bgd_tests::far::{Far, HOST};
use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::CancelReason;
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::upgrades::in_time;
use rustix::process::Signal;

/// Returns a line that ends as soon as the file exists on the other machine.
fn gate(far: &Far) -> (PathBuf, String) {
    let gate = far.daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.05; done", gate.display());
    (gate, line)
}

fn unknown(task: &Task) -> bool {
    task.elsewhere.as_ref().is_some_and(|there| there.unknown_because.is_some())
}

/// Cuts the connection, and waits until the state of the task is known again. It is unknown for a moment only, which a
/// look may miss.
#[track_caller]
fn cut_for_a_moment(far: &mut Far, id: TaskId) {
    let mut watch = far.here().watch();
    far.cut_here();
    watch.until(|event| event.task.id == id && unknown(&event.task));
    watch.until(|event| event.task.id == id && !unknown(&event.task));
}

#[test]
fn r151_time_limit_that_passes_without_connection_keeps_exit_and_output() {
    let mut far = Far::with_here("");
    far.wrap("test ! -e \"$0.shut\" || exit 255");
    in_time(|limit| ends_before_limit_without_connection(&mut far, &format!("{}s", limit.as_secs())));
}

/// Reports whether the task ended before its time limit, and after the connection.
fn ends_before_limit_without_connection(far: &mut Far, limit: &str) -> bool {
    let (gate, line) = gate(far);
    let _ = fs::remove_file(&gate);
    let shut = far.path("ssh.shut");
    let id = far.submit_on(&["--time-limit", limit], &format!("{line}; echo end; exit 4"));
    let begun = far.until(id, "it has begun", |task| task.status != Status::Pending);
    fs::write(&shut, "").unwrap();
    far.cut_here();
    fs::write(gate, "").unwrap();
    let cut = far.until(id, "it is not known", |task| unknown(task) || !task.status.is_active());
    let id_there = begun.elsewhere.and_then(|there| there.id).filter(|_| cut.status.is_active());
    let has_ended = id_there.is_some_and(|id| {
        far.daemon.run(&["block", &id]).expect_code(1);
        !far.daemon.task(id.parse().unwrap()).timed_out
    });
    if !has_ended {
        fs::remove_file(shut).unwrap();
        far.ended(id);
        return false;
    }
    // A task that has begun later reaches the same limit.
    let later = far.run_here(&["submit", "--time-limit", limit, "--", "sleep", "1000"]).word();
    assert!(far.ended(later).timed_out);
    assert_eq!(far.here().task(id).status, Status::Running, "nothing is decided");
    fs::remove_file(shut).unwrap();
    let task = far.ended(id);
    assert_eq!((task.status, task.exit, task.timed_out), (Status::Failed, Some(Exit::Code(4)), false));
    assert_eq!(far.here().output(id), b"end\n");
    true
}

/// Cancels a task in the background.
fn cancel(far: &mut Far, args: &[&str]) -> Child {
    let mut command = far.here().bgctl(&[&["cancel"], args].concat());
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn r145_tasks_wait_with_reason_while_the_machine_has_no_room_for_them() {
    let mut far = Far::of(TestDaemon::builder().config("[limits]\ntasks = 1\n").start());
    far.start_here("");
    let (gate, line) = gate(&far);
    let first = far.submit_on(&[], &line);
    far.running(first);
    let [next, cancelled] = [0; 2].map(|_| far.submit_on(&[], "echo ran"));
    for id in [next, cancelled] {
        let task = far.until(id, "there is no room", |task| {
            let reason = task.elsewhere.as_ref().and_then(|there| there.reason.as_deref());
            reason.is_some_and(|why| why.contains("no more tasks now") && why.contains("limits.tasks"))
        });
        assert_eq!(task.status, Status::Pending);
    }
    // It was never there, so nothing is to be waited for.
    let task = far.here().cancel(&[cancelled]).remove(0);
    assert_eq!((task.status, task.lingering, task.started_at), (Status::Cancelled, false, None));
    fs::write(gate, "").unwrap();
    for id in [first, next] {
        assert_eq!(far.ended(id).status, Status::Completed);
    }
    assert_eq!(far.here().output(next), b"ran\n");
}

#[test]
fn r145_cancel_passes_its_grace_on_to_the_machine() {
    let mut far = Far::of(TestDaemon::builder().config("[grace]\ncancel = \"100ms\"\n").start());
    far.start_here("");
    let (gate, line) = gate(&far);
    let line = format!("trap 'echo term; {line}; exit 7' TERM; echo up; while :; do sleep 0.05; done");
    let id = far.submit_on(&[], &line);
    far.here().wait_output(id, "up");
    let mut cancelling = cancel(&mut far, &["--grace", "1h", &id.to_string()]);
    far.here().wait_output(id, "term");
    // The grace of that machine is much shorter.
    let deaf = far.daemon.submit_shell("trap '' TERM; echo up; while :; do sleep 0.05; done");
    far.daemon.wait_output(deaf, "up");
    far.daemon.cancel(&[deaf]);
    fs::write(gate, "").unwrap();
    assert!(cancelling.wait().unwrap().success());
    let task = far.ended(id);
    assert_eq!((task.cancel_reason, task.exit), (Some(CancelReason::User), Some(Exit::Code(7))));
}

#[test]
fn r145_cancelled_task_gets_its_signal_once_although_connection_is_cut() {
    let mut far = Far::with_here("");
    let (gate, line) = gate(&far);
    let traps = format!("trap 'echo term' TERM; trap 'echo usr; {line}; exit 7' USR1");
    let id = far.submit_on(&[], &format!("{traps}; echo up; while :; do sleep 0.05; done"));
    far.here().wait_output(id, "up");
    let mut cancelling = cancel(&mut far, &["--grace", "1h", &id.to_string()]);
    far.here().wait_output(id, "term");
    cut_for_a_moment(&mut far, id);
    // Whatever is ordered when it is known again precedes this.
    far.run_here(&["signal", &id.to_string(), "USR1"]).success();
    far.here().wait_output(id, "usr");
    fs::write(gate, "").unwrap();
    assert!(cancelling.wait().unwrap().success());
    assert_eq!(far.ended(id).exit, Some(Exit::Code(7)));
    let output = String::from_utf8(far.here().output(id)).unwrap();
    assert_eq!(output.lines().filter(|line| *line == "term").count(), 1, "{output}");
}

/// A cancel is answered only when its task has ended, so the machine's daemon could accept only a few at once.
#[test]
fn r145_every_cancelled_task_gets_its_signal_from_machine_that_accepts_few_requests() {
    const TASKS: usize = 12;
    let config = format!("max_concurrent_tasks = {TASKS}\n[limits]\nrequests = 4\n");
    let mut far = Far::of(TestDaemon::builder().config(config).start());
    far.start_here("");
    let (gate, line) = gate(&far);
    let line = format!("trap 'echo term; {line}; exit 7' TERM; echo up; while :; do sleep 0.05; done");
    let ids: Vec<TaskId> = (0..TASKS).map(|_| far.submit_on(&[], &line)).collect();
    for id in &ids {
        far.here().wait_output(*id, "up");
    }
    let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let args: Vec<&str> = ["--grace", "1h"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut cancelling = cancel(&mut far, &args);
    for id in &ids {
        far.here().wait_output(*id, "term");
    }
    fs::write(gate, "").unwrap();
    assert!(cancelling.wait().unwrap().success());
    for id in ids {
        assert_eq!(far.ended(id).exit, Some(Exit::Code(7)));
    }
}

#[test]
fn r145_task_that_is_not_ready_in_time_fails_without_another_attempt() {
    let mut far = Far::with_here("");
    let options = ["--ready", "line:^up$", "--ready-timeout", "300ms", "--retry", "3", "--retry-delay", "0s"];
    let id = far.submit_on(&options, "exec sleep 1000");
    let task = far.ended(id);
    let failure = task.failure.unwrap();
    assert_eq!((failure.kind, &*failure.message), (FailureKind::Timeout, "not ready after 300ms"));
    assert_eq!((task.status, task.timed_out, task.attempts.len()), (Status::Failed, false, 0));
}

#[test]
fn r145_changed_host_waits_for_the_tasks_on_the_previous_one() {
    let mut far = Far::with_here("");
    let near = Far::named("near", TestDaemon::start());
    far.join(&near);
    let (gate, line) = gate(&far);
    let old = far.submit_on(&[], &format!("{line}; echo \"$HOME\"; exit 4"));
    far.running(old);
    let config = fs::read_to_string(far.here().config_path()).unwrap();
    let changed = config.replace(&format!("host = \"{HOST}\""), "host = \"near\"");
    far.here().write_config(&changed);
    far.run_here(&["daemon", "reload"]).success();
    let new = far.submit_on(&[], "echo \"$HOME\"");
    far.until(new, "the reason", |task| {
        let reason = task.elsewhere.as_ref().and_then(|there| there.reason.as_deref());
        reason.is_some_and(|reason| reason.contains("the previous host"))
    });
    assert!(near.tasks_there().is_empty());
    // What new tasks need is checked.
    let checked = far.run_here(&["executors", "--check", "far"]).success().stdout_text();
    assert!(checked.contains("tasks: 0 running, 0 pending"), "{checked}");
    // A broken connection is made again to the machine that has the task.
    cut_for_a_moment(&mut far, old);
    fs::write(gate, "").unwrap();
    assert_eq!(far.ended(old).exit, Some(Exit::Code(4)));
    assert_eq!(far.ended(new).status, Status::Completed);
    let home = |far: &Far| format!("{}\n", far.daemon.home().display()).into_bytes();
    assert_eq!((far.here().output(old), far.here().output(new)), (home(&far), home(&near)));
    // Without tasks, the host changes at once.
    far.here().write_config(&config);
    far.run_here(&["daemon", "reload"]).success();
    let again = far.submit_on(&[], "echo \"$HOME\"");
    assert_eq!(far.ended(again).status, Status::Completed);
    assert_eq!(far.here().output(again), home(&far));
}

#[test]
fn r145_machine_that_does_not_end_a_task_is_not_said_to_be_unreachable() {
    let mut far = Far::with_here("");
    let id = far.submit_on(&[], "exec sleep 1000");
    far.running(id);
    let daemon = far.daemon.process();
    daemon.signal(Signal::STOP).unwrap();
    far.run_here(&["cancel", "--grace", "100ms", &id.to_string()]).success();
    let task = far.here().task(id);
    assert_eq!((task.status, task.lingering), (Status::Cancelled, true));
    let why = "far has not ended it yet: it may still run there";
    assert!(matches!(&task.exit, Some(Exit::Unknown(said)) if said.starts_with(why)), "{:?}", task.exit);
    daemon.signal(Signal::CONT).unwrap();
    far.until(id, "it has no process left", |task| !task.lingering);
}
