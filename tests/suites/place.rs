//! A running daemon that loses its place: its socket, its folder, its state folder, all of its connections. It becomes
//! reachable again, or can at least be found and ended.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use bgd_tests::shared::request::{Hello, HelloParams};
use bgd_tests::shared::task::Status;
use bgd_tests::{Outcome, Process, Raw, Terminal, TestDaemon, wait};
use rustix::process::Signal;
use serde_json::json;

fn instance(daemon: &TestDaemon) -> String {
    daemon.client().call::<Hello>(&HelloParams::default()).unwrap().instance
}

/// Removes a folder with its contents, atomically.
fn remove_atomically(daemon: &TestDaemon, folder: &Path) {
    let aside = tempfile::tempdir_in(daemon.home()).unwrap();
    fs::rename(folder, aside.path().join("aside")).unwrap();
}

/// Waits until the socket is back.
fn is_back(daemon: &TestDaemon) {
    wait::for_file(daemon.socket().parent().unwrap());
    wait::for_file(daemon.socket());
    // The socket exists a moment before it accepts connections.
    daemon.run(&["list"]).success();
}

/// Returns the number of daemons that stay. One that finds the place taken reports that before it ends.
fn daemons(daemon: &TestDaemon) -> usize {
    let is_bgd =
        |process: &Process| process.cmdline().split(' ').next().unwrap_or_default().ends_with("/bgd");
    let stays = |process: &Process| process.pid() == daemon.pid() || !process.wait_gone(wait::PATIENCE);
    daemon.processes().iter().filter(|process| is_bgd(process)).filter(|process| stays(process)).count()
}

#[test]
fn removed_socket_is_recreated_with_its_folder_and_lock() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(id);
    let before = instance(&daemon);
    let folder = daemon.socket().parent().unwrap();
    let mut open = daemon.client();
    // Often enough to hit a daemon that has just recreated the socket.
    for round in 0..20 {
        fs::remove_file(daemon.socket()).unwrap();
        wait::for_file(daemon.socket());
        remove_atomically(&daemon, folder);
        is_back(&daemon);
        assert_eq!(instance(&daemon), before, "round {round}");
    }
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(fs::metadata(daemon.socket()).unwrap().permissions().mode() & 0o7777, 0o600);
    // Nobody else gets the place, and existing connections stay.
    assert!(daemon.second().stderr.contains("another bgd"), "it is taken");
    assert_eq!(open.call::<Hello>(&HelloParams::default()).unwrap().instance, before);
    assert_eq!(daemon.task(id).status, Status::Running);
    assert_eq!(daemons(&daemon), 1);
}

#[test]
fn client_starts_no_second_daemon_while_the_socket_is_missing() {
    let daemon = TestDaemon::start();
    let before = instance(&daemon);
    for _ in 0..5 {
        remove_atomically(&daemon, daemon.socket().parent().unwrap());
        daemon.run(&["submit", "--", "true"]).success();
        assert_eq!(instance(&daemon), before);
        assert_eq!(daemons(&daemon), 1);
    }
    assert_eq!(daemon.status().summary.total(), 5);
}

#[test]
fn unreachable_daemon_is_found_and_returns_with_its_folder() {
    let daemon = TestDaemon::start();
    let (before, pid) = (instance(&daemon), daemon.pid());
    // As at a logout: the parent folder is gone too, and the daemon must not create it.
    let runtime = daemon.home().join("run");
    remove_atomically(&daemon, &runtime);
    for verb in [&["list"][..], &["--no-start", "list"], &["daemon", "status"]] {
        let outcome = daemon.run(verb).expect_code(69);
        assert!(
            outcome.stderr.contains(&format!("the daemon (pid {pid}) is running, but its socket")),
            "{}",
            outcome.stderr
        );
        assert!(outcome.stderr.contains("`bgctl daemon stop` stops it"), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("(state"), "its state explains nothing: {}", outcome.stderr);
    }
    assert_eq!(daemons(&daemon), 1);
    fs::DirBuilder::new().mode(0o700).create(&runtime).unwrap();
    is_back(&daemon);
    assert_eq!(instance(&daemon), before);
}

#[test]
fn r11_daemon_stop_ends_daemon_and_tasks_after_socket_is_removed() {
    let mut daemon = TestDaemon::start();
    let id = daemon.submit(&["sleep", "1000"]);
    let task = Process::open(daemon.wait_running(id).pid.unwrap()).unwrap();
    let process = daemon.process();
    remove_atomically(&daemon, &daemon.home().join("run"));
    let outcome = daemon.run(&["daemon", "stop"]).success();
    assert_eq!(outcome.stdout_text(), "stopped\n");
    assert!(outcome.stderr.contains(&format!("(pid {})", process.pid())), "{}", outcome.stderr);
    assert!(!process.is_alive() && !task.is_alive());
    assert!(daemon.ended().success());
    assert_eq!(daemon.run(&["daemon", "stop"]).success().stdout_text(), "no daemon is running\n");
}

