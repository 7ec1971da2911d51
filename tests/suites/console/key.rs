//! The background key: which job it moves, and which it leaves alone.

use std::io::Write as _;

use bgd_shared::event::EventKind;
use bgd_shared::task::Status;
use bgd_tests::{Terminal, TestDaemon, wait};

use super::{at_prompt, console, fifo, moved, run_line, task_of};
use crate::no_answer::Stopped;

#[test]
fn r60_key_hint_is_shown_while_backgroundable_job_runs() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    assert!(!console.screen().contains("Ctrl-B"), "nothing runs");
    console.type_line("read x; echo got $x");
    console.wait_text("[Ctrl-B] Background");
    console.type_line("it");
    console.wait_text("\ngot it\n");
    at_prompt(&mut console);
    run_line(&mut console, "!echo direct");
    assert!(!console.screen().contains("Ctrl-B"), "{console:?}");
    run_line(&mut console, "sleep 1000 &");
    assert!(console.screen().contains("running  sleep 1000  [Ctrl-B] Background\n"), "{console:?}");
    console.type_keys("\x04");
    assert!(console.ended().success());
}

#[test]
fn r60_configured_background_key_is_shown_and_works() {
    let daemon = TestDaemon::builder().config("background_key = \"ctrl-]\"").start();
    for (args, key, name) in [
        (&["console"][..], "\x1d", "Ctrl-]"),
        (&["console", "--key", "C-t"], "\x14", "Ctrl-T"),
        (&["console", "--key", "C-z"], "\x1a", "Ctrl-Z"),
    ] {
        let mut console = Terminal::bgctl(&daemon, args);
        at_prompt(&mut console);
        console.type_line("sleep 1000");
        console.wait_text(&format!("[{name}] Background"));
        console.type_keys(key);
        console.wait_text("manually backgrounded by user");
        at_prompt(&mut console);
        daemon.cancel(&moved(&console));
        console.type_line("sleep 1001 &");
        console.wait_text(&format!("sleep 1001  [{name}] Background"));
        let id = task_of(&daemon, "sleep 1001").id;
        console.type_keys(key);
        console.wait_text(&format!("manually backgrounded by user with ID {id}"));
        daemon.cancel(&[id]);
        // The next console has a task of the same name.
        daemon.run(&["clear", "--all-sessions"]).success();
    }
}

#[test]
fn r60_key_that_terminal_turns_into_signal_before_prompt_reads_keys_works() {
    let daemon = TestDaemon::start();
    for (key, byte) in [("ctrl-z", "\x1a"), ("ctrl-\\", "\x1c")] {
        let mut console = Terminal::bgctl(&daemon, &["console", "--key", key]);
        at_prompt(&mut console);
        run_line(&mut console, "sleep 1000 &");
        // As before the prompt has prepared the terminal, when the hint is shown already.
        console.let_keys_signal();
        console.type_keys(byte);
        console.wait_text("manually backgrounded by user");
        at_prompt(&mut console);
        daemon.cancel(&moved(&console));
    }
}

#[test]
fn r61_key_that_is_a_signal_while_its_command_is_submitted_works() {
    let daemon = TestDaemon::start();
    for (key, byte, line) in [
        ("ctrl-z", "\x1a", "sleep 1000"),
        ("ctrl-\\", "\x1c", "sleep 1001"),
        ("ctrl-z", "\x1a", "sleep 1002 &"),
    ] {
        let mut console = Terminal::bgctl(&daemon, &["console", "--key", key]);
        at_prompt(&mut console);
        let stopped = Stopped::now(&daemon);
        console.type_line(line);
        wait::poll_until("the line was taken", || console.is_sane().then_some(()));
        console.type_keys(byte);
        console.wait_text("^");
        drop(stopped);
        console.wait_text("manually backgrounded by user");
        at_prompt(&mut console);
        let task = task_of(&daemon, line.trim_end_matches(" &"));
        assert_eq!((moved(&console), task.foreground), (vec![task.id], false), "{console:?}");
        daemon.cancel(&[task.id]);
    }
}

#[test]
fn r61_background_key_returns_to_prompt_and_prints_task_id() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_line("printf half; exec sleep 1000");
    console.wait_text("\nhalf");
    let before = task_of(&daemon, "printf half; exec sleep 1000");
    assert!(before.foreground);
    console.type_keys("\x02");
    console.wait_text("ID ");
    at_prompt(&mut console);
    let sentence = format!("\nhalf\nCommand was manually backgrounded by user with ID {}\n~> ", before.id);
    assert!(console.screen().ends_with(sentence.trim_end()), "{console:?}");
    // R62: the same process, now as a background task.
    let task = daemon.task(before.id);
    assert_eq!((task.status, task.foreground, task.pid), (Status::Running, false, before.pid));
    run_line(&mut console, "jobs");
    let line = format!("     {}  running     printf half; exec sleep 1000", task.id.short());
    assert!(console.screen().contains(&line), "{console:?}");
    daemon.cancel(&[task.id]);
}

