//! The channel `tty` shows the most important first, and nothing that the terminal shows anyway; it keeps long
//! lines that are being edited.

use std::fs;

use bgd_tests::agents::nushell;
use bgd_tests::prompts::fake_agent;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{ClearParams, SubmitParams, TaskClear};
use bgd_tests::{Terminal, TestDaemon, Tmux, wait};

use super::channel_tty::{
    BASH, DELIVERED, DONE, FAILED, FISH, Gate, HELD, ZSH, after, at_home, occupy, open, open_sized, origin,
    params_from, rows, start, submit_from, wait_typed,
};

/// The log message about a notice that is omitted.
const SEEN: &str = "a notice is seen without the channel";

#[track_caller]
fn seen(daemon: &TestDaemon, count: u64) {
    wait::for_lines(&daemon.state_dir().join("bgd.log"), count, SEEN);
}

#[test]
fn outcome_is_shown_before_long_description() {
    let daemon = start();
    for columns in [80, 120] {
        let mut terminal = open_sized(&daemon, &BASH, columns);
        let description = format!("first words {} last words", "x".repeat(300));
        let params = params_from(&daemon, &origin(&terminal), "exit 3");
        let id = daemon.submit_with(&SubmitParams { description: Some(description), ..params }).id;
        terminal.wait_text(&format!("[BACKGROUND TASK FAILED] {} exited with code 3, after ", id.short()));
        terminal.wait_line("$");
        let screen = terminal.screen();
        let line = screen.lines().next().unwrap();
        assert!(line.contains(": \"firs") && line.contains('…') && line.contains("rds\""), "{line}");
        assert_eq!(line.contains(&format!("(bgctl output {})", id.short())), columns == 120, "{line}");
    }
}

#[test]
fn outcomes_seen_in_terminal_are_not_notified_there() {
    let daemon = start();
    let gate = Gate::new(&daemon, "gate");
    let mut terminal = open(&daemon, &BASH);
    terminal.run_line("id=$(bgctl submit -- sleep 1000); bgctl cancel $id");
    seen(&daemon, 1);
    terminal.run_line("bgctl block $(bgctl submit -- true)");
    terminal.run_line("bgctl clear --all $(bgctl submit -- sleep 1000)");
    seen(&daemon, 2);
    terminal.type_line("bgctl attach $(bgctl submit --shell 'echo u\"\"p; read x < gate')");
    terminal.wait_text("\nup\n");
    gate.open();
    terminal.wait_line("$");
    seen(&daemon, 3);
    let shown = |terminal: &Terminal| String::from_utf8_lossy(&terminal.shown()).into_owned();
    // A block may begin too late for the end of its task.
    let notices = shown(&terminal).matches("[BACKGROUND").count();
    assert!(notices <= 1 && !shown(&terminal).contains("CANCELLED"), "{terminal:?}");
    // A cancel from elsewhere is not visible in this terminal.
    let id = submit_from(&daemon, &origin(&terminal), "exec sleep 1000");
    daemon.wait_running(id);
    daemon.cancel(&[id]);
    terminal.wait_text("[BACKGROUND TASK CANCELLED] ");
}

#[test]
fn held_notice_of_task_that_is_then_waited_for_or_cleared_is_not_shown() {
    for verb in ["block $id", "output --follow $id", "clear $id", "session end ."] {
        let daemon = start();
        let gate = Gate::new(&daemon, "gate");
        let mut terminal = open(&daemon, &BASH);
        terminal.type_line(&format!("id=$(bgctl submit -- true); cat gate; bgctl {verb}; echo do''ne"));
        after(&daemon, 1, HELD);
        gate.open();
        terminal.wait_text("\ndone\n");
        terminal.wait_line("$");
        after(&daemon, 1, DELIVERED);
        // Lines are shown in their order.
        submit_from(&daemon, &origin(&terminal), "exit 3");
        terminal.wait_text("[BACKGROUND TASK FAILED] ");
        assert!(!String::from_utf8_lossy(&terminal.shown()).contains(DONE), "{verb}: {terminal:?}");
    }
}

const ASKS: &str = "[BACKGROUND TASK NEEDS INPUT] ";

/// Returns a daemon with a terminal that waits for a task whose agent asks something there.
#[track_caller]
fn waiting_for_asking_agent() -> (TestDaemon, Terminal, TaskId) {
    let config = fake_agent(&[], "permissions = \"ask\"");
    let daemon = TestDaemon::builder().config(config).env("BGD_LOG", "debug").start();
    let mut terminal = open(&daemon, &BASH);
    let base = params_from(&daemon, &origin(&terminal), "");
    let params = SubmitParams {
        channel: base.channel,
        session: base.session,
        terminal: base.terminal,
        ..daemon.prompt_params("await go; ask Run make?")
    };
    let id = daemon.submit_with(&params).id;
    terminal.type_line(&format!("bgctl block {id}"));
    terminal.wait_text("await go");
    daemon.touch("go");
    terminal.wait_text(&format!("asks (bgctl answer {}): ", id.short()));
    after(&daemon, 1, HELD);
    (daemon, terminal, id)
}

