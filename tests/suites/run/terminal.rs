//! A job in the user's terminal: it looks and feels as if the shell had started it.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_tests::{Process, Terminal, TestDaemon, wait};
use rustix::process::Signal;

use super::gate;

#[test]
fn r60_hint_is_shown_before_job_output() {
    let daemon = TestDaemon::start();
    let mut terminal = Terminal::bgctl(&daemon, &["run", "--", "sh", "-c", "echo first; exit 3"]);
    assert_eq!(terminal.ended().code(), Some(3));
    assert_eq!(terminal.screen(), "[Ctrl-B] Background\nfirst");
}

#[test]
fn r60_no_hint_when_job_cannot_be_backgrounded() {
    let daemon = TestDaemon::start();
    for args in [&["run", "--direct", "--", "echo", "x"][..], &["run", "--key", "none", "--", "echo", "x"]] {
        let mut terminal = Terminal::bgctl(&daemon, args);
        assert!(terminal.ended().success());
        assert_eq!(terminal.screen(), "x", "{args:?}");
    }
    assert_eq!(daemon.run(&["run", "--", "true"]).success().stderr, "", "without a terminal");
}

#[test]
fn r64_input_typed_during_direct_job_goes_to_shell() {
    let daemon = TestDaemon::start();
    let gate = gate(&daemon);
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --direct --shell 'echo u\"\"p; read line < gate; exit 3'");
    shell.wait_text("\nup\n");
    assert!(shell.is_sane(), "nobody has changed the terminal");
    shell.type_line("echo \"<$?>\"");
    shell.wait_text("\necho \"<$?>\"");
    wait::for_reader(&gate, "go\n");
    assert_eq!(shell.wait_code(), 3);
}

#[test]
fn r64_direct_job_owns_real_terminal() {
    let daemon = TestDaemon::start();
    let script = "readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2 | cat > here; trap 'stty size' WINCH; echo up; \
                  while :; do sleep 0.01; done";
    fs::write(daemon.home().join("job"), script).unwrap();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("tty > there; bgctl run --direct -- sh job");
    shell.wait_text("\nup\n");
    let read = |name: &str| fs::read_to_string(daemon.home().join(name)).unwrap();
    assert_eq!(read("here"), read("there").repeat(3));
    shell.resize((20, 60));
    shell.wait_text("\n20 60\n");
    // The keys work as in a shell.
    shell.type_keys("\x1a");
    shell.wait_text("Stopped");
    shell.wait_prompt();
    shell.fg();
    shell.type_keys("\x03");
    shell.wait_prompt();
    shell.type_line("echo \"<$?>\"");
    assert_eq!(shell.wait_code(), 130);
}

#[test]
fn job_gets_terminal_of_same_size_on_all_three_streams() {
    let daemon = TestDaemon::start();
    let line = "for n in 0 1 2; do test -t $n || echo $n is none; done; tty > /dev/tty; stty size; \
                trap 'stty size' WINCH; echo up; while :; do sleep 0.01; done";
    let command = daemon.bgctl(&["run", "--shell", line]);
    let mut terminal = Terminal::sized(&command, (30, 100));
    terminal.wait_text("30 100\nup");
    assert!(terminal.screen().contains("/dev/pts/") && !terminal.screen().contains("is none"));
    terminal.resize((20, 60));
    terminal.wait_text("20 60");
    terminal.type_keys("\x03");
    assert_eq!(terminal.ended().signal(), Some(2));
    assert!(terminal.is_sane());
}

#[test]
fn control_keys_act_as_in_shell() {
    let daemon = TestDaemon::start();
    for (keys, code) in [("\x03", None), ("\x1c", Some(131)), ("\x04", Some(0))] {
        let mut terminal = Terminal::bgctl(&daemon, &["run", "--", "cat"]);
        terminal.wait_text("[Ctrl-B] Background\n");
        terminal.type_line("äöü");
        terminal.wait_text("äöü\näöü\n");
        terminal.type_keys(keys);
        let end = terminal.ended();
        // A shell leaves its loops and scripts only if it sees the signal itself.
        assert_eq!((end.code(), end.signal()), (code, code.is_none().then_some(2)));
        assert!(terminal.is_sane());
    }
}

#[test]
fn every_keyboard_byte_reaches_job() {
    let daemon = TestDaemon::start();
    let line = "stty raw -echo; echo up; head -c 255 > got; stty sane";
    let mut terminal = Terminal::bgctl(&daemon, &["run", "--key", "none", "--shell", line]);
    terminal.wait_text("up");
    let bytes: Vec<u8> = (1..=255).collect();
    terminal.type_keys(&bytes);
    assert!(terminal.ended().success());
    assert_eq!(fs::read(daemon.home().join("got")).unwrap(), bytes);
}

