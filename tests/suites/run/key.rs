//! Ctrl-B: the prompt is back, the job continues.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_shared::task::{Exit, Status};
use bgd_tests::{Process, Terminal, TestDaemon, wait};
use rustix::process::Signal;

use super::{READS_LATE, gate, holds};
use crate::no_answer::Stopped;

/// Returns the id in the sentence of R61, which is alone on its line.
#[track_caller]
fn backgrounded(screen: &str) -> TaskId {
    let line = screen.lines().find(|line| line.contains("backgrounded"));
    let line = line.unwrap_or_else(|| panic!("no sentence on\n{screen}"));
    let id = line.strip_prefix("Command was manually backgrounded by user with ID ");
    id.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap()
}

#[test]
fn r61_background_key_returns_prompt_and_keeps_job_running() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell 'printf half; exec sleep 1000'");
    shell.wait_line("half");
    let before = daemon.task(daemon.run(&["list", "-q"]).success().word());
    shell.type_keys("\x02");
    shell.wait_prompt();
    let id = backgrounded(&shell.screen());
    assert!(
        shell
            .screen()
            .ends_with(&format!("\nhalf\nCommand was manually backgrounded by user with ID {id}\n$"))
    );
    shell.type_line("echo \"<$?>\"");
    assert_eq!(shell.wait_code(), 0);
    // R62: it is the same process.
    let task = daemon.task(id);
    assert_eq!((task.status, task.foreground, task.pid), (Status::Running, false, before.pid));
    assert!(Process::open(task.pid.unwrap()).unwrap().is_alive());
    assert!(daemon.run(&["list"]).success().stdout_text().contains("sleep 1000"));
    daemon.cancel(&[id]);
}

#[test]
fn r62_backgrounding_neither_loses_nor_repeats_output() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run -- seq 3000000");
    let number = |line: &str| line.parse::<u32>().is_ok_and(|number| number > 1000);
    shell.wait("some lines", |screen| screen.contents().lines().any(number));
    shell.type_keys("\x02");
    shell.wait_text("backgrounded by user");
    shell.wait_prompt();
    let id = backgrounded(&shell.screen());
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    let output = String::from_utf8(daemon.output(id)).unwrap();
    let expected = (1..=3_000_000).fold(String::new(), |text, number| text + &number.to_string() + "\r\n");
    assert!(output == expected, "{} of {} bytes", output.len(), expected.len());
}

#[test]
fn r61_key_that_is_a_signal_while_the_job_is_submitted_works() {
    let daemon = TestDaemon::start();
    for (key, byte) in [("ctrl-z", "\x1a"), ("ctrl-\\", "\x1c")] {
        let stopped = Stopped::now(&daemon);
        let mut run = Terminal::bgctl(&daemon, &["run", "--key", key, "--", "sleep", "1000"]);
        let process = run.process();
        wait::poll_until("the request", || holds(&process, Signal::TSTP));
        run.type_keys(byte);
        run.wait_text("^");
        drop(stopped);
        run.wait_text("manually backgrounded by user");
        let id = backgrounded(&run.screen());
        assert_eq!((run.ended().code(), daemon.task(id).status), (Some(0), Status::Running));
        daemon.cancel(&[id]);
    }
}

#[test]
fn r64_direct_job_receives_background_key() {
    let daemon = TestDaemon::start();
    let mut terminal =
        Terminal::bgctl(&daemon, &["run", "--direct", "--shell", "stty -echo; echo up; exec cat -v"]);
    terminal.wait_text("up");
    terminal.type_keys("a\x02b\r");
    terminal.wait_text("a^Bb");
    terminal.type_keys("\x04");
    assert!(terminal.ended().success());
    assert!(!terminal.screen().contains("Ctrl-B"));
}

#[test]
fn r66_job_ending_at_key_press_is_either_finished_or_moved() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    for round in 0..40 {
        shell.type_line(&format!(
            "bgctl run --shell 'printf up; read x; exit 7' && echo moved {round} || echo code {round} $?"
        ));
        shell.wait_line("up");
        // The job ends a moment before or after the key.
        shell.type_keys(if round % 2 == 0 { "\r\x02" } else { "\x02\r" });
        let (was_moved, ended) = (format!("\nmoved {round}"), format!("\ncode {round} 7"));
        shell.wait("an end", |screen| {
            let text = screen.contents();
            text.contains(&was_moved) || text.contains(&ended)
        });
        shell.wait("the prompt", |screen| screen.contents().trim_end().ends_with("\n$"));
        let screen = shell.screen();
        if screen.contains(&was_moved) {
            let id = backgrounded(&screen);
            let task = daemon.task(id);
            if task.status.is_active() {
                daemon.cancel(&[id]);
            } else {
                assert_eq!(task.exit, Some(Exit::Code(7)));
            }
        } else {
            assert!(!screen.contains("backgrounded"), "{screen}");
        }
        shell.clear();
    }
    assert_eq!(daemon.status().summary.total(), 40, "each ran once");
}

