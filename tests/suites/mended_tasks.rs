//! Regressions about tasks and their output: tracers, lost outputs, daemons that tasks start, input for tasks that have
//! only just started, limits, and clearing.

use std::fs;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::limits::WRITE_BYTES;
use bgd_shared::request::{
    BlockMode, BlockParams, ClearParams, DaemonStatusOf, Encoding, Hello, HelloParams, NoParams,
    OutputParams, SignalParams, Stdin, SubmitParams, TaskBlock, TaskClear, TaskOutput, TaskSignal,
    TaskSubmit, TaskWrite, WriteParams,
};
use bgd_shared::socket::SocketPath;
use bgd_shared::task::{Exit, Status, Task};
use bgd_tests::upgrades::upgrade;
use bgd_tests::{Process, TestDaemon, bgctl_path, executable, wait};

const LIMIT: u64 = 1024 * 1024;

/// How much disk space a file may occupy beyond its limit.
const SLACK: u64 = 160 * 1024;

/// Polls until `is_so` holds. Each query is a round trip through the daemon, so this does not spin.
#[track_caller]
fn until(daemon: &TestDaemon, what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + wait::PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it does not come to this: {what}");
        daemon.status();
    }
}

fn with_pipe(daemon: &TestDaemon, argv: &[&str]) -> SubmitParams {
    let argv = argv.iter().map(|arg| (*arg).into()).collect();
    SubmitParams { argv: Some(argv), stdin: Some(Stdin::Pipe), ..daemon.params() }
}

fn last_words(id: TaskId, text: &str) -> WriteParams {
    WriteParams { id: id.into(), data: text.into(), encoding: Encoding::Utf8, eof: true }
}

fn write(daemon: &TestDaemon, id: TaskId, text: &str) {
    daemon.client().call::<TaskWrite>(&last_words(id, text)).expect("task.write");
}

/// A task that exits with 7 at the end of its input.
fn ends_with_seven(daemon: &TestDaemon) -> (TaskId, i32) {
    let id = daemon.submit_with(&with_pipe(daemon, &["sh", "-c", "read word; exit 7"])).id;
    (id, daemon.wait_running(id).pid.unwrap())
}

/// Asserts that the task exited with 7 and left nothing behind.
#[track_caller]
fn ended_with_seven(daemon: &TestDaemon, (id, pid): (TaskId, i32)) {
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.exit, task.lingering), (Status::Failed, Some(Exit::Code(7)), false));
    let folder = PathBuf::from(format!("/proc/{pid}"));
    until(daemon, "no zombie", || !folder.exists());
}

/// Starts a tracer and waits until it reports that it is attached; it reads nothing after that.
fn attached(command: &mut Command) -> Child {
    let mut tracer = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a tracer");
    let line = wait::next_line(&mut BufReader::new(tracer.stderr.as_mut().unwrap()));
    assert!(line.contains("attached"), "{command:?}: {line}");
    tracer
}

#[test]
fn orphans_are_reaped_even_if_daemon_parent_ignores_sigchld() {
    for prelude in ["", "trap '' CHLD"] {
        let daemon = TestDaemon::builder().prelude(prelude).start();
        let orphan = "echo $$ >\"$HOME/orphan\"; until [ -e \"$HOME/gate\" ]; do sleep 0.02; done";
        let line = format!("(sh -c '{orphan}' &); read word; exit 7");
        let id = daemon.submit_with(&with_pipe(&daemon, &["sh", "-c", &line])).id;
        let leader = daemon.wait_running(id).pid.unwrap();
        let pid = wait::for_line(&daemon.home().join("orphan"), "");
        let folder = PathBuf::from(format!("/proc/{}", pid.trim()));
        assert!(folder.exists());
        fs::write(daemon.home().join("gate"), "").unwrap();
        until(&daemon, "the orphan to be reaped", || !folder.exists());
        assert_eq!(daemon.task(id).status, Status::Running);
        write(&daemon, id, "");
        ended_with_seven(&daemon, (id, leader));
    }
}

#[test]
fn task_ending_under_strace_keeps_its_exit_code_and_leaves_no_zombie() {
    let daemon = TestDaemon::start();
    for round in 0..10 {
        let task = ends_with_seven(&daemon);
        let log = daemon.home().join(format!("strace.{round}"));
        let mut strace = Command::new("strace");
        let mut strace = attached(strace.args(["-f", "-p", &task.1.to_string(), "-o"]).arg(&log));
        write(&daemon, task.0, "");
        ended_with_seven(&daemon, task);
        assert!(strace.wait().unwrap().success());
        assert!(fs::read_to_string(log).unwrap().contains("exited with 7"));
    }
}