#[test]
fn long_paste_reaches_job_intact() {
    let daemon = TestDaemon::start();
    let line = "stty raw -echo; echo up; head -c 1000000 | cksum > got; stty sane";
    let mut terminal = Terminal::bgctl(&daemon, &["run", "--shell", line]);
    terminal.wait_text("up");
    let text: Vec<u8> = (0..1_000_000_u32).map(|place| b' ' + u8::try_from(place % 89).unwrap()).collect();
    let expected = daemon.home().join("pasted");
    fs::write(&expected, &text).unwrap();
    terminal.type_keys(&text);
    assert!(terminal.ended().success());
    let sum = std::process::Command::new("cksum").stdin(fs::File::open(&expected).unwrap()).output().unwrap();
    assert_eq!(fs::read(daemon.home().join("got")).unwrap(), sum.stdout);
}

#[test]
fn all_job_output_reaches_terminal() {
    let daemon = TestDaemon::start();
    let mut terminal = Terminal::bgctl(&daemon, &["run", "--key", "none", "--", "seq", "300000"]);
    let mut shown = Vec::new();
    terminal.drain(|bytes| {
        shown.extend_from_slice(bytes);
        true
    });
    let expected = (1..=300_000).fold(String::new(), |text, number| text + &number.to_string() + "\r\n");
    assert!(shown == expected.as_bytes(), "{} of {} bytes", shown.len(), expected.len());
    assert!(terminal.ended().success());
}

#[test]
fn redirected_streams_are_passed_through_unchanged() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    fs::write(daemon.home().join("in"), "from a file\n").unwrap();
    let line = "bgctl run --shell 'cat; echo e >&2; test -t 1 && ! test -t 0 && ! test -t 2' < in 2> err";
    assert_eq!(shell.run_line(line), 0);
    // The hint is not written to a file.
    assert_eq!(fs::read_to_string(daemon.home().join("err")).unwrap(), "e\n");
    shell.type_line("seq 3 | bgctl run --shell 'cat; read x < /dev/tty; echo \"typed $x\"'");
    shell.wait_text("Background\n1\n2\n3\n");
    shell.type_line("words");
    shell.wait_text("typed words\n$");
    assert_eq!(shell.run_line("bgctl run --shell 'test -t 0; echo $? > where' > out"), 0);
    assert_eq!(fs::read_to_string(daemon.home().join("where")).unwrap(), "0\n");
}

#[test]
fn missing_program_is_reported_on_terminal() {
    let daemon = TestDaemon::start();
    let mut terminal = Terminal::bgctl(&daemon, &["run", "--", "no-such-program"]);
    assert_eq!(terminal.ended().code(), Some(127));
    assert!(terminal.screen().ends_with("\nbgctl: no-such-program: command not found in PATH"));
    assert!(terminal.is_sane());
}

#[test]
fn editor_works_in_foreground_job() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --key ctrl-] -- vim -u NONE -n text");
    shell.wait_alternate(true);
    shell.type_keys("ione\rtwo\x1b");
    shell.wait_text("one\ntwo\n~");
    shell.resize((10, 40));
    shell.type_keys("yyPx");
    shell.wait_text("one\nwo\ntwo\n~");
    // A lone Escape is not held back forever.
    shell.type_keys("A!\x1b");
    shell.type_keys(":wq\r");
    shell.wait_alternate(false);
    shell.wait_prompt();
    assert_eq!(fs::read_to_string(daemon.home().join("text")).unwrap(), "one\nwo!\ntwo\n");
    assert_eq!(shell.run_line("true"), 0);
}

/// Stops the shell's foreground job by Ctrl-Z.
#[track_caller]
fn stop(shell: &mut Terminal) {
    shell.type_keys("\x1a");
    shell.wait_text("Stopped");
    shell.wait_prompt();
    assert!(!shell.emulated().alternate_screen() && !shell.emulated().hide_cursor(), "{shell:?}");
}

#[test]
fn job_continued_by_fg_keeps_contents_and_modes_of_main_screen() {
    let daemon = TestDaemon::start();
    fs::write(daemon.home().join("job"), "printf '\\033[?25l'; echo one; read line; echo two; read line")
        .unwrap();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run -- sh job");
    shell.wait_text("one\n");
    stop(&mut shell);
    shell.fg();
    shell.type_keys("\r");
    shell.wait_text("two\n");
    assert!(shell.screen().starts_with("$ fg\nbgctl run -- sh job\n"), "{shell:?}");
    assert!(shell.emulated().hide_cursor());
    shell.type_keys("\r");
    shell.wait_prompt();
    assert!(!shell.emulated().hide_cursor());
}

