//! The daemon's end, wanted and unwanted: nothing of its tasks is left (R09, R11).

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;

use bgd_tests::clock::WallClock;
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    BlockMode, BlockParams, DaemonShutdown, Hello, HelloParams, IdParams, ListParams, ShutdownParams,
    SubmitParams, TaskBlock, TaskGet, TaskList, TaskResult, TerminalSize,
};
use bgd_tests::shared::task::Status;
use bgd_tests::upgrades::in_time;
use bgd_tests::{Process, TestDaemon, bgctl_path, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::process::Signal;
use serde_json::Value;

/// A grace period that never expires unless the test wants it to.
const LONG_GRACE: &str = "[grace]\ncancel = \"1h\"";

/// A task with processes in its session, in their own sessions, and without a parent.
const TREE: &str = "sleep 1000 &
    (sh -c 'echo $$ > forked; exec sleep 1000' &)
    setsid -f sh -c 'echo $$ > session; exec sleep 1000'
    setsid sh -c '(setsid sh -c \"echo \\$\\$ > both; exec sleep 1000\" >/dev/null 2>&1 &)'
    env -i setsid -f sh -c 'echo $$ > clean; exec sleep 1000'
    wait; sleep 1000";

#[track_caller]
fn tree(daemon: &TestDaemon) -> Vec<Process> {
    let id = daemon.submit_shell(TREE);
    let mut processes: Vec<_> = ["forked", "session", "both", "clean"]
        .map(|name| daemon.recorded_process(name))
        .into_iter()
        .collect();
    processes.push(Process::open(daemon.wait_running(id).pid.unwrap()).unwrap());
    processes
}

/// Asserts that no instance has left files, except the running one (if any).
#[track_caller]
fn nothing_is_left(daemon: &TestDaemon, running: usize) {
    let instances = daemon.state_dir().join("instances");
    let left: Vec<_> = fs::read_dir(instances).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), running, "{left:?}");
    for path in left {
        assert_eq!(fs::read_dir(path.join("output")).unwrap().count(), 0);
    }
}

#[test]
fn r09_next_start_ends_everything_a_killed_daemon_left() {
    let mut daemon = TestDaemon::start();
    let done = daemon.submit(&["echo", "done"]);
    daemon.block(&[done]);
    let tree = tree(&daemon);
    let instance = daemon.client().call::<Hello>(&HelloParams::default()).unwrap().instance;
    daemon.kill9();
    assert!(tree.iter().all(Process::is_alive), "a killed daemon can end nobody");

    daemon.launch();
    // By the time the new daemon serves anyone, the old tasks are gone.
    assert!(tree.iter().all(|process| !process.is_alive()), "{tree:?}");
    assert_eq!(daemon.task_processes().len(), 0);
    nothing_is_left(&daemon, 1);
    assert_eq!(daemon.status().summary.total(), 0);
    let mut client = daemon.client();
    assert_ne!(client.call::<Hello>(&HelloParams::default()).unwrap().instance, instance);
    let error = client.call::<TaskGet>(&IdParams { id: done.into() }).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::TaskNotFound));
    daemon.run(&["status", &done.to_string()]).expect_code(66);
}

#[test]
fn r09_clients_of_killed_daemon_get_error_and_bgctl_starts_another() {
    let mut daemon = TestDaemon::start();
    let tree = tree(&daemon);
    let task = daemon.submit(&["sleep", "1000"]);
    let mut waiting = daemon.client();
    let params = BlockParams {
        ids: vec![task.into()],
        timeout_ms: None,
        mode: BlockMode::All,
        ..BlockParams::default()
    };
    let call = waiting.send::<TaskBlock>(&params, &[]).unwrap();
    daemon.wait_running(task);
    daemon.kill9();
    let error = waiting.answer::<TaskBlock>(call).unwrap_err();
    assert!(matches!(error, ClientError::Closed | ClientError::Io(_)), "{error}");
    daemon.run(&["--no-start", "list"]).expect_code(69);
    assert!(tree.iter().all(Process::is_alive));
    assert_eq!(daemon.run(&["list", "-q"]).success().stdout_text(), "");
    assert!(tree.iter().all(|process| !process.is_alive()), "{tree:?}");
    nothing_is_left(&daemon, 1);
}

#[test]
fn r09_next_daemon_ends_old_task_that_started_it() {
    let mut daemon = TestDaemon::builder().config("tree = \"session\"").start();
    let bgctl = bgctl_path();
    // No process of these ends by itself.
    let line = format!(
        "(: >up; read word <go; {} list; sleep 1000) & sleep 1000 & wait; sleep 1000",
        bgctl.display()
    );
    mkfifo(&daemon.home().join("go"), Mode::S_IRWXU).unwrap();
    daemon.submit_shell(&line);
    wait::for_file(&daemon.home().join("up"));
    let old = daemon.task_processes();
    daemon.kill9();
    assert!(old.iter().all(Process::is_alive), "a killed daemon can end nobody");

    wait::for_reader(&daemon.home().join("go"), "go\n");

    old.iter().for_each(Process::gone);
    // The daemon that the task has started serves on.
    daemon.run(&["--no-start", "list"]).success();
    assert_eq!(daemon.task_processes().len(), 0);
    nothing_is_left(&daemon, 1);
}