/// Attaches and reaps nothing: the task stays a zombie as long as this lives.
const SLOW_TRACER: &str = "
import ctypes, sys
SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.ptrace(SEIZE, int(sys.argv[1]), None, None)
sys.stderr.write('attached\\n' if failed == 0 else 'errno %d\\n' % ctypes.get_errno())
sys.stderr.flush()
sys.stdin.read()
";

#[test]
fn task_held_by_its_tracer_ends_when_the_tracer_exits() {
    let daemon = TestDaemon::start();
    let task = ends_with_seven(&daemon);
    let mut python = Command::new("python3");
    let mut tracer = attached(python.args(["-c", SLOW_TRACER, &task.1.to_string()]));
    let process = Process::open(task.1).unwrap();
    write(&daemon, task.0, "");
    process.gone();
    // The daemon cannot get the exit code now; it does not invent one, and serves others.
    let other = daemon.submit(&["true"]);
    assert_eq!(daemon.block(&[other])[0].status, Status::Completed);
    assert!(daemon.task(task.0).status.is_active());
    drop(tracer.stdin.take());
    assert!(tracer.wait().unwrap().success());
    ended_with_seven(&daemon, task);
}

fn output(daemon: &TestDaemon, id: TaskId) -> Result<(String, bool), ClientError> {
    let params = OutputParams { id: id.into(), offset: None, limit: None, stream: None };
    daemon.client().call::<TaskOutput>(&params).map(|result| (result.data, result.eof))
}

#[test]
fn removed_output_is_named_in_error_and_unstarted_output_is_empty() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let id = daemon.submit_with(&with_pipe(&daemon, &["cat"])).id;
    let path = PathBuf::from(daemon.wait_running(id).output.path);
    let pending = daemon.submit(&["true"]);
    assert_eq!(output(&daemon, pending).unwrap(), (String::new(), false), "it has not begun");
    daemon.cancel(&[pending]);
    assert_eq!(output(&daemon, pending).unwrap(), (String::new(), true), "it never will");

    fs::remove_file(&path).unwrap();
    let lost = |args: &[&str]| {
        let error = output(&daemon, id).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        let outcome = daemon.run(args);
        assert!(outcome.code != 0 && outcome.stdout.is_empty(), "{outcome:?}");
        assert!(outcome.stderr.contains(path.to_str().unwrap()), "{}", outcome.stderr);
    };
    let name = id.to_string();
    lost(&["output", &name]);
    write(&daemon, id, "lost");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    lost(&["output", &name]);
    lost(&["output", "--result", &name]);
    lost(&["output", "--follow", &name]);

    let never = daemon.submit(&["no-such-program"]);
    assert_eq!(daemon.block(&[never])[0].status, Status::Failed);
    assert_eq!(output(&daemon, never).unwrap(), (String::new(), true));
    assert_eq!(daemon.run(&["output", &never.to_string()]).success().stdout, b"");
}

fn environ(process: &Process) -> String {
    String::from_utf8_lossy(&fs::read(process.proc("environ")).unwrap()).into_owned()
}

#[test]
fn daemon_started_by_a_task_outlives_the_task_and_its_daemon() {
    let mut daemon = TestDaemon::start();
    let socket = daemon.home().join("other/bgd.sock");
    let other = socket.to_str().unwrap();
    let id = daemon.submit(&[bgctl_path().to_str().unwrap(), "--socket", other, "daemon", "start"]);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Completed, false), "{}", daemon.stderr_text());

    let path = SocketPath::new(socket.clone()).unwrap();
    let status = || Client::connect(&path).unwrap().call::<DaemonStatusOf>(&NoParams {}).unwrap();
    let started = Process::open(status().pid).unwrap();
    assert_ne!(started.pid(), daemon.pid());
    let environ = environ(&started);
    assert!(environ.contains("XDG_STATE_HOME=") && !environ.contains("BGD_TASK_ID"), "{environ}");
    assert!(!environ.contains("BGD_INSTANCE"), "{environ}");
    let sleeper = daemon.run(&["--socket", other, "submit", "--", "sleep", "1000"]).success();

    assert_eq!(daemon.cancel(&[id])[0].status, Status::Completed);
    assert_eq!(daemon.client().call::<TaskClear>(&ClearParams::default()).unwrap().cleared, 1);
    assert!(started.is_alive() && daemon.stop().success());
    assert!(started.is_alive());
    assert_eq!((status().pid, status().summary.running), (started.pid(), 1));
    // The next daemon has nothing to end here, either.
    daemon.launch();
    assert!(daemon.stop().success());
    assert_eq!(status().summary.running, 1, "{}", sleeper.stdout_text());
    daemon.run(&["--socket", other, "daemon", "stop"]).success();
    started.gone();
}

