//! Job control: the shell stops a job and continues it, in the foreground or in the background.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_tests::{Process, Terminal, TestDaemon, processes_of, wait};
use rustix::process::Signal;

use super::gate;

fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Polls until `is_so` holds, for delayed effects in the kernel that no event announces.
#[track_caller]
fn until(is_so: impl Fn() -> bool) {
    wait::poll_until("what the kernel was asked for", || is_so().then_some(()));
}

fn only_task(daemon: &TestDaemon) -> TaskId {
    daemon.run(&["list", "-q"]).success().word()
}

#[test]
fn ctrl_z_stops_run_and_job_and_fg_continues_both() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell 'echo up; while read x; do echo \"got $x\"; done'");
    shell.wait_text("Background\nup\n");
    let pid = daemon.wait_running(only_task(&daemon)).pid.unwrap();
    for round in 0..3 {
        shell.type_keys("\x1a");
        shell.wait_text("Stopped");
        shell.wait_prompt();
        until(|| is_stopped(pid));
        assert_eq!(shell.run_line("jobs | grep -c Stopped"), 0);
        shell.fg();
        shell.type_line(&format!("words {round}"));
        shell.wait_text(&format!("got words {round}"));
        until(|| !is_stopped(pid));
    }
    shell.type_keys("\x04");
    shell.wait_prompt();
    assert_eq!(shell.run_line("true"), 0);
}

#[test]
fn stopped_job_continues_after_bg() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell 'echo up; read x; echo \"got $x\"'");
    shell.wait_text("up\n");
    shell.type_keys("\x1a");
    shell.wait_text("Stopped");
    shell.wait_prompt();
    let pid = daemon.task(only_task(&daemon)).pid.unwrap();
    assert_eq!(shell.run_line("bg"), 0);
    until(|| !is_stopped(pid));
    // The shell gets the keys.
    assert_eq!(shell.run_line("(exit 3)"), 3);
    assert_eq!(shell.run_line("jobs | grep -q Running"), 0);
    shell.fg();
    shell.type_line("words");
    shell.wait_text("got words\n");
    shell.wait_prompt();
}

/// Types a text into an editor as a foreground job.
fn edit(shell: &mut Terminal) {
    shell.type_line("bgctl run -- vim -u NONE -n text");
    shell.wait_alternate(true);
    shell.type_keys("itext in the editor\x1b");
    shell.wait_text("text in the editor");
}

/// Waits until the editor shows the text again, and leaves it.
fn leave_editor(shell: &mut Terminal) {
    shell.wait_alternate(true);
    shell.wait_text("text in the editor\n~");
    shell.type_keys(":q!\r");
    shell.wait_alternate(false);
    shell.wait_prompt();
}

#[test]
fn full_screen_program_in_the_background_is_stopped_before_it_draws_over_the_prompt() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    edit(&mut shell);
    let is_run = |process: &Process| process.cmdline().contains("bgctl run ");
    let run = processes_of(daemon.home()).into_iter().find(is_run).expect("it runs");
    let pid = daemon.task(only_task(&daemon)).pid.unwrap();
    shell.type_keys("\x1a");
    shell.wait_text("Stopped");
    shell.wait_prompt();
    until(|| is_stopped(pid) && is_stopped(run.pid()));
    assert_eq!(shell.run_line("bg"), 0);
    until(|| !is_stopped(pid) && is_stopped(run.pid()));
    assert_eq!(shell.run_line("(exit 3)"), 3);
    assert_eq!(shell.run_line("jobs | grep -q Stopped"), 0);
    assert!(!shell.emulated().alternate_screen() && !shell.screen().contains("text in the editor"));
    shell.type_line("fg");
    leave_editor(&mut shell);
}

#[test]
fn run_stopped_by_sigstop_regains_keyboard_after_fg() {
    let full_screen = "bgctl run --shell \"printf '\\\\033[?1049hdrawn %s\\\\n' once; exec cat -u\"";
    for (line, shown) in [("bgctl run -- cat -u", "[Ctrl-B] Background\n"), (full_screen, "drawn once\n")] {
        let daemon = TestDaemon::start();
        let mut shell = Terminal::shell(&daemon);
        shell.type_line(line);
        shell.wait_text(shown);
        shell.type_line("one");
        shell.wait_text("\none\none\n");
        let is_run = |process: &Process| process.cmdline().contains("bgctl run ");
        let run = processes_of(daemon.home()).into_iter().find(is_run).expect("it runs");
        run.signal(Signal::STOP).unwrap();
        shell.wait_text("Stopped");
        // It had no time to leave the alternate screen, in which the shell continues.
        shell.wait("a prompt", |screen| screen.contents().trim_end().ends_with("\n$"));
        if line == full_screen {
            // The job's screen is drawn over the line of the shell at once.
            shell.type_line("fg");
            shell.wait_shown("its screen again", |shown| {
                String::from_utf8_lossy(shown).matches("\x1b[?1049h").count() == 2
            });
        } else {
            shell.fg();
        }
        shell.type_line("two");
        shell.wait_text("\ntwo\ntwo\n");
        if line == full_screen {
            shell.wait("the screen of the job alone", |screen| {
                screen.contents().starts_with("drawn once\none\none\ntwo\ntwo")
            });
        }
        shell.type_keys("\x02");
        shell.wait_text("Command was manually backgrounded by user with ID");
        shell.wait_prompt();
        daemon.cancel(&[only_task(&daemon)]);
    }
}

