//! The exit codes of `bgctl` are those of the table in the documentation, with at least one case per code.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

use bgctl::exit::TABLE;
use bgd_shared::id::TaskId;
use bgd_tests::{Outcome, TestDaemon};

/// The exit codes of the session verbs without a session.
#[test]
fn session_inbox_and_event_verbs_return_documented_codes() {
    let daemon = TestDaemon::start();
    let cases: &[(i32, &[&str])] = &[
        (0, &["inbox", "--session", "nobody"]),
        (2, &["submit", "--channel", "nobody", "--", "true"]),
        (2, &["session", "key"]),
        (2, &["session", "end", "."]),
        (2, &["inbox"]),
        (2, &["list", "--session", "."]),
        (2, &["clear", "--session", "."]),
        (2, &["clear"]),
        (2, &["clear", "--all"]),
        (2, &["cancel", "--all", "--session", "."]),
        (2, &["events", "--session", "."]),
        (2, &["events", "--since", "99"]),
        (2, &["daemon", "status", "--openmetrics", "--json"]),
        (2, &["events", "--since", "another-daemon:0"]),
        (69, &["events", "--since", "724fede0-9209-4435-bc37-e308e63f1f21:0"]),
        (75, &["inbox", "--session", "nobody", "--wait", "1ms"]),
    ];
    for (code, args) in cases {
        let outcome = daemon.run(args).expect_code(*code);
        assert!(outcome.stdout.is_empty(), "{args:?}");
        assert_eq!(outcome.stderr.is_empty(), [0, 75].contains(code), "{args:?}: {}", outcome.stderr);
    }
}

/// Exit codes and commands that lead to them. Words in capitals stand for tasks.
const CODES: &[(u8, &[&str])] = &[
    (0, &["block", "GOOD"]),
    (0, &["cancel", "GOOD"]),
    (1, &["block", "GOOD", "BAD"]),
    (1, &["block", "KILLED"]),
    (2, &["block"]),
    (2, &["no-such-verb"]),
    (2, &["status", "xyz!"]),
    (2, &["submit", "--cwd", "", "--", "true"]),
    (2, &["signal", "RUNNING", "NOSUCH"]),
    (2, &["submit", "--agent", "nobody", "-d", "x", "a prompt"]),
    (2, &["submit", "--agent", "nobody", "a prompt"]),
    (2, &["submit", "--prompt", "no default_agent", "-d", "x"]),
    (2, &["resume", "GOOD", ""]),
    (2, &["agents", "nobody"]),
    (65, &["output", "--result", "RUNNING"]),
    (65, &["output", "--result", "BAD"]),
    (65, &["signal", "GOOD", "TERM"]),
    (65, &["clear", "RUNNING"]),
    (65, &["write", "GOOD", "x"]),
    (65, &["write", "RUNNING", "x"]),
    (65, &["write", "RUNNING", "--eof"]),
    (65, &["resume", "GOOD", "go on"]),
    (65, &["submit", "--resume", "RUNNING", "go on"]),
    (65, &["answer", "RUNNING"]),
    (66, &["status", "UNKNOWN"]),
    (66, &["output", "UNKNOWN"]),
    (66, &["block", "GOOD", "UNKNOWN"]),
    (66, &["cancel", "UNKNOWN"]),
    (66, &["clear", "UNKNOWN"]),
    (66, &["signal", "UNKNOWN", "TERM"]),
    (66, &["write", "UNKNOWN", "x"]),
    (66, &["write", "UNKNOWN", ""]),
    (66, &["write", "UNKNOWN", "--no-eof"]),
    (65, &["write", "RUNNING", ""]),
    (66, &["resume", "UNKNOWN", "go on"]),
    (66, &["submit", "--resume", "UNKNOWN", "go on"]),
    (66, &["answer", "UNKNOWN", "allow"]),
    (69, &["submit", "--env", "PATH=/nowhere", "--agent", "goose", "-d", "d", "prompt"]),
    (66, &["events", "--task", "UNKNOWN"]),
    (75, &["block", "--timeout", "1ms", "RUNNING"]),
    (75, &["block", "--timeout", "1ms", "--exit-code", "RUNNING"]),
    (3, &["block", "--exit-code", "BAD"]),
    (124, &["block", "--exit-code", "LIMITED"]),
    (1, &["block", "LIMITED"]),
    (137, &["block", "--exit-code", "KILLED"]),
    (75, &["block", "--exit-code", "LATE"]),
];

