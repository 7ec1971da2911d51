//! The examples of a handoff in Rust, Python (with and without asyncio), Node and bash, run as they are.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use bgd_shared::foreground::backgrounded_message;
use bgd_tests::docs::root;
use bgd_tests::{TestDaemon, bgctl_path, example_path, executable, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::channel_tty::{BASH, Gate, open};

/// Writes lines and then waits at the gate, so that it cannot end first.
const JOB: &str = "echo one; echo two; echo three; read gate < gate; echo four; exit 3";

/// The folder with the real `bgctl`.
fn real() -> PathBuf {
    bgctl_path().parent().unwrap().to_owned()
}

/// Returns the PATH that begins with this folder.
fn path_from(folder: &Path) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path))).unwrap()
}

/// Returns the examples as commands, with the `bgctl` of this folder.
fn examples(daemon: &TestDaemon, folder: &Path) -> [Command; 5] {
    let script = |name: &str| root().join("shared/examples").join(name).into_os_string();
    let path = path_from(folder);
    let example = |program: OsString, args: &[OsString]| {
        let mut command = Command::new(program);
        command.args(args).env_clear().envs(daemon.environment()).env("PATH", &path);
        command.current_dir(daemon.home());
        command
    };
    [
        example(example_path("handoff").into(), &[]),
        example("python3".into(), &[script("handoff.py")]),
        example("python3".into(), &[script("handoff_asyncio.py")]),
        example("node".into(), &[script("handoff.js")]),
        example("bash".into(), &[script("handoff.bash")]),
    ]
}

#[test]
fn r70_examples_hand_over_command_and_exit_while_it_continues() {
    let daemon = TestDaemon::start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    for command in examples(&daemon, &real()) {
        handed_over(&daemon, command);
    }
}