#[test]
fn full_screen_program_returns_after_fg() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    edit(&mut shell);
    shell.type_keys("\x1a");
    shell.wait_text("Stopped");
    shell.wait_prompt();
    assert!(!shell.emulated().alternate_screen());
    shell.type_line("fg");
    leave_editor(&mut shell);
}

#[test]
fn program_that_never_redraws_is_redrawn_after_fg() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(
        "bgctl run --shell \"printf '\\\\033[?1049h\\\\033[2;5Hdrawn %s\\\\033[?25l' once; exec cat\"",
    );
    shell.wait_text("drawn once");
    shell.type_keys("\x1a");
    shell.wait_text("Stopped");
    shell.wait_prompt();
    assert!(!shell.emulated().alternate_screen() && !shell.emulated().hide_cursor());
    shell.type_line("fg");
    shell.wait_alternate(true);
    shell.wait("the picture", |screen| {
        screen.contents().starts_with("\n    drawn once") && screen.hide_cursor()
    });
    shell.type_keys("\x04");
    shell.wait_alternate(false);
    shell.wait_prompt();
}

#[test]
fn run_in_shell_background_leaves_keyboard_to_shell() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell 'echo up; read x; echo \"got $x\"; exit 4' &");
    shell.wait("the job's word", |screen| {
        screen.contents().lines().any(|line| matches!(line.trim_end(), "$ up" | "up"))
    });
    // The shell gets every key.
    assert_eq!(shell.run_line("(exit 3)"), 3);
    shell.fg();
    shell.type_line("words");
    shell.wait_text("got words\n");
    shell.wait_prompt();
    shell.type_line("echo \"<$?>\"");
    assert_eq!(shell.wait_code(), 4);
}

#[test]
fn ctrl_z_stops_job_without_terminal_of_its_own() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    let log = daemon.home().join("log");
    shell.type_line("bgctl run --shell 'echo $$; sh -c \"echo \\$\\$; exec sleep 1000\"; exit 3' > log");
    let lines = wait::for_change(&log, || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        (text.lines().count() == 2 && text.ends_with('\n')).then_some(text)
    });
    let pids: Vec<i32> = lines.lines().map(|line| line.parse().unwrap()).collect();
    shell.type_keys("\x1a");
    shell.wait_text("Stopped");
    shell.wait_prompt();
    // The whole tree. A process stops a moment after the signal.
    for pid in &pids {
        until(|| is_stopped(*pid));
    }
    shell.fg();
    let processes: Vec<Process> = pids.iter().map(|pid| Process::open(*pid).unwrap()).collect();
    shell.type_keys("\x03");
    shell.wait_prompt();
    shell.type_line("echo \"<$?>\"");
    assert_eq!(shell.wait_code(), 130);
    processes.iter().for_each(Process::gone);
}

/// Types a line that runs a job, interrupts the job, and asserts that the shell is back at its prompt, not in the next
/// command of this line.
#[track_caller]
fn interrupt(shell: &mut Terminal, line: &str) {
    shell.clear();
    shell.type_line(line);
    shell.wait("the job's word", |screen| screen.contents().lines().any(|line| line.trim_end() == "up1"));
    shell.type_keys("\x03");
    // Not every shell ends the line that shows the key.
    let is_prompt = |line: &str| matches!(line.trim_end(), "$" | "^C$");
    shell.wait("a prompt", |screen| screen.contents().trim_end().lines().last().is_some_and(is_prompt));
    let screen = shell.screen();
    assert!(screen.lines().all(|line| line != "next" && line != "up2"), "{line}: {screen}");
    assert_eq!(shell.run_line("(exit $?)"), 130, "{line}");
}

#[test]
fn ctrl_c_ends_script_around_job() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    let job = "bgctl run --shell \"echo up1; exec sleep 1000\"";
    for program in ["dash", "bash", "zsh -f", "fish --no-config"] {
        for job in [job, &format!("{job} | cat"), &format!("true | {job}")] {
            fs::write(daemon.home().join("script"), format!("{job}\necho next\n")).unwrap();
            interrupt(&mut shell, &format!("{program} script"));
        }
    }
}