#[test]
fn every_documented_exit_code_is_reached() {
    let daemon = TestDaemon::start();
    let submit = |line: &str| -> String {
        let id: TaskId = daemon.run(&["submit", "--shell", line]).success().word();
        id.to_string()
    };
    let good = submit("true");
    let bad = submit("exit 3");
    let killed = submit("kill -KILL $$");
    let late = submit("exit 75");
    let running = submit("sleep 1000");
    let limited: TaskId =
        daemon.run(&["submit", "--time-limit", "10ms", "--", "sleep", "1000"]).success().word();
    let limited = limited.to_string();
    daemon.run(&["block", &limited]).expect_code(1);
    daemon.run(&["block", &good, &bad, &killed, &late]).expect_code(1);
    let unknown = TaskId::random().to_string();
    let named = [
        ("GOOD", &good),
        ("BAD", &bad),
        ("KILLED", &killed),
        ("LATE", &late),
        ("RUNNING", &running),
        ("LIMITED", &limited),
        ("UNKNOWN", &unknown),
    ];
    for (code, args) in CODES {
        let meant = |word| named.iter().find(|(name, _)| *name == word).map_or(word, |(_, id)| id.as_str());
        let args: Vec<&str> = args.iter().copied().map(meant).collect();
        let outcome = daemon.run(&args);
        assert_eq!(outcome.code, i32::from(*code), "{args:?}: {}", outcome.stderr);
        if ![0, 1, 75, 3, 124, 137].contains(code) {
            assert!(outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{args:?}");
        }
    }
    daemon.run(&["cancel", &running]).success();
    // The tests below cover the others.
    let reached: Vec<u8> = CODES.iter().map(|(code, _)| *code).chain([69, 70, 77, 78]).collect();
    for (code, meaning) in TABLE {
        assert!(reached.contains(&code.0), "{} ({meaning}) is not tested", code.0);
    }
    let help = daemon.run(&["--help"]).success().stdout_text();
    assert!(TABLE.iter().all(|(_, meaning)| help.contains(&meaning[..meaning.len().min(20)])));
}

#[test]
fn missing_daemon_exits_with_69() {
    let home = TestDaemon::home_only();
    home.run(&["--no-start", "list"]).expect_code(69);
    home.run(&["daemon", "status"]).expect_code(69);
    let mut none = home.bgctl(&["list"]);
    let outcome = Outcome::of(none.env("BGD_DAEMON", "/no/such/bgd")).expect_code(69);
    assert!(outcome.stderr.contains("/no/such/bgd") && outcome.stderr.contains("BGD_DAEMON"));
    // A daemon that ends without answering.
    let mut silent = home.bgctl(&["list"]);
    Outcome::of(silent.env("BGD_DAEMON", "/bin/true")).expect_code(69);
}

#[test]
fn malformed_daemon_reply_exits_with_70() {
    let home = TestDaemon::home_only();
    let listener = home.listener();
    let server = thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"what?\n").unwrap();
    });
    let outcome = home.run(&["--no-start", "list"]).expect_code(70);
    assert!(outcome.stdout.is_empty() && outcome.stderr.contains("can't be parsed"), "{}", outcome.stderr);
    server.join().unwrap();
    fs::remove_file(home.socket()).unwrap();
}

#[test]
fn submit_to_full_daemon_exits_with_70() {
    let daemon = TestDaemon::builder().config("[limits]\ntasks = 1\n").start();
    let id: TaskId = daemon.run(&["submit", "--", "true"]).success().word();
    daemon.block(&[id]);
    let outcome = daemon.run(&["submit", "--", "true"]).expect_code(70);
    assert!(outcome.stderr.contains("hint: "), "{}", outcome.stderr);
    daemon.run(&["clear", "--all-sessions"]).success();
    let id: TaskId = daemon.run(&["submit", "--", "true"]).success().word();
    daemon.block(&[id]);
}

#[test]
fn untrusted_socket_folder_exits_with_77() {
    let home = TestDaemon::home_only();
    let folder = home.socket().parent().unwrap();
    fs::create_dir(folder).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = home.run(&["list"]).expect_code(77);
    assert!(outcome.stderr.contains(folder.to_str().unwrap()), "{}", outcome.stderr);
    fs::remove_dir(folder).unwrap();
    std::os::unix::fs::symlink(home.home(), folder).unwrap();
    home.run(&["list"]).expect_code(77);
    home.run(&["--no-start", "list"]).expect_code(77);
    fs::remove_file(folder).unwrap();
}

#[test]
fn invalid_configuration_exits_with_78() {
    let home = TestDaemon::builder().config("max_concurent_tasks = 1\n").home_only();
    let outcome = home.run(&["list"]).expect_code(78);
    assert!(outcome.stderr.contains("did you mean `max_concurrent_tasks`"), "{}", outcome.stderr);
    home.write_config("");
    home.run(&["list"]).success();
    home.write_config("max_concurrent_tasks = 0\n");
    home.run(&["daemon", "reload"]).expect_code(78);
    home.run(&["list"]).success();
}
