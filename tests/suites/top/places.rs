//! Where `bgctl top` runs: in tmux, and for the daemon of another machine.

use bgd_shared::id::TaskId;
use bgd_tests::far::Far;
use bgd_tests::{Terminal, TestDaemon};

use super::task_waiting_at;

#[test]
fn r163_top_works_in_tmux() {
    let daemon = TestDaemon::start();
    let id = task_waiting_at(&daemon, "gate", "exit 0");
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("tmux -f /dev/null -S tmux new-session 'bgctl top'");
    shell.wait_text(&format!(" {} running ", id.short()));
    shell.type_keys("xy");
    shell.wait_text(&format!(" {} cancelled ", id.short()));
    shell.type_keys("q");
    shell.wait_text("[exited]");
    shell.wait_prompt();
}

#[test]
fn r163_top_of_remote_machine_survives_connection_loss() {
    let far = Far::start();
    let first = far.run(&["submit", "-d", "first", "--", "sleep", "1000"]).word::<TaskId>();
    let frame = far.run(&["top", "--once"]).success().stdout_text();
    assert!(frame.contains(&format!(" {} running ", first.short())), "{frame}");
    let mut top = far.terminal(&["top"]);
    top.wait_text(" first\n");
    far.cut();
    let second = far.run(&["submit", "-d", "second", "--", "sleep", "1000"]).word::<TaskId>();
    top.wait_text(&format!(" {} running ", second.short()));
    top.type_keys("xy");
    top.wait_text("1 running, 1 done");
    top.type_keys("q");
    assert!(top.ended().success());
}