#[test]
fn r51_question_is_reported_in_terminal_whose_wait_is_left() {
    let (daemon, mut terminal, id) = waiting_for_asking_agent();
    terminal.type_keys("\x03");
    terminal.wait_text(ASKS);
    daemon.run(&["answer", &id.to_string(), "allow"]).success();
    daemon.block(&[id]);
}

#[test]
fn r51_question_of_ended_run_is_not_reported() {
    let (daemon, mut terminal, id) = waiting_for_asking_agent();
    daemon.run(&["answer", &id.to_string(), "allow"]).success();
    terminal.wait_text("completed");
    after(&daemon, 1, DELIVERED);
    submit_from(&daemon, &origin(&terminal), "exit 3");
    terminal.wait_text("[BACKGROUND TASK FAILED] ");
    assert!(!String::from_utf8_lossy(&terminal.shown()).contains(ASKS), "{terminal:?}");
}

#[test]
fn r51_question_held_by_removed_channel_is_not_reported_after_its_run() {
    let agent = fake_agent(&[], "permissions = \"ask\"");
    let config = format!("[channels.mine]\ntype = \"tty\"\n{agent}");
    let daemon = TestDaemon::builder().config(config).env("BGD_LOG", "debug").start();
    let mut terminal = open(&daemon, &BASH);
    occupy(&mut terminal);
    let log = daemon.state_dir().join("bgd.log");
    let done =
        SubmitParams { channel: Some("mine".into()), ..params_from(&daemon, &origin(&terminal), "true") };
    let asks = SubmitParams {
        channel: done.channel.clone(),
        session: done.session.clone(),
        terminal: done.terminal.clone(),
        ..daemon.prompt_params("ask Run make?")
    };
    let id = daemon.submit_with(&asks).id;
    wait::for_lines(&log, 1, HELD);
    daemon.submit_with(&done);
    wait::for_lines(&log, 2, HELD);

    daemon.write_config(&agent);
    daemon.run(&["daemon", "reload"]).success();
    daemon.cancel(&[id]);
    daemon.block(&[id]);

    terminal.type_keys("\x04");
    // Held lines are shown together.
    terminal.wait_text(DONE);
    terminal.wait_line("$");
    assert!(!String::from_utf8_lossy(&terminal.shown()).contains(ASKS), "{terminal:?}");
}

#[test]
fn r51_missed_notice_survives_reload_of_its_channel() {
    let daemon = start();
    let gate = Gate::new(&daemon, "gate");
    let mut closed = open(&daemon, &BASH);
    submit_from(&daemon, &origin(&closed), "read x <gate");
    closed.close();
    gate.open();
    after(&daemon, 1, FAILED);
    daemon.write_config("[channels.tty]\ntype = \"tty\"\nstarted = true\n");
    daemon.run(&["daemon", "reload"]).success();
    let mut next = open(&daemon, &BASH);
    next.type_line("bgctl list -q >/dev/null; echo u''p; cat");
    next.wait_text("\nup\n");
    next.type_keys("\x04");
    next.wait_text(DONE);
}

#[test]
fn r51_missed_notice_of_channel_that_is_no_terminal_any_more_goes_to_another() {
    for config in ["", "[channels.mine]\ntype = \"inbox\"\n"] {
        let before = "[channels.mine]\ntype = \"tty\"\n";
        let daemon = TestDaemon::builder().config(before).env("BGD_LOG", "debug").start();
        let gate = Gate::new(&daemon, "gate");
        let mut closed = open(&daemon, &BASH);
        let params = params_from(&daemon, &origin(&closed), "read x <gate");
        daemon.submit_with(&SubmitParams { channel: Some("mine".into()), ..params });
        closed.close();
        gate.open();
        let log = daemon.state_dir().join("bgd.log");
        wait::for_lines(&log, 1, FAILED);
        daemon.write_config(config);
        daemon.run(&["daemon", "reload"]).success();
        wait::for_lines(&log, 1, "missed notices of another channel are taken over");
        let mut next = open(&daemon, &BASH);
        next.type_line("bgctl list -q >/dev/null; echo list''ed");
        next.wait_text("\nlisted\n");
        next.wait_text(DONE);
        next.wait_line("$");
        next.run_line("bgctl list -q >/dev/null");
        let shown = String::from_utf8_lossy(&next.shown()).into_owned();
        assert_eq!(shown.matches("[BACKGROUND").count(), 1, "once: {shown:?}");
    }
}

