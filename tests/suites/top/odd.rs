//! Odd terminals and odd tasks.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_tests::{Terminal, TestDaemon};

use super::{sized, task_waiting_at, top};

#[test]
fn r163_top_adapts_to_tiny_huge_and_changing_terminals() {
    let daemon = TestDaemon::start();
    let id = task_waiting_at(&daemon, "gate", "exit 0");
    let mut top = sized(&daemon, &[], (5, 20));
    top.wait_text("- running 1");
    for (rows, cols) in [(300, 1000), (1, 1), (2, 9), (24, 80), (3, 200), (24, 80)] {
        top.resize((rows, cols));
        top.type_keys("\x0c");
    }
    top.wait_text(&format!(" {} running ", id.short()));
    top.resize((300, 1000));
    top.wait("the whole width", |screen| {
        let last = screen.rows(0, 1000).nth(299).unwrap_or_default();
        last.starts_with("F1 help")
    });
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r163_dumb_terminal_is_refused_with_hint() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    assert_eq!(shell.run_line("TERM=dumb bgctl top 2> refused"), 2);
    let refused = fs::read_to_string(daemon.home().join("refused")).unwrap();
    assert!(refused.contains("hint: `bgctl top --once`"), "{refused}");
    assert_eq!(shell.run_line("TERM=dumb bgctl top --once > frame"), 0);
    assert!(fs::read_to_string(daemon.home().join("frame")).unwrap().contains("no tasks"));
}

#[test]
fn r163_no_color_variable_disables_colours_unless_they_are_asked_for() {
    let daemon = TestDaemon::start();
    task_waiting_at(&daemon, "gate", "exit 0");
    for (value, colour, is_coloured) in [("", "auto", true), ("1", "auto", false), ("1", "always", true)] {
        let mut command = daemon.bgctl(&["--color", colour, "top"]);
        let mut top = Terminal::open(command.env("NO_COLOR", value));
        top.wait_text("gate");
        let screen = top.emulated();
        let cells = (0..24).flat_map(|row| (0..80).filter_map(move |col| screen.cell(row, col)));
        let coloured = cells.filter(|cell| cell.fgcolor() != vt100::Color::Default).count();
        assert_eq!(coloured > 0, is_coloured, "{value:?} {colour}");
    }
}

#[test]
fn r162_filter_accepts_paste_of_a_megabyte() {
    let daemon = TestDaemon::start();
    task_waiting_at(&daemon, "gate", "exit 0");
    let mut top = top(&daemon);
    top.wait_text("gate");
    top.type_keys("/");
    top.type_keys(format!("\x1b[200~{}\x1b[201~", "x\x1by q\r".repeat((1usize << 20).div_ceil(6))));
    top.wait_text("no task matches");
    top.type_keys("\x1b");
    top.wait_text(" gate\n");
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r163_descriptions_are_shown_as_plain_text() {
    let daemon = TestDaemon::start();
    // The emulator shows no U+FFFD, which replaces each of the others.
    for (description, shown) in [
        ("漢字かな🦀 wide", "漢字かな🦀 wide"),
        ("e\u{301}\u{323} combined", "e\u{301}\u{323} combined"),
        ("a\u{202e}b \u{5d0}\u{5d1}", "ab \u{5d0}\u{5d1}"),
        ("\x1b[2J\x07cleared", "[2Jcleared"),
        ("two\nlines", "two lines"),
    ] {
        let id: TaskId = daemon.run(&["submit", "-d", description, "--", "true"]).success().word();
        daemon.block(&[id]);
        let mut top = top(&daemon);
        top.wait_text(&format!("{shown}\n"));
    }
}

#[test]
fn r161_preview_shows_end_of_long_and_binary_outputs() {
    let daemon = TestDaemon::start();
    let long = "head -c 1G /dev/zero | tr '\\0' x; echo; echo the end";
    // Every byte, but in a fixed order: some bytes before a line would make any terminal swallow its beginning.
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(300_000).collect();
    fs::write(daemon.home().join("bytes"), bytes).unwrap();
    let binary = "cat bytes; echo; echo the binary end";
    let ids: Vec<TaskId> = [("long", long), ("binary", binary)]
        .iter()
        .map(|(name, line)| daemon.run(&["submit", "-d", name, "--shell", line]).success().word())
        .collect();
    daemon.block(&ids);
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait_text("2 done");
    top.wait_text("the binary end");
    top.type_keys("j");
    top.wait_text(" the end\n");
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r163_preview_says_why_an_output_cannot_be_read() {
    let daemon = TestDaemon::start();
    let id = task_waiting_at(&daemon, "gate", "echo after");
    let file = daemon.task(id).output.path;
    let kept = daemon.home().join("kept");
    fs::rename(&file, &kept).unwrap();
    let mut top = sized(&daemon, &[], (20, 160));
    top.wait_text("the output of task");
    top.type_keys("f");
    top.wait_text("(follows) running gate");
    top.wait_text("the output of task");
    fs::rename(&kept, &file).unwrap();
    super::open_gate(&daemon, "gate");
    top.wait_text(" after\n");
    top.type_keys("q");
    assert!(top.ended().success());
}