fn handed_over(daemon: &TestDaemon, mut command: Command) {
    command.env("BGD_SESSION", "parent");
    let Output { status, stdout, stderr } = command.args(["2", "sh", "-c", JOB]).output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{text}{}", String::from_utf8_lossy(&stderr));
    let (shown, message) = text.trim_end().rsplit_once('\n').unwrap();
    let id = message.strip_prefix("Command was manually backgrounded by user with ID ").unwrap();
    assert!(shown.starts_with("one\ntwo"), "{shown}");
    // The example has ended, and its command has not.
    wait::for_reader(&daemon.home().join("gate"), "\n");
    daemon.run(&["block", "--exit-code", "--timeout", "none", id]).expect_code(3);
    let rest = daemon.run(&["output", id]).success().stdout_text();
    assert_eq!(format!("{shown}\n{rest}"), "one\ntwo\nthree\nfour\n");
    let task = daemon.run(&["--json", "status", id]).success().stdout_text();
    assert!(task.contains(r#""origin":"handoff""#), "{task}");
    assert!(task.contains(r#""session":"parent""#), "its user is not notified: {task}");
}

#[test]
fn r51_end_of_handed_over_command_is_reported_in_terminal_of_example() {
    let daemon = TestDaemon::start();
    let gate = Gate::new(&daemon, "gate");
    for command in examples(&daemon, &real()) {
        let mut terminal = open(&daemon, &BASH);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
        terminal.type_line(&format!("{} 1 sh -c 'echo one; read x <gate; exit 4'", words.join(" ")));
        terminal.wait_text("Command was manually backgrounded by user with ID ");
        gate.open();
        terminal.wait_text("[BACKGROUND TASK FAILED] ");
    }
}

#[test]
fn r70_examples_show_bytes_of_character_that_was_cut_by_handoff() {
    let daemon = TestDaemon::start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    let job = "printf 'one\\ntwo\\n\\303'; read gate < gate; printf '\\244\\n'; exit 3";
    for mut command in examples(&daemon, &real()) {
        let Output { status, stdout, stderr } = command.args(["2", "sh", "-c", job]).output().unwrap();
        assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
        let words = b"Command was manually backgrounded by user with ID ";
        let at = stdout.windows(words.len()).position(|part| part == words).expect("the message");
        let (shown, message) = stdout.split_at(at);
        let id = str::from_utf8(&message[words.len()..]).unwrap().trim_end();
        wait::for_reader(&daemon.home().join("gate"), "\n");
        daemon.run(&["block", "--exit-code", "--timeout", "none", id]).expect_code(3);
        let rest = daemon.run(&["output", id]).success().stdout;
        assert_eq!([shown, &rest].concat(), "one\ntwo\nä\n".as_bytes(), "{command:?}");
    }
}

/// Runs an example whose handoff fails, and returns what it says about that. It must show the whole output, and exit
/// as its command does.
#[track_caller]
fn kept(daemon: &TestDaemon, mut command: Command) -> String {
    command.args(["2", "sh", "-c", JOB]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut example = command.spawn().unwrap();
    let mut errors = BufReader::new(example.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    wait::for_reader(&daemon.home().join("gate"), "\n");
    let Output { status, stdout, .. } = example.wait_with_output().unwrap();
    errors.read_to_string(&mut said).unwrap();
    let shown = String::from_utf8(stdout).unwrap();
    let expected = ("one\ntwo\nthree\nfour\n", Some(3));
    assert_eq!((shown.as_str(), status.code()), expected, "{command:?}: {said}");
    said
}

#[test]
fn r70_examples_keep_command_that_no_daemon_takes() {
    let daemon = TestDaemon::home_only();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    for mut command in examples(&daemon, &real()) {
        command.env("BGD_DAEMON", "/nonexistent");
        let said = kept(&daemon, command);
        assert!(said.contains("no daemon is running, and /nonexistent can't be started"), "{said}");
    }
}

#[test]
fn r70_examples_keep_command_that_the_daemon_refuses() {
    let daemon = TestDaemon::builder().config("[limits]\ntasks = 1\n").start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    daemon.submit(&["sleep", "1000"]);
    for command in examples(&daemon, &real()) {
        let said = kept(&daemon, command);
        assert!(said.contains("limits.tasks"), "{said}");
    }
}

/// A `bgctl` that hands over, and then fails as if it had not got the answer; it does anything else like the real one.
const FORGETFUL: &str = r#"#!/usr/bin/env python3
import json, os, socket, sys
if sys.argv[1] != "handoff":
    os.execv("BGCTL", ["bgctl", *sys.argv[1:]])
_, _, _, pid, _, stdout, *_ = sys.argv
params = {"pid": int(pid), "description": "x", "streams": ["stdout"]}
line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "task.handoff", "params": params})
with socket.socket(socket.AF_UNIX) as daemon:
    daemon.connect(os.environ["BGD_SOCKET"])
    socket.send_fds(daemon, [line.encode() + b"\n"], [os.pidfd_open(int(pid)), int(stdout)])
    answer = daemon.makefile().readline()
print("lost:", answer, file=sys.stderr)
sys.exit(69)
"#;

#[test]
fn r70_examples_leave_command_to_the_daemon_that_has_it_although_its_answer_is_lost() {
    let daemon = TestDaemon::start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    let folder = daemon.home().join("forgetful");
    fs::create_dir(&folder).unwrap();
    executable::write(&folder.join("bgctl"), &FORGETFUL.replace("BGCTL", bgctl_path().to_str().unwrap()));
    // The others talk to the daemon themselves.
    let [_, _, asyncio, node, bash] = examples(&daemon, &folder);
    for mut command in [asyncio, node, bash] {
        let Output { status, stdout, stderr } = command.args(["2", "sh", "-c", JOB]).output().unwrap();
        let (shown, errors) = (String::from_utf8(stdout).unwrap(), String::from_utf8_lossy(&stderr));
        assert!(status.success() && errors.contains("lost: "), "{command:?}: {shown}{errors}");
        let id = daemon.run(&["list", "-q", "--status", "running"]).success().stdout_text();
        wait::for_reader(&daemon.home().join("gate"), "\n");
        daemon.run(&["block", "--exit-code", "--timeout", "none", id.trim_end()]).expect_code(3);
        let rest = daemon.run(&["output", id.trim_end()]).success().stdout_text();
        assert_eq!(format!("{shown}{rest}"), "one\ntwo\nthree\nfour\n", "{command:?}");
    }
}

/// asyncio passes a chunk on only in the turn of its loop after the one that has read it. After many lines it reads one in
/// each turn, as the job is faster.
#[test]
fn r70_asyncio_example_loses_nothing_of_a_pipe_that_is_always_full() {
    const LINES: usize = 100_000;
    let daemon = TestDaemon::start();
    let job = format!("seq {LINES}");
    let wanted = (1..=LINES).map(|number| number.to_string()).collect::<Vec<_>>().join("\n") + "\n";
    for _ in 0..3 {
        let [_, _, mut command, ..] = examples(&daemon, &real());
        let Output { status, stdout, stderr } = command.args(["20000", "sh", "-c", &job]).output().unwrap();
        let text = String::from_utf8(stdout).unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        // What was shown may end inside a line.
        let (shown, id) = text.rsplit_once("Command was manually backgrounded by user with ID ").unwrap();
        let id = id.trim_end();
        daemon.run(&["block", "--timeout", "none", id]).success();
        let rest = daemon.run(&["output", id]).success().stdout_text();
        let got = format!("{shown}{rest}");
        let same = wanted.bytes().zip(got.bytes()).take_while(|(one, other)| one == other).count();
        assert!(got == wanted, "{} of {} bytes, alike up to {same}", got.len(), wanted.len());
    }
}

/// Writes a `bgctl` that runs the real one where the system forbids `pidfd_getfd`, and returns its folder. It stays the
/// same process, and a child of whoever starts it.
fn confined(daemon: &TestDaemon) -> PathBuf {
    let folder = daemon.home().join("confined");
    fs::create_dir(&folder).unwrap();
    let inject = "-e trace=pidfd_getfd -e inject=pidfd_getfd:error=EPERM";
    let script =
        format!("#!/bin/sh\nexec strace -D -f -o /dev/null {inject} {} \"$@\"\n", bgctl_path().display());
    executable::write(&folder.join("bgctl"), &script);
    folder
}

/// As in a container with Docker's default seccomp filter.
#[test]
fn r70_bgctl_hands_over_pipe_without_pidfd_getfd() {
    let daemon = TestDaemon::start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    let folder = confined(&daemon);
    // Node gives its children sockets, which can't be opened again.
    let [_, _, asyncio, _, bash] = examples(&daemon, &folder);
    for command in [asyncio, bash] {
        handed_over(&daemon, command);
    }
    for (stream, code, words) in [("--pty 3", 70, "pidfd_getfd"), ("--stdout 9", 2, "is not open")] {
        let script = format!(
            "exec 3<>/dev/ptmx; sleep 60 & bgctl handoff --pid $! {stream}; code=$?; kill $!; exit $code"
        );
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env_clear().envs(daemon.environment()).env("PATH", path_from(&folder));
        let Output { status, stderr, .. } = shell.output().unwrap();
        let errors = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(code), "{errors}");
        assert!(errors.contains(&format!("{stream}: ")) && errors.contains(words), "{errors}");
    }
}

/// If the job ends before the handoff, the example shows all of its output and its exit code. At the moment
/// of its end either may come first, but never both.
#[test]
fn r66_examples_report_exit_code_or_handoff_whichever_came_first() {
    let daemon = TestDaemon::start();
    // The last line need not be complete.
    for (line, shown) in [
        ("echo one; exit 3", &b"one\n"[..]),
        ("printf one; exit 3", b"one"),
        ("printf 'one\\n\\303'; exit 3", b"one\n\xc3"),
    ] {
        ended_or_handed_over(&daemon, line, shown);
    }
}

fn ended_or_handed_over(daemon: &TestDaemon, line: &str, shown: &[u8]) {
    for mut command in examples(daemon, &real()) {
        let output = command.args(["2", "sh", "-c", line]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let message = output.stdout.strip_prefix(shown);
        let message = message.unwrap_or_else(|| panic!("{command:?}: {:?}{errors}", output.stdout));
        match str::from_utf8(message).unwrap() {
            "" => assert_eq!(output.status.code(), Some(3), "{command:?}: {errors}"),
            message => {
                let id = message.trim_end().rsplit(' ').next().unwrap();
                assert_eq!(message.trim_end(), backgrounded_message(id.parse().unwrap()));
                assert_eq!(output.status.code(), Some(0));
                daemon.run(&["block", "--exit-code", "--timeout", "none", id]).expect_code(3);
                daemon.run(&["clear", id]).success();
            }
        }
        assert_eq!(daemon.run(&["list", "-q"]).success().stdout_text(), "");
    }
}
