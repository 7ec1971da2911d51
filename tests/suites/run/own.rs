//! What a terminal does not get: its own contents once more, without end, and what would leave it in another mode.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_tests::{Terminal, TestDaemon, bgctl_path};

use super::gate;

/// Starts a shell as a job in the terminal of another shell, and waits for its prompt.
fn enter(shell: &mut Terminal, options: &str) {
    // Quoted, so that the echo of the typed line does not match.
    shell.type_line(&format!(
        "bgctl run {options} --shell 'echo in\"\"side; exec bash --norc --noprofile -i'"
    ));
    shell.wait_text("\ninside\n");
    shell.wait_prompt();
    shell.clear();
}

fn refused(daemon: &TestDaemon) -> String {
    fs::read_to_string(daemon.home().join("refused")).unwrap()
}

#[test]
fn attach_refuses_to_show_a_terminal_in_itself() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    enter(&mut shell, "");
    assert_eq!(shell.run_line("bgctl attach $BGD_TASK_ID 2> refused"), 65);
    assert!(refused(&daemon).contains("would show itself"), "{}", refused(&daemon));
    // The terminal of a job within shows it, too, but may be shown in it.
    assert_eq!(shell.run_line("export OUTER=$BGD_TASK_ID"), 0);
    enter(&mut shell, "--key ctrl-o");
    assert_eq!(shell.run_line("[ $OUTER != $BGD_TASK_ID ] && bgctl attach $OUTER 2> refused"), 65);
    assert!(refused(&daemon).contains("attach from a terminal outside of the task"), "{}", refused(&daemon));
    assert_eq!(shell.run_line("echo $BGD_TASK_ID > inner"), 0);
    let inner = fs::read_to_string(daemon.home().join("inner")).unwrap();
    let inner = inner.trim_end();
    let mut other = Terminal::shell(&daemon);
    other.type_line(&format!("bgctl attach {inner}"));
    other.wait_text("[Ctrl-B] Detach");
    other.type_keys("\x02");
    other.wait_prompt();
    shell.type_keys("\x0f");
    shell.wait_text("Command was manually backgrounded by user with ID ");
    shell.wait_prompt();
    shell.clear();
    shell.type_line(&format!("bgctl attach {inner}"));
    shell.wait_text("[Ctrl-B] Detach");
}

#[test]
fn output_is_not_followed_into_itself() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    enter(&mut shell, "");
    for verb in ["output --follow", "--json output --follow"] {
        assert_eq!(shell.run_line(&format!("bgctl {verb} $BGD_TASK_ID 2> refused")), 65, "{verb}");
        assert!(refused(&daemon).contains("would be written to itself"), "{}", refused(&daemon));
    }
    let bgctl = bgctl_path().display().to_string();
    for verb in ["output --follow", "--json output --follow", "attach"] {
        let line = format!("{bgctl} {verb} $BGD_TASK_ID 2> refused; echo $?");
        let id = daemon.run(&["submit", "--shell", &line]).success().word::<TaskId>();
        daemon.block(&[id]);
        assert_eq!(daemon.output(id), b"65\n", "{verb}");
        assert!(refused(&daemon).contains("would be written to itself"), "{verb}: {}", refused(&daemon));
    }
}

#[test]
fn attach_to_output_changes_no_mode_of_the_terminal_and_leaves_no_colour_on() {
    let daemon = TestDaemon::start();
    let _gate = gate(&daemon);
    let line = r"printf 'o\033[31mn\033[?25l\033[?1000h\033[6n\033[?1049hfull\033[?1049le\n'; read x < gate";
    let id = daemon.run(&["submit", "--shell", line]).success().word::<TaskId>();
    daemon.wait_running(id);
    let mut shell = Terminal::shell(&daemon);
    for (verb, key) in [("attach", "\x02"), ("output --follow", "\x03")] {
        shell.type_line(&format!("bgctl {verb} {id}"));
        shell.wait_text("\none\n");
        shell.wait_text("bgctl: the screen of a full-screen program is left out");
        shell.type_keys(key);
        shell.wait_prompt();
        let shown = String::from_utf8_lossy(&shell.shown()).into_owned();
        for sequence in ["\x1b[?25l", "\x1b[?1000h", "\x1b[6n", "\x1b[?1049h"] {
            assert!(!shown.contains(sequence), "{verb}: {sequence:?}: {shell:?}");
        }
        let (_, after) = shown.rsplit_once("\x1b[31m").expect("a colour");
        assert!(after.contains("\x1b[m"), "{verb}: {shown:?}");
        shell.clear();
    }
    daemon.cancel(&[id]);
}

#[test]
fn attach_shows_text_only_where_the_cursor_cannot_be_moved() {
    let daemon = TestDaemon::start();
    let line = r"printf '\033[31mred\033[m\033[2K\r\n'";
    let id = daemon.run(&["submit", "--pty", "--shell", line]).success().word::<TaskId>();
    daemon.block(&[id]);
    for term in ["TERM=dumb", "TERM="] {
        let mut shell = Terminal::shell(&daemon);
        shell.type_line(&format!("{term} bgctl attach {id} 2> hint"));
        shell.wait_text("\nred\n");
        shell.wait_prompt();
        assert!(!String::from_utf8_lossy(&shell.shown()).contains("\x1b[31m"), "{term}: {shell:?}");
        let hint = fs::read_to_string(daemon.home().join("hint")).unwrap();
        assert!(hint.contains("this terminal can't move its cursor"), "{term}: {hint}");
    }
}