#[test]
fn editor_continued_by_fg_returns_to_contents_of_main_screen() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run -- vim -u NONE -n text");
    shell.wait_alternate(true);
    shell.wait_text("~\n~\n");
    stop(&mut shell);
    // Its screen covers this line at once.
    shell.type_line("fg");
    shell.wait_alternate(true);
    shell.wait_text("~\n~\n");
    shell.type_keys(":q\r");
    shell.wait_alternate(false);
    shell.wait_prompt();
    let line = "bgctl run -- vim -u NONE -n text\n";
    for part in [format!("$ {line}"), "Stopped".to_owned(), format!("$ fg\n{line}")] {
        assert!(shell.screen().contains(&part), "{part:?}: {shell:?}");
    }
}

#[test]
fn pager_and_interpreter_work_in_foreground_job() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("seq 1000 | bgctl run -- less");
    shell.wait_text("1\n2\n");
    shell.type_keys("G");
    shell.wait_text("1000\n");
    shell.type_keys("q");
    shell.wait_alternate(false);
    shell.wait_prompt();
    shell.clear();
    shell.type_line("bgctl run -- python3 -q");
    shell.wait_text(">>>");
    shell.type_line("6 * 7");
    shell.wait_text("42\n>>>");
    shell.type_keys("\x04");
    shell.wait_prompt();
}

#[test]
fn the_terminal_is_restored_when_the_daemon_is_killed() {
    let mut daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run -- vim -u NONE -n text");
    shell.wait_alternate(true);
    shell.wait_text("~\n~\n");
    daemon.kill9();
    shell.wait_text("the daemon has ended: the next one ends the job");
    shell.wait_prompt();
    assert!(!shell.emulated().alternate_screen() && !shell.emulated().hide_cursor());
    shell.type_line("echo \"<$?>\"");
    assert_eq!(shell.wait_code(), 69);
    drop(shell);
    daemon.launch();
}

#[test]
fn the_terminal_is_restored_when_the_job_is_killed() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    let line = r"printf '\033[?1049h\033[?25l\033[?2004h'; stty raw; echo up; kill -9 \$\$";
    assert_eq!(shell.run_line(&format!("bgctl run --shell \"{line}\"")), 137);
    assert!(!shell.emulated().alternate_screen() && !shell.emulated().hide_cursor(), "{shell:?}");
}

#[test]
fn signals_sent_to_bgctl_reach_terminal_job() {
    let daemon = TestDaemon::start();
    let line = "trap 'echo got; exit 8' TERM; echo up; while :; do sleep 0.01; done";
    let mut terminal = Terminal::bgctl(&daemon, &["run", "--shell", line]);
    terminal.wait_text("up");
    terminal.process().signal(Signal::TERM).unwrap();
    assert_eq!(terminal.ended().code(), Some(8));
    assert!(terminal.screen().ends_with("got") && terminal.is_sane(), "{terminal:?}");
}

#[test]
fn r71_a_closed_terminal_ends_the_job() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let log = daemon.home().join("log");
    let line = "trap 'echo hangup >> log; exit 5' HUP; echo up > log; while :; do sleep 0.01; done";
    let mut terminal = Terminal::bgctl(&daemon, &["run", "--shell", line]);
    wait::for_line(&log, "up");
    let id = daemon.run(&["list", "-q"]).success().word();
    assert_eq!(terminal.close().code(), Some(129));
    let ended = watch.until_kind(id, EventKind::Cancelled).task;
    assert_eq!(ended.exit, Some(Exit::Code(5)));
    wait::for_line(&log, "hangup");
}

#[test]
fn r71_killing_client_in_terminal_ends_job() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let mut terminal = Terminal::bgctl(&daemon, &["run", "--shell", "echo up $$; exec sleep 1000"]);
    terminal.wait_text("up");
    let id = daemon.run(&["list", "-q"]).success().word();
    let job = Process::open(daemon.task(id).pid.unwrap()).unwrap();
    terminal.process().kill();
    let ended = watch.until_kind(id, EventKind::Cancelled).task;
    assert_eq!(ended.exit, Some(Exit::Signal(1)));
    job.gone();
}

#[test]
fn run_names_the_processes_that_its_job_leaves() {
    let daemon = TestDaemon::start();
    let gate = gate(&daemon);
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell '(read x <gate; echo later; sleep 1000) & echo early'");
    shell.wait_text("early\nbgctl: processes of the job still run: `bgctl output ");
    shell.wait_prompt();
    let id: TaskId = daemon.run(&["list", "-q", "--limit", "1"]).success().word();
    let short = id.short();
    let next = format!("`bgctl output {short}` shows what they write, `bgctl cancel {short}` ends them");
    assert!(shell.screen().contains(&next), "{shell:?}");
    wait::for_reader(&gate, "go\n");
    let output = || daemon.run(&["output", &short]).success().stdout_text();
    wait::poll_until("what they write", || output().contains("later").then_some(()));
    daemon.run(&["cancel", &short]).success();
    assert!(!daemon.task(id).lingering);
    shell.clear();
    shell.type_line("bgctl run -- echo alone");
    shell.wait_text("\nalone\n$");
    assert!(!shell.screen().contains("still run"), "{shell:?}");
}