#[test]
fn r67_burst_of_key_presses_backgrounds_once() {
    let daemon = TestDaemon::start();
    for round in 0..20 {
        let command =
            "trap '' HUP; bgctl run --shell 'echo up; exec sleep 1000'; stty -echo; echo next; exec cat -v";
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", command]).env_clear().current_dir(daemon.home());
        let bgctl = daemon.bgctl(&[]);
        bash.envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
        bash.env("PATH", format!("{}:/usr/bin:/bin", bgd_tests::bgctl_path().parent().unwrap().display()));
        let mut terminal = Terminal::open(&bash);
        terminal.wait_text("up");
        // Together, or one by one.
        let presses = "\x02".repeat(20);
        if round % 2 == 0 {
            terminal.type_keys(&presses);
        } else {
            presses.chars().for_each(|key| terminal.type_keys(key.to_string()));
        }
        terminal.wait_text("next\n");
        terminal.type_line("end");
        terminal.wait_text("end");
        let screen = terminal.screen();
        // Presses after the end of bgctl reach the shell, as any key does. There are none in this case.
        assert_eq!(screen.matches("backgrounded").count(), 1, "{screen}");
        if round % 2 == 0 {
            assert!(screen.ends_with("\nnext\nend"), "{screen}");
        }
        // The terminal echoes those presses, which may come before the sentence is written.
        daemon.cancel(&[backgrounded(&screen.replace("^B", ""))]);
    }
}

#[test]
fn input_before_key_goes_to_job_and_later_input_to_shell() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell 'stty -echo; echo up; read a; echo \"got $a\"; exec sleep 1000'");
    shell.wait_text("up\n");
    shell.type_keys("words\r");
    shell.wait_text("got words\n");
    shell.type_keys("\x02");
    shell.wait_text("backgrounded by user");
    shell.type_keys("echo to the shell\r");
    shell.wait_text("\nto the shell\n$");
    daemon.cancel(&[backgrounded(&shell.screen())]);
}

#[test]
fn background_key_is_set_by_option_or_configuration() {
    let daemon = TestDaemon::builder().config("background_key = \"ctrl-t\"\n").start();
    let mut shell = Terminal::shell(&daemon);
    for (args, hint, key) in
        [("", "[Ctrl-T] Background", "\x14"), ("--key ^]", "[Ctrl-]] Background", "\x1d")]
    {
        shell.type_line(&format!("bgctl run {args} --shell 'stty -echo; echo up; cat -v'"));
        shell.wait_text(&format!("{hint}\nup\n"));
        shell.type_keys("\x02\r");
        shell.wait_text("^B\n");
        shell.type_keys(key);
        shell.wait_text("backgrounded by user");
        shell.wait_prompt();
        daemon.cancel(&[backgrounded(&shell.screen())]);
        shell.clear();
    }
}

#[test]
fn extended_key_sequences_are_recognized_and_pasted_keys_ignored() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    for form in ["\x1b[98;5u", "\x1b[98;5u\x1b[98;5:3u", "\x1b[27;5;98~"] {
        shell.type_line("bgctl run --shell 'stty -echo; echo up; cat -v'");
        shell.wait_text("up\n");
        shell.type_keys("\x1b[200~a\x02b\x1b[201~\r");
        shell.wait_text("^[[200~a^Bb^[[201~\n");
        shell.type_keys(form);
        shell.wait_text("backgrounded by user");
        shell.wait_prompt();
        daemon.cancel(&[backgrounded(&shell.screen())]);
        shell.clear();
    }
}

#[test]
fn key_works_after_the_end_of_a_paste_was_lost() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell 'stty -echo; echo up; cat -v'");
    shell.wait_text("up\n");
    shell.type_keys("\x1b[200~a\x02b\r");
    // Only then is the key typed, so that it is read alone.
    shell.wait_text("^[[200~a^Bb\n");
    shell.type_keys("\x02");
    shell.wait_text("backgrounded by user");
    shell.wait_prompt();
    daemon.cancel(&[backgrounded(&shell.screen())]);
}

#[test]
fn backgrounding_json_is_written_to_stderr() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl --json run --shell 'echo up >&2; printf half; exec sleep 1000' 2> told");
    // It is shown once keys are accepted.
    shell.wait_line("half");
    bgd_tests::wait::for_line(&daemon.home().join("told"), "up");
    shell.type_keys("\x02");
    shell.wait_prompt();
    let text = fs::read_to_string(daemon.home().join("told")).unwrap();
    let result: bgd_shared::request::DetachResult =
        serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    assert!(result.message.ends_with(&result.task.id.to_string()));
    assert!(!shell.screen().contains("backgrounded"));
    daemon.cancel(&[result.task.id]);
}

#[test]
fn r62_job_stopped_by_ctrl_z_while_backgrounded_continues() {
    let daemon = TestDaemon::start();
    // A user who types so fast may get nothing stopped.
    let line =
        "$| = 1; print \"up\\n\"; until (-e 'go') { select undef, undef, undef, 0.02 } print \"goes on\\n\"";
    fs::write(daemon.home().join("job"), line).unwrap();
    let go = daemon.home().join("go");
    let mut shell = Terminal::shell(&daemon);
    for command in ["bgctl run perl job", "bgctl run --shell 'perl job; exit $?'"] {
        shell.clear();
        shell.type_line(command);
        shell.wait_line("");
        shell.wait_text("\nup\n");
        shell.type_keys("\x1a\x02");
        shell.wait_text("backgrounded by user");
        shell.wait_prompt();
        let id = backgrounded(&shell.screen());
        fs::write(&go, "").unwrap();
        assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
        fs::remove_file(&go).unwrap();
        assert!(daemon.output(id).ends_with(b"goes on\r\n"));
    }
}

#[test]
fn r67_input_typed_before_key_reaches_job_that_reads_late() {
    let daemon = TestDaemon::start();
    let gate = gate(&daemon);
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl run --shell '{READS_LATE}'"));
    shell.wait_text("up\n");
    shell.type_keys(format!("{}end\x02", "x".repeat(10_000)));
    shell.wait_text("backgrounded by user");
    shell.wait_prompt();
    let id = backgrounded(&shell.screen());
    wait::for_reader(&gate, "go\n");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert!(daemon.output(id).ends_with(b"xxend\r\n"));
}
