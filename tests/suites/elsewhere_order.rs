//! Batches, restarts, readiness and dependencies of tasks on another machine (R145): this daemon orders them.

use std::fs;

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::{CancelReason, WaitingFor};
use bgd_tests::shared::request::{ListParams, TaskList};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::{TestDaemon, ports, wait};

/// Returns the tasks of this machine, in the order of their submits.
fn here(far: &mut Far) -> Vec<Task> {
    let mut tasks = far.here().client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    tasks.reverse();
    tasks
}

fn each(far: &Far, lines: &str, options: &[&str], command: &[&str]) -> TaskId {
    let items = far.path("items");
    fs::write(&items, lines).unwrap();
    let submit = ["submit", "--on", "far", "--each", items.to_str().unwrap()];
    far.run_here(&[&submit[..], options, &["--"], command].concat()).word()
}

fn statuses(tasks: &[Task]) -> Vec<Status> {
    tasks.iter().map(|task| task.status).collect()
}

#[test]
fn r145_remote_batch_respects_its_jobs_limit() {
    let mut far = Far::with_here("");
    let gate = far.daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.05; done; echo $0", gate.display());
    let batch = each(&far, "a\nb\nc\nd\ne\n", &["--jobs", "2"], &["sh", "-c", &line]);
    let tasks = wait::poll_until("two to run", || {
        let tasks = here(&mut far);
        (statuses(&tasks)[..2] == [Status::Running; 2]).then_some(tasks)
    });
    let waits: Vec<WaitingFor> =
        tasks.iter().filter_map(|task| Some(task.waiting.as_ref()?.reason)).collect();
    assert_eq!(waits, [WaitingFor::Batch; 3]);
    assert_eq!(far.tasks_there().len(), 2, "the others are not there yet");
    fs::write(gate, "").unwrap();
    far.run_here(&["block", "--timeout", "none", "--batch", &batch.to_string()]).success();
    let outputs: Vec<Vec<u8>> =
        here(&mut far).iter().map(|task| task.id).map(|id| far.here().output(id)).collect();
    assert_eq!(outputs, [b"a\n", b"b\n", b"c\n", b"d\n", b"e\n"]);
}

#[test]
fn r145_remote_batch_stops_at_max_fails_and_reruns_failed_tasks() {
    let mut far = Far::with_here("");
    let line = "test -e \"$HOME/mended\" || exit $0";
    let options = ["--jobs", "1", "--max-fails", "2"];
    let batch = each(&far, "0\n1\n0\n3\n0\n0\n", &options, &["sh", "-c", line]).to_string();
    far.run_here(&["block", "--timeout", "none", "--batch", &batch]).expect_code(1);
    let (completed, failed, cancelled) = (Status::Completed, Status::Failed, Status::Cancelled);
    let tasks = here(&mut far);
    assert_eq!(statuses(&tasks), [completed, failed, completed, failed, cancelled, cancelled]);
    assert_eq!(tasks[5].cancel_reason, Some(CancelReason::MaxFails));
    fs::write(far.daemon.home().join("mended"), "").unwrap();
    let again = far.run_here(&["rerun", "--failed", &format!("@{batch}")]).success().stdout_text();
    let again: Vec<&str> = again.lines().collect();
    assert_eq!(again.len(), 2);
    far.run_here(&[&["block", "--timeout", "none"], &again[..]].concat()).success();
    let reruns: Vec<(Option<TaskId>, Option<String>)> =
        here(&mut far).into_iter().skip(6).map(|task| (task.rerun_of, task.on)).collect();
    let far_name = Some("far".to_owned());
    assert_eq!(reruns, [(Some(tasks[1].id), far_name.clone()), (Some(tasks[3].id), far_name)]);
    wait::poll_until("nothing is left there", || far.tasks_there().is_empty().then_some(()));
}

