//! `bgctl attach` as a user sees it: what it shows, how to leave it, and the state of the terminal afterwards.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_tests::{Process, Terminal, TestDaemon, wait};

use super::{READS_LATE, fifo, gate};

#[test]
fn attach_shows_and_detaches_from_task_without_terminal() {
    let daemon = TestDaemon::start();
    let gate = gate(&daemon);
    let id = daemon
        .run(&["submit", "--shell", "echo up; read x < gate; echo \"got $x\"; exit 3"])
        .success()
        .word();
    daemon.wait_running(id);
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl attach {}", id.short()));
    shell.wait_text("\n[Ctrl-B] Detach (the task keeps running)\nup\n");
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
    wait::for_reader(&gate, "words\n");
    shell.wait_text("\nup\ngot words\n");
    shell.wait_prompt();
    assert_eq!(shell.run_line("(exit $?)"), 3);
}

#[test]
fn attach_shows_output_from_its_beginning_after_it_was_truncated() {
    let daemon = TestDaemon::start();
    let gates = ["first", "second"].map(|name| fifo(&daemon, name));
    let line =
        "echo a long first line; read x < first; : > /proc/self/fd/1; echo short; read x < second; echo end";
    let id: TaskId = daemon.run(&["submit", "--shell", line]).success().word();
    daemon.wait_running(id);
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl attach {}", id.short()));
    shell.wait_text("\na long first line\n");
    wait::for_reader(&gates[0], "go\n");
    shell.wait_text("\nbgctl: the output file was truncated; this continues from its beginning\nshort\n");
    wait::for_reader(&gates[1], "go\n");
    shell.wait_text("\nshort\nend\n");
    shell.wait_prompt();
}

#[test]
fn attach_to_a_task_that_has_not_started_names_the_reason_to_wait() {
    let daemon = TestDaemon::start();
    let gate = daemon.run(&["submit", "--", "sleep", "1000"]).success().word::<TaskId>();
    let args = ["submit", "--pty", "--after", &gate.to_string(), "--", "cat"];
    let id = daemon.run(&args).success().word::<TaskId>();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl attach {}", id.short()));
    shell.wait_text(&format!("it is still to start: `bgctl status {}`", id.short()));
    shell.wait_prompt();
    assert_eq!(shell.run_line("(exit $?)"), 65);
    assert!(!shell.screen().contains("what it wrote"));
}

#[test]
fn attach_reports_separate_standard_error_at_the_end() {
    let daemon = TestDaemon::start();
    let gate = gate(&daemon);
    let line = "echo up; echo failed >&2; read x < gate; exit 1";
    let id = daemon.run(&["submit", "--split", "--shell", line]).success().word::<TaskId>();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl attach {}", id.short()));
    shell.wait_text("\nup\n");
    wait::for_reader(&gate, "go\n");
    shell.wait_text("7 B of standard error are stored separately: `bgctl output --stderr");
    shell.wait_prompt();
    assert_eq!(shell.run_line("(exit $?)"), 1);
}

/// The output and input of a full-screen program.
const FULL_SCREEN: &str = "printf '\\033[?1049h\\033[H\\033[2Jall of it'; read go; printf '\\033[?1049l'";

/// Attaches to a full-screen program, which may begin once `begin` has run, leaves it by these keys, and asserts that
/// the screen is as before.
#[track_caller]
fn comes_back(daemon: &TestDaemon, id: TaskId, keys: &str, begin: impl FnOnce(&mut Terminal)) {
    let mut shell = Terminal::shell(daemon);
    shell.type_line("echo before");
    shell.wait_text("\nbefore\n$");
    let command = format!("bgctl attach {}", id.short());
    shell.type_line(&command);
    begin(&mut shell);
    shell.wait_alternate(true);
    shell.wait_text("all of it");
    shell.type_keys(keys);
    shell.wait_alternate(false);
    shell.wait_prompt();
    let expected = format!("$ echo before\nbefore\n$ {command}\n[Ctrl-B] Detach (the task keeps running)\n$");
    assert_eq!(shell.screen(), expected, "{shell:?}");
    daemon.cancel(&[id]);
}