/// A daemon with another state folder takes the place of a stopped one: each leaves the other's files alone.
#[test]
fn daemon_leaves_socket_of_another_alone_and_reclaims_its_place() {
    let mut first = TestDaemon::start();
    let before = instance(&first);
    let stands = first.process();
    stands.signal(Signal::STOP).unwrap();
    remove_atomically(&first, first.socket().parent().unwrap());
    let state = tempfile::tempdir_in(first.home()).unwrap();
    let mut command = first.bgctl(&["daemon", "start"]);
    command.env("XDG_STATE_HOME", state.path());
    assert!(command.status().unwrap().success());
    let second = instance(&first);
    assert_ne!(second, before);
    stands.signal(Signal::CONT).unwrap();
    wait::for_line(&first.state_dir().join("bgd.log"), "another daemon holds");
    assert_eq!(instance(&first), second);

    // The second one ends, and the first one is back.
    first.run(&["daemon", "stop"]).success();
    is_back(&first);
    assert_eq!(instance(&first), before);

    // The other way round: the first one ends, and the second one's socket stays.
    stands.signal(Signal::STOP).unwrap();
    remove_atomically(&first, first.socket().parent().unwrap());
    assert!(command.status().unwrap().success());
    let third = instance(&first);
    stands.signal(Signal::CONT).unwrap();
    wait::for_lines(&first.state_dir().join("bgd.log"), 2, "another daemon holds");
    assert!(first.stop().success());
    assert_eq!(instance(&first), third);
    first.run(&["daemon", "stop"]).success();
}

#[test]
fn bgctl_and_daemon_use_the_same_state_folder_from_any_directory() {
    let home = TestDaemon::home_only();
    let here = home.home().join("here");
    fs::create_dir(&here).unwrap();
    // A relative one is ignored: each program has a current folder of its own.
    let command = |args: &[&str]| {
        let mut command = home.bgctl(args);
        command.env("XDG_STATE_HOME", "state").current_dir(&here);
        command
    };
    Outcome::of(&mut command(&["submit", "--", "true"])).success();
    // bgctl records that its user has looked.
    assert!(Terminal::open(&command(&[])).ended().success());
    let state = home.home().join(".local/state/bgd");
    for name in ["bgd.log", "looked"] {
        assert!(state.join(name).is_file(), "{name}");
    }
    Outcome::of(&mut command(&["daemon", "stop"])).success();
    assert_eq!(fs::read_dir(&here).unwrap().count(), 0, "nothing is written where it was called");
}

#[test]
fn start_without_usable_state_folder_says_what_to_set() {
    let home = TestDaemon::home_only();
    let file = home.home().join("file");
    fs::write(&file, "").unwrap();
    // As with a home that is read-only; root could write to that.
    let refused = Outcome::of(home.bgctl(&["daemon", "start"]).env("XDG_STATE_HOME", &file)).expect_code(69);
    let folder = format!("the state folder {}: ", file.join("bgd").display());
    assert!(refused.stderr.contains(&folder), "{}", refused.stderr);
    assert!(refused.stderr.contains("Not a directory\nhint: set XDG_STATE_HOME to"), "{}", refused.stderr);
}

#[test]
fn removed_state_folder_is_recreated() {
    let daemon = TestDaemon::start();
    let before = daemon.submit_shell("echo before; sleep 1000");
    let task = daemon.wait_running(before);
    wait::for_line(Path::new(&task.output.path), "before");
    fs::remove_dir_all(daemon.state_dir()).unwrap();
    let id: bgd_tests::shared::id::TaskId = daemon.run(&["submit", "--", "echo", "again"]).success().word();
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.error), (Status::Completed, None));
    assert_eq!(daemon.output(id), b"again\n");
    assert_eq!(daemon.cancel(&[before])[0].status, Status::Cancelled);
    let mode = fs::metadata(daemon.state_dir().join("instances")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    // The folder belongs to a living daemon, so a daemon that cleans up leaves it alone.
    let folder = Path::new(&task.output.path).parent().unwrap().to_path_buf();
    let mut other = daemon.bgctl(&["--socket", daemon.home().join("other/bgd.sock").to_str().unwrap()]);
    assert!(other.args(["daemon", "start"]).status().unwrap().success());
    assert!(folder.exists());
    let mut other = daemon.bgctl(&["--socket", daemon.home().join("other/bgd.sock").to_str().unwrap()]);
    assert!(other.args(["daemon", "stop"]).status().unwrap().success());
}

#[test]
fn removed_output_folder_is_reported_until_the_next_task_recreates_it() {
    let daemon = TestDaemon::start();
    let gate = daemon.home().join("gate");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
    let id = daemon.submit_shell(&format!("{wait}; echo lost; exec sleep 1000"));
    let task = daemon.wait_running(id);
    let folder = Path::new(&task.output.path).parent().unwrap();
    fs::remove_dir_all(folder).unwrap();
    // The daemon has the folder open, so the system reports its removal with the next write.
    fs::write(&gate, "").unwrap();
    let warning = wait::poll_until("a warning", || daemon.warnings().pop());
    assert!(warning.starts_with(&format!("{} was removed", folder.display())), "{warning}");
    daemon.run(&["submit", "--", "true"]).success();
    wait::poll_until("no warning any more", || daemon.warnings().is_empty().then_some(()));
    daemon.cancel(&[id]);
}