#[test]
fn notice_of_cleared_task_does_not_suggest_reading_output() {
    let daemon = TestDaemon::builder().env("BGD_LOG", "debug").start();
    let mut terminal = open(&daemon, &BASH);
    let id = submit_from(&daemon, &origin(&terminal), "exec sleep 1000");
    daemon.wait_running(id);
    let clear = ClearParams { ids: Some(vec![id.into()]), all: true, ..ClearParams::default() };
    daemon.client().call::<TaskClear>(&clear).unwrap();
    terminal.wait_text("[BACKGROUND TASK CANCELLED] ");
    after(&daemon, 1, DELIVERED);
    terminal.wait_line("$");
    assert!(!terminal.screen().contains("bgctl output") && !terminal.screen().contains(DONE), "{terminal:?}");
}

#[test]
fn daemon_stop_notifies_its_terminal_without_suggesting_output() {
    let mut daemon = start();
    let mut terminal = open(&daemon, &BASH);
    terminal.type_line("bgctl submit -d 'the job' -- sleep 1000; bgctl daemon stop");
    terminal.wait_text("stopped; 1 task was cancelled\n$");
    terminal.wait_text("[BACKGROUND TASK CANCELLED] ");
    assert!(daemon.ended().success());
    terminal.wait_line("$");
    assert!(!terminal.screen().contains("(bgctl output"), "{terminal:?}");
}

#[test]
fn held_notice_of_cleared_task_does_not_suggest_reading_output() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    occupy(&mut terminal);
    let id = submit_from(&daemon, &origin(&terminal), "exit 3");
    after(&daemon, 1, HELD);
    daemon
        .client()
        .call::<TaskClear>(&ClearParams { ids: Some(vec![id.into()]), ..ClearParams::default() })
        .unwrap();
    // The line about another task, which still exists, says what can be done about it.
    let other = submit_from(&daemon, &origin(&terminal), "exit 3");
    after(&daemon, 2, HELD);
    terminal.type_keys("\x04");
    terminal.wait_text(&format!("(bgctl output {})", other.short()));
    terminal.wait_text(&format!("[BACKGROUND TASK FAILED] {} ", id.short()));
    terminal.wait_line("$");
    assert!(!terminal.screen().contains(&format!("output {}", id.short())), "{terminal:?}");
}

#[test]
fn notices_missed_by_closed_terminals_go_to_next_terminal() {
    let daemon = start();
    let gate = Gate::new(&daemon, "gate");
    let (mut held, mut closed) = (open(&daemon, &BASH), open(&daemon, &BASH));
    occupy(&mut held);
    submit_from(&daemon, &origin(&held), "exit 3");
    after(&daemon, 1, HELD);
    submit_from(&daemon, &origin(&closed), "read x <gate");
    held.close();
    closed.close();
    gate.open();
    after(&daemon, 2, FAILED);
    let mut next = open(&daemon, &BASH);
    next.type_line("bgctl list -q >/dev/null; echo list''ed");
    next.wait_text("\nlisted\n");
    next.wait_text("[BACKGROUND TASK FAILED] ");
    next.wait_text(DONE);
    next.wait_line("$");
    next.run_line("bgctl list -q >/dev/null");
    let shown = String::from_utf8_lossy(&next.shown()).into_owned();
    assert_eq!(shown.matches("[BACKGROUND").count(), 2, "once: {shown:?}");
}

#[test]
fn notice_goes_above_idle_prompt_or_to_top_while_typing() {
    for shell in [BASH, ZSH, FISH] {
        let daemon = start();
        let gates = ["first", "second"].map(|name| Gate::new(&daemon, name));
        let mut terminal = open_sized(&daemon, &shell, 40);
        for name in ["first", "second"] {
            terminal.type_line(&format!("clear; bgctl submit --shell 'read x <{name}' | cut -c 1-8"));
            terminal.wait(
                "the id and the prompt",
                |screen| matches!(&rows(screen)[..], [id, prompt] if id.len() == 8 && prompt == "$"),
            );
        }
        terminal.type_line("seq 30");
        terminal.wait_text("\n30\n$");
        gates[0].open();
        terminal.wait("the line above the prompt", |screen| {
            let rows = rows(screen);
            rows.len() > 3 && rows[rows.len() - 2].contains(DONE) && rows.ends_with(&["$".to_owned()])
        });
        assert!(terminal.screen().contains("\n28\n29\n30\n[BACKGROUND"), "{terminal:?}");
        let long = format!("echo {}", "abcdefg".repeat(10));
        terminal.type_keys(&long);
        wait_typed(&mut terminal, &long);
        gates[1].open();
        terminal.wait("the line at the top", |screen| rows(screen)[0].contains(DONE));
        wait_typed(&mut terminal, &long);
    }
}