#[test]
fn attach_restores_screen_after_full_screen_program() {
    let daemon = TestDaemon::start();
    for keys in ["go\r", "\x02"] {
        let id = daemon.run(&["submit", "--pty", "--shell", FULL_SCREEN]).success().word();
        daemon.wait_running(id);
        comes_back(&daemon, id, keys, |_| {});
    }
}

/// A task that has shown nothing yet leaves the terminal's contents alone, as in the foreground.
#[test]
fn attach_to_silent_task_keeps_screen_contents() {
    let daemon = TestDaemon::start();
    for keys in ["go\r", "\x02"] {
        let ready = daemon.home().join("ready");
        let line = format!("stty -echo; : >{}; read go; {FULL_SCREEN}", ready.display());
        let id = daemon.run(&["submit", "--pty", "--shell", &line]).success().word();
        wait::for_file(&ready);
        fs::remove_file(&ready).unwrap();
        comes_back(&daemon, id, keys, |shell| {
            shell.wait_text("[Ctrl-B] Detach");
            shell.type_keys("\r");
        });
    }
}

/// The note for a user who tries other keys than the one that detaches.
const WAY_OUT: &str = "bgctl: Ctrl-B detaches; the task keeps running\n";

#[track_caller]
fn count_shown(shell: &Terminal, text: &str) -> usize {
    String::from_utf8_lossy(&shell.shown()).matches(text.trim_end()).count()
}

/// A running task, and a shell in which `bgctl attach` was typed with these options.
#[track_caller]
fn attached(daemon: &TestDaemon, submit: &[&str], options: &str) -> (TaskId, Terminal) {
    let id: TaskId = daemon.run(&[&["submit"], submit].concat()).success().word();
    daemon.wait_running(id);
    let mut shell = Terminal::shell(daemon);
    shell.type_line(&format!("bgctl attach {options}{}", id.short()));
    (id, shell)
}

#[test]
fn attach_names_detach_key_after_repeated_attempts_to_leave() {
    let daemon = TestDaemon::start();
    let line = "stty raw opost -echo; echo up; head -c 8 | od -An -tx1; cat >/dev/null";
    let (id, mut shell) = attached(&daemon, &["--pty", "--shell", line], "");
    shell.wait_text("up\n");
    shell.type_keys("\x03\x04");
    shell.type_keys("\x1a");
    shell.wait_text(WAY_OUT);
    // The run of such keys continues: no second note until another key was typed.
    shell.type_keys("\x03q\x1c\x1c\x1c");
    shell.wait_text("\n 03 04 1a 03 71 1c 1c 1c\n");
    shell.wait("both notes", |screen| screen.contents().matches(WAY_OUT.trim_end()).count() == 2);
    shell.type_keys("\x02");
    shell.wait_prompt();
    assert_eq!(count_shown(&shell, WAY_OUT), 2, "{shell:?}");
    assert_eq!(daemon.task(id).status, Status::Running);
}

#[test]
fn attach_names_detach_key_for_task_without_terminal() {
    let daemon = TestDaemon::start();
    let (_, mut shell) = attached(&daemon, &["--shell", "echo up; exec sleep 1000"], "--key ctrl-] ");
    shell.wait_text("\n[Ctrl-]] Detach (the task keeps running)\nup\n");
    shell.type_keys("\x04\x04");
    shell.type_keys("\x04\x04");
    shell.wait_text("\nbgctl: Ctrl-] detaches; the task keeps running\n");
    shell.type_keys("\x1d");
    shell.wait_prompt();
    assert_eq!(count_shown(&shell, "Ctrl-] detaches"), 1, "{shell:?}");
}