#[test]
fn submit_is_refused_when_state_folder_cannot_be_recreated() {
    let daemon = TestDaemon::start();
    fs::remove_dir_all(daemon.state_dir()).unwrap();
    fs::write(daemon.state_dir(), "in the way").unwrap();
    let refused = daemon.run(&["submit", "--", "true"]).expect_code(70);
    assert!(refused.stderr.contains("can't be recreated"), "{}", refused.stderr);
    assert!(refused.stderr.contains("recreate the state folder"), "{}", refused.stderr);
    assert_eq!(daemon.status().summary.total(), 0);
    fs::remove_file(daemon.state_dir()).unwrap();
    daemon.run(&["submit", "--", "true"]).success();
}

#[test]
fn r09_next_start_ends_tasks_of_killed_daemon_without_state_folder() {
    let mut daemon = TestDaemon::start();
    let id = daemon.submit_shell("sleep 1000 & setsid sleep 1000 & wait");
    let task = Process::open(daemon.wait_running(id).pid.unwrap()).unwrap();
    fs::remove_dir_all(daemon.state_dir()).unwrap();
    daemon.kill9();
    assert!(task.is_alive(), "a killed daemon can end nobody");
    daemon.launch();
    assert!(!task.is_alive());
    assert_eq!(daemon.task_processes().len(), 0);
}

#[test]
fn some_connections_are_reserved_for_daemon_methods() {
    let daemon = TestDaemon::builder().config("[limits]\nconnections = 2\n").start();
    let mut inside: Vec<Raw> = (0..2).map(|_| Raw::connect(daemon.socket())).collect();
    assert!(inside.iter_mut().all(Raw::is_served));
    let refused = daemon.run(&["list"]).expect_code(69);
    assert!(refused.stderr.contains("reached its limit of connections"), "{}", refused.stderr);
    daemon.run(&["daemon", "status"]).success();
    daemon.run(&["daemon", "reload"]).success();
    // The number of reserved connections is bounded, too.
    wait::poll_until("two connections are left", || {
        let status = inside[0].call(1, "daemon.status", &json!({}));
        (status["result"]["connections"] == 2).then_some(())
    });
    let mut kept: Vec<Raw> = (0..4).map(|_| Raw::connect(daemon.socket())).collect();
    assert!(kept.iter_mut().all(Raw::is_served));
    let answer = Raw::connect(daemon.socket()).receive().expect("a word");
    assert_eq!(answer["error"]["data"]["kind"], "too_many_connections", "{answer}");
    // A reserved connection that asks for anything else is closed, with an error.
    let answer = kept[0].call(7, "task.list", &json!({}));
    assert_eq!(
        (&answer["id"], &answer["error"]["data"]["kind"]),
        (&json!(7), &json!("too_many_connections"))
    );
    kept[0].closed();
    assert!(inside.iter_mut().all(Raw::is_served));
}

#[test]
fn r11_daemon_stop_ends_daemon_whose_connections_are_all_taken() {
    for reserved in [0, 4] {
        let daemon = TestDaemon::builder().config("[limits]\nconnections = 2\n").start();
        // The descriptor of an earlier connection may count for another moment.
        let served = || wait::poll_until("a place", || some_served(&daemon));
        let taken: Vec<Raw> = (0..2 + reserved).map(|_| served()).collect();
        let process = daemon.process();
        let outcome = daemon.run(&["daemon", "stop"]).success();
        assert_eq!(outcome.stdout_text(), "stopped\n");
        assert_eq!(outcome.stderr.contains("sending SIGTERM"), reserved > 0, "{}", outcome.stderr);
        assert!(!process.is_alive());
        drop(taken);
    }
}

/// Returns a connection that has made a call, so that it is not closed to make room for another one.
fn some_served(daemon: &TestDaemon) -> Option<Raw> {
    let mut raw = Raw::connect(daemon.socket());
    raw.is_served().then_some(raw)
}

#[test]
fn connections_that_sent_nothing_are_closed_first() {
    let daemon = TestDaemon::builder().config("[limits]\nconnections = 3\n").start();
    let mut speaks = Raw::connect(daemon.socket());
    assert!(speaks.is_served());
    let mut silent: Vec<Raw> = (0..2).map(|_| Raw::connect(daemon.socket())).collect();
    daemon.run(&["list"]).success();
    let word = silent[0].receive().expect("a word");
    assert_eq!(word["error"]["data"]["kind"], "too_many_connections", "{word}");
    silent[0].closed();
    assert!(speaks.is_served() && silent[1].is_served());
}
