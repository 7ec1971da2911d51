//! R169: `bgctl shell-prompt` shows in a few characters what runs and what has failed, and never delays a prompt.

use std::fs;
use std::os::unix::net::UnixListener;

use bgd_tests::{Outcome, Terminal, TestDaemon};

#[test]
fn r169_prompt_counts_running_tasks_and_unseen_failures() {
    let daemon = TestDaemon::start();
    // On a busy machine, an answer may take longer than a prompt should.
    let patient = ["shell-prompt", "--timeout", "1m"];
    let shown = || daemon.run(&patient).success().stdout_text();
    assert_eq!(shown(), "");
    let failed = daemon.run(&["submit", "--", "false"]).success().stdout_text();
    daemon.run(&["block", failed.trim()]).expect_code(1);
    assert_eq!(shown(), "bgd:1✗ ");
    let ready = ["submit", "--ready", "line:up", "--", "sh", "-c", "echo up; exec sleep 1000"];
    let server = daemon.run(&ready).success().stdout_text();
    daemon.run(&["block", "--until", "ready", server.trim()]).success();
    assert_eq!(shown(), "bgd:1▶ 1✗ ");
    let mut plain = daemon.bgctl(&patient);
    assert_eq!(Outcome::of(plain.env("LANG", "C")).success().stdout_text(), "bgd:1> 1x ");
    fs::create_dir_all(daemon.state_dir()).unwrap();
    fs::write(daemon.state_dir().join("looked"), "").unwrap();
    assert_eq!(shown(), "bgd:1▶ ");
    let mut remote = daemon.bgctl(&patient);
    assert_eq!(Outcome::of(remote.env("BGD_HOST", "no-such-host")).success().stdout_text(), "");
}

#[test]
fn r160_looking_at_one_daemon_hides_no_failure_of_another() {
    let [here, other] = [TestDaemon::start(), TestDaemon::start()];
    for daemon in [&here, &other] {
        let id = daemon.submit(&["false"]);
        daemon.block(&[id]);
    }
    let socket = other.socket().to_str().unwrap();
    let at = |socket: &str, words: &[&str]| here.bgctl(&[&["--socket", socket], words].concat());
    let shown = |socket: &str| {
        Outcome::of(&mut at(socket, &["shell-prompt", "--timeout", "1m"])).success().stdout_text()
    };
    let own = here.socket().to_str().unwrap();
    assert_eq!([shown(own), shown(socket)], ["bgd:1✗ ", "bgd:1✗ "]);
    assert!(Terminal::open(&at(socket, &[])).ended().success());
    assert_eq!([shown(own), shown(socket)], ["bgd:1✗ ", ""]);
    assert!(Terminal::open(&at(own, &[])).ended().success());
    assert_eq!([shown(own), shown(socket)], ["", ""]);
}

#[test]
fn r169_foreground_failure_is_not_reported_as_unseen() {
    let daemon = TestDaemon::start();
    daemon.run(&["run", "-d", "seen to fail", "--", "false"]).expect_code(1);
    assert_eq!(daemon.run(&["shell-prompt", "--timeout", "1m"]).success().stdout_text(), "");
    let shown = daemon.run(&["top", "--once"]).success().stdout_text();
    assert!(shown.contains("nothing needs you") && shown.contains("seen to fail"), "{shown}");
    let listed = daemon.run(&["list"]).success().stdout_text();
    assert!(listed.contains("seen to fail"), "{listed}");
}

#[test]
fn r169_the_prompt_starts_no_daemon() {
    let home = TestDaemon::home_only();
    assert_eq!(home.run(&["shell-prompt"]).success().stdout_text(), "");
    assert!(home.processes().is_empty());
}

#[test]
fn r169_prompt_does_not_wait_for_hung_daemon() {
    let home = TestDaemon::home_only();
    fs::create_dir_all(home.socket().parent().unwrap()).unwrap();
    // Its connections are never accepted or answered.
    let _silent = UnixListener::bind(home.socket()).unwrap();
    let outcome = home.run(&["shell-prompt"]).success();
    assert!(outcome.stdout.is_empty() && outcome.stderr.is_empty(), "{}", outcome.stderr);
}

#[test]
fn r169_prompt_is_silent_when_settings_name_no_single_daemon() {
    let daemon = TestDaemon::start();
    for (name, value) in [("BGD_HOST", "a,b"), ("BGD_HOST", "-x"), ("BGD_SOCKET", "not/absolute")] {
        for args in [&["shell-prompt"][..], &["shell-prompt", "--timeout", "1s"]] {
            let outcome = Outcome::of(daemon.bgctl(args).env(name, value)).success();
            assert!(outcome.stdout.is_empty() && outcome.stderr.is_empty(), "{value}: {}", outcome.stderr);
        }
        // Other verbs report it.
        let outcome = Outcome::of(daemon.bgctl(&["daemon", "status"]).env(name, value)).expect_code(2);
        assert!(outcome.stderr.starts_with("bgctl: "), "{}", outcome.stderr);
    }
}
