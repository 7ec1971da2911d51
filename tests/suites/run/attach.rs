//! `bgctl attach` as a user sees it: what is shown, how it is left, and what the terminal looks like then.

use std::fs;

use bgd_shared::task::Status;
use bgd_tests::{Terminal, TestDaemon};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// A pipe with a name that a task waits for, in the folder of the daemon.
fn gate(daemon: &TestDaemon) -> std::path::PathBuf {
    let gate = daemon.home().join("gate");
    mkfifo(&gate, Mode::S_IRWXU).unwrap();
    gate
}

#[test]
fn a_task_without_a_terminal_is_shown_and_left_by_the_same_key() {
    let daemon = TestDaemon::start();
    let gate = gate(&daemon);
    let id = daemon
        .run(&["submit", "--shell", "echo up; read x < gate; echo \"got $x\"; exit 3"])
        .success()
        .word();
    daemon.wait_running(id);
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl attach {}", id.short()));
    shell.wait_text("\n[Ctrl-B] Leave\nup\n");
    shell.type_keys("\x02");
    shell.wait_prompt();
    shell.clear();
    shell.type_line(&format!("bgctl attach {}", id.short()));
    shell.wait_text("\nup\n");
    shell.type_keys("\x03");
    shell.wait_text("\n$");
    assert_eq!(shell.run_line("(exit $?)"), 130);
    assert_eq!(daemon.task(id).status, Status::Running, "it goes on");
    shell.type_line(&format!("bgctl attach {}", id.short()));
    shell.wait_text("\nup\n");
    fs::write(&gate, "words\n").unwrap();
    shell.wait_text("\nup\ngot words\n");
    shell.wait_prompt();
    assert_eq!(shell.run_line("(exit $?)"), 3);
}

#[test]
fn after_a_full_screen_program_the_screen_is_as_it_was() {
    let daemon = TestDaemon::start();
    let line = "printf '\\033[?1049h\\033[H\\033[2Jall of it'; read go; printf '\\033[?1049l'";
    for keys in ["go\r", "\x02"] {
        let id = daemon.run(&["submit", "--pty", "--shell", line]).success().word();
        daemon.wait_running(id);
        let mut shell = Terminal::shell(&daemon);
        shell.type_line("echo before");
        shell.wait_text("\nbefore\n$");
        let command = format!("bgctl attach {}", id.short());
        shell.type_line(&command);
        shell.wait_alternate(true);
        shell.wait_text("all of it");
        shell.type_keys(keys);
        shell.wait_alternate(false);
        shell.wait_prompt();
        let expected = format!("$ echo before\nbefore\n$ {command}\n[Ctrl-B] Leave\n$");
        assert_eq!(shell.screen(), expected, "{shell:?}");
        daemon.cancel(&[id]);
    }
}