#[test]
fn r09_next_bgctl_reports_lost_tasks_and_log_path() {
    let mut daemon = TestDaemon::start();
    let done = daemon.submit(&["true"]);
    let runs = daemon.submit(&["sleep", "1000"]);
    daemon.block(&[done]);
    daemon.wait_running(runs);
    daemon.kill9();
    let outcome = daemon.run(&["list", "-q"]).success();
    assert_eq!(outcome.stdout_text(), "");
    let log = daemon.home().join("state/bgd/bgd.log");
    // One of the two had ended; the output of both is lost.
    let lost = "its running and pending tasks are lost, and the output of every task that it had started (2)";
    let words = ["was killed", lost, log.to_str().unwrap()];
    assert!(words.iter().all(|word| outcome.stderr.contains(word)), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(log.exists());
    // It is reported only once, but remains visible on request.
    assert_eq!(daemon.run(&["list"]).success().stderr, "");
    let warnings = daemon.warnings();
    assert!(matches!(&*warnings, [one] if words.iter().all(|word| one.contains(word))), "{warnings:?}");

    // A program that reads standard error learns it only from `daemon status`; a program that lost nothing learns
    // nothing.
    let killed = daemon.process();
    killed.signal(Signal::KILL).unwrap();
    killed.gone();
    daemon.run(&["daemon", "start"]).success();
    assert_eq!(daemon.warnings(), Vec::<String>::new());
    let runs = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(runs);
    let killed = daemon.process();
    killed.signal(Signal::KILL).unwrap();
    killed.gone();
    assert_eq!(daemon.run(&["--json", "list"]).success().stderr, "");
    assert_eq!(daemon.warnings().len(), 1);
}

#[test]
fn r11_sigterm_and_sigint_cancel_every_task_and_leave_nothing_behind() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon =
            TestDaemon::builder().config(format!("max_concurrent_tasks = 1\n{LONG_GRACE}")).start();
        let tree = tree(&daemon);
        let waiting = daemon.submit(&["touch", "never"]);
        let mut watch = daemon.watch();
        daemon.process().signal(signal).unwrap();
        // Subscribers learn of the end of both before the daemon ends.
        let mut cancelled = [(); 2].map(|()| watch.until(|event| event.kind == EventKind::Cancelled).task.id);
        cancelled.sort_by_key(|id| *id == waiting);
        assert!(cancelled[0] != waiting && cancelled[1] == waiting);
        assert!(daemon.ended().success());
        assert!(tree.iter().all(|process| !process.is_alive()), "{tree:?}");
        assert!(!daemon.home().join("never").exists());
        assert!(!daemon.socket().exists());
        nothing_is_left(&daemon, 0);
    }
}

/// A task that records each SIGTERM and continues. It uses `wait` rather than a program in the foreground, because the
/// shell would record a signal that arrives just before such a program only after it.
fn stubborn(daemon: &TestDaemon) -> Process {
    let id = daemon.submit_shell("trap 'echo got it' TERM; echo ready; while :; do sleep 1000 & wait; done");
    let task = daemon.wait_running(id);
    wait::for_line(Path::new(&task.output.path), "ready");
    Process::open(task.pid.unwrap()).unwrap()
}

fn output_of(process: &Process) -> std::path::PathBuf {
    fs::read_link(process.proc("fd/1")).unwrap()
}

#[test]
fn r11_second_signal_skips_the_grace_period() {
    let mut daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let task = stubborn(&daemon);
    let process = daemon.process();
    process.signal(Signal::TERM).unwrap();
    wait::for_line(&output_of(&task), "got it");
    // The daemon serves its clients while it waits for the grace period, but accepts nothing new.
    assert_eq!(daemon.status().summary.active(), 1);
    let params = SubmitParams { argv: Some(vec!["true".into()]), ..daemon.params() };
    let refused = daemon.client().call::<bgd_tests::shared::request::TaskSubmit>(&params).unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::ShuttingDown));
    process.signal(Signal::INT).unwrap();
    assert!(daemon.ended().success());
    assert!(!task.is_alive());
    nothing_is_left(&daemon, 0);
}

