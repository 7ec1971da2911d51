//! The channel `tty` in real terminals with real shells: the line arrives, and disturbs nothing that is being
//! typed or shown.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{ChannelStatus, OriginTerminal, SubmitParams};
use bgd_tests::{Process, Terminal, TestDaemon, bgctl_path, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::process::Signal;

use crate::no_answer::Stopped;

/// Ends the task that waits for it.
pub(super) struct Gate(PathBuf);

impl Gate {
    pub(super) fn new(daemon: &TestDaemon, name: &str) -> Self {
        let path = daemon.home().join(name);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        Self(path)
    }

    /// Opens once there is a reader.
    pub(super) fn open(&self) {
        wait::for_reader(&self.0, "go\n");
    }
}

/// A shell's command line, which ignores the user's configuration, and its prompt.
pub(super) struct Shell {
    argv: &'static [&'static str],
    prompt: &'static str,
}

pub(super) const BASH: Shell = Shell { argv: &["bash", "--norc", "--noprofile", "-i"], prompt: "$" };
pub(super) const ZSH: Shell = Shell { argv: &["zsh", "-f", "-i"], prompt: "$" };
pub(super) const FISH: Shell = Shell {
    argv: &[
        "fish",
        "--no-config",
        "-i",
        "-C",
        "function fish_prompt; echo -n '$ '; end; set -U fish_greeting",
    ],
    prompt: "$",
};

/// Returns a command in the home of a daemon, to be run in a terminal that its tasks then belong to.
pub(super) fn at_home(daemon: &TestDaemon, argv: &[&str]) -> Command {
    let mut command = Command::new(argv[0]);
    let programs = bgctl_path().parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    command.args(&argv[1..]).envs(daemon.environment()).env("PATH", path).env("PS1", "$ ");
    command.env_remove("BGD_SESSION").current_dir(daemon.home());
    command
}

#[track_caller]
pub(super) fn open(daemon: &TestDaemon, shell: &Shell) -> Terminal {
    open_sized(daemon, shell, 120)
}

#[track_caller]
pub(super) fn open_sized(daemon: &TestDaemon, shell: &Shell, columns: u16) -> Terminal {
    let mut terminal = Terminal::sized(&at_home(daemon, shell.argv), (24, columns));
    terminal.wait_line(shell.prompt);
    terminal
}

/// Runs a foreground program that Ctrl-D ends.
#[track_caller]
pub(super) fn occupy(shell: &mut Terminal) {
    shell.type_line("echo u''p; cat");
    shell.wait_text("\nup\n");
}

/// Asserts that no notice was shown in a terminal since [`occupy`] or before.
#[track_caller]
pub(super) fn occupied_has_no_notice(terminal: &mut Terminal) {
    terminal.repeat_line("mark");
    has_no_notice(terminal);
}

pub(super) fn origin(terminal: &Terminal) -> OriginTerminal {
    let process = terminal.process();
    let path = fs::read_link(process.proc("fd/0")).unwrap();
    OriginTerminal { path: path.into_os_string().into_string().unwrap(), leader: process.pid() }
}

#[track_caller]
pub(super) fn submit_from(daemon: &TestDaemon, terminal: &OriginTerminal, line: &str) -> TaskId {
    daemon.submit_with(&params_from(daemon, terminal, line)).id
}

pub(super) fn params_from(daemon: &TestDaemon, terminal: &OriginTerminal, line: &str) -> SubmitParams {
    SubmitParams {
        shell: Some(line.into()),
        description: Some("the job".into()),
        channel: Some("tty".into()),
        session: Some("mcp:1".into()),
        terminal: Some(terminal.clone()),
        ..daemon.params()
    }
}

/// Makes the daemon hold this many lines for a terminal that a program occupies.
#[track_caller]
fn hold(daemon: &TestDaemon, terminal: &mut Terminal, count: u64) {
    let from = origin(terminal);
    for held in 1..=count {
        submit_from(daemon, &from, "true");
        after(daemon, held, HELD);
    }
    terminal.catch_up();
    has_no_notice(terminal);
}

