//! `bgctl top` in a real terminal (R160 to R163): what its user sees, what the keys do, how it ends, and odd cases.

mod burst;
mod ends;
mod hosts;
mod keys;
mod odd;
mod places;
mod screen;
mod seen;

use std::process::Command;

use bgd_tests::{Outcome, Terminal, TestDaemon, wait};

#[track_caller]
fn sized(daemon: &TestDaemon, args: &[&str], size: (u16, u16)) -> Terminal {
    let mut command: Command = daemon.bgctl(&[&["top"], args].concat());
    Terminal::sized(command.env("PAGER", "cat; echo '<paged>'; read x < /dev/tty"), size)
}

/// Starts a `bgctl top` in a terminal with room for only the list, which shows its keys.
#[track_caller]
fn top(daemon: &TestDaemon) -> Terminal {
    let mut top = sized(daemon, &[], (20, 90));
    top.wait_text("F1 help");
    top
}

/// Submits a task that waits for a line in this FIFO, which is created.
#[track_caller]
fn task_waiting_at(daemon: &TestDaemon, name: &str, rest: &str) -> bgd_shared::id::TaskId {
    let gate = daemon.home().join(name);
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let line = format!("read x < {}; {rest}", gate.display());
    let id = daemon.run(&["submit", "-d", name, "--shell", &line]).success().word();
    daemon.wait_running(id);
    id
}

/// Opens the FIFO that a task waits at.
#[track_caller]
fn open_gate(daemon: &TestDaemon, name: &str) {
    wait::for_reader(&daemon.home().join(name), "\n");
}