#[test]
fn r01_jobs_begun_during_a_shutdown_go_to_the_next_daemon() {
    let mut daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let named =
        SubmitParams { argv: Some(vec!["true".into()]), session: Some("mine".into()), ..daemon.params() };
    daemon.submit_with(&named);
    let task = stubborn(&daemon);
    let process = daemon.process();
    process.signal(Signal::TERM).unwrap();
    wait::for_line(&output_of(&task), "got it");
    let mut count = 0;
    // The daemon has refused each, which waits for its end.
    let mut begin = |args: &[&str]| {
        count += 1;
        let errors = daemon.home().join(format!("errors-{count}"));
        let mut command = daemon.bgctl(args);
        command.env("BGD_SESSION", "mine").stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.stderr(fs::File::create(&errors).unwrap()).spawn().unwrap();
        wait::for_line(&errors, "bgctl: waiting: the daemon is shutting down");
        child
    };
    let run = begin(&["run", "--", "echo", "here"]);
    // This one first asks which task it is.
    let named = begin(&["submit", "--after", "@", "--", "true"]);
    let given_up = begin(&["run", "--", "echo", "never"]);
    Process::open(given_up.id().cast_signed()).unwrap().signal(Signal::INT).unwrap();
    assert_eq!(given_up.wait_with_output().unwrap().status.signal(), Some(Signal::INT.as_raw()));
    process.signal(Signal::INT).unwrap();
    assert!(daemon.ended().success());
    let run = run.wait_with_output().unwrap();
    assert!(run.status.success() && run.stdout == b"here\n", "{run:?}");
    let named = named.wait_with_output().unwrap();
    assert_eq!(named.status.code(), Some(66), "its task went with its daemon: {named:?}");
    daemon.run(&["daemon", "stop"]).success();
}

#[test]
fn shutdown_that_takes_long_is_shown_and_announced_to_those_who_wait_for_it() {
    const WHAT: &str = "the daemon is shutting down, with 1 active task left";
    let mut daemon = TestDaemon::builder().config(LONG_GRACE).start();
    assert!(!daemon.status().shutting_down);
    let task = stubborn(&daemon);
    let process = daemon.process();
    process.signal(Signal::TERM).unwrap();
    wait::for_line(&output_of(&task), "got it");

    assert!(daemon.status().shutting_down);
    let page = daemon.run(&["daemon", "status"]).success().stdout_text();
    assert!(page.lines().any(|line| line.starts_with("ending:") && line.ends_with(WHAT)), "{page}");
    let started = daemon.run(&["daemon", "start"]).success().stdout_text();
    assert_eq!(started, format!("already running, pid {}; {WHAT}\n", process.pid()));
    let report: Value = daemon.run(&["--json", "doctor"]).json();
    let checks = report["checks"].as_array().unwrap();
    let ending = checks.iter().find(|check| check["name"] == "ending").unwrap();
    assert_eq!((&ending["state"], &ending["found"]), (&"note".into(), &WHAT.into()));
    assert!(ending["hint"].as_str().unwrap().contains("bgctl daemon stop --grace 0"), "{ending}");

    let children =
        [&["submit", "--", "true"][..], &["run", "--", "true"], &["daemon", "restart"]].map(|args| {
            let errors = daemon.home().join(format!("errors-{}", args[0]));
            let mut command = daemon.bgctl(args);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&errors).unwrap());
            let child = command.spawn().unwrap();
            wait::for_line(&errors, &format!("bgctl: waiting: {WHAT}"));
            child
        });
    process.signal(Signal::INT).unwrap();
    assert!(daemon.ended().success());
    for mut child in children {
        child.wait().unwrap();
    }
    daemon.run(&["daemon", "stop"]).success();
}

#[test]
fn r11_shutdown_sends_sigkill_when_grace_expires() {
    let mut daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let task = stubborn(&daemon);
    let params = ShutdownParams { grace_ms: Some(100), cancel: true };
    assert_eq!(daemon.client().call::<DaemonShutdown>(&params).unwrap().cancelled, 1);
    assert!(!task.is_alive());
    assert!(daemon.ended().success());
    nothing_is_left(&daemon, 0);
}

#[test]
fn r03_sighup_reloads_configuration() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let first = daemon.submit(&["sleep", "1000"]);
    let second = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(first);
    let log = daemon.state_dir().join("bgd.log");
    daemon.write_config("max_concurrent_tasks = none");
    daemon.process().signal(Signal::HUP).unwrap();
    wait::for_line(&log, "configuration not applied");
    assert_eq!(daemon.task(second).status, Status::Pending);
    daemon.write_config("max_concurrent_tasks = 2");
    daemon.process().signal(Signal::HUP).unwrap();
    daemon.wait_running(second);
    assert_eq!(daemon.status().limits.max_concurrent_tasks, 2);
    assert_eq!(daemon.task(first).status, Status::Running);
}