/// Asserts that a notice is shown only after the typed command has ended. The command prints `waiting`, reads from
/// `gate`, and prints `last`.
#[track_caller]
fn is_held_while(line: &str) {
    let daemon = start();
    let gate = Gate::new(&daemon, "gate");
    let mut terminal = open(&daemon, &BASH);
    terminal.type_line(line);
    terminal.wait_text("\nwaiting\n");
    hold(&daemon, &mut terminal, 1);
    gate.open();
    terminal.wait_text(DONE);
    terminal.wait_line("$");
    let screen = terminal.screen();
    assert!(screen.find("\nlast\n").unwrap() < screen.find(DONE).unwrap(), "{terminal:?}");
}

/// The log messages about notices.
pub(super) const HELD: &str = "a notice is held";
pub(super) const DELIVERED: &str = "a notice was delivered";
pub(super) const FAILED: &str = "a notice was not delivered";

/// A daemon that logs what happens to each notice.
#[track_caller]
pub(super) fn start() -> TestDaemon {
    start_with("")
}

#[track_caller]
fn start_with(config: &str) -> TestDaemon {
    TestDaemon::builder().config(config).env("BGD_LOG", "debug").start()
}

/// Returns the status of the channel, once the log has this message for this many notices.
#[track_caller]
pub(super) fn after(daemon: &TestDaemon, count: u64, what: &str) -> ChannelStatus {
    wait::for_lines(&daemon.state_dir().join("bgd.log"), count, what);
    daemon.status().channels.into_iter().find(|channel| channel.name == "tty").unwrap()
}

pub(super) const DONE: &str = "[BACKGROUND TASK COMPLETED] ";

#[test]
fn r51_notice_appears_above_line_being_typed() {
    for shell in [BASH, ZSH, FISH] {
        // At the top, in the middle, and at the bottom of the screen.
        for lines in [0, 8, 40] {
            let daemon = start();
            let gate = Gate::new(&daemon, "gate");
            let mut terminal = open(&daemon, &shell);
            if lines > 0 {
                terminal.type_line(&format!("seq {lines}"));
                terminal.wait_text(&format!("\n{lines}\n$"));
            }
            terminal
                .type_line("bgctl submit -d 'the job' --shell 'read x <gate; sleep 0.001'; echo subm''itted");
            terminal.wait_text("\nsubmitted\n$");
            terminal.type_keys("echo half-typed");
            terminal.wait_line("$ echo half-typed");
            gate.open();
            terminal.wait_text(DONE);
            terminal.wait_line("$ echo half-typed");
            let screen = terminal.screen();
            assert!(screen.contains("(bgctl output ") && !screen.contains("STARTED"), "{terminal:?}");
            // The cursor is where it was: typing continues, and Enter runs the line.
            terminal.type_line("-line");
            terminal.wait_text("\nhalf-typed-line\n$");
            let shown = String::from_utf8_lossy(&terminal.shown()).into_owned();
            assert_eq!(shown.matches(DONE).count(), 1, "{terminal:?}");
            assert_eq!(after(&daemon, 1, DELIVERED).sent, 1);
        }
    }
}

#[test]
fn notice_keeps_cursor_position_within_edited_line() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    terminal.type_keys("echo ac\x1b[D");
    terminal.wait("the cursor before c", |screen| screen.cursor_position() == (0, 8));
    submit_from(&daemon, &origin(&terminal), "true");
    terminal.wait_text(DONE);
    terminal.wait("the cursor before c", |screen| screen.cursor_position() == (1, 8));
    terminal.type_line("b");
    terminal.wait_text("$ echo abc\nabc\n");
}