#[test]
fn r62_backgrounded_job_neither_loses_nor_repeats_output() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    let mut fifo = fifo(&daemon);
    console.type_line("head -n 4 fifo");
    fifo.write_all(b"one\ntwo\n").unwrap();
    console.wait_text("\ntwo");
    console.type_keys("\x02");
    console.wait_text("manually backgrounded by user");
    at_prompt(&mut console);
    fifo.write_all(b"three\nfour\n").unwrap();
    let task = task_of(&daemon, "head -n 4 fifo");
    console.wait_text(&format!("[BACKGROUND TASK COMPLETED] {} in ", task.id.short()));
    assert_eq!(daemon.output(task.id), b"one\r\ntwo\r\nthree\r\nfour\r\n");
    assert!(!console.screen().contains("three"), "{console:?}");
}

#[test]
fn r63_background_key_moves_latest_eligible_job() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    for line in ["sleep 1001 &", "sleep 1002 &", "!sleep 1003 &"] {
        run_line(&mut console, line);
    }
    let ids = ["sleep 1001", "sleep 1002"].map(|line| task_of(&daemon, line).id);
    console.type_keys("\x02");
    console.wait_text(&format!("manually backgrounded by user with ID {}", ids[1]));
    assert_eq!(moved(&console), [ids[1]]);
    // This holds even while a job that cannot be moved has the terminal.
    console.type_line("!printf up; read x; echo $x");
    console.wait_text("\nup");
    console.type_keys("\x02");
    console.type_line("still here");
    console.wait_text("\nstill here\n");
    console.wait_text(&format!("manually backgrounded by user with ID {}", ids[0]));
    at_prompt(&mut console);
    assert!(ids.iter().all(|id| !daemon.task(*id).foreground));
    assert!(task_of(&daemon, "sleep 1003").foreground);
    daemon.cancel(&ids);
}

#[test]
fn r64_direct_job_receives_background_key_and_is_not_moved() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_line("!stty -echo; echo up; exec cat -v");
    console.wait_text("\nup");
    console.type_keys("a\x02b\r");
    console.wait_text("\na^Bb");
    assert!(task_of(&daemon, "stty -echo; echo up; exec cat -v").foreground);
    console.type_keys("\x04");
    at_prompt(&mut console);
    run_line(&mut console, "!sleep 1000 &");
    console.type_keys("\x02");
    run_line(&mut console, "jobs");
    assert!(console.screen().contains("foreground  sleep 1000"), "{console:?}");
    assert!(moved(&console).is_empty());
}

#[test]
fn r65_background_key_does_nothing_without_foreground_job() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    // In other programs the key would move the cursor.
    console.type_keys("echo ab\x02\x02c\r");
    console.wait_text("\nabc\n");
    at_prompt(&mut console);
    assert_eq!(console.screen(), "~> echo abc\n[Ctrl-B] Background\nabc\n~>");
}

#[test]
fn r66_job_finishing_during_key_press_is_either_finished_or_moved() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let mut console = console(&daemon);
    for round in 0..20 {
        let line = format!("read x; exit {}", 100 + round);
        run_line(&mut console, "# a clear screen");
        console.type_line(&line);
        console.wait_text("[Ctrl-B] Background");
        console.type_keys("\r\x02");
        console.wait("an end", |screen| {
            let shown = screen.contents();
            shown.contains("[failed (") || shown.contains("backgrounded by user")
        });
        at_prompt(&mut console);
        let id = task_of(&daemon, &line).id;
        let mut was_moved = false;
        watch.until(|event| {
            was_moved |= event.task.id == id && event.kind == EventKind::Backgrounded;
            event.task.id == id && event.kind.is_terminal()
        });
        assert_eq!(moved(&console), if was_moved { vec![id] } else { vec![] }, "{console:?}");
        if was_moved {
            console.wait_text("[BACKGROUND TASK FAILED]");
        } else {
            assert!(console.screen().contains(&format!("[failed ({})]", 100 + round)), "{console:?}");
        }
    }
}

#[test]
fn r67_repeated_key_presses_move_one_job() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_line("echo up; exec sleep 1000");
    console.wait_text("\nup");
    console.type_keys([0x02; 20]);
    console.wait_text("manually backgrounded by user");
    at_prompt(&mut console);
    run_line(&mut console, "echo ok");
    assert_eq!(console.screen(), "~> echo ok\n[Ctrl-B] Background\nok\n~>");
    let task = task_of(&daemon, "echo up; exec sleep 1000");
    assert!(!task.foreground);
    daemon.cancel(&[task.id]);
}

#[test]
fn r61_fg_right_after_key_finds_job_in_background() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    run_line(&mut console, "sleep 1001 &");
    // Both in one write, so that the line is read before the answer to the key.
    console.type_keys("\x02fg\r");
    console.wait_text("no jobs next to the prompt");
    at_prompt(&mut console);
    let task = task_of(&daemon, "sleep 1001");
    assert_eq!(moved(&console), [task.id], "{console:?}");
    daemon.cancel(&[task.id]);
}
