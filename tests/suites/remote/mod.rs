//! The daemon of another machine, through a real ssh and a real sshd: `bgctl -H`.

mod bootstrap;
mod cuts;
mod followed;
mod hosts;
mod kept;
mod programs;
mod readme;
mod silence;
mod streams;
mod verbs;
mod wires;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{ListParams, TaskList};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::{Outcome, Terminal, TestDaemon};
use serde_json::Value;

fn tasks(far: &Far) -> Vec<Task> {
    far.daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks
}

/// Starts a `bgctl` whose output is read.
fn begin(far: &Far, args: &[&str]) -> Child {
    far.bgctl(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Lets no connection begin until the returned file is removed.
fn hold_connections(far: &Far) -> PathBuf {
    let hold = far.path("hold");
    far.wrap(&format!("while [ -e {} ]; do sleep 0.05; done", hold.display()));
    fs::write(&hold, "").unwrap();
    hold
}

/// Starts a `block` in a terminal; it waits only for the end of the task.
#[track_caller]
fn blocked(far: &Far, options: &[&str], id: &str) -> Terminal {
    let mut block = far.terminal(&[options, &["block", "--exit-code", "--timeout", "none", id]].concat());
    wait_drawn(far, &mut block, id.parse().expect("an id"));
    block
}

/// Waits until a `block` shows the task's progress: from then on it waits only for the end.
#[track_caller]
fn wait_drawn(far: &Far, block: &mut Terminal, id: TaskId) {
    // Not the message shown while a connection takes long.
    let named: String = far.daemon.task(id).description.chars().take(8).collect();
    block.wait("how far the task is", |screen| screen.contents().contains(&named));
}

#[test]
fn r140_remote_tasks_inherit_remote_environment() {
    let far = Far::start();
    let id: TaskId = far
        .run(&["submit", "--env", "NEW=x y", "--shell", "pwd; echo \"$HOME $NEW $BGD_HOST\"; umask"])
        .word();
    far.run(&["block", &id.to_string()]).success();
    let output = far.run(&["output", &id.to_string()]).success().stdout_text();
    let home = far.daemon.home().display().to_string();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[1..], [&*format!("{home} x y "), "0022"], "{output}");
    // sshd begins in the home from the user database.
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).unwrap().unwrap();
    assert_eq!(lines[0], user.dir.to_str().unwrap());
    let elsewhere = far.run(&["submit", "--cwd", "/tmp", "--", "pwd"]).word::<TaskId>().to_string();
    far.run(&["block", &elsewhere]).success();
    assert_eq!(far.run(&["output", &elsewhere]).stdout_text(), "/tmp\n");
    // The task belongs to the remote daemon, and no daemon was started here.
    assert_eq!(tasks(&far).len(), 2);
    assert!(!far.home().join("run/bgd.sock").exists() && !far.home().join("state/bgd").exists());
}

#[test]
fn r140_verbs_behave_remotely_as_they_do_locally() {
    let far = Far::start();
    let id = far.run(&["submit", "-d", "sleeps", "--", "sleep", "1000"]).word::<TaskId>().to_string();
    assert!(far.run(&["list"]).success().stdout_text().contains("sleeps"));
    assert!(far.run(&["status", &id]).success().stdout_text().contains("running"));
    far.run(&["block", &id, "--timeout", "0s"]).expect_code(75);
    far.run(&["signal", &id, "CONT"]).success();
    far.run(&["cancel", &id]).success();
    far.run(&["block", &id]).expect_code(1);
    let missing = far.run(&["status", "00000000-0000-0000-0000-00000000ffff"]).expect_code(66);
    assert!(missing.stderr.starts_with("bgctl: far: "), "{}", missing.stderr);
    let exit = far.run(&["submit", "--shell", "exit 3"]).word::<TaskId>().to_string();
    far.run(&["block", "--exit-code", &exit]).expect_code(3);
    let batch = Outcome::of(
        far.bgctl(&["submit", "--each", "/etc/passwd", "--jobs", "2", "--", "true"]).stdin(Stdio::null()),
    );
    far.run(&["block", "--batch", batch.word::<TaskId>().to_string().as_str()]).success();
    let waits = far.run(&["submit", "--shell", "echo one; echo two"]).word::<TaskId>().to_string();
    assert_eq!(far.run(&["block", "--line", "tw", &waits]).success().stdout_text(), "two\n");
    let split =
        far.run(&["submit", "--split", "--shell", "echo one; echo two >&2"]).word::<TaskId>().to_string();
    assert_eq!(far.run(&["block", "--line", "tw", &split]).success().stdout_text(), "two\n");
    far.run(&["clear", "--all-sessions"]).success();
    assert!(
        far.run(&["daemon", "status"]).success().stdout_text().contains(&format!("pid {}", far.daemon.pid()))
    );
    // All of that used one connection.
    assert_eq!(far.connections(), 1);
}

