//! R116: tasks are submitted again, by the real `bgctl`.

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::Condition;
use bgd_tests::shared::request::RerunResult;
use bgd_tests::shared::task::Status;
use bgd_tests::{Outcome, TestDaemon};

fn ids(outcome: Outcome) -> Vec<TaskId> {
    outcome.success().stdout_text().lines().map(|line| line.parse().expect("an id")).collect()
}

#[test]
fn r116_rerun_still_refers_to_the_tasks_that_the_old_task_ran_after() {
    let daemon = TestDaemon::start();
    let first = daemon.submit_shell("echo built");
    let line = "cat \"$BGD_AFTER_FILE_1\"; echo \"$BGD_AFTER\"";
    let old: TaskId =
        daemon.run(&["submit", "--after", &first.to_string(), "--shell", line]).success().word();
    daemon.block(&[old]);
    let output = String::from_utf8(daemon.output(old)).unwrap();
    assert!(output.starts_with("built\n"), "{output}");
    let [new] = ids(daemon.run(&["rerun", &old.to_string()]))[..] else { panic!("one id") };
    daemon.block(&[new]);
    assert_eq!(String::from_utf8(daemon.output(new)).unwrap(), output);
    assert!(daemon.task(new).after.iter().all(|one| one.met && one.id == first));
}

#[test]
fn r116_rerun_repeats_command_in_original_folder_and_environment() {
    let daemon = TestDaemon::start();
    let folder = daemon.home().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let words = [
        "--cwd",
        folder.to_str().unwrap(),
        "--tag",
        "t",
        "-d",
        "mine",
        "--time-limit",
        "1h",
        "--",
        "sh",
        "-c",
        "echo $SET; pwd; ulimit -n; umask",
    ];
    let script = format!(
        "umask 037; ulimit -Sn 99; exec {} submit \"$@\"",
        daemon.bgctl(&[]).get_program().to_str().unwrap()
    );
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", &script, "-"]).args(words).env_clear().envs(daemon.environment()).env("SET", "before");
    let old: TaskId = Outcome::of(&mut shell).success().word();
    daemon.block(&[old]);
    let wanted = format!("before\n{}\n99\n0037\n", folder.display());
    assert_eq!(String::from_utf8(daemon.output(old)).unwrap(), wanted);
    // From a different folder.
    let again =
        Outcome::of(daemon.bgctl(&["rerun", &old.to_string()[..6]]).env("SET", "after").current_dir("/"));
    let [new] = ids(again)[..] else { panic!("one id") };
    assert_eq!(daemon.block(&[new])[0].status, Status::Completed);
    assert_eq!(String::from_utf8(daemon.output(new)).unwrap(), wanted);
    let (old, new) = (daemon.task(old), daemon.task(new));
    assert_eq!(
        (&new.tags, &new.description, new.time_limit_ms, new.rerun_of),
        (&old.tags, &old.description, old.time_limit_ms, Some(old.id))
    );
    let page = daemon.run(&["status", &new.id.to_string()]).success().stdout_text();
    assert!(page.contains(&format!("rerun of:    {}", old.id)), "{page}");
    assert!(new.key.is_none() && !page.contains("key:"), "nobody gave it a key: {page}");
    // A cleared task is gone with its environment.
    daemon.run(&["clear", "--", &old.id.to_string()]).success();
    let gone = daemon.run(&["rerun", &old.id.to_string()]).expect_code(66);
    assert!(gone.stderr.contains("there is no task"), "{}", gone.stderr);
}

