//! A daemon that exists but does not answer, such as a stopped one: nobody hangs, everybody gets advice, and requests
//! that nobody waits for any more are not carried out later.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Child, Stdio};

use bgd_tests::mcp::Mcp;
use bgd_tests::shared::client::AsyncClient;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{DaemonStatusOf, NoParams, SubmitParams, TaskSubmit};
use bgd_tests::shared::task::Status;
use bgd_tests::{Outcome, Process, Raw, TestDaemon, wait};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, shutdown, socket};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A stopped daemon, which continues at the end of the test, even if that fails.
pub(crate) struct Stopped<'a> {
    daemon: &'a TestDaemon,
    process: Process,
}

impl<'a> Stopped<'a> {
    pub(crate) fn now(daemon: &'a TestDaemon) -> Self {
        let process = daemon.process();
        process.signal(Signal::STOP).unwrap();
        let is_stopped = || std::fs::read_to_string(process.proc("stat")).unwrap().contains(") T ");
        wait::poll_until("the stop of the daemon", || is_stopped().then_some(()));
        Self { daemon, process }
    }

    fn begin(&self, args: &[&str]) -> Child {
        let mut command = self.daemon.bgctl(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.process.signal(Signal::CONT).unwrap();
    }
}

fn end_of(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code().expect("it was not killed"),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[track_caller]
fn says_who_and_what_to_do(outcome: &Outcome, pid: i32) {
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    for word in
        [&format!("(pid {pid}) does not answer"), "is stopped (state T)", &format!("kill -CONT {pid}")]
    {
        assert!(outcome.stderr.contains(word), "{}", outcome.stderr);
    }
}

#[test]
fn every_command_gives_up_on_silent_daemon_with_its_pid_and_advice() {
    let daemon = TestDaemon::start();
    let done = daemon.submit(&["true"]);
    daemon.block(&[done]);
    let runs = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(runs);
    let id = runs.to_string();
    let stopped = Stopped::now(&daemon);
    let verbs: &[&[&str]] = &[
        &["submit", "--", "touch", "carried-out"],
        &["run", "--", "touch", "carried-out"],
        &["list"],
        &["status", &id],
        &["output", &id],
        &["output", "-f", &id],
        &["block", "--timeout", "none", &id],
        &["block", "--timeout", "1s", &id],
        &["cancel", &id],
        &["clear", "--session", "x"],
        &["clear", "--all", "--all-sessions"],
        &["signal", &id, "KILL"],
        &["session", "end", "x"],
        &["events"],
        &["inbox", "--session", "x"],
        &["inbox", "--wait", "1h", "--session", "x"],
        &["agents"],
        &["resume", &id, "go on"],
        &["daemon", "status"],
        &["daemon", "start"],
        &["daemon", "reload"],
        &["--no-start", "list"],
    ];
    let begun: Vec<_> = verbs.iter().map(|verb| stopped.begin(verb)).collect();
    let pid = stopped.process.pid();
    for (child, verb) in begun.into_iter().zip(verbs) {
        let outcome = end_of(child);
        eprintln!("{verb:?}: {}", outcome.stderr.trim());
        says_who_and_what_to_do(&outcome, pid);
    }
    let json = end_of(stopped.begin(&["list", "--json"]));
    let error: Value = serde_json::from_str(&json.stderr).unwrap();
    assert_eq!(error["error"]["data"]["kind"], "no_answer", "{error}");
    assert_eq!(error["error"]["data"]["exit_code"], 69, "{error}");

    // When the daemon continued, it read all of these requests and carried out none.
    drop(stopped);
    let status = daemon.status();
    assert_eq!((status.summary.total(), status.summary.running), (2, 1));
    assert_eq!(daemon.task(runs).status, Status::Running);
    assert!(!daemon.home().join("carried-out").exists());
    daemon.run(&["list"]).success();
}

#[test]
fn silent_daemon_with_a_full_accept_queue_is_given_up() {
    let daemon = TestDaemon::start();
    let stopped = Stopped::now(&daemon);
    let address = UnixAddr::new(daemon.socket()).unwrap();
    let mut waiting: Vec<OwnedFd> = Vec::new();
    loop {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => waiting.push(fd),
            Err(Errno::EAGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    says_who_and_what_to_do(&end_of(stopped.begin(&["list"])), stopped.process.pid());
    drop(waiting);
    drop(stopped);
}

#[test]
fn shell_completion_offers_nothing_while_the_daemon_is_silent() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["true"]);
    let completed = || {
        let mut command = daemon.bgctl(&["--", "bgctl", "status", ""]);
        Outcome::of(command.env("BGCTL_COMPLETE", "fish")).success()
    };
    let stopped = Stopped::now(&daemon);
    let outcome = completed();
    assert_eq!((outcome.stdout_text().as_str(), outcome.stderr.as_str()), ("", ""));
    drop(stopped);
    // It gives up soon, so on a busy machine not every one gets an answer.
    wait::poll_until("the id", || completed().stdout_text().starts_with(&id.short()).then_some(()));
}

#[test]
fn slow_reply_is_awaited_while_the_daemon_lives() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell("trap '' TERM; echo ready; while :; do sleep 1000; done");
    let task = daemon.wait_running(id);
    wait::for_line(std::path::Path::new(&task.output.path), "ready");
    let mut blocks = daemon.bgctl(&["block", "--timeout", "6s", &id.to_string()]);
    let mut blocks = blocks.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    daemon.run(&["cancel", "--grace", "6s", &id.to_string()]).success();
    assert!([75, 1].contains(&blocks.wait().unwrap().code().unwrap()));
}

#[test]
fn block_gives_up_when_its_timeout_passes_and_daemon_is_silent() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["sleep", "1000"]);
    let mut command = daemon.bgctl(&["block", "--timeout", "4s", &id.to_string()]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Wait until `bgctl` has connected, so that the daemon goes silent only after that.
    let mut client = daemon.client();
    wait::poll_until("it has connected", || {
        (client.call::<DaemonStatusOf>(&NoParams {}).unwrap().connections >= 2).then_some(())
    });
    let stopped = Stopped::now(&daemon);
    says_who_and_what_to_do(&end_of(child), stopped.process.pid());
}