#[test]
fn ctrl_c_ends_loop_around_job() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    let run = "bgctl run --shell \"echo up$i; exec sleep 1000\"";
    for run in [run, &format!("{run} | cat")] {
        let line = format!("for i in 1 2; do {run}; done");
        interrupt(&mut shell, &line);
        for program in ["dash", "bash", "zsh -f", "zsh -fi"] {
            interrupt(&mut shell, &format!("{program} -c '{line}'"));
        }
        for program in ["fish --no-config", "fish --no-config -i"] {
            interrupt(&mut shell, &format!("{program} -c 'for i in 1 2; {run}; end'"));
        }
    }
}

#[test]
fn script_goes_on_after_job_that_handles_ctrl_c() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    for (trap, code) in [("", 3), ("exit 130", 130), ("exit 0", 0)] {
        let job = format!("trap \"{trap}\" INT; echo up; while read x; do exit 3; done");
        fs::write(daemon.home().join("job"), job).unwrap();
        shell.type_line("bash -c 'bgctl run -- sh job; echo \"<$?>\"'");
        shell.wait_text("\nup\n");
        shell.type_keys("\x03");
        if code == 3 {
            shell.wait_text("^C");
            shell.type_keys("\r");
        }
        assert_eq!(shell.wait_code(), code, "{trap:?}");
    }
}

#[test]
fn script_that_ignores_ctrl_c_gets_exit_code_of_interrupted_job() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    for program in ["dash", "bash", "zsh -f"] {
        let job = "bgctl run --shell \"echo up; exec sleep 1000\"";
        fs::write(daemon.home().join("script"), format!("trap '' INT\n{job}\necho \"<$?>\"\n")).unwrap();
        shell.type_line(&format!("{program} script"));
        shell.wait_text("\nup\n");
        shell.type_keys("\x03");
        assert_eq!(shell.wait_code(), 130, "{program}");
    }
}

#[test]
fn run_continued_before_it_has_stopped_does_not_stop() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    let gate = gate(&daemon);
    shell.type_line("bgctl run --shell 'echo up; read x < gate; exit 9' > log");
    wait::for_line(&daemon.home().join("log"), "up");
    let is_run = |process: &Process| process.cmdline().contains("bgctl run ");
    let run = processes_of(daemon.home()).into_iter().find(is_run).expect("it runs");
    let is_read = |signal: Signal| {
        let status = fs::read_to_string(run.proc("status")).unwrap_or_default();
        let pending = status.lines().filter_map(|line| {
            let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        });
        pending.fold(0, |all, mask| all | mask) & (1 << (signal.as_raw() - 1)) == 0
    };
    // The daemon can't answer meanwhile.
    daemon.process().signal(Signal::STOP).unwrap();
    run.signal(Signal::TSTP).unwrap();
    until(|| is_read(Signal::TSTP));
    run.signal(Signal::CONT).unwrap();
    until(|| is_read(Signal::CONT));
    daemon.process().signal(Signal::CONT).unwrap();
    wait::for_reader(&gate, "go\n");
    run.gone();
    shell.wait_prompt();
    shell.type_line("echo \"<$?>\"");
    assert_eq!(shell.wait_code(), 9);
}

#[test]
fn job_in_shell_background_does_not_read_terminal() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell 'cat; echo end' > log &");
    wait::for_line(&daemon.home().join("log"), "end");
    assert_eq!(shell.run_line("(exit 3)"), 3);
}

#[test]
fn background_key_is_pressed_twice_in_tmux() {
    let daemon = TestDaemon::start();
    let bgctl = daemon.bgctl(&[]);
    let mut tmux = std::process::Command::new("tmux");
    let socket = daemon.home().join("tmux");
    tmux.args(["-f", "/dev/null", "-S"]).arg(&socket).args(["new-session", "bash --norc --noprofile -i"]);
    tmux.envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(daemon.home());
    tmux.env("PS1", "$ ").env("SHELL", "/bin/sh");
    let path = format!("{}:/usr/bin:/bin", bgd_tests::bgctl_path().parent().unwrap().display());
    tmux.env("PATH", path);
    let mut terminal = Terminal::open(&tmux);
    terminal.wait_line("$");
    terminal.type_line("bgctl run --shell 'echo up; exec sleep 1000'");
    terminal.wait_text("[Ctrl-B] Background\nup");
    terminal.type_keys("\x02\x02");
    terminal.wait_text("Command was manually backgrounded by user with ID");
    terminal.wait_line("$");
    daemon.cancel(&[only_task(&daemon)]);
    terminal.type_line("exit");
    assert!(terminal.ended().success());
}