#[test]
fn full_screen_program_is_redrawn_after_detach_note() {
    let daemon = TestDaemon::start();
    fs::write(daemon.home().join("text"), "one\ntwo\nthree\n").unwrap();
    let still = "stty raw -echo; printf '\\033[?1049h\\033[H\\033[2J'; cat text; exec cat >/dev/null";
    // The next key removes the note, which otherwise disappears by itself.
    for next in ["", "x"] {
        let (id, mut shell) = attached(&daemon, &["--pty", "--shell", still], "");
        shell.wait_alternate(true);
        shell.wait_text("three\n");
        let before = shell.screen();
        shell.type_keys("\x03\x03\x03");
        // On a busy machine, it may be gone from the screen before it is looked for there.
        shell.wait_shown("the note", |shown| String::from_utf8_lossy(shown).contains(WAY_OUT.trim_end()));
        shell.type_keys(next);
        shell.wait("the program alone", |screen| {
            screen.alternate_screen() && !screen.contents().contains("bgctl:")
        });
        shell.wait_text("three\n");
        assert_eq!(shell.screen(), before);
        assert_eq!(count_shown(&shell, WAY_OUT), 1, "{shell:?}");
        shell.type_keys("\x02");
        shell.wait_alternate(false);
        shell.wait_prompt();
        assert_eq!(daemon.task(id).status, Status::Running);
        daemon.cancel(&[id]);
    }
}

/// A task submitted with these options, and a shell in which its attachment was stopped.
#[track_caller]
fn stopped(daemon: &TestDaemon, options: &[&str]) -> (TaskId, Terminal) {
    let submit = [options, &["--shell", "echo up; exec sleep 1000"]].concat();
    let (id, mut shell) = attached(daemon, &submit, "");
    shell.wait_text("up\n");
    shell.type_keys("\x1a");
    shell.wait_text("Stopped");
    shell.wait_prompt();
    (id, shell)
}

#[test]
fn resumed_attach_repeats_detach_hint() {
    let daemon = TestDaemon::start();
    for options in [&["--pty"][..], &[]] {
        let (id, mut shell) = stopped(&daemon, options);
        shell.clear();
        shell.type_line("fg");
        shell.wait_text("\n[Ctrl-B] Detach (the task keeps running)\n");
        shell.type_keys("\x02");
        shell.wait_prompt();
        assert_eq!(count_shown(&shell, "] Detach"), 2, "{shell:?}");
        daemon.cancel(&[id]);
    }
}

#[test]
fn detach_hint_is_above_the_drawn_screen() {
    let daemon = TestDaemon::start();
    // A line, a prompt, and more lines than fit, of which the first visible one gives way to the hint.
    for (writes, last, drawn, then) in [
        ("echo up", "up", "up\n", "\nup\nword\ngot word\n"),
        ("printf name:", "name:", "name:\n", "\nname:word\ngot word\n"),
        ("seq 100", "100", "79\n80\n", "\n99\n100\nword\ngot word\n"),
    ] {
        let line = format!("{writes}; read x; echo got $x; read x");
        let id: TaskId = daemon.run(&["submit", "--pty", "--shell", &line]).success().word();
        daemon.wait_output(id, last);
        let mut terminal = Terminal::bgctl(&daemon, &["attach", &id.to_string()]);
        terminal.wait_text(&format!("[Ctrl-B] Detach (the task keeps running)\n{drawn}"));
        terminal.type_keys("word\r");
        terminal.wait_text(then);
        assert_eq!(count_shown(&terminal, "] Detach"), 1, "{terminal:?}");
        terminal.type_keys("\x02");
        assert!(terminal.ended().success(), "{terminal:?}");
        daemon.cancel(&[id]);
    }
}

#[test]
fn detach_hint_covers_no_text_on_a_narrow_terminal() {
    let daemon = TestDaemon::start();
    let line = "echo one; echo two; exec sleep 1000";
    let id: TaskId = daemon.run(&["submit", "--pty", "--shell", line]).success().word();
    daemon.wait_output(id, "two");
    let mut terminal = Terminal::sized(&daemon.bgctl(&["attach", &id.to_string()]), (24, 20));
    terminal.wait("the hint above the text", |screen| {
        let shown = screen.contents();
        let lines: Vec<&str> = shown.lines().map(str::trim_end).take(3).collect();
        matches!(lines[..], [hint, "one", "two"] if hint.starts_with("[Ctrl-B] Detach"))
    });
    terminal.type_keys("\x02");
    assert!(terminal.ended().success(), "{terminal:?}");
    daemon.cancel(&[id]);
}

