//! How `bgctl top` ends: by a key, a signal, a closed terminal; and its reaction to the end of the daemon.

use std::io::{BufRead as _, BufReader, Write as _};
use std::time::{Duration, Instant};
use std::{fs, thread};

use bgd_shared::client::Client;
use bgd_shared::request::{Hello, HelloParams};
use bgd_tests::{Process, Terminal, TestDaemon, processes_of, wait};
use rustix::process::Signal;

use super::{open_gate, task_waiting_at, top};

#[test]
fn r163_top_restores_terminal_however_it_exits() {
    let daemon = TestDaemon::start();
    for (keys, signal, code) in [
        ("q", None, 0),
        ("\x03", None, 0),
        ("", Some(Signal::TERM), 143),
        ("", Some(Signal::INT), 130),
        ("", Some(Signal::HUP), 129),
    ] {
        let mut shell = Terminal::shell(&daemon);
        shell.type_line("echo before; bgctl top; echo \"<$?>\"");
        shell.wait_alternate(true);
        shell.wait_text("no tasks");
        assert!(!shell.is_sane());
        shell.type_keys(keys);
        if let Some(signal) = signal {
            let is_top = |one: &Process| one.cmdline().contains("bgctl top");
            let all = processes_of(daemon.home());
            all.into_iter().find(is_top).expect("it runs").signal(signal).unwrap();
        }
        assert_eq!(shell.wait_code(), code, "{keys:?} {signal:?}");
        assert!(!shell.emulated().alternate_screen() && !shell.emulated().hide_cursor());
        assert_eq!(shell.emulated().mouse_protocol_mode(), vt100::MouseProtocolMode::None);
        assert_eq!(shell.run_line("stty -a | grep -q ' icanon.* echo '"), 0);
    }
}

#[test]
fn r163_top_exits_when_terminal_closes() {
    let daemon = TestDaemon::start();
    let mut top = top(&daemon);
    assert_eq!(top.close().code(), Some(129));
}

#[test]
fn r163_top_is_current_after_ctrl_z_and_fg() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl top");
    shell.wait_text("no tasks");
    shell.type_keys("\x1a");
    shell.wait_alternate(false);
    shell.wait_text("Stopped");
    shell.wait_prompt();
    let id = task_waiting_at(&daemon, "gate", "exit 0");
    shell.type_line("fg");
    shell.wait_alternate(true);
    shell.wait_text(&format!(" {} running ", id.short()));
    shell.type_keys("q");
    shell.wait_alternate(false);
    shell.wait_prompt();
}

#[test]
fn r163_top_redraws_after_sigstop_and_fg() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl top");
    shell.wait_text("no tasks");
    let is_top = |one: &Process| one.cmdline().contains("bgctl top");
    let top = processes_of(daemon.home()).into_iter().find(is_top).expect("it runs");
    top.signal(Signal::STOP).unwrap();
    shell.wait_text("Stopped");
    // It had no time to leave the alternate screen, in which the shell continues.
    shell.type_line("fg");
    shell.wait("a frame of its own", |screen| {
        let shown = screen.contents();
        shown.contains("no tasks") && !shown.contains("Stopped") && screen.hide_cursor()
    });
    shell.type_keys("q");
    shell.wait_alternate(false);
    shell.wait_prompt();
}

#[test]
fn r163_top_reconnects_when_daemon_returns() {
    let mut daemon = TestDaemon::start();
    let id = task_waiting_at(&daemon, "gate", "exit 0");
    let mut top = top(&daemon);
    top.wait_text(&id.short());
    daemon.stop();
    top.wait_text("the daemon is gone; waiting for it");
    top.wait_text(&id.short());
    top.type_keys("r");
    top.wait_text("there is no daemon to ask");
    daemon.launch();
    top.wait_text("no tasks");
    let id = daemon.run(&["submit", "-d", "new", "--", "true"]).success().word::<bgd_shared::id::TaskId>();
    top.wait_text(&id.short());
    daemon.kill9();
    top.wait_text("the daemon is gone; waiting for it");
    daemon.launch();
    top.wait_text("no tasks");
}

#[test]
fn r163_idle_top_never_wakes_up() {
    let daemon = TestDaemon::start();
    let id = task_waiting_at(&daemon, "gate", "exit 0");
    // Too narrow for any age to be visible.
    let mut top = super::sized(&daemon, &[], (10, 40));
    top.wait_text(&id.short());
    let process = top.process();
    let switches = || process.status_value("voluntary_ctxt_switches").unwrap();
    let after_lists = |count| {
        for _ in 0..count {
            daemon.run(&["list"]).success();
        }
        switches()
    };
    // Any work that remains after its first frame.
    let at_rest = wait::poll_until("a rest", || {
        let before = switches();
        (after_lists(5) == before).then_some(before)
    });
    after_lists(20);
    assert_eq!(switches(), at_rest, "nobody has woken it");
    open_gate(&daemon, "gate");
    top.wait_text("done 1");
}

/// The message that a daemon with too many connections sends before it closes one.
const REFUSAL: &str = "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32016,\"message\":\"too many of them\",\
                       \"data\":{\"kind\":\"too_many_connections\"}}}\n";

#[test]
fn r163_top_retries_refused_connection_with_growing_pauses() {
    let home = TestDaemon::home_only();
    let listener = home.listener();
    let server = thread::spawn(move || {
        let mut arrivals = Vec::new();
        for _ in 0..4 {
            let (mut stream, _) = listener.accept().unwrap();
            arrivals.push(Instant::now());
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            stream.write_all(REFUSAL.as_bytes()).unwrap();
        }
        (arrivals, listener)
    });
    let mut top = super::sized(&home, &[], (20, 120));
    top.wait_text("too many of them; connecting again");
    let (arrivals, _listener) = server.join().unwrap();
    let pauses: Vec<Duration> = arrivals.windows(2).map(|two| two[1] - two[0]).collect();
    let least = [200, 400, 800].map(Duration::from_millis);
    assert!(pauses.iter().zip(least).all(|(pause, least)| *pause >= least), "{pauses:?}");
    top.wait_text("too many of them; connecting again");
    top.type_keys("q");
    assert!(top.ended().success());
    fs::remove_file(home.socket()).unwrap();
}

#[test]
fn r163_top_connects_once_daemon_has_room_again() {
    let daemon = TestDaemon::builder().config("[limits]\nconnections = 8\n").start();
    let id = task_waiting_at(&daemon, "gate", "exit 0");
    // A connection that has sent nothing yet would be closed to make room.
    let speaks = || {
        let mut client = daemon.client();
        client.call::<Hello>(&HelloParams::default()).is_ok().then_some(client)
    };
    let held: Vec<Client> = std::iter::from_fn(speaks).take(64).collect();
    let mut top = super::sized(&daemon, &[], (20, 120));
    // Refused, or served only daemon.*, if the daemon has just noticed that the task's submitter closed its connection.
    top.wait_text("; connecting again");
    drop(held);
    top.wait_text(&id.short());
    top.wait("no reason any more", |screen| !screen.contents().contains("connecting again"));
    open_gate(&daemon, "gate");
    top.wait_text("done 1");
}
