//! Ordered work as a user meets it (R100 to R109, R113, R115): groups, priorities, conditions, times, holds, retries
//! and selectors through the real `bgctl`.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_shared::order::{CancelReason, WaitingFor};
use bgd_shared::request::{GroupListResult, ListResult, TaskResult, TasksResult};
use bgd_shared::task::{Status, Task};
use bgd_tests::{Outcome, Terminal, TestDaemon};
use serde_json::Value;

/// Runs a `bgctl` in the parent session `s`.
fn run(daemon: &TestDaemon, args: &[&str]) -> Outcome {
    Outcome::of(daemon.bgctl(args).env("BGD_SESSION", "s"))
}

fn submitted(daemon: &TestDaemon, args: &[&str]) -> TaskId {
    run(daemon, &[&["submit"], args].concat()).success().word()
}

fn stdout_of(daemon: &TestDaemon, args: &[&str]) -> String {
    run(daemon, args).success().stdout_text()
}

/// Returns the status cell of a task in the list.
fn cell(daemon: &TestDaemon, id: TaskId) -> String {
    let list = stdout_of(daemon, &["list", "--all"]);
    let line = list.lines().find(|line| line.starts_with(&id.short()));
    let line = line.unwrap_or_else(|| panic!("{id} is not in\n{list}"));
    line.split('\t').nth(1).expect("a status").to_owned()
}

#[test]
fn r100_group_is_created_listed_paused_continued_and_removed() {
    let daemon = TestDaemon::start();
    assert_eq!(stdout_of(&daemon, &["group", "set", "gpu", "--slots", "2"]), "gpu\t0/2\t-\t0\t0\t0\n");
    assert_eq!(stdout_of(&daemon, &["group", "pause", "gpu"]), "gpu\t0/2\tpaused\t0\t0\t0\n");
    let id = submitted(&daemon, &["--group", "gpu", "--", "true"]);
    assert_eq!(cell(&daemon, id), "pending (gpu paused)");
    let all: GroupListResult = run(&daemon, &["--json", "group", "list"]).success().json();
    let names: Vec<&str> = all.groups.iter().map(|group| &*group.name).collect();
    assert_eq!(names, ["default", "gpu"]);
    assert_eq!((all.groups[1].pending, all.groups[1].paused, all.groups[1].slots), (1, true, 2));
    let refused = run(&daemon, &["group", "remove", "gpu"]).expect_code(65);
    assert!(refused.stderr.contains("gpu"), "{}", refused.stderr);
    stdout_of(&daemon, &["group", "continue", "gpu"]);
    daemon.block(&[id]);
    assert_eq!(daemon.task(id).group, "gpu");
    assert_eq!(stdout_of(&daemon, &["group", "list"]).lines().nth(1), Some("gpu\t0/2\t-\t0\t0\t1"));
    assert_eq!(stdout_of(&daemon, &["group", "remove", "gpu"]), "removed gpu\n");
    let mut terminal = Terminal::bgctl(&daemon, &["group", "list"]);
    assert!(terminal.ended().success());
    assert!(terminal.screen().contains("NAME     SLOTS"), "{}", terminal.screen());
}