#[test]
fn write_right_after_submit_is_never_refused() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 100").start();
    let params = with_pipe(&daemon, &["cat"]);
    let mut client = daemon.client();
    let ids: Vec<TaskId> = (0..50)
        .map(|number| {
            let id = client.call::<TaskSubmit>(&params).unwrap().task.id;
            let text = format!("number {number}");
            let written = client.call::<TaskWrite>(&last_words(id, &text)).unwrap().written;
            assert_eq!(written, text.len() as u64);
            id
        })
        .collect();
    for (number, (id, task)) in ids.iter().zip(daemon.block(&ids)).enumerate() {
        assert_eq!(task.status, Status::Completed);
        assert_eq!(daemon.output(*id), format!("number {number}").as_bytes());
    }
}

#[test]
fn unread_input_of_all_tasks_together_is_bounded() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 10").start();
    let submit = |argv: &[&str]| daemon.submit_with(&with_pipe(&daemon, argv)).id;
    let quiet: Vec<TaskId> = (0..2).map(|_| submit(&["sleep", "1000"])).collect();
    let reader = submit(&["cat"]);
    let written = |id: TaskId, data: String| WriteParams { data, eof: false, ..last_words(id, "") };
    // No task reaches its own limit of writes, but all together are 30 MiB.
    let mut writers: Vec<(Client, u64)> = Vec::new();
    for id in &quiet {
        let (mut client, mut last) = (daemon.client(), 0);
        for _ in 0..60 {
            let params = written(*id, "x".repeat(WRITE_BYTES));
            last = client.send::<TaskWrite>(&params, &[]).expect("it is sent");
        }
        // The daemon has accepted these before those of the next one.
        client.call::<Hello>(&HelloParams::default()).expect("hello");
        writers.push((client, last));
    }
    let is_full = |error: &ClientError| {
        assert_eq!(error.kind(), Some(ErrorKind::TooManyRequests), "{error}");
        assert!(error.to_string().contains("16 MiB"), "{error}");
    };
    let (client, last) = writers.last_mut().expect("two of them");
    is_full(&client.answer::<TaskWrite>(*last).expect_err("it is too much"));
    // More than anybody types.
    let words = "word".repeat(1000);
    let write_words = || daemon.client().call::<TaskWrite>(&written(reader, words.clone()));
    is_full(&write_words().expect_err("it is too much"));
    upgrade(&daemon);
    is_full(&write_words().expect_err("it still is"));

    daemon.cancel(&quiet);
    daemon.block(&quiet);
    // Repeated only if it was refused: after any other error the words may have been written.
    wait::poll_until("room for more", || write_words().map_err(|error| is_full(&error)).ok());
    write(&daemon, reader, "");
    daemon.block(&[reader]);
    assert_eq!(daemon.output(reader), words.as_bytes());
}

/// Returns a process's pending signals, one bit each.
fn pending_signals(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let shared = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    u64::from_str_radix(shared.trim(), 16).unwrap()
}

#[test]
fn signal_reply_comes_after_the_signal_was_sent() {
    let daemon = TestDaemon::start();
    let blocks_all = "import signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
open(sys.argv[1], 'w')
time.sleep(1000)";
    let up = daemon.home().join("up");
    let task = daemon.submit(&["python3", "-c", blocks_all, up.to_str().unwrap()]);
    wait::for_file(&up);
    let pid = daemon.wait_running(task).pid.unwrap();
    let mut client = daemon.client();
    for number in 34..=60 {
        let params = SignalParams { id: task.into(), signal: number.to_string(), tree: number % 2 == 0 };
        client.call::<TaskSignal>(&params).unwrap();
        assert_ne!(pending_signals(pid) & 1 << (number - 1), 0, "signal {number} is on its way only");
    }
}

#[test]
fn signal_right_after_submit_is_never_refused() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 100").start();
    let argv = ["sleep", "1000"].map(Into::into).to_vec();
    let params = SubmitParams { argv: Some(argv), ..daemon.params() };
    let mut client = daemon.client();
    let ids: Vec<TaskId> = (0..50)
        .map(|_| {
            let id = client.call::<TaskSubmit>(&params).unwrap().task.id;
            let signal = SignalParams { id: id.into(), signal: "INT".into(), tree: false };
            client.call::<TaskSignal>(&signal).unwrap();
            id
        })
        .collect();
    for task in daemon.block(&ids) {
        assert_eq!((task.status, task.exit.as_ref()), (Status::Failed, Some(&Exit::Signal(2))), "{task:?}");
    }
    // A task that cannot be started cannot get a signal, and the sender gets an error.
    let params = SubmitParams { argv: Some(vec!["no-such-program".into()]), ..daemon.params() };
    let id = client.call::<TaskSubmit>(&params).unwrap().task.id;
    let signal = SignalParams { id: id.into(), signal: "INT".into(), tree: false };
    client.call::<TaskSignal>(&signal).unwrap_err();
    client.call::<TaskWrite>(&last_words(id, "x")).unwrap_err();
}