#[test]
fn r116_rerun_failed_repeats_failed_tasks_of_batch() {
    let daemon = TestDaemon::start();
    let items = daemon.home().join("items");
    std::fs::write(&items, "a\nb\nc\n").unwrap();
    // Fails for all but `a` until the file exists.
    let line = "[ \"$1\" = a ] || [ -e good ]";
    let words = ["--each", items.to_str().unwrap(), "--jobs", "1", "--cwd", daemon.home().to_str().unwrap()];
    let batch = daemon.submitted(&[&words[..], &["--", "sh", "-c", line, "-"]].concat());
    daemon.run(&["block", "--timeout", "none", &format!("@{batch}")]).expect_code(1);
    std::fs::write(daemon.home().join("good"), "").unwrap();
    let again = ids(daemon.run(&["rerun", "--failed", "--batch", &batch.to_string()]));
    assert_eq!(again.len(), 2);
    let tasks = daemon.block(&again);
    assert!(tasks.iter().all(|task| task.status == Status::Completed), "{tasks:?}");
    assert!(tasks[0].batch.is_some() && tasks[0].batch == tasks[1].batch && tasks[0].batch != Some(batch));
    // Nothing else has failed; the old ones stay failed.
    let json: RerunResult =
        daemon.run(&["--json", "rerun", "--failed", &format!("@{batch}")]).success().json();
    assert_eq!(json.tasks.len(), 2);
    let none = daemon.run(&["rerun", "--failed", &format!("@{}", tasks[0].batch.unwrap())]).success();
    assert!(none.stdout.is_empty() && none.stderr.contains("no failed task matches"), "{}", none.stderr);
}

#[test]
fn r116_rerun_with_dependents_repeats_tasks_cancelled_by_failure() {
    let daemon = TestDaemon::start();
    let home = daemon.home().to_str().unwrap().to_owned();
    let build = daemon.submitted(&["--cwd", &home, "--shell", "[ -e fixed ]"]);
    let tests = daemon.submitted(&["--after", &build.to_string(), "--", "echo", "tests"]);
    let deploy = daemon.submitted(&["--after", &tests.to_string(), "--", "echo", "deploy"]);
    daemon.block(&[build, tests, deploy]);
    assert_eq!(daemon.task(deploy).status, Status::Cancelled);
    std::fs::write(daemon.home().join("fixed"), "").unwrap();
    let new = ids(daemon.run(&["rerun", "--with-dependents", &build.to_string()]));
    assert_eq!(new.len(), 3);
    let tasks = daemon.block(&new);
    assert!(tasks.iter().all(|task| task.status == Status::Completed), "{tasks:?}");
    assert_eq!((tasks[2].after[0].id, tasks[2].after[0].condition), (new[1], Condition::Ok));
    assert_eq!([1, 2].map(|place| tasks[place].rerun_of), [Some(tests), Some(deploy)]);
    assert_eq!([tests, deploy].map(|id| daemon.task(id).status), [Status::Cancelled; 2]);
}

#[test]
fn r116_task_that_no_longer_fits_its_group_is_named() {
    let daemon = TestDaemon::start();
    daemon.run(&["group", "set", "shrinks", "--slots", "2"]).success();
    let submit = |slots: &str| daemon.submitted(&["--group", "shrinks", "--slots", slots, "--", "true"]);
    let (fits, large) = (submit("1"), submit("2"));
    daemon.block(&[fits, large]);
    daemon.run(&["group", "set", "shrinks", "--slots", "1"]).success();
    let refused = daemon.run(&["rerun", "--group", "shrinks"]).expect_code(2);
    let words = format!("group shrinks has 1 slot, but task {large} takes 2");
    assert!(refused.stderr.contains(&words), "{}", refused.stderr);
    assert_eq!(daemon.run(&["list", "-q"]).success().stdout_text().lines().count(), 2, "none was submitted");
}

#[test]
fn r116_rerun_of_ineligible_task_is_refused_and_submits_nothing() {
    let daemon = TestDaemon::start();
    let running = daemon.submitted(&["--stdin-pipe", "--", "cat"]);
    let done = daemon.submitted(&["--", "false"]);
    daemon.block(&[done]);
    let mut given = daemon.bgctl(&["submit", "--stdin", "--", "true"]);
    let given: TaskId = Outcome::of(given.stdin(std::process::Stdio::null())).success().word();
    daemon.block(&[given]);
    for (id, code, said) in [(running, 65, "has not ended"), (given, 2, "file or pipe of the caller")] {
        let refused = daemon.run(&["rerun", &done.to_string(), &id.to_string()]).expect_code(code);
        assert!(refused.stdout.is_empty() && refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
    daemon.run(&["rerun"]).expect_code(2);
    daemon.run(&["rerun", "--tag", "nothing"]).success();
    assert_eq!(daemon.status().summary.total(), 3);
}