#[test]
fn r100_unknown_group_is_a_usage_error_that_names_known_groups() {
    let daemon = TestDaemon::start();
    stdout_of(&daemon, &["group", "set", "gpu", "--slots", "2"]);
    for words in [
        &["submit", "--group", "gpus", "--", "true"][..],
        &["group", "pause", "gpus"],
        &["group", "continue", "gpus"],
        &["group", "remove", "gpus"],
    ] {
        let refused = run(&daemon, words).expect_code(2);
        assert!(refused.stdout.is_empty(), "{words:?}");
        for part in ["gpus", "default", "gpu"] {
            assert!(refused.stderr.contains(part), "{words:?}: {part} is not in {}", refused.stderr);
        }
        // A refused removal does not suggest creating the group.
        let is_removed = words[1] == "remove";
        assert_eq!(refused.stderr.contains("bgctl group set"), !is_removed, "{words:?}: {}", refused.stderr);
    }
    for words in [
        &["submit", "--group", "gpu", "--slots", "3", "--", "true"][..],
        &["group", "set", "a b", "--slots", "1"],
        &["group", "set", "gpu", "--slots", "100001"],
        &["group", "remove", "default"],
    ] {
        assert!(!run(&daemon, words).expect_code(2).stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn r100_smaller_group_warns_of_tasks_that_take_more_slots_than_it_has() {
    let daemon = TestDaemon::start();
    let resized = |slots: &str| run(&daemon, &["group", "set", "lic", "--slots", slots]).success().stderr;
    assert_eq!(resized("3"), "");
    let gate = submitted(&daemon, &["--group", "lic", "--", "sleep", "1000"]);
    daemon.wait_running(gate);
    let line = "echo $BGD_SLOT_LIST";
    let large = submitted(&daemon, &["--group", "lic", "--slots", "3", "--shell", line]);
    let warning = resized("1");
    for part in ["warning: 1 pending task takes more slots than lic has now (1)", "runs alone", "bgctl edit"]
    {
        assert!(warning.contains(part), "{part} is not in {warning}");
    }
    assert_eq!(resized("3"), "", "it fits again");
    resized("1");
    daemon.cancel(&[gate]);
    daemon.block(&[large]);
    assert_eq!(stdout_of(&daemon, &["output", &large.to_string()]), "1,2,3\n", "alone, with all its slots");
}

#[test]
fn r101_r107_higher_priority_starts_first_including_an_edited_one() {
    let daemon = TestDaemon::start();
    stdout_of(&daemon, &["group", "set", "one", "--slots", "1"]);
    stdout_of(&daemon, &["group", "pause", "one"]);
    let file = daemon.home().join("order");
    let submit = |name: &str, more: &[&str]| {
        let line = format!("echo {name} >> {}", file.display());
        submitted(&daemon, &[&["--group", "one"], more, &["--shell", &line]].concat())
    };
    let first = submit("first", &[]);
    let second = submit("second", &["--priority", "-1"]);
    let third = submit("third", &["--priority", "5"]);
    let last = submit("last", &[]);
    let name = last.to_string();
    let edited = stdout_of(&daemon, &["edit", &name, "--priority", "50", "-d", "the urgent one"]);
    assert_eq!(edited, format!("{last} pending (one paused)\n"));
    let page = stdout_of(&daemon, &["status", &name]);
    for line in ["description: the urgent one", "group:       one", "priority:    50"] {
        assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
    }
    stdout_of(&daemon, &["group", "continue", "one"]);
    daemon.block(&[first, second, third, last]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "last\nthird\nfirst\nsecond\n");
    let late = run(&daemon, &["edit", &name, "--priority", "1"]).expect_code(65);
    assert!(late.stderr.contains(&name), "{}", late.stderr);
}

#[test]
fn r102_task_environment_names_its_slots() {
    let daemon = TestDaemon::start();
    stdout_of(&daemon, &["group", "set", "gpu", "--slots", "2"]);
    let line = "echo $BGD_GROUP $BGD_SLOT $BGD_SLOTS";
    let id = submitted(&daemon, &["--group", "gpu", "--slots", "2", "--shell", line]);
    daemon.block(&[id]);
    assert_eq!(stdout_of(&daemon, &["output", &id.to_string()]), "gpu 1 2\n");
}

#[test]
fn r103_r115_tasks_start_after_others_and_list_shows_it() {
    let daemon = TestDaemon::start();
    let build = submitted(&daemon, &["--hold", "--", "false"]);
    let install = submitted(&daemon, &["--after", "@", "--", "true"]);
    let mend = submitted(&daemon, &["--after", "@2:fail", "--after", &build.to_string()[..8], "--", "true"]);
    let tidy = submitted(&daemon, &["--after", &format!("{build}:any"), "--", "true"]);
    assert_eq!(cell(&daemon, build), "pending (held)");
    assert_eq!(cell(&daemon, install), format!("pending (after {})", build.short()));
    let tree = stdout_of(&daemon, &["list", "--tree"]);
    let drawn: Vec<&str> = tree.lines().map(|line| line.split('\t').next().unwrap()).collect();
    let below = |sign: &str, id: TaskId| format!("{sign} {}", id.short());
    assert_eq!(drawn[..2], [build.short(), below("|-", tidy)], "{tree}");
    assert!(drawn[2].starts_with(&below("|-", mend)) && drawn[3] == below("`-", install), "{tree}");
    let mut terminal = daemon.bgctl(&["list", "--tree"]);
    terminal.env("LC_ALL", "C.UTF-8");
    let mut terminal = Terminal::open(&terminal);
    assert!(terminal.ended().success());
    assert!(terminal.screen().contains(&below("└─", install)), "{}", terminal.screen());

    assert_eq!(stdout_of(&daemon, &["release", &build.to_string()]), format!("{build} released\n"));
    let names = [build, install, mend, tidy].map(|id| id.to_string());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    run(&daemon, &[&["block", "--timeout", "none"][..], &names].concat()).expect_code(1);
    assert_eq!(daemon.task(tidy).status, Status::Completed);
    for id in [install, mend] {
        let task = daemon.task(id);
        assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::Dependency)));
        let page = stdout_of(&daemon, &["status", &id.to_string()]);
        assert!(page.contains("cancelled:   a task that it waited for did not end as required\n"), "{page}");
        assert!(page.contains(&format!("after:       {build} ")), "{page}");
        assert!(task.error.is_some_and(|error| error.contains(&build.short())), "it names the task");
    }
    let late = run(&daemon, &["submit", "--after", &build.to_string(), "--", "true"]).success();
    let warning = format!("the task is already cancelled: task {build} failed");
    assert!(late.stderr.contains(&warning), "{}", late.stderr);
    let unknown = TaskId::random().to_string();
    run(&daemon, &["submit", "--after", &unknown, "--", "true"]).expect_code(66);
}