#[test]
fn r160_top_updates_without_key_press() {
    let daemon = TestDaemon::start();
    let mut top = top(&daemon);
    top.wait_text("nothing needs you");
    top.wait_text("no tasks");
    let id = task_waiting_at(&daemon, "gate", "exit 3");
    top.wait_text("nothing needs you | 1 running");
    top.wait_text(&format!(" {} running ", id.short()));
    open_gate(&daemon, "gate");
    top.wait_text("1 failure needs you");
    top.wait_text(&format!(" {} failed (3) ", id.short()));
    daemon.run(&["clear", &id.to_string()]).success();
    top.wait_text("no tasks");
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r160_wide_list_shows_cpu_and_memory_of_running_tasks() {
    let daemon = TestDaemon::start();
    let line = r#"exec perl -e '$x = "x" x (64 << 20); while (1) { $n++ }'"#;
    daemon.run(&["submit", "-d", "busy", "--shell", line]).success();
    let mut top = sized(&daemon, &[], (20, 200));
    top.wait_text("CPU     MEMORY");
    top.wait("what the task uses", |screen| {
        let is_measured =
            |line: &str| line.contains("running") && line.contains("% ") && line.contains(" MiB ");
        screen.contents().lines().any(is_measured)
    });
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r160_agent_question_is_listed_first_and_answered_by_key() {
    let daemon = bgd_tests::FakeDaemon::start(&[], "permissions = \"ask\"");
    let other = task_waiting_at(&daemon, "gate", "exit 0");
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait_text(&other.short());
    for (key, answer) in [("y", "allowed: allow-once"), ("n", "denied")] {
        let id = daemon.prompt("ask May I?");
        top.wait_text("1 question needs you");
        top.type_keys("\x1b[H\x1b[B");
        top.wait_text("asks: May I?");
        top.type_keys(key);
        top.wait_text("nothing needs you");
        daemon.ends_as(id, bgd_shared::task::Status::Completed);
        assert!(daemon.result(id).starts_with(answer), "{key}: {}", daemon.result(id));
    }
}

#[test]
fn r161_pinned_preview_follows_output_in_colour() {
    let daemon = TestDaemon::start();
    let line = "echo one; read x < first; printf '\\033[31mtwo\\033[m\\n'; read x < second; echo three";
    for gate in ["first", "second"] {
        nix::unistd::mkfifo(&daemon.home().join(gate), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let id: bgd_shared::id::TaskId = daemon.run(&["submit", "-d", "steps", "--shell", line]).success().word();
    daemon.wait_running(id);
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait_text(" one\n");
    top.type_keys("f");
    top.wait_text("(follows) running steps");
    open_gate(&daemon, "first");
    top.wait_text(" two\n");
    let screen = top.emulated();
    let red = (0..20).flat_map(|row| (60..120).map(move |col| (row, col))).any(|(row, col)| {
        screen
            .cell(row, col)
            .is_some_and(|cell| cell.contents() == "t" && cell.fgcolor() == vt100::Color::Idx(1))
    });
    assert!(red, "{top:?}");
    open_gate(&daemon, "second");
    top.wait_text(" three\n");
}

#[test]
fn r161_preview_shows_terminal_screen_and_enter_attaches() {
    let daemon = TestDaemon::start();
    let line = "printf '\\033[2J\\033[3;5Hin the middle'; read x; printf '\\033[5;5Hand below'; read x";
    let id = daemon
        .run(&["submit", "-d", "full", "--pty", "--shell", line])
        .success()
        .word::<bgd_shared::id::TaskId>();
    daemon.wait_running(id);
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait_text("    in the middle\n");
    top.type_keys("f");
    top.wait_text("(follows)");
    daemon.run(&["write", &id.to_string(), "-n", "go"]).success();
    top.wait_text("    and below\n");
    top.type_keys("\r");
    top.wait("the terminal itself", |screen| {
        let shown = screen.contents();
        shown.contains("and below") && !shown.contains("(follows)")
    });
    top.type_keys("\x02");
    top.wait_text("(follows)");
    top.type_keys("q");
    assert!(top.ended().success());
    assert!(daemon.task(id).status.is_active(), "it was only looked at");
}

#[test]
fn r161_preview_is_current_after_return_from_attached_task() {
    let daemon = TestDaemon::start();
    let line = "echo before; read x; echo after; read x";
    let id: bgd_shared::id::TaskId =
        daemon.run(&["submit", "-d", "asks", "--pty", "--shell", line]).success().word();
    daemon.wait_running(id);
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait_text(" before\n");
    top.type_keys("\r");
    // The screen of the task is drawn over the hint at once.
    top.wait_shown("the hint", |shown| String::from_utf8_lossy(shown).contains("[Ctrl-B] Detach"));
    top.type_keys("\r");
    top.wait("the next line", |screen| screen.contents().lines().any(|line| line.trim_end() == "after"));
    top.type_keys("\x02");
    top.wait_text("nothing needs you");
    top.wait_text(" after\n");
}

#[test]
fn r163_top_once_prints_one_frame_for_scripts() {
    let daemon = TestDaemon::start();
    let id = task_waiting_at(&daemon, "gate", "exit 0");
    let frame = daemon.run(&["top", "--once"]).success().stdout_text();
    let lines: Vec<&str> = frame.lines().collect();
    assert_eq!(
        (lines[0], lines[2], lines.len()),
        ("nothing needs you | 1 running", "- running 1", 4),
        "{frame}"
    );
    assert!(
        lines[3].starts_with(&format!(" {} running ", id.short())) && lines[3].ends_with(" gate"),
        "{frame}"
    );
    assert!(daemon.run(&["top", "--once", "s:failed"]).success().stdout_text().contains("no task matches"));
    let unknown = daemon.run(&["top", "--once", "s:bogus"]).expect_code(2);
    assert!(unknown.stderr.contains("no status begins with \"bogus\"; there are asks"), "{}", unknown.stderr);
    let refused = daemon.run(&["top"]).expect_code(2);
    assert!(refused.stderr.contains("bgctl top --once"), "{}", refused.stderr);
    assert!(daemon.run(&["top", "--json"]).expect_code(2).stderr.contains("bgctl events"));
}

#[test]
fn r163_one_frame_shows_progress_and_usage_of_running_tasks() {
    let daemon = TestDaemon::start();
    let gate = daemon.home().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let line = format!("echo 3/4 parts; read x < {}", gate.display());
    let id: bgd_shared::id::TaskId = daemon.run(&["submit", "-d", "job", "--shell", &line]).success().word();
    daemon.run(&["block", "--line", "parts", &id.to_string()]).success();
    let row = || {
        let frame = Outcome::of(daemon.bgctl(&["top", "--once"]).env("COLUMNS", "120").env("LINES", "12"));
        let frame = frame.success().stdout_text();
        let row = frame.lines().find(|line| line.contains(&id.short())).unwrap_or_else(|| panic!("{frame}"));
        row.split_whitespace().map(str::to_owned).collect::<Vec<String>>()
    };
    let has_memory = |row: &Vec<String>| row.iter().any(|word| word.ends_with("iB"));
    // A busy daemon gives up a measurement.
    let row = wait::poll_until("a measurement", || Some(row()).filter(has_memory));
    let shares: Vec<&String> = row.iter().filter(|word| word.ends_with('%')).collect();
    assert!(shares.len() == 2 && shares.iter().any(|share| *share == "75%"), "progress and CPU: {row:?}");
}
