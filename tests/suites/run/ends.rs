//! How `run` ends: as its job does, by signals, and when the job, bgctl or the daemon goes away.

use std::fs;
use std::process::{Child, Stdio};

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::task::{Exit, Origin, Status};
use bgd_tests::{Process, TestDaemon, executable, wait};
use rustix::process::Signal;

use super::holds;

#[test]
fn run_exits_with_exit_code_of_job() {
    let daemon = TestDaemon::start();
    fs::write(daemon.home().join("plain"), "no program").unwrap();
    executable::write(&daemon.home().join("script"), "#!/no/such/shell\n");
    let cases: &[(i32, &[&str], &str)] = &[
        (0, &["--", "true"], ""),
        (3, &["--shell", "exit 3"], ""),
        (255, &["--shell", "exit 255"], ""),
        (143, &["--shell", "kill -TERM $$"], ""),
        (137, &["--shell", "kill -KILL $$"], ""),
        (127, &["--", "no-such-program"], "no-such-program: command not found in PATH"),
        (127, &["--", "./no-such-program"], "no such program"),
        (126, &["--", "./plain"], "not executable"),
        (126, &["--", "./script"], "interpreter"),
        (126, &["--", "/"], "/: "),
        (126, &["--cwd", "/no/such/folder", "--", "true"], "give another folder with --cwd"),
        (126, &["--cwd", "/dev/null", "--", "true"], "/dev/null: Not a directory"),
        (124, &["--time-limit", "10ms", "--", "sleep", "1000"], "timed out after"),
        (
            124,
            &["--time-limit", "300ms", "--shell", "trap 'exit 0' TERM; sleep 1000 & wait"],
            "timed out after",
        ),
        (2, &[], "required"),
        (2, &["--key", "b", "--", "true"], "can't be used as the key"),
        (2, &["--agent", "x", "two", "words"], "quote it"),
    ];
    for (code, args, word) in cases {
        let outcome = daemon.run(&[&["run"], *args].concat());
        assert_eq!(outcome.code, *code, "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(word), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.is_empty(), word.is_empty(), "{args:?}: {}", outcome.stderr);
    }
}

#[test]
fn run_json_is_written_to_stderr() {
    let daemon = TestDaemon::start();
    let outcome =
        daemon.run(&["run", "--json", "--tag", "mine", "--shell", "echo out; exit 3"]).expect_code(3);
    assert_eq!(outcome.stdout_text(), "out\n");
    let result: bgd_shared::request::TaskResult = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((result.task.exit, result.task.origin), (Some(Exit::Code(3)), Origin::Run));
    assert_eq!(result.task.tags, ["mine"]);
}

/// A `run` of a shell command that waits for the end of its task, and that task once it has written `up`.
fn running(daemon: &TestDaemon, line: &str) -> (Child, TaskId) {
    let log = daemon.home().join("log");
    let output = fs::File::create(&log).unwrap();
    let mut command = daemon.bgctl(&["run", "--shell", line]);
    let errors = fs::File::create(daemon.home().join("errors")).unwrap();
    let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().unwrap();
    wait::for_line(&log, "up");
    let process = Process::open(child.id().cast_signed()).unwrap();
    // It releases its stdout once it has asked for the end, which no event announces.
    let has_asked = || (fs::read_link(process.proc("fd/1")).ok()? != log).then_some(());
    wait::poll_until("the wait for the end", has_asked);
    let id = daemon.run(&["list", "-q", "--limit", "1"]).success().word();
    (child, id)
}

fn errors(daemon: &TestDaemon) -> String {
    fs::read_to_string(daemon.home().join("errors")).unwrap()
}

#[test]
fn run_forwards_signals_to_job() {
    let daemon = TestDaemon::start();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::HUP, "HUP"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let line = format!("trap 'echo got; exit 9' {name}; echo up; while :; do sleep 0.01; done");
        let (mut run, _) = running(&daemon, &line);
        Process::open(run.id().cast_signed()).unwrap().signal(signal).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(9), "{name}");
        assert_eq!(fs::read_to_string(daemon.home().join("log")).unwrap(), "up\ngot\n");
    }
}

#[test]
fn run_exit_code_reports_fatal_signal() {
    let daemon = TestDaemon::start();
    let (mut run, id) = running(&daemon, "echo up; exec sleep 1000");
    Process::open(run.id().cast_signed()).unwrap().signal(Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(143));
    assert_eq!(daemon.task(id).exit, Some(Exit::Signal(15)));
    assert_eq!(errors(&daemon), "");
}