#[test]
fn stopped_attach_can_be_killed() {
    let daemon = TestDaemon::start();
    for options in [&["--pty"][..], &[]] {
        let (id, mut shell) = stopped(&daemon, options);
        assert_eq!(shell.run_line("jobs -p > pid"), 0);
        let pid = fs::read_to_string(daemon.home().join("pid")).unwrap().trim().parse().unwrap();
        let attachment = Process::open(pid).expect("it is stopped");
        // The shell sends SIGCONT right after the signal, so that both are pending at once.
        assert_eq!(shell.run_line("kill %1"), 0);
        attachment.gone();
        assert_eq!(daemon.task(id).status, Status::Running);
        daemon.cancel(&[id]);
    }
}

#[test]
fn r108_attach_shows_next_attempt_when_it_begins() {
    let daemon = TestDaemon::start();
    let first = "printf '\\033[?1049h\\033[H\\033[2Jfull'; read x; exit 3";
    let line =
        format!("[ $BGD_ATTEMPT = 2 ] || {{ {first}; }}; stty -echo; echo second; read y; echo got $y");
    for again in [&["--retry", "1", "--retry-delay", "1ms"][..], &["--restart", "on-failure"]] {
        let (id, mut shell) = attached(&daemon, &[again, &["--pty", "--shell", &line]].concat(), "");
        shell.wait_alternate(true);
        shell.wait_text("full");
        shell.type_keys("\r");
        shell.wait_alternate(false);
        let note = "bgctl: attempt 1 has ended; the next one is shown here when it begins";
        shell.wait_shown("the end", |shown| String::from_utf8_lossy(shown).contains(note));
        // Output from before the attach is drawn in place of the note.
        shell.wait("the next attempt", |screen| screen.contents().lines().any(|line| line == "second"));
        shell.type_keys("word\r");
        shell.wait_text("\ngot word\n");
        shell.wait_prompt();
        assert_eq!((shell.run_line("(exit $?)"), daemon.task(id).attempt), (0, Some(2)));
    }
}

#[test]
fn pasted_text_arrives_at_daemon_that_accepts_only_short_lines() {
    let daemon = TestDaemon::builder().config("limits.frame_bytes = 4096\n").start();
    let line = "stty raw -echo; echo ready; count=$(head -c 9000 | wc -c); stty sane; echo got $count";
    let id = daemon.run(&["submit", "--pty", "--shell", line]).success().word();
    daemon.wait_running(id);
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl attach {}", id.short()));
    shell.wait_text("ready");
    shell.type_keys("x".repeat(9000));
    shell.wait_text("got 9000");
    shell.wait_prompt();
}

#[test]
fn input_typed_before_detach_key_reaches_task() {
    let daemon = TestDaemon::start();
    let line = "stty -echo; echo up; read x; echo \"got $x\"";
    let (id, mut shell) = attached(&daemon, &["--pty", "--shell", line], "");
    shell.wait_text("up\n");
    shell.type_keys("word\r\x02");
    shell.wait_prompt();
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert!(daemon.output(id).ends_with(b"got word\r\n"));
}

/// The daemon accepts the first part only once the task reads, for which nobody waits.
#[test]
fn detach_does_not_wait_for_task_to_read_input() {
    let daemon = TestDaemon::start();
    let gate = gate(&daemon);
    let (id, mut shell) = attached(&daemon, &["--pty", "--shell", READS_LATE], "");
    shell.wait_text("up\n");
    shell.type_keys(format!("{}end\x02", "x".repeat(10_000)));
    shell.wait_prompt();
    wait::for_reader(&gate, "go\n");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert!(daemon.output(id).ends_with(b"xxend\r\n"));
}