#[test]
fn r140_remote_daemon_is_started_if_none_runs() {
    let far = Far::of(TestDaemon::home_only());
    far.set_session(&[("BGD_DAEMON", bgd_tests::bgd_path().to_str().unwrap())]);
    let none = far.run(&["--no-start", "list"]).expect_code(69);
    assert!(none.stderr.contains("bgctl: far: no daemon is"), "{}", none.stderr);
    assert!(none.stderr.contains("hint: `bgctl -H far daemon start` starts one"), "{}", none.stderr);
    assert_eq!(far.run(&["daemon", "stop"]).success().stdout_text(), "no daemon is running\n");
    assert!(far.run(&["daemon", "start"]).success().stdout_text().starts_with("started, pid "));
    let id = far.run(&["submit", "--", "echo", "up"]).word::<TaskId>().to_string();
    far.run(&["block", &id]).success();
    assert!(far.daemon.socket().exists());
    assert!(far.run(&["daemon", "stop"]).success().stdout_text().starts_with("stopped"));
}

#[test]
fn r141_remote_job_uses_local_terminal_until_ctrl_b() {
    let far = Far::start();
    let mut terminal = far.terminal(&[
        "run",
        "--shell",
        "stty size; echo \"on $HOME\"; read line; echo \"got $line\"; read line",
    ]);
    terminal.wait_text(&format!("24 80\non {}", far.daemon.home().display()));
    terminal.type_line("words");
    terminal.wait_text("got words");
    terminal.type_keys("\x02");
    terminal.wait_text("Command was manually backgrounded by user with ID");
    let tasks = tasks(&far);
    assert_eq!(tasks.iter().map(|task| task.status).collect::<Vec<_>>(), [Status::Running]);
    let mut again = far.terminal(&["attach", &tasks[0].id.to_string()]);
    again.wait_text("got words");
    again.type_line("end");
    far.run(&["block", &tasks[0].id.to_string()]).success();
}

#[test]
fn r141_commands_that_pass_descriptors_are_refused_remotely() {
    let far = Far::start();
    for args in [&["submit", "--stdin", "--key", "k", "--", "cat"][..], &["handoff", "--pid", "2"]] {
        let refused = far.run(&[&["--json"], args].concat()).expect_code(2);
        let error: Value = serde_json::from_str(&refused.stderr).unwrap();
        assert_eq!(error["error"]["data"]["kind"], "not_over_remote", "{args:?}: {error}");
    }
    assert!(tasks(&far).is_empty());
}

#[test]
fn r143_missing_remote_bgctl_is_reported_with_hint() {
    let far = Far::start();
    far.set_session(&[("PATH", "/usr/bin:/bin")]);
    let failed = far.run(&["list"]).expect_code(69);
    assert!(failed.stderr.contains("far: no bgctl there: "), "{}", failed.stderr);
    assert!(failed.stderr.contains("hint: install bgd there"), "{}", failed.stderr);
}