#[test]
fn r80_agent_is_notified_of_silent_daemon_and_its_tasks_survive() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("sleep 1000");
    let stopped = Stopped::now(&daemon);
    let error = mcp.error("background_list", &json!({}));
    assert!(error.contains("does not answer") && error.contains("is stopped (state T)"), "{error}");
    assert!(error.contains("tell the user"), "{error}");
    drop(stopped);
    let listed = mcp.done("background_list", &json!({}));
    assert!(listed.text.contains(&id.to_string()[..8]), "{}", listed.text);
    assert_eq!(daemon.task(id).status, Status::Running);
    assert!(mcp.close().success());
}

fn submit_line(daemon: &TestDaemon, file: &str) -> Value {
    json!({"argv": ["touch", file], "cwd": daemon.home(), "env": {"PATH": "/usr/bin:/bin"}})
}

#[test]
fn request_of_vanished_client_is_dropped_and_half_closed_client_is_served() {
    let daemon = TestDaemon::start();
    let stopped = Stopped::now(&daemon);
    let mut gone = Raw::connect(daemon.socket());
    gone.request(1, "task.submit", &submit_line(&daemon, "gone"));
    gone.request(2, "daemon.shutdown", &json!({}));
    drop(gone);
    let mut half = Raw::connect(daemon.socket());
    half.request(1, "task.submit", &submit_line(&daemon, "half"));
    shutdown(half.as_fd().as_raw_fd(), nix::sys::socket::Shutdown::Write).unwrap();
    // Nobody ever waits for the answer to a notification.
    let notifier = std::os::unix::net::UnixStream::connect(daemon.socket()).unwrap();
    let params = submit_line(&daemon, "told");
    let line = json!({"jsonrpc": "2.0", "method": "task.submit", "params": params});
    (&notifier).write_all(format!("{line}\n").as_bytes()).unwrap();
    notifier.shutdown(Shutdown::Both).unwrap();
    drop(notifier);
    drop(stopped);
    let answer = half.receive().expect("its answer");
    let id: TaskId = serde_json::from_value(answer["result"]["task"]["id"].clone()).unwrap();
    daemon.block(&[id]);
    // Connections are served in order of arrival, so all three have been handled by now.
    wait::for_file(&daemon.home().join("told"));
    assert_eq!(daemon.status().summary.total(), 2);
    assert!(daemon.home().join("half").exists() && !daemon.home().join("gone").exists());
}

#[test]
fn r11_daemon_stop_ends_a_suspended_daemon() {
    let daemon = TestDaemon::home_only();
    daemon.run(&["submit", "--", "sleep", "1000"]).success();
    let stopped = Stopped::now(&daemon);
    let outcome = end_of(stopped.begin(&["daemon", "stop"]));
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert_eq!(outcome.stdout_text(), "stopped; 1 task was cancelled\n");
    assert!(outcome.stderr.contains("sending SIGCONT so that it can end"), "{}", outcome.stderr);
    assert!(!stopped.process.is_alive());
}

#[test]
fn r11_daemon_stop_returns_after_the_daemon_is_gone() {
    for _ in 0..5 {
        let daemon = TestDaemon::home_only();
        for _ in 0..20 {
            daemon.run(&["submit", "--", "sleep", "1000"]).success();
        }
        let process = daemon.process();
        daemon.run(&["daemon", "stop"]).success();
        assert!(!process.is_alive());
    }
}

/// Lets a call do what it can without waiting.
async fn begin<F: Future + Unpin>(call: &mut F) {
    tokio::select! {
        biased;
        _ = call => panic!("the daemon is stopped"),
        () = std::future::ready(()) => {}
    }
}

#[test]
fn dropped_call_of_async_client_ends_connection_only_if_its_line_was_cut_off() {
    let daemon = TestDaemon::start();
    let long = SubmitParams {
        argv: Some((0..9).map(|_| "x".repeat(100_000).into()).collect()),
        hold: true,
        ..daemon.params()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = AsyncClient::connect(daemon.socket_path()).await.unwrap();
        let other = AsyncClient::connect(daemon.socket_path()).await.unwrap();
        for client in [&client, &other] {
            client.call::<DaemonStatusOf>(&NoParams {}).await.unwrap();
        }
        let stopped = Stopped::now(&daemon);
        begin(&mut Box::pin(client.call::<TaskSubmit>(&long))).await;
        let error = client.call::<DaemonStatusOf>(&NoParams {}).await.unwrap_err();
        assert!(error.to_string().contains("a call was cut off"), "{error}");

        // One line is complete, another has not begun.
        begin(&mut Box::pin(other.call::<DaemonStatusOf>(&NoParams {}))).await;
        let mut written = Box::pin(other.call::<TaskSubmit>(&long));
        begin(&mut written).await;
        begin(&mut Box::pin(other.call::<TaskSubmit>(&long))).await;
        drop(stopped);
        written.await.unwrap();
        assert_eq!(other.call::<DaemonStatusOf>(&NoParams {}).await.unwrap().summary.total(), 1);
    });
}