#[test]
fn r105_task_starts_at_a_later_time() {
    let daemon = TestDaemon::start();
    let soon = submitted(&daemon, &["--in", "1h", "--", "true"]);
    let then = submitted(&daemon, &["--at", "2099-01-02T03:04:05Z", "--", "true"]);
    assert!(cell(&daemon, soon).starts_with("pending (until "), "{}", cell(&daemon, soon));
    let page =
        Outcome::of(daemon.bgctl(&["status", &then.to_string()]).env("TZ", "UTC")).success().stdout_text();
    assert!(page.contains("waits:       until 2099-01-02 03:04:05\n"), "{page}");
    for (words, expected) in [
        (&["--at", "2020-01-01 10:00"][..], "is in the past"),
        (&["--at", "25:00"], "not a valid time"),
        (&["--at", "soon"], "is not a time"),
        (&["--in", "soon"], "--in"),
    ] {
        let refused = run(&daemon, &[&["submit"], words, &["--", "true"]].concat()).expect_code(2);
        assert!(refused.stderr.contains(expected), "{words:?}: {}", refused.stderr);
    }
    stdout_of(&daemon, &["edit", &soon.to_string(), "--in", "0"]);
    stdout_of(&daemon, &["edit", "@", "--in", "0"]);
    daemon.block(&[soon, then]);
}

#[test]
fn r106_held_task_waits_for_release() {
    let daemon = TestDaemon::start();
    let held = submitted(&daemon, &["--hold", "--tag", "x", "--", "true"]);
    let later = submitted(&daemon, &["--in", "1h", "--tag", "x", "--", "true"]);
    let done = submitted(&daemon, &["--tag", "x", "--", "true"]);
    daemon.block(&[done]);
    let result: TasksResult = run(&daemon, &["--json", "hold", "--tag", "x"]).success().json();
    let mut ids: Vec<TaskId> = result.tasks.iter().map(|task| task.id).collect();
    ids.sort_unstable();
    let mut pending = [held, later];
    pending.sort_unstable();
    assert!(pending.iter().all(|id| ids.contains(id)) && !ids.contains(&done), "{ids:?}");
    assert_eq!(cell(&daemon, later), "pending (held)");
    stdout_of(&daemon, &["release", "--tag", "x"]);
    daemon.block(&[held]);
    assert!(cell(&daemon, later).starts_with("pending (until "));
    let wrong = run(&daemon, &["hold", &later.to_string(), &done.to_string()]).expect_code(65);
    assert!(wrong.stderr.contains(&done.to_string()), "{}", wrong.stderr);
    assert_eq!(
        daemon.task(later).waiting.map(|waiting| waiting.reason),
        Some(WaitingFor::Until),
        "nothing is half done"
    );
    let nothing = run(&daemon, &["hold", "--tag", "y"]).success();
    assert_eq!((nothing.stdout.len(), &*nothing.stderr), (0, "bgctl: no pending task matches\n"));
}