#[test]
fn notice_in_tmux_keeps_typed_line() {
    let daemon = start();
    let gate = Gate::new(&daemon, "gate");
    let socket = daemon.home().join("tmux");
    let tmux = ["tmux", "-f", "/dev/null", "-S", socket.to_str().unwrap(), "new-session"];
    let mut command = at_home(&daemon, &[&tmux[..], &["bash --norc --noprofile -i"]].concat());
    let mut terminal = Terminal::open(command.env("SHELL", "/bin/sh"));
    terminal.wait_line("$");
    terminal.type_line("seq 40");
    terminal.wait_text("\n40\n$");
    terminal.type_line("bgctl submit -d 'the job' --shell 'read x <gate'; echo subm''itted");
    terminal.wait_text("\nsubmitted\n$");
    terminal.type_keys("echo half-typed");
    terminal.wait_line("$ echo half-typed");
    gate.open();
    terminal.wait_text(DONE);
    terminal.wait_line("$ echo half-typed");
    terminal.type_line("-line");
    terminal.wait_text("\nhalf-typed-line\n$");
    terminal.type_line("exit");
    assert!(terminal.ended().success());
}

#[test]
fn notice_is_held_until_foreground_program_ends() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    terminal.type_line("vim -u NONE -N text");
    terminal.wait_alternate(true);
    terminal.type_keys("ihalf-typed");
    terminal.wait_line("half-typed");
    let before = terminal.emulated().contents();
    hold(&daemon, &mut terminal, 1);
    terminal.type_keys("!");
    terminal.wait_line("half-typed!");
    assert_eq!(terminal.emulated().contents().replace("half-typed!", "half-typed"), before);
    terminal.type_keys("\x1b:wq\r");
    terminal.wait_alternate(false);
    terminal.wait_text(DONE);
    terminal.wait_line("$");
    assert_eq!(fs::read_to_string(daemon.home().join("text")).unwrap(), "half-typed!\n");
    assert_eq!(after(&daemon, 1, DELIVERED).sent, 1);
}

#[test]
fn notice_is_held_until_last_process_of_pipeline_ends() {
    // The leader of the group ends first.
    is_held_while("echo first | { cat; echo wait''ing; read x <gate; echo last; }");
}

#[test]
fn many_held_notices_are_shown_as_a_few_lines_and_a_count() {
    let daemon = start_with("[limits]\nchannel_queue = 50");
    let mut terminal = open(&daemon, &BASH);
    let from = origin(&terminal);
    occupy(&mut terminal);
    for number in 0..102 {
        submit_from(&daemon, &from, if number % 50 == 0 { "exit 3" } else { "true" });
        if number % 20 == 1 {
            // Held notices take no room in the queue, which is smaller than their number.
            after(&daemon, number + 1, HELD);
        }
    }
    assert_eq!(after(&daemon, 102, HELD).dropped, 0);
    occupied_has_no_notice(&mut terminal);
    terminal.type_keys("\x04");
    terminal.wait_text("[BACKGROUND TASKS] and 97 more completed (bgctl inbox shows them)\n$");
    let screen = terminal.screen();
    let of = |status: &str| screen.matches(&format!("[BACKGROUND TASK {status}]")).count();
    assert_eq!((of("FAILED"), of("COMPLETED")), (3, 2), "{screen}");
    assert_eq!(after(&daemon, 102, DELIVERED).sent, 102);
}

#[test]
fn few_held_notices_are_shown_individually() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    occupy(&mut terminal);
    hold(&daemon, &mut terminal, 3);
    terminal.type_keys("\x04");
    terminal.wait("three lines", |screen| screen.contents().matches(DONE).count() == 3);
    terminal.wait_line("$");
}

#[test]
fn many_simultaneous_ends_take_few_lines_at_prompt() {
    let daemon = start_with("max_concurrent_tasks = 30");
    let mut terminal = open(&daemon, &BASH);
    terminal.type_keys("echo half-typed");
    terminal.wait_line("$ echo half-typed");
    let from = origin(&terminal);
    let ids: Vec<TaskId> = (0..30).map(|_| submit_from(&daemon, &from, "exec sleep 1000")).collect();
    let processes: Vec<Process> =
        ids.iter().map(|id| Process::open(daemon.wait_running(*id).pid.unwrap()).unwrap()).collect();
    // The daemon finds all of them ended at once.
    let stopped = Stopped::now(&daemon);
    processes.iter().for_each(Process::kill);
    drop(stopped);
    assert_eq!(after(&daemon, 30, DELIVERED).sent, 30);
    terminal.wait_text("[BACKGROUND TASKS] ");
    terminal.wait_line("$ echo half-typed");
    assert!(terminal.screen().matches("[BACKGROUND TASK").count() <= 10, "{terminal:?}");
}