#[test]
fn signals_without_a_meaning_leave_daemon_and_keeper_alive_and_are_not_ignored_in_tasks() {
    let daemon = TestDaemon::durable("");
    let runs = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(runs);
    let (process, keeper) = (daemon.process(), daemon.keeper());
    for signal in [
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::POWER,
        Signal::XFSZ,
    ] {
        process.signal(signal).unwrap();
        keeper.signal(signal).unwrap();
        assert_eq!(daemon.status().pid, process.pid(), "{signal:?}");
    }
    assert!(keeper.is_alive());
    assert_eq!(daemon.task(runs).status, Status::Running);
    for pty in [None, Some(TerminalSize { rows: 24, cols: 80 })] {
        let shell = Some("grep SigIgn /proc/self/status".into());
        let task = daemon.submit_with(&SubmitParams { shell, pty, ..daemon.params() });
        daemon.block(&[task.id]);
        let said = String::from_utf8(daemon.output(task.id)).unwrap();
        let ignored = u64::from_str_radix(said.trim().rsplit('\t').next().unwrap(), 16).unwrap();
        // 32 and 33 are the C library's own.
        assert_eq!(ignored & !(0b11 << 31), 0, "{said}");
    }
    daemon.cancel(&[runs]);
}

/// As if the machine had slept: only the wall clock advances then.
#[test]
fn r105_end_of_a_delay_is_shown_as_it_is_after_a_sleep_of_the_machine() {
    const HOUR_MS: u64 = 3_600_000;
    let clock = WallClock::new();
    let daemon = TestDaemon::builder().prelude(clock.prelude()).start();
    let task: TaskId = daemon.run(&["submit", "--in", "1h", "--", "true"]).success().word();
    let mut watch = daemon.watch();
    let mut shown = || {
        let listed = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks.remove(0);
        let block = BlockParams { ids: vec![task.into()], timeout_ms: Some(0), ..BlockParams::default() };
        let blocked = daemon.client().call::<TaskBlock>(&block).unwrap().tasks.remove(0);
        let edit = ["--json", "edit", &task.to_string(), "--priority", "1"];
        let edited = daemon.run(&edit).success().json::<TaskResult>().task;
        let event = watch.until_kind(task, EventKind::Edited).task;
        let tasks = [daemon.task(task), listed, blocked, edited, event];
        tasks.map(|task| task.waiting.unwrap().until.unwrap())
    };
    let before = shown();
    clock.set(3600);
    let after = shown();
    assert_eq!(before, [before[0]; 5]);
    assert!(after.iter().all(|until| until.millis_since(before[0]) > HOUR_MS - 1000), "{before:?} {after:?}");
    daemon.cancel(&[task]);
}

#[test]
fn r22_setting_clock_back_changes_no_timeout() {
    let clock = WallClock::new();
    let daemon = TestDaemon::builder().prelude(clock.prelude()).config(LONG_GRACE).start();
    let mut offset = 0;
    in_time(|timeout| {
        let timeout_ms = u64::try_from(timeout.as_millis()).ok();
        let argv = Some(vec!["sleep".into(), "1000".into()]);
        let limited = SubmitParams { argv, time_limit_ms: timeout_ms, ..daemon.params() };
        let limited = daemon.submit_with(&limited);
        let endless = daemon.submit(&["sleep", "1000"]);
        wait::poll_until("its start", || daemon.task(limited.id).started_at);
        let params = BlockParams {
            ids: vec![endless.into()],
            timeout_ms,
            mode: BlockMode::All,
            ..BlockParams::default()
        };
        let mut blocked = daemon.client();
        let call = blocked.send::<TaskBlock>(&params, &[]).unwrap();
        let uptime = daemon.status().uptime_ms;

        offset -= 3600;
        clock.set(offset);

        // The wait began later than the task, and has the same timeout.
        let is_in_time = daemon.task(limited.id).status.is_active();
        let answer = blocked.answer::<TaskBlock>(call).unwrap();
        assert!(answer.timed_out);
        let task = daemon.block(&[limited.id]).remove(0);
        let error = format!("timed out after {}s", timeout.as_secs());
        assert_eq!((task.status, task.error), (Status::Failed, Some(error)));
        // Displayed times follow the clock, and nothing else does.
        assert!(!is_in_time || task.completed_at.unwrap() < task.created_at, "the clock was not moved");
        assert!(daemon.status().uptime_ms >= uptime);
        let later = daemon.submit(&["echo", "later"]);
        assert_eq!(daemon.block(&[later])[0].status, Status::Completed);
        assert!(daemon.task(later).created_at < limited.created_at);
        let listed = daemon.run(&["list", "-q"]).success().stdout_text();
        let first = listed.lines().next().unwrap();
        assert!(later.to_string().starts_with(first), "the newest is the first still: {listed}");
        daemon.run(&["list"]).success();
        daemon.run(&["status", &limited.id.to_string()]).success();
        assert_eq!(daemon.cancel(&[endless])[0].status, Status::Cancelled);
        is_in_time
    });
}
