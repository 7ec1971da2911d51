//! What counts as seen (R160, R163, R167), and whether everything that waits for the user is reported.

use bgd_shared::id::TaskId;
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{SubmitManyParams, SubmitParams, TaskSubmitMany};
use bgd_tests::{Terminal, TestDaemon, wait};

use super::{open_gate, sized, task_waiting_at, top};

fn failed(daemon: &TestDaemon, description: &str) -> TaskId {
    let id = daemon.run(&["submit", "-d", description, "--", "false"]).success().word();
    daemon.block(&[id]);
    id
}

/// Returns the beginning of the title of a frame.
fn title(daemon: &TestDaemon) -> String {
    let frame = daemon.run(&["top", "--once"]).success().stdout_text();
    frame.lines().next().unwrap_or_default().split(" | ").next().unwrap_or_default().to_owned()
}

#[test]
fn r160_only_failures_shown_on_screen_count_as_seen() {
    let daemon = TestDaemon::start();
    failed(&daemon, "hidden by the filter");
    failed(&daemon, "shown");
    assert_eq!(title(&daemon), "2 failures need you");
    assert_eq!(title(&daemon), "2 failures need you", "a frame that is printed is no look");
    let mut first = sized(&daemon, &["shown"], (20, 90));
    first.wait_text(" shown\n");
    first.wait_text("/shown (1)");
    first.type_keys("q");
    assert!(first.ended().success());
    assert_eq!(title(&daemon), "1 failure needs you");
    let mut last = top(&daemon);
    last.wait_text("1 failure needs you | 1 done");
    last.wait_text(" hidden by the filter\n");
    last.type_keys("q");
    assert!(last.ended().success());
    assert_eq!(title(&daemon), "nothing needs you");
}

#[test]
fn r160_title_counts_questions_and_failures_awaiting_user() {
    let daemon = bgd_tests::FakeDaemon::start(&[], "permissions = \"ask\"");
    task_waiting_at(&daemon, "gate", "exit 3");
    let mut top = sized(&daemon, &[], (20, 90));
    top.wait_text("nothing needs you | 1 running");
    let asks = daemon.prompt("ask May I?");
    top.wait_text("1 question needs you | 1 running");
    open_gate(&daemon, "gate");
    top.wait_text("1 question and 1 failure need you\n");
    failed(&daemon, "fails too");
    top.wait_text("1 question and 2 failures need you\n");
    // Tasks that the filter hides count, too.
    top.type_keys("/nothing like this\r");
    top.wait_text("1 question and 2 failures need you | /nothing like this (0)\n");
    daemon.run(&["answer", &asks.to_string(), "allow"]).success();
    top.wait_text("2 failures need you | 1 done");
    daemon.run(&["clear", "--all-sessions"]).success();
    top.wait_text("nothing needs you | /nothing like this (0)\n");
}

#[test]
fn r160_list_shows_what_pending_tasks_wait_for() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let gate = task_waiting_at(&daemon, "gate", "exit 0");
    daemon.run(&["group", "set", "gpu", "--slots", "1"]).success();
    daemon.run(&["group", "pause", "gpu"]).success();
    let (gate, after) = (gate.to_string(), format!("pending (after {})", gate.short()));
    let pending = [
        (&["--after", &gate][..], after.as_str()),
        (&["--group", "gpu"], "pending (gpu paused)"),
        (&["--in", "90m"], "pending (until "),
        (&["--hold"], "pending (held)"),
        (&[], "pending (slot)"),
    ];
    for (number, (args, _)) in pending.iter().enumerate() {
        daemon
            .run(&[&["submit", "-d", &format!("task {number}")], *args, &["--", "true"]].concat())
            .success();
    }
    // The same in the table of `bgctl list`.
    let listed = daemon.run(&["list"]).success().stdout_text();
    for (number, (_, state)) in pending.iter().enumerate() {
        let is_listed = |line: &str| line.contains(state) && line.ends_with(&format!("\ttask {number}"));
        assert!(listed.lines().any(is_listed), "{state}: {listed}");
    }
    for size in [(20, 80), (20, 100)] {
        let mut top = sized(&daemon, &["s:pending"], size);
        for (number, (_, state)) in pending.iter().enumerate() {
            top.wait("the reason", |screen| {
                let list = screen.rows(0, if size.1 == 80 { 80 } else { 64 });
                list.into_iter().any(|line| line.contains(state) && line.contains(&format!(" task {number}")))
            });
        }
    }
}

#[test]
fn r167_overview_lists_old_questions_and_running_tasks() {
    let daemon = bgd_tests::FakeDaemon::start(&[], "permissions = \"ask\"");
    let asks = daemon.prompt("ask May I?");
    wait::poll_until("it asks", || daemon.task(asks).progress.needs_input.map(drop));
    let gate = task_waiting_at(&daemon, "gate", "exit 0");
    // More than a page of the list was submitted after them.
    let task = SubmitParams { hold: true, ..daemon.params() };
    let argvs = vec![vec!["true".into()]; LIST_PAGE + 100];
    let params = SubmitManyParams { task: Some(Box::new(task)), argvs, ..SubmitManyParams::default() };
    daemon.client().call::<TaskSubmitMany>(&params).unwrap();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl");
    shell.wait_text("asks you:\n");
    shell.wait_text(&asks.short());
    shell.wait_text(&gate.short());
    shell.wait_text(&format!("and {} more: bgctl list\n", LIST_PAGE + 100 + 1 - 10));
    shell.wait_text(&format!("\n  bgctl answer {}  see the question", asks.short()));
    shell.wait_prompt();
}

#[test]
fn r160_failure_behind_the_pager_does_not_count_as_seen_by_who_types_ahead() {
    let daemon = TestDaemon::start();
    let shown = daemon.run(&["submit", "-d", "shown", "--", "echo", "its output"]).success().word();
    daemon.block(&[shown]);
    let mut top = top(&daemon);
    top.wait_text(" shown\n");
    top.type_keys("o");
    top.wait_text("its output\n<paged>");
    failed(&daemon, "behind the pager");
    // The view reads this key before it reads what has happened meanwhile.
    top.type_keys("\nq");
    assert!(top.ended().success());
    assert_eq!(title(&daemon), "1 failure needs you");
}