#[test]
fn busy_or_stopped_terminal_does_not_delay_others() {
    let daemon = start();
    let (mut busy, mut stopped, mut free) =
        (open(&daemon, &BASH), open(&daemon, &BASH), open(&daemon, &BASH));
    occupy(&mut busy);
    // The shell reads Ctrl-S itself while it edits, so stop its terminal from outside.
    let device = fs::File::options().write(true).open(origin(&stopped).path).unwrap();
    rustix::termios::tcflow(&device, rustix::termios::Action::OOff).unwrap();
    for terminal in [&busy, &stopped, &free] {
        submit_from(&daemon, &origin(terminal), "true");
    }
    free.wait_text(DONE);
    after(&daemon, 2, HELD);
    after(&daemon, 1, DELIVERED);
    // The delivery to the stopped terminal is abandoned.
    let status = after(&daemon, 1, FAILED);
    assert_eq!((status.sent, status.queued), (1, 1));
    assert!(status.last_error.unwrap().contains("its output is stopped"));
    rustix::termios::tcflow(&device, rustix::termios::Action::OOn).unwrap();
    drop(device);
    stopped.run_line("true");
    has_no_notice(&stopped);
    busy.type_keys("\x04");
    busy.wait_text(DONE);
}

#[test]
fn nested_shell_receives_notice_at_its_prompt() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    let from = origin(&terminal);
    terminal.type_line("bash --norc --noprofile -i");
    terminal.type_line("echo inn''er");
    terminal.wait_text("\ninner\n$");
    terminal.type_keys("echo half-typed");
    terminal.wait_line("$ echo half-typed");
    submit_from(&daemon, &from, "true");
    terminal.wait_text(DONE);
    terminal.wait_line("$ echo half-typed");
}

#[test]
fn notice_is_held_until_foreground_script_ends() {
    is_held_while("bash -c 'echo wait''ing; read x <gate; echo last'");
}

#[test]
fn terminal_without_shell_receives_no_notice() {
    let daemon = start();
    let mut terminal = Terminal::open(&at_home(&daemon, &["vim", "-u", "NONE", "-N", "text"]));
    terminal.wait_alternate(true);
    terminal.type_keys("itext");
    terminal.wait_line("text");
    let before = terminal.emulated().contents();
    submit_from(&daemon, &origin(&terminal), "true");
    let status = after(&daemon, 1, FAILED);
    assert!(status.last_error.unwrap().contains("is not controlled by a shell"));
    terminal.type_keys("!");
    terminal.wait_line("text!");
    assert_eq!(terminal.emulated().contents().replace("text!", "text"), before);
}

#[test]
fn terminal_with_wrong_leader_receives_no_notice() {
    let daemon = start();
    let (mut mine, mut others) = (open(&daemon, &BASH), open(&daemon, &BASH));
    // As if the number of a closed terminal had been reused for another one.
    let wrong = OriginTerminal { leader: origin(&mine).leader, ..origin(&others) };
    submit_from(&daemon, &wrong, "true");
    let status = after(&daemon, 1, FAILED);
    assert!(status.last_error.unwrap().contains("is no longer controlled by process"), "{mine:?}");
    // Not the leader of a session.
    mine.type_line("sleep 1000 & echo $! >child");
    let child = wait::for_line(&daemon.home().join("child"), "").parse().unwrap();
    submit_from(&daemon, &OriginTerminal { leader: child, ..origin(&mine) }, "true");
    after(&daemon, 2, FAILED);
    mine.run_line("kill $!");
    others.run_line("true");
    for terminal in [mine, others] {
        assert!(!String::from_utf8_lossy(&terminal.shown()).contains("BACKGROUND"), "{terminal:?}");
    }
}