#[test]
fn r106_running_task_is_paused_and_continued() {
    let daemon = TestDaemon::start();
    let id = submitted(&daemon, &["--tag", "x", "--", "sleep", "1000"]);
    daemon.wait_running(id);
    assert_eq!(stdout_of(&daemon, &["pause", &id.to_string()]), format!("{id} paused\n"));
    assert_eq!(cell(&daemon, id), "running (paused)");
    assert_eq!(stdout_of(&daemon, &["continue", "--tag", "x"]), format!("{id} continued\n"));
    assert_eq!(cell(&daemon, id), "running");
    let nothing = run(&daemon, &["pause", "--group", "default", "--tag", "y"]).success();
    assert_eq!((nothing.stdout.len(), &*nothing.stderr), (0, "bgctl: no running task matches\n"));
    stdout_of(&daemon, &["cancel", &id.to_string()]);
    run(&daemon, &["pause", &id.to_string()]).expect_code(65);
}

#[test]
fn r110_block_until_ready_waits_for_the_ready_line() {
    let daemon = TestDaemon::start();
    let words =
        ["--stdin-pipe", "--ready", "line:^up on \\d+$", "--shell", "read x; echo up on 80; sleep 1000"];
    let id = submitted(&daemon, &words);
    let name = id.to_string();
    let after = submitted(&daemon, &["--after", "@:ready", "--", "true"]);
    run(&daemon, &["block", "--until", "ready", "--timeout", "0", &name]).expect_code(75);
    run(&daemon, &["write", &name, "-n", "go"]).success();
    run(&daemon, &["block", "--until", "ready", "--timeout", "none", &name]).success();
    daemon.block(&[after]);
    let page = stdout_of(&daemon, &["status", &name]);
    assert!(page.contains("ready when:  line:^up on \\d+$\n") && page.contains("\nready:       "), "{page}");
    let never = submitted(&daemon, &["--ready", "notify", "--", "true"]);
    run(&daemon, &["block", "--until", "ready", &never.to_string()]).expect_code(1);
    run(&daemon, &["cancel", &name]).success();
    for (when, expected) in
        [("port:80", "is not one of line:REGEX"), ("tcp:0", "not a port"), ("line:(", "unclosed group")]
    {
        let refused = run(&daemon, &["submit", "--ready", when, "--", "true"]).expect_code(2);
        assert!(refused.stderr.contains(expected), "{when}: {}", refused.stderr);
    }
}

#[test]
fn r108_failed_task_is_retried_and_its_status_page_shows_attempts() {
    let daemon = TestDaemon::start();
    let words = ["--retry", "2", "--retry-delay", "1ms..2ms", "--retry-on", "7,signal", "--shell"];
    let id = submitted(&daemon, &[&words[..], &["echo try; exit 7"]].concat());
    let other = submitted(&daemon, &[&words[..], &["echo try; exit 8"]].concat());
    daemon.block(&[id, other]);
    assert_eq!(stdout_of(&daemon, &["output", &id.to_string()]), "try\ntry\ntry\n");
    assert_eq!(stdout_of(&daemon, &["output", &other.to_string()]), "try\n");
    let page = stdout_of(&daemon, &["status", &id.to_string()]);
    assert!(page.contains("attempt:     3\n"), "{page}");
    assert!(page.contains("exited with code 7; its output starts at 4\n"), "{page}");
}

#[test]
fn r109_task_is_restarted_on_failure() {
    let daemon = TestDaemon::start();
    let id =
        submitted(&daemon, &["--restart", "on-failure", "--shell", "test -e up || { touch up; exit 1; }"]);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.attempt), (Status::Completed, Some(2)));
}

