//! The daemon that follows a durable one that was killed (R126), seen by a client that waits: it dies as well, fails to
//! start, or lacks the tasks.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use bgd_tests::shared::holder;
use bgd_tests::shared::request::{Hello, HelloParams};
use bgd_tests::{TestDaemon, bgd_path, executable, wait};

use super::channel_tty::Gate;
use super::durable_waiters::{Clients, GOES_ON, at_rest, blocked, ended, spawn, stop};

#[test]
fn r126_waiter_follows_daemons_killed_one_after_another() {
    let mut daemon = TestDaemon::durable("");
    let gate = Gate::new(&daemon, "gate");
    let id = daemon.submit_shell("read x <gate");
    daemon.wait_running(id);
    let mut block = blocked(&daemon, daemon.bgctl(&["block", &id.to_string()]));
    let mut errors = BufReader::new(block.stderr.take().unwrap());
    daemon.kill9();
    for kills in 1..8 {
        let mut message = String::new();
        errors.read_line(&mut message).unwrap();
        assert_eq!(message, GOES_ON, "after {kills} kills");
        if kills < 7 {
            daemon.process().kill();
        }
    }
    gate.open();
    let (exited, written, _) = ended(block);
    assert_eq!(exited, Some(0), "{written}");
    stop(&daemon);
}

/// Writes a program that ends at once when it is called first, as if it were killed while it starts, and is the daemon
/// from then on.
fn killed_at_first(daemon: &TestDaemon) -> PathBuf {
    let (program, was_called) = (daemon.home().join("killed"), daemon.home().join("was-called"));
    let text = format!(
        "#!/bin/sh\nmkdir {} 2>/dev/null && kill -9 $$\nexec {} \"$@\"\n",
        was_called.display(),
        bgd_path().display()
    );
    executable::write(&program, &text);
    program
}

#[test]
fn r126_waiters_continue_though_next_daemon_dies_while_it_starts() {
    let mut daemon = TestDaemon::durable("");
    let gate = Gate::new(&daemon, "gate");
    let id = daemon.submit_shell("read x <gate; echo end");
    daemon.wait_running(id);
    let program = killed_at_first(&daemon);
    let name = id.to_string();
    let mut clients = Clients::none(&daemon);
    let waiters = [&["block", &*name][..], &["output", "--follow", &name]].map(|args| {
        let mut waiter = daemon.bgctl(args);
        spawn(waiter.env("BGD_DAEMON", &program))
    });
    clients.connected(2);
    drop(clients);
    at_rest(&daemon, waiters.iter());
    daemon.kill9();
    gate.open();
    for waiter in waiters {
        let (exited, written, stderr) = ended(waiter);
        assert_eq!((exited, &*stderr), (Some(0), GOES_ON), "{written}");
    }
    stop(&daemon);
}

#[test]
fn r126_waiter_reports_next_daemon_that_fails_to_start() {
    let mut daemon = TestDaemon::durable("");
    let id = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(id);
    let program = daemon.home().join("broken");
    executable::write(&program, "#!/bin/sh\nexit 3\n");
    let mut block = daemon.bgctl(&["block", &id.to_string()]);
    block.env("BGD_DAEMON", &program);
    let block = blocked(&daemon, block);
    daemon.kill9();
    let (exited, _, stderr) = ended(block);
    assert_eq!(exited, Some(69), "{stderr}");
    assert!(stderr.contains("the daemon ended before it was ready"), "{stderr}");
    daemon.launch();
    daemon.run(&["daemon", "stop", "--cancel"]).success();
}

#[test]
fn r126_no_start_flag_keeps_waiter_from_starting_daemon() {
    let mut daemon = TestDaemon::durable("");
    let id = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(id);
    let block = blocked(&daemon, daemon.bgctl(&["--no-start", "block", &id.to_string()]));
    daemon.kill9();
    let (exited, _, stderr) = ended(block);
    assert_eq!(exited, Some(69), "{stderr}");
    assert_eq!(holder::of(daemon.socket_path()), None, "no daemon was started");
    daemon.launch();
    daemon.run(&["daemon", "stop", "--cancel"]).success();
}

#[test]
fn r126_waiter_fails_if_next_daemon_lacks_the_tasks() {
    let mut daemon = TestDaemon::durable("");
    let id = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(id);
    let block = blocked(&daemon, daemon.bgctl(&["block", &id.to_string()]));
    daemon.write_config("durable = false");
    daemon.kill9();
    let (exited, _, stderr) = ended(block);
    assert_eq!(exited, Some(69), "{stderr}");
    assert!(!stderr.contains("takes over its tasks"), "{stderr}");
    wait::poll_until("the daemon that it has started", || holder::of(daemon.socket_path()));
    daemon.run(&["daemon", "stop"]).success();
}

#[test]
fn r126_refused_connection_is_not_reported_as_end_of_daemon() {
    let daemon = TestDaemon::durable("[limits]\nconnections = 1");
    let mut client = daemon.client();
    client.call::<Hello>(&HelloParams::default()).unwrap();
    let outcome = daemon.run(&["doctor"]).expect_code(69);
    assert!(outcome.stdout_text().contains("connections"), "{}", outcome.stdout_text());
    assert_eq!(outcome.stderr, "");
    drop(client);
    stop(&daemon);
}