#[test]
fn r140_connection_problems_are_reported() {
    let far = Far::start();
    let fails = |args: &[&str], words: &[&str]| {
        let failed = far.run(args).expect_code(69);
        assert!(words.iter().all(|word| failed.stderr.contains(word)), "{words:?}: {}", failed.stderr);
    };
    fails(
        &["-H", "nowhere.invalid", "list"],
        &["nowhere.invalid: ssh can't connect: ", "hint: check the connection"],
    );
    far.change_key("user");
    fails(&["list"], &["Permission denied"]);
    far.change_key("host");
    let known = far.path("known").display().to_string();
    fails(&["list"], &["Offending ", &known, "key for far has changed", "Host key verification failed"]);
    let refused = far.run(&["list"]).expect_code(69);
    assert!(!refused.stderr.contains("@@") && !refused.stderr.contains("NASTY"), "{}", refused.stderr);
    far.wrap("exec sleep 1000");
    fails(&["--connect-timeout", "1s", "list"], &["no answer within 1000 ms"]);
    far.wrap("case \"$*\" in *dial*) exec yes;; esac; exit 0");
    fails(&["list"], &["the remote shell prints text"]);
    for host in ["-oProxyCommand=x", "a b"] {
        far.run(&["--host", host, "list"]).expect_code(2);
    }
    far.wrap("case \"$*\" in *dial*) echo 'bgctl: Command not found.' >&2; exit 1;; esac; exit 0");
    fails(&["daemon", "stop"], &["no bgctl there that knows `dial`: bgctl: Command not found."]);
    let silent = Outcome::of(far.bgctl(&["list"]).env("BGD_SSH", "/bin/false")).expect_code(69);
    for words in ["far: ssh exited with code 1 without a message", "/bin/false far bgctl --version"] {
        assert!(silent.stderr.contains(words), "{}", silent.stderr);
    }
    let missing = Outcome::of(far.bgctl(&["list"]).env("BGD_SSH", "/nowhere/ssh")).expect_code(69);
    assert!(missing.stderr.contains("can't start /nowhere/ssh"), "{}", missing.stderr);
}

#[test]
fn r140_remote_bgctl_that_is_killed_is_not_reported_as_a_failed_connection() {
    let far = Far::start();
    let programs = far.daemon.home().join("programs");
    fs::create_dir(&programs).unwrap();
    bgd_tests::executable::write(&programs.join("bgctl"), "#!/bin/sh\nkill -KILL $$\n");
    far.set_session(&[("PATH", &format!("{}:/usr/bin:/bin", programs.display()))]);
    let failed = far.run(&["list"]).expect_code(69);
    let words = "far: ssh ended with 255 without a message: it can't connect, or bgctl over there was killed";
    assert!(failed.stderr.contains(words), "{}", failed.stderr);
    assert!(failed.stderr.contains(" far bgctl --version"), "{}", failed.stderr);
    // Nothing runs over there as long as there is no connection.
    far.cut();
    far.wrap("exit 255");
    let failed = far.run(&["list"]).expect_code(69);
    assert!(failed.stderr.contains("far: ssh can't connect: it gives no reason"), "{}", failed.stderr);
}

#[test]
fn r140_shell_banner_is_skipped() {
    let far = Far::start();
    far.wrap("case \"$*\" in *dial*) echo 'Welcome to far!'; echo '{}'; printf 'no newline';; esac");
    far.run(&["submit", "--", "true"]).success();
    assert_eq!(tasks(&far).len(), 1);
}

#[test]
fn r140_dial_exits_when_client_or_daemon_closes() {
    let mut daemon = TestDaemon::start();
    let mut dial = daemon.bgctl(&["dial"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    drop(dial.stdin.take());
    assert!(dial.wait().unwrap().success());
    let mut dial = daemon.bgctl(&["dial"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = dial.stdin.take().unwrap();
    std::io::Write::write_all(
        &mut input,
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\",\"params\":{}}\n",
    )
    .unwrap();
    let mut line = String::new();
    BufReader::new(dial.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"id\":1"), "{line}");
    daemon.stop();
    assert!(dial.wait().unwrap().success());
}

#[test]
fn r140_host_that_names_itself_does_not_dial_in_a_loop() {
    let far = Far::start();
    far.set_session(&[("BGD_HOST", "far"), ("BGD_SSH", "/nowhere/ssh")]);
    far.run(&["submit", "--", "true"]).success();
    assert_eq!(tasks(&far).len(), 1);
    // On request, `dial` goes to the other machine, once.
    far.run(&["-H", "far", "dial"]).success();
}