#[test]
fn r145_remote_task_restarts_on_failure_and_remote_server_is_ready_by_port() {
    let mut far = Far::with_here("");
    let flaky = far.submit_on(
        &["--restart", "on-failure"],
        "echo up; test -e \"$HOME/tried\" || { touch \"$HOME/tried\"; exit 1; }",
    );
    let task = far.ended(flaky);
    assert_eq!((task.status, task.attempts.len()), (Status::Completed, 1));
    assert_eq!(far.here().output(flaky), b"up\nup\n");
    let port = ports::unused();
    let gate = far.daemon.home().join("gate");
    let line = format!(
        "until [ -e {} ]; do sleep 0.05; done; exec python3 -m http.server --bind 127.0.0.1 {port}",
        gate.display()
    );
    let server = far.submit_on(&["--ready", &format!("tcp:{port}")], &line);
    let after: TaskId = far.run_here(&["submit", "--after", &format!("{server}:ready"), "--", "true"]).word();
    let running = far.until(server, "it runs", |task| task.status == Status::Running);
    assert_eq!(running.ready_at, None);
    assert_eq!(far.here().task(after).status, Status::Pending);
    fs::write(gate, "").unwrap();
    far.here().ends_as(after, Status::Completed);
    assert!(far.here().task(server).ready_at.is_some());
    far.run_here(&["cancel", &server.to_string()]).success();
}

#[test]
fn r145_dependencies_span_local_and_remote_tasks() {
    let mut far = Far::with_here("");
    let log = far.path("log");
    let note = |name: &str| format!("echo {name} >>{}", log.display());
    let local = |far: &Far, after: &[String], line: &str| -> TaskId {
        let after: Vec<&str> = after.iter().flat_map(|one| ["--after", one]).collect();
        far.run_here(&[&["submit"], &after[..], &["--shell", line]].concat()).word()
    };
    let gate = far.daemon.home().join("gate");
    let hold = format!("until [ -e {} ]; do sleep 0.05; done; {}", gate.display(), note("first"));
    let first = far.submit_on(&[], &hold);
    let second = local(&far, &[first.to_string()], &note("second"));
    let third = far.submit_on(&["--after", &second.to_string()], &format!("{}; exit 3", note("third")));
    let never = far.submit_on(&["--after", &third.to_string()], &note("never"));
    let mends = local(&far, &[format!("{third}:fail")], &note("mends"));
    let options = ["--after", &format!("{mends}:ok"), "--after", &format!("{first}:any")];
    let last = far.submit_on(&options, &note("last"));
    // Nothing of it is on the other machine before its turn.
    far.until(first, "it runs", |task| task.status == Status::Running);
    assert_eq!(far.tasks_there().len(), 1);
    let page = far.run_here(&["list", "--tree"]).success().stdout_text();
    assert_eq!(page.lines().count(), 6, "{page}");
    fs::write(gate, "").unwrap();
    far.here().ends_as(last, Status::Completed);
    let task = far.here().ends_as(never, Status::Cancelled);
    assert_eq!(task.cancel_reason, Some(CancelReason::Dependency));
    assert_eq!(fs::read_to_string(&log).unwrap(), "first\nsecond\nthird\nmends\nlast\n");
    wait::poll_until("nothing is left there", || far.tasks_there().is_empty().then_some(()));
}

#[test]
fn r145_tasks_reach_machine_in_submission_order_after_an_outage() {
    let mut far = Far::of(TestDaemon::builder().config("max_concurrent_tasks = 1").start());
    far.start_here("");
    far.wrap("test -e \"$0.open\" || exit 255");
    let path = far.daemon.home().join("order");
    let numbers: Vec<String> = (1..=30).map(|number: u32| number.to_string()).collect();
    let line = |number: &String| format!("echo {number} >>{}", path.display());
    let ids: Vec<TaskId> = numbers.iter().map(|number| far.submit_on(&[], &line(number))).collect();
    for id in &ids {
        far.until(*id, "it can't be submitted", |task| {
            task.elsewhere.as_ref().is_some_and(|there| there.unknown_because.is_some())
        });
    }
    fs::write(far.path("ssh.open"), "").unwrap();
    far.here().block(&ids);
    let order = fs::read_to_string(&path).unwrap();
    assert_eq!(order.lines().collect::<Vec<_>>(), numbers);
}