/// Nushell draws its prompt in the row in which it began, with each key.
#[test]
fn r51_notice_at_prompt_of_nushell_outlasts_the_next_key() {
    let daemon = start();
    let gate = Gate::new(&daemon, "gate");
    let config = daemon.home().join("config/nushell");
    fs::create_dir_all(&config).unwrap();
    let quiet = "$env.config.show_banner = false\n$env.PROMPT_COMMAND = {|| \"nu\" }\n\
                 $env.PROMPT_COMMAND_RIGHT = {|| \"\" }\n";
    fs::write(config.join("config.nu"), quiet).unwrap();
    // It asks its terminal for the cursor position, which tmux answers.
    fs::write(daemon.home().join("tmux.conf"), "set -g status off\nset -g escape-time 0\n").unwrap();
    let tmux = Tmux::of(&daemon);
    let words = format!("exec {}", nushell().display());
    let argv = ["tmux", "-f", "tmux.conf", "-S", tmux.socket().to_str().unwrap(), "new-session", &words];
    let mut terminal = Terminal::open(at_home(&daemon, &argv).env("SHELL", "/bin/sh"));
    terminal.wait_text("nu>");
    terminal.type_line("bgctl submit --shell 'read x <gate' | str substring 0..7");
    let is_id = |row: &String| row.len() == 8;
    terminal.wait(
        "the id and the prompt",
        |screen| matches!(&rows(screen)[..], [_, id, prompt] if is_id(id) && prompt == "nu>"),
    );
    gate.open();
    terminal.wait("the line", |screen| rows(screen).first().is_some_and(|row| row.contains(DONE)));
    terminal.type_keys("abc");
    terminal.wait("the line, and what is typed", |screen| {
        matches!(&rows(screen)[..], [line, id, typed] if line.contains(DONE) && is_id(id) && typed == "nu> abc")
    });
    terminal.type_keys("\x15");
    terminal.wait_line("nu>");
    terminal.type_line("exit");
    terminal.ended();
}

/// Waits until the cursor is after this many characters of the line being edited, its prompt included. Shells redraw a
/// line that they already show: for a moment, the cursor is elsewhere.
#[track_caller]
fn wait_cursor(terminal: &mut Terminal, characters: usize) {
    terminal.wait(&format!("the cursor after {characters}"), |screen| {
        let prompt = screen.rows(0, 40).collect::<Vec<_>>().iter().rposition(|row| row.starts_with("$ "));
        let (row, column) = screen.cursor_position();
        let at = |prompt| (prompt + characters / 40, characters % 40);
        prompt.map(at) == Some((row.into(), column.into()))
    });
}

#[test]
fn r51_notice_keeps_typed_line_of_several_rows() {
    let long = format!("echo {}", "abcdefg".repeat(10));
    for shell in [BASH, ZSH, FISH] {
        for lines in [0, 8, 40] {
            // The cursor in the last row, and in the first.
            for keys in ["", "\x01"] {
                let daemon = start();
                let mut terminal = open_sized(&daemon, &shell, 40);
                if lines > 0 {
                    terminal.type_line(&format!("seq {lines}"));
                    terminal.wait_text(&format!("\n{lines}\n$"));
                }
                terminal.type_keys(&long);
                wait_typed(&mut terminal, &long);
                wait_cursor(&mut terminal, 2 + long.len());
                terminal.type_keys(keys);
                let characters = if keys.is_empty() { 2 + long.len() } else { 2 };
                wait_cursor(&mut terminal, characters);
                submit_from(&daemon, &origin(&terminal), "true");
                after(&daemon, 1, DELIVERED);
                terminal.wait("the line", |screen| screen.contents().contains("[BACKGROUND TASK COMPLETED]"));
                wait_typed(&mut terminal, &long);
                wait_cursor(&mut terminal, characters);
                // The shell finds every row of the line in its place.
                terminal.type_keys("\x01true && \x05hij");
                wait_typed(&mut terminal, &format!("true && {long}hij"));
                terminal.type_line("");
                let shown = format!("{}hij", "abcdefg".repeat(10));
                terminal.wait("its output", |screen| {
                    rows(screen).ends_with(&[shown[..40].to_owned(), shown[40..].to_owned(), "$".to_owned()])
                });
            }
        }
    }
}