#[test]
fn r71_terminating_bgctl_ends_whole_process_tree_of_job() {
    let daemon = TestDaemon::start();
    for signal in [Signal::TERM, Signal::HUP] {
        let (mut run, _) = running(&daemon, "sleep 1000 & echo up; wait");
        Process::open(run.id().cast_signed()).unwrap().signal(signal).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(128 + signal.as_raw()), "as `timeout` has it");
        wait::poll_until("the end of its processes", || daemon.task_processes().is_empty().then_some(()));
    }
}

#[test]
fn run_reports_that_job_was_cancelled() {
    let daemon = TestDaemon::start();
    let (mut run, id) = running(&daemon, "echo up; exec sleep 1000");
    daemon.cancel(&[id]);
    assert_eq!(run.wait().unwrap().code(), Some(143));
    assert!(errors(&daemon).contains("was cancelled"), "{}", errors(&daemon));
}

#[test]
fn r71_killed_client_hangs_up_its_job() {
    let daemon = TestDaemon::start();
    let line = "trap 'echo hangup; exit 5' HUP; (setsid sleep 1000 &); echo up; while :; do sleep 0.01; done";
    let (mut run, id) = running(&daemon, line);
    let mut watch = daemon.watch();
    run.kill().unwrap();
    run.wait().unwrap();
    let ended = watch.until_kind(id, EventKind::Cancelled).task;
    assert_eq!(ended.exit, Some(Exit::Code(5)));
    assert!(ended.error.unwrap().contains("its client ended"));
    assert_eq!(fs::read_to_string(daemon.home().join("log")).unwrap(), "up\nhangup\n");
    assert_eq!(daemon.task_processes().len(), 0, "its whole tree");
}

#[test]
fn run_reports_that_daemon_is_gone() {
    let mut daemon = TestDaemon::start();
    let (mut run, _) = running(&daemon, "echo up; exec sleep 1000");
    daemon.kill9();
    assert_eq!(run.wait().unwrap().code(), Some(69));
    assert!(errors(&daemon).contains("the daemon has ended"), "{}", errors(&daemon));
    daemon.launch();
}

#[test]
fn daemon_shutdown_cancels_foreground_job() {
    let mut daemon = TestDaemon::start();
    let (mut run, _) = running(&daemon, "echo up; exec sleep 1000");
    daemon.stop();
    assert_eq!(run.wait().unwrap().code(), Some(143));
    assert!(errors(&daemon).contains("was cancelled"), "{}", errors(&daemon));
}

#[test]
fn run_under_nohup_does_not_forward_hangup() {
    let daemon = TestDaemon::start();
    let log = daemon.home().join("log");
    let bgctl = daemon.bgctl(&[]);
    let line = "trap 'echo got' HUP; trap 'exit 6' TERM; echo up; while :; do sleep 0.01; done";
    let mut nohup = std::process::Command::new("nohup");
    nohup.arg(bgd_tests::bgctl_path()).args(["run", "--shell", line]).env_clear().current_dir(daemon.home());
    nohup.envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = fs::File::create(&log).unwrap();
    let mut run = nohup.stdin(Stdio::null()).stdout(output).stderr(Stdio::null()).spawn().unwrap();
    wait::for_line(&log, "up");
    let process = Process::open(run.id().cast_signed()).unwrap();
    process.signal(Signal::HUP).unwrap();
    process.signal(Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(6));
    assert_eq!(fs::read_to_string(&log).unwrap(), "up\n");
}

#[test]
fn signal_before_daemon_reply_is_forwarded_to_job() {
    let daemon = TestDaemon::start();
    daemon.process().signal(Signal::STOP).unwrap();
    let mut run = daemon.bgctl(&["run", "--shell", "sleep 1000 & echo $! > child; wait"]).spawn().unwrap();
    let process = Process::open(run.id().cast_signed()).unwrap();
    wait::poll_until("the request", || holds(&process, Signal::TERM));
    process.signal(Signal::TERM).unwrap();
    daemon.process().signal(Signal::CONT).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(143));
    assert_eq!(daemon.status().summary.active(), 0);
}

#[test]
fn foreground_job_is_listed_while_running_and_after_its_end() {
    let daemon = TestDaemon::start();
    let (mut run, id) = running(&daemon, "echo up; exec sleep 1000");
    let task = daemon.wait_running(id);
    assert!(task.foreground && task.origin == Origin::Run && !task.pty);
    daemon.run(&["signal", &id.to_string(), "TERM"]).success();
    assert_eq!(run.wait().unwrap().code(), Some(143));
    let task = daemon.task(id);
    assert!(!task.foreground && task.status == Status::Failed);
}