#[test]
fn submit_without_limits_gets_limits_daemon_was_started_with() {
    let daemon = TestDaemon::builder().prelude("ulimit -S -n 500").start();
    let raised = fs::read_to_string(daemon.process().proc("limits")).unwrap();
    let line = raised.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(fields[3], fields[4], "the daemon has raised its own: {line}");
    let id = daemon.submit_shell("ulimit -S -n; ulimit -H -n");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(String::from_utf8_lossy(&daemon.output(id)), format!("500\n{}\n", fields[4]));
}

fn on_disk(task: &Task) -> u64 {
    let blocks = |path: &Path| fs::metadata(path).unwrap().blocks() * 512;
    let err = task.output.stderr_path.as_ref().map_or(0, |path| blocks(path.as_ref()));
    blocks(task.output.path.as_ref()) + err
}

#[test]
fn two_streams_share_the_output_limit_of_their_task() {
    let daemon = TestDaemon::builder().config("[limits]\noutput_bytes = \"1MiB\"\n").start();
    let fill = "yes 0123456789abcde | head -c 16000000";
    let both = format!("{fill} & {fill} >&2; wait");
    for line in [both.as_str(), fill, &format!("{fill} >&2")] {
        let params = SubmitParams { shell: Some(line.into()), split: true, ..daemon.params() };
        let id = daemon.submit_with(&params).id;
        let task = daemon.block(&[id]).remove(0);
        assert_eq!(task.status, Status::Completed);
        let bytes = on_disk(&task);
        assert!(bytes <= LIMIT + SLACK, "{line}: {bytes} bytes of disk");
    }
}

#[test]
fn output_of_lingering_process_is_bounded() {
    let daemon = TestDaemon::builder().config("[limits]\noutput_bytes = \"1MiB\"\n").start();
    let line =
        "mkfifo go; (read word <go; yes 0123456789abcde | head -c 32000000; echo x >done; exec sleep 1000) &";
    let id = daemon.submit_shell(line);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.lingering, task.output.bytes), (Status::Completed, true, 0));
    wait::for_reader(&daemon.home().join("go"), "go\n");
    wait::for_line(&daemon.home().join("done"), "x");
    until(&daemon, "a bounded output", || on_disk(&task) <= LIMIT + SLACK);
    let bytes = |task: &Task| (task.output.bytes, task.output.dropped_bytes > 31_000_000 - LIMIT);
    until(&daemon, "its true size", || bytes(&daemon.task(id)) == (32_000_000, true));
    assert!(!daemon.output(id).contains(&0), "no byte that nobody wrote");
    assert!(!daemon.cancel(&[id])[0].lingering);
}

#[test]
fn clear_returns_after_the_outputs_are_removed() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    for _ in 0..3 {
        let ids: Vec<TaskId> = (0..100).map(|_| daemon.submit(&["echo", "something"])).collect();
        let tasks = daemon.block(&ids);
        let folder = Path::new(&tasks[0].output.path).parent().unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 100);
        assert_eq!(client.call::<TaskClear>(&ClearParams::default()).unwrap().cleared, 100);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "right after the answer");
        let none = BlockParams {
            ids: Vec::new(),
            timeout_ms: None,
            mode: BlockMode::default(),
            ..BlockParams::default()
        };
        client.call::<TaskBlock>(&none).unwrap();
    }
}

#[test]
fn shell_line_starting_with_a_dash_is_not_a_shell_option() {
    let daemon = TestDaemon::start();
    for line in ["-x", "-c", "--", "-x; echo behind"] {
        let id: TaskId = daemon.run(&["submit", "--shell", line]).success().word();
        for id in [id, daemon.submit_shell(line)] {
            let task = daemon.block(&[id]).remove(0);
            let text = String::from_utf8_lossy(&daemon.output(id)).into_owned();
            let goes_on = line.contains("echo");
            assert!(text.contains("not found"), "{line}: {task:?}: {text}");
            assert_eq!(task.exit, Some(Exit::Code(if goes_on { 0 } else { 127 })), "{line}");
            assert_eq!(text.ends_with("behind\n"), goes_on, "{text}");
        }
    }
    // Whatever can be the name of a program is treated as one.
    let program = daemon.home().join("-x");
    executable::write(&program, "#!/bin/sh\necho \"run with $1\"\n");
    let mut bgctl = daemon.bgctl(&["submit", "--shell", "-x 'a word'"]);
    bgctl.env("PATH", format!("{}:/usr/bin:/bin", daemon.home().display()));
    let id: TaskId = bgd_tests::Outcome::of(&mut bgctl).success().word();
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(daemon.output(id), b"run with a word\n");
}