#[test]
fn notices_for_closed_terminal_fail() {
    let daemon = start();
    let gate = Gate::new(&daemon, "gate");
    let (mut held, mut closed) = (open(&daemon, &BASH), open(&daemon, &BASH));
    occupy(&mut held);
    hold(&daemon, &mut held, 1);
    submit_from(&daemon, &origin(&closed), "read x <gate");
    closed.close();
    gate.open();
    let status = after(&daemon, 1, FAILED);
    assert!(status.last_error.unwrap().contains("is closed"));
    held.close();
    let status = after(&daemon, 2, FAILED);
    assert_eq!((status.queued, status.sent), (0, 0));
}

#[test]
fn control_characters_in_description_are_stripped() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    let description = Some("\x1b]0;title\x07\x1b[2J\u{9b}31m\r\nnext \u{202e}line".into());
    let params = params_from(&daemon, &origin(&terminal), "true");
    daemon.submit_with(&SubmitParams { description, ..params });
    terminal.wait_text(": \"]0;title");
    assert!(terminal.screen().starts_with("[BACKGROUND"), "{terminal:?}");
    terminal.wait_line("$");
    let shown = String::from_utf8_lossy(&terminal.shown()).into_owned();
    for sequence in ["\x1b]0", "\x1b[2J", "\u{9b}", "\u{202e}"] {
        assert!(!shown.contains(sequence), "{shown:?}");
    }
}

#[test]
fn terminal_with_notification_support_is_sent_one() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    let mut params = params_from(&daemon, &origin(&terminal), "true");
    let env = params.env.take().unwrap();
    let own = [("TERM_PROGRAM".into(), "WezTerm".into())];
    params.env = Some(env.0.iter().cloned().chain(own).collect());
    daemon.submit_with(&params);
    terminal.wait_text(DONE);
    terminal.wait_line("$");
    let bubble = format!("\x1b]777;notify;bgd;{DONE}");
    terminal.wait_shown("the bubble", |shown| String::from_utf8_lossy(shown).contains(&bubble));
}

/// Returns the non-empty rows of the screen.
pub(super) fn rows(screen: &vt100::Screen) -> Vec<String> {
    let (_, columns) = screen.size();
    let rows = screen.rows(0, columns.get()).map(|row| row.trim_end().to_owned());
    rows.filter(|row| !row.is_empty()).collect()
}

/// Waits until the last rows of the screen show this line as a shell with the prompt `$ ` displays it.
#[track_caller]
pub(super) fn wait_typed(terminal: &mut Terminal, line: &str) {
    let line = format!("$ {line}");
    let expected: Vec<&str> =
        line.as_bytes().chunks(40).map(|row| str::from_utf8(row).unwrap().trim_end()).collect();
    terminal.wait(&format!("{expected:?}"), |screen| {
        rows(screen).ends_with(&expected.iter().map(|row| (*row).to_owned()).collect::<Vec<_>>())
    });
}

#[track_caller]
fn has_no_notice(terminal: &Terminal) {
    assert!(!String::from_utf8_lossy(&terminal.shown()).contains("BACKGROUND"), "{terminal:?}");
}

#[test]
fn notices_reach_shell_prompt_while_program_is_stopped() {
    for shell in [BASH, ZSH] {
        let daemon = start();
        let mut terminal = open(&daemon, &shell);
        terminal.type_line("vim -u NONE -N text");
        terminal.wait_alternate(true);
        terminal.type_keys("itext");
        terminal.wait_line("text");
        hold(&daemon, &mut terminal, 1);
        // No new notice is submitted.
        terminal.type_keys("\x1b\x1a");
        terminal.wait_alternate(false);
        terminal.wait_text(DONE);
        after(&daemon, 1, DELIVERED);
        // While the program is in the background, the shell's prompt gets its notices as usual.
        submit_from(&daemon, &origin(&terminal), "true");
        assert_eq!(after(&daemon, 2, DELIVERED).queued, 0);
        terminal.type_line("fg");
        terminal.wait_alternate(true);
        terminal.type_keys(":q!\r");
        terminal.wait_alternate(false);
    }
}