#[test]
fn negative_values_are_refused_by_name() {
    let daemon = TestDaemon::home_only();
    for (words, why) in [
        (&["submit", "--in", "-5", "--", "true"][..], "a duration can't be negative; use 90s"),
        (&["submit", "--in", "-10m", "--", "true"], "invalid value '-10m' for '--in <DURATION>'"),
        (&["submit", "--retry", "1", "--retry-delay", "-1s", "--", "true"], "can't be negative"),
        (&["submit", "--retry", "-1", "--", "true"], "-1 is not between 0 and 1000"),
        (&["submit", "--ready", "tcp:80", "--ready-timeout", "-1s", "--", "true"], "can't be negative"),
        (&["submit", "--time-limit", "-1s", "--", "true"], "can't be negative"),
        (&["submit", "--slots", "-1", "--", "true"], "-1 is not between 0 and 100000"),
        (&["submit", "--in", "--hold", "--", "true"], "invalid value '--hold' for '--in <DURATION>'"),
        (&["edit", "3f2a", "--in", "-5"], "can't be negative"),
        (&["group", "set", "gpu", "--slots", "-1"], "-1 is not between 1 and 100000"),
        (&["block", "--timeout", "-1s", "3f2a"], "can't be negative"),
        (&["inbox", "--wait", "-1s"], "can't be negative"),
        (&["cancel", "--grace", "-1s", "3f2a"], "can't be negative"),
    ] {
        let outcome = daemon.run(words).expect_code(2);
        assert!(outcome.stderr.contains(why), "{words:?}: {}", outcome.stderr);
    }
    assert!(daemon.processes().is_empty(), "no daemon is needed for that");
}

#[test]
fn r113_latest_tasks_of_a_session_have_short_names() {
    let daemon = TestDaemon::start();
    let first = submitted(&daemon, &["--", "echo", "first"]);
    let second = submitted(&daemon, &["--", "echo", "second"]);
    let other = daemon.submit_in("other", "echo other");
    daemon.block(&[first, second, other]);
    assert_eq!(stdout_of(&daemon, &["output", "@"]), "second\n");
    assert_eq!(stdout_of(&daemon, &["output", "@2"]), "first\n");
    for words in [&["status", "@"][..], &["block", "@2", "@"], &["cancel", "@"], &["--json", "status", "@1"]]
    {
        run(&daemon, words).success();
    }
    let far = run(&daemon, &["status", "@3"]).expect_code(66);
    assert!(far.stderr.contains("this session (s) has 2 tasks, so there is no @3"), "{}", far.stderr);
    let nobody = daemon.run(&["status", "@"]).expect_code(2);
    assert!(nobody.stderr.contains("no parent session"), "{}", nobody.stderr);
    run(&daemon, &["clear", "@2"]).success();
    run(&daemon, &["status", "@2"]).expect_code(66);
}

#[test]
fn r113_latest_task_is_the_default_on_a_terminal_and_is_named() {
    let daemon = TestDaemon::start();
    let id = submitted(&daemon, &["-d", "the latest one", "--", "echo", "its output"]);
    daemon.block(&[id]);
    for (words, shown) in
        [(&["output"][..], "its output"), (&["status"], "description:"), (&["block"], "completed")]
    {
        let mut command = daemon.bgctl(words);
        command.env("BGD_SESSION", "s");
        let mut terminal = Terminal::open(&command);
        terminal.wait_text(&format!("bgctl: the latest task, {}: the latest one", id.short()));
        terminal.wait_text(shown);
        assert!(terminal.ended().success(), "{words:?}");
        let script = run(&daemon, words).expect_code(2);
        assert!(script.stderr.contains("no task given"), "{}", script.stderr);
    }
}

#[test]
fn r113_short_names_reach_past_tasks_with_long_commands() {
    let daemon = TestDaemon::start();
    let long = "x".repeat(100_000);
    let ids: Vec<TaskId> = (0..15).map(|_| submitted(&daemon, &["--hold", "--", "echo", &long])).collect();
    assert!(stdout_of(&daemon, &["status", "@15"]).contains(&ids[0].to_string()));
    run(&daemon, &["status", "@16"]).expect_code(66);
}

