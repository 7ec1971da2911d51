//! A job without a terminal has exactly bgctl's own standard streams.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use bgd_tests::shared::proc;
use bgd_tests::{Outcome, TestDaemon, wait};

#[test]
fn piped_bytes_arrive_complete_and_in_order() {
    let daemon = TestDaemon::start();
    let bytes: Vec<u8> =
        (0..3_000_000_u32).map(|place| place.wrapping_mul(2_654_435_761).to_be_bytes()[1]).collect();
    let mut run = daemon.bgctl(&["run", "--", "cat"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (run.stdin.take().unwrap(), run.stdout.take().unwrap());
    std::thread::scope(|scope| {
        let bytes = &bytes;
        scope.spawn(move || input.write_all(bytes).unwrap());
        let mut got = Vec::new();
        output.read_to_end(&mut got).unwrap();
        assert!(got == *bytes, "{} of {} bytes came through", got.len(), bytes.len());
    });
    assert!(run.wait().unwrap().success());
}

#[test]
fn stdout_and_stderr_stay_separate() {
    let daemon = TestDaemon::start();
    let outcome = daemon.run(&["run", "--shell", "echo out; echo err >&2; tty; test -t 2"]).expect_code(1);
    assert_eq!(outcome.stdout_text(), "out\nnot a tty\n");
    assert_eq!(outcome.stderr, "err\n");
}

/// Runs a shell command in the home of a daemon, with the `bgctl` under test.
fn sh(daemon: &TestDaemon, line: &str) -> Outcome {
    let bgctl = daemon.bgctl(&[]);
    let mut command = Command::new("bash");
    command.args(["-c", &line.replace("bgctl", &bgd_tests::bgctl_path().display().to_string())]).env_clear();
    command
        .envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(daemon.home());
    Outcome::of(&mut command)
}

#[test]
fn a_broken_pipe_ends_the_job_as_in_a_shell() {
    let daemon = TestDaemon::start();
    let outcome = sh(&daemon, "bgctl run -- yes | head -n 2; echo ${PIPESTATUS[0]}").success();
    assert_eq!(outcome.stdout_text(), "y\ny\n141\n");
    assert_eq!(outcome.stderr, "");
    // Conversely: a writer to a job that has ended.
    let outcome = sh(&daemon, "yes | bgctl run -- head -n 1; echo ${PIPESTATUS[0]}").success();
    assert_eq!(outcome.stdout_text(), "y\n141\n");
}

#[test]
fn only_job_holds_its_pipe_ends() {
    let daemon = TestDaemon::start();
    let mut run = daemon.bgctl(&["run", "--shell", "exec <&-; echo x; exec >&-; kill -STOP $$; exit 4"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut got = String::new();
    run.stdout.take().unwrap().read_to_string(&mut got).unwrap();
    assert_eq!(got, "x\n", "the job's end of the pipe was the last one");
    let mut input = run.stdin.take().unwrap();
    assert_eq!(input.write_all(b"y").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    let id = daemon.run(&["list", "-q"]).success().stdout_text();
    let pid = daemon.wait_running(id.trim().parse().unwrap()).pid.unwrap();
    wait::poll_until("its stop", || (proc::state(pid) == Some('T')).then_some(()));
    daemon.run(&["signal", id.trim(), "CONT"]).success();
    assert_eq!(run.wait().unwrap().code(), Some(4));
}

#[test]
fn job_inherits_what_a_child_process_would() {
    let daemon = TestDaemon::start();
    let line = "bgctl run --env NEW=1 --cwd config --shell 'pwd; umask; ulimit -n; echo $MINE$NEW; cat'";
    let line = format!("umask 027; ulimit -n 77; export MINE=own; echo in > text; {line} < text");
    let home = daemon.home().display();
    assert_eq!(sh(&daemon, &line).success().stdout_text(), format!("{home}/config\n0027\n77\nown1\nin\n"));
}

#[test]
fn run_starts_daemon_if_none_is_running() {
    let home = TestDaemon::home_only();
    assert_eq!(home.run(&["run", "--", "echo", "hi"]).success().stdout_text(), "hi\n");
    home.run(&["--no-start", "run", "--", "true"]).success();
    home.run(&["daemon", "stop"]).success();
    home.run(&["--no-start", "run", "--", "true"]).expect_code(69);
}

#[test]
fn a_foreground_job_never_waits_for_a_slot() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1\n").start();
    let first = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(first);
    assert_eq!(daemon.run(&["run", "--", "echo", "at once"]).success().stdout_text(), "at once\n");
    daemon.cancel(&[first]);
}

#[test]
fn output_redirected_to_file_is_complete_when_run_exits() {
    let daemon = TestDaemon::start();
    let path = daemon.home().join("out");
    let mut run = daemon.bgctl(&["run", "--", "seq", "100000"]);
    let mut run = run.stdin(Stdio::null()).stdout(fs::File::create(&path).unwrap()).spawn().unwrap();
    assert!(run.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 100_000);
}