#[test]
fn notice_is_held_while_script_runs_full_screen_program() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    // The leader of less's group is a shell, and less reads its text from a pipe rather than the terminal.
    terminal.type_line("sh -c 'seq 1000 | less; true'");
    terminal.wait_alternate(true);
    terminal.wait_text("\n23\n:");
    hold(&daemon, &mut terminal, 1);
    terminal.type_keys(" ");
    terminal.wait_text("\n46\n:");
    has_no_notice(&terminal);
    terminal.type_keys("q");
    terminal.wait_alternate(false);
    terminal.wait_text(DONE);
    terminal.wait_line("$");
}

#[test]
fn notice_is_held_while_terminal_shows_tmux() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    let socket = daemon.home().join("tmux");
    terminal.type_line(&format!(
        "tmux -f /dev/null -S {} new-session 'echo in''side; exec cat'",
        socket.display()
    ));
    terminal.wait_text("inside\n");
    hold(&daemon, &mut terminal, 1);
    terminal.type_keys("\x04");
    terminal.wait_text(DONE);
    terminal.wait_line("$");
}

/// Returns a shell's terminal with a program that waits at a gate, and with a notice held until it has ended.
fn held_until_open(daemon: &TestDaemon) -> (Terminal, Gate) {
    let gate = Gate::new(daemon, "gate");
    let mut terminal = open(daemon, &BASH);
    terminal.type_line("sh -c 'echo u''p; read x <gate'");
    terminal.wait_text("\nup\n");
    hold(daemon, &mut terminal, 1);
    (terminal, gate)
}

#[test]
fn notice_is_held_while_typed_ahead_command_runs() {
    let daemon = start();
    let (mut terminal, gate) = held_until_open(&daemon);
    terminal.type_line("vim -u NONE -N text");
    gate.open();
    terminal.wait_alternate(true);
    terminal.type_keys("itext");
    terminal.wait_line("text");
    // The shell may have been at its prompt before it read the typed line, and the notice may be above that.
    let shown = String::from_utf8_lossy(&terminal.shown()).into_owned();
    let (_, on_screen) = shown.rsplit_once("\x1b[?1049h").unwrap();
    assert!(!on_screen.contains("BACKGROUND"), "{terminal:?}");
    terminal.type_keys("\x1b:q!\r");
    terminal.wait_alternate(false);
    terminal.wait_text(DONE);
}

#[test]
fn notice_is_held_until_stopped_shell_takes_its_terminal_back() {
    let daemon = start();
    let (mut terminal, gate) = held_until_open(&daemon);
    let shell = terminal.process();
    shell.signal(Signal::STOP).unwrap();
    gate.open();
    // Longer than the daemon checks repeatedly whether the shell has the terminal.
    daemon.block_for(daemon.submit(&["sleep", "1000"]), Duration::from_secs(2));
    shell.signal(Signal::CONT).unwrap();
    terminal.wait_text(DONE);
    assert_eq!(after(&daemon, 1, DELIVERED).failed, 0);
}

#[test]
fn shell_whose_executable_was_deleted_receives_notice() {
    let daemon = start();
    let mut terminal = open(&daemon, &BASH);
    terminal.type_line("mkdir old; cp \"$(command -v bash)\" old/bash; exec old/bash --norc --noprofile -i");
    terminal.type_line("rm old/bash; echo up''graded");
    terminal.wait_text("\nupgraded\n$");
    submit_from(&daemon, &origin(&terminal), "true");
    terminal.wait_text(DONE);
}

#[test]
fn notices_held_at_daemon_stop_are_logged_as_undelivered() {
    let mut daemon = start();
    let mut terminal = open(&daemon, &BASH);
    occupy(&mut terminal);
    hold(&daemon, &mut terminal, 3);
    assert!(daemon.stop().success());
    let line = wait::for_line(&daemon.state_dir().join("bgd.log"), "the daemon ends before");
    assert!(line.contains("undelivered=3") && line.contains("channel=tty"), "{line}");
    occupied_has_no_notice(&mut terminal);
}