#[test]
fn r113_tasks_are_selected_by_tag_group_and_status() {
    let daemon = TestDaemon::start();
    stdout_of(&daemon, &["group", "set", "gpu", "--slots", "1"]);
    let ran = submitted(&daemon, &["--tag", "a", "--tag", "b", "--", "echo", "ran"]);
    let failed = submitted(&daemon, &["--tag", "a", "--", "false"]);
    daemon.block(&[ran, failed]);
    let waits = submitted(&daemon, &["--tag", "a", "--group", "gpu", "--hold", "--", "echo", "gpu"]);
    let elsewhere = daemon.submit_in("other", "true");
    daemon.block(&[elsewhere]);
    let listed = |words: &[&str]| -> Vec<TaskId> {
        let text = stdout_of(&daemon, &[&["list", "-q"], words].concat());
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    assert_eq!(listed(&["--tag", "a"]), [waits, failed, ran]);
    assert_eq!(listed(&["--tag", "a", "--tag", "b"]), [ran]);
    assert_eq!(listed(&["--group", "gpu"]), [waits]);
    assert_eq!(listed(&["--tag", "a", "--status", "failed,completed"]), [failed, ran]);
    assert_eq!(listed(&["--tag", "a", "--session", "other"]), []);
    assert_eq!(stdout_of(&daemon, &["output", "--tag", "b"]), "ran\n");
    let pages = stdout_of(&daemon, &["status", "--tag", "a", "--status", "failed,completed"]);
    assert_eq!(pages.matches("description:").count(), 2, "{pages}");
    run(&daemon, &["status", "--tag", "c"]).expect_code(66);
    run(&daemon, &["block", "--tag", "a", "--tag", "b"]).success();
    run(&daemon, &["block", "--status", "failed"]).expect_code(1);
    run(&daemon, &["block", "--group", "gpu", "--timeout", "0"]).expect_code(75);
    run(&daemon, &["block", "--tag", "nobody"]).expect_code(66);
    run(&daemon, &["block", "--tag", "nobody", "--status", "running"]).success();
    let unknown = run(&daemon, &["block", "--group", "gpuu"]).expect_code(2);
    assert!(
        unknown.stderr.starts_with("bgctl: unknown group \"gpuu\"; known groups: default, gpu\n"),
        "{unknown:?}"
    );
    let outcome = run(&daemon, &["cancel", "--group", "gpu"]).success();
    assert_eq!(outcome.stdout_text(), format!("{waits} cancelled\n"));
    let nothing = run(&daemon, &["cancel", "--group", "gpu"]).success();
    assert_eq!((nothing.stdout.len(), &*nothing.stderr), (0, "bgctl: no active task matches\n"));
    assert_eq!(stdout_of(&daemon, &["clear", "--status", "failed"]), "cleared 1\n");
    let others = run(&daemon, &["clear", "--status", "failed", "--session", "other"]).success();
    assert_eq!(others.stderr, "no matching finished tasks in session other; `bgctl list` shows all tasks\n");
    assert_eq!(stdout_of(&daemon, &["clear", "--status", "completed,cancelled"]), "cleared 2\n");
    assert_eq!(listed(&[]), [elsewhere], "a label that narrows what is cleared does not widen it");
    assert_eq!(stdout_of(&daemon, &["clear", "--status", "completed", "--all-sessions"]), "cleared 1\n");
}

#[test]
fn r113_json_has_priority_slots_and_waiting_reason() {
    let daemon = TestDaemon::start();
    let first = submitted(&daemon, &["--hold", "--priority", "7", "--slots", "2", "--", "true"]);
    let second = submitted(&daemon, &["--after", &format!("{first}:any"), "--", "true"]);
    let list: ListResult = run(&daemon, &["--json", "list"]).success().json();
    let task = |id: TaskId| -> Task { list.tasks.iter().find(|task| task.id == id).cloned().unwrap() };
    assert_eq!((task(first).priority, task(first).slots), (7, 2));
    assert_eq!(task(first).waiting.unwrap().reason, WaitingFor::Held);
    assert_eq!(task(second).waiting.unwrap().ids, [first]);
    let edited: TaskResult =
        run(&daemon, &["--json", "edit", &second.to_string(), "--after", "none"]).success().json();
    assert!(edited.task.after.is_empty());
    let error = run(&daemon, &["--json", "submit", "--group", "nope", "--", "true"]).expect_code(2);
    let error: Value = serde_json::from_str(&error.stderr).unwrap();
    assert_eq!(error["error"]["data"]["kind"], "unknown_group");
    daemon.block(&[second]);
}

/// Listens in front of the daemon, and runs this command whenever a client asks for a second list.
fn between_lists(daemon: &TestDaemon, mut command: std::process::Command) -> std::path::PathBuf {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::fs::DirBuilderExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    let folder = daemon.home().join("between");
    std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
    let path = folder.join("bgd.sock");
    let (listener, target) = (UnixListener::bind(&path).unwrap(), daemon.socket().to_owned());
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(&target) else { break };
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let mut lists = 0;
            for line in BufReader::new(client).lines().map_while(Result::ok) {
                lists += usize::from(line.contains("\"task.list\""));
                if lists == 2 {
                    lists = 0;
                    command.output().unwrap();
                }
                if (&server).write_all(format!("{line}\n").as_bytes()).is_err() {
                    break;
                }
            }
            let _ = server.shutdown(std::net::Shutdown::Both);
        }
    });
    path
}

#[test]
fn r113_short_names_of_one_command_mean_the_tasks_of_one_moment() {
    let daemon = TestDaemon::start();
    let [first, second] = ["one", "two"].map(|name| submitted(&daemon, &["--hold", "--", name]));
    let mut other = daemon.bgctl(&["submit", "--hold", "--", "other"]);
    other.env("BGD_SESSION", "s");
    let socket = between_lists(&daemon, other);
    let run = |args: &[&str]| {
        Outcome::of(daemon.bgctl(args).env("BGD_SESSION", "s").env("BGD_SOCKET", &socket)).success()
    };
    let after = |id: TaskId| daemon.task(id).after.iter().map(|after| after.id).collect::<Vec<_>>();
    let third: TaskId = run(&["submit", "--hold", "--after", "@", "--after", "@2", "--", "three"]).word();
    assert_eq!(after(third), [second, first]);
    run(&["edit", "@", "--after", "@3"]);
    assert_eq!(after(third), [first]);
    daemon.run(&["cancel", "--session", "s"]).success();
}

#[test]
fn r107_edit_that_cancels_a_task_at_once_says_why() {
    let daemon = TestDaemon::start();
    let failed = submitted(&daemon, &["--shell", "exit 3"]);
    daemon.block(&[failed]);
    let held = submitted(&daemon, &["--hold", "--", "true"]).to_string();
    let edited = run(&daemon, &["edit", &held, "--after", &failed.to_string()]).success();
    assert!(edited.stdout_text().starts_with(&format!("{held} cancelled")), "{}", edited.stdout_text());
    let why = "bgctl: warning: the task is already cancelled: ";
    assert!(edited.stderr.starts_with(why) && edited.stderr.contains(&failed.short()), "{}", edited.stderr);
}

#[test]
fn r110_block_until_ready_names_tasks_that_ended_without_being_ready() {
    let daemon = TestDaemon::start();
    let ended = submitted(&daemon, &["--ready", "line:up", "--", "true"]);
    let ready = submitted(&daemon, &["--ready", "line:up", "--", "echo", "up"]);
    let late = submitted(&daemon, &["--ready", "line:up", "--ready-timeout", "1ms", "--", "sleep", "1000"]);
    daemon.block(&[ended, ready, late]);
    let ids = [ended, ready, late].map(|id| id.to_string());
    let blocked = run(&daemon, &["block", "--until", "ready", &ids[0], &ids[1], &ids[2]]).expect_code(1);
    assert_eq!(blocked.stderr, format!("bgctl: {ended} ended without being ready: completed\n"));
    assert!(blocked.stdout_text().contains("(not ready after "), "{}", blocked.stdout_text());
}
