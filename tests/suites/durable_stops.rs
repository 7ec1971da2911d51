//! A durable daemon that is stopped, which is no worse for its tasks than a kill (R126, R131): whatever they are
//! checked for, whatever their names, and whatever becomes of the keeper meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bgd_tests::shared::holder::{Note, Phase};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::proc;
use bgd_tests::shared::request::{DaemonUpgrade, SubmitParams, TerminalSize, UpgradeParams};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::shared::time::Timestamp;
use bgd_tests::upgrades::in_time;
use bgd_tests::{Outcome, Process, TestDaemon, ports, wait};
use rustix::process::Signal;

use super::channel_tty::Gate;

/// Ends the daemon in every way that leaves its tasks running, and starts the next one.
#[track_caller]
fn each_restart(daemon: &mut TestDaemon, holds: impl Fn(&TestDaemon)) {
    daemon.kill9();
    daemon.launch();
    holds(daemon);
    daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    holds(daemon);
    assert!(daemon.stop().success());
    daemon.launch();
    holds(daemon);
}

#[test]
fn r126_readiness_check_in_folder_that_is_not_utf8_survives() {
    let mut daemon = TestDaemon::durable("");
    let folder = daemon.home().join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&folder).unwrap();
    let tasks = [None, Some(TerminalSize { rows: 24, cols: 80 })].map(|pty| {
        let (shell, ready) = (Some("exec sleep 1000".into()), Some("file:up".parse().unwrap()));
        let cwd = Some(folder.as_os_str().into());
        let task = daemon.submit_with(&SubmitParams { shell, cwd, ready, pty, ..daemon.params() }).id;
        daemon.wait_running(task);
        task
    });

    each_restart(&mut daemon, |daemon| {
        let now = tasks.map(|task: TaskId| (daemon.task(task).status, daemon.task(task).ready_at));
        assert_eq!(now, [(Status::Running, None); 2]);
    });

    fs::write(folder.join("up"), "").unwrap();
    for task in &tasks {
        wait::poll_until("it is ready", || daemon.task(*task).ready_at);
    }
    daemon.cancel(&tasks);
}

#[test]
fn r126_service_becomes_ready_by_notification_after_its_daemon_ended() {
    let mut daemon = TestDaemon::durable("");
    let line = "until [ -e \"$HOME/go\" ]; do sleep 0.02; done; systemd-notify --ready; exec sleep 1000";
    let (shell, ready) = (Some(line.into()), Some("notify".parse().unwrap()));
    let task = daemon.submit_with(&SubmitParams { shell, ready, ..daemon.params() }).id;
    daemon.wait_running(task);

    each_restart(&mut daemon, |daemon| assert_eq!(daemon.task(task).ready_at, None));

    fs::write(daemon.home().join("go"), "").unwrap();
    wait::poll_until("it is ready", || daemon.task(task).ready_at);
    daemon.cancel(&[task]);
    assert_eq!(sockets(&daemon), 0, "its socket is removed with the process");
}

/// A daemon that ends while there is no keeper waits for the next one, or its tasks would end with it.
#[test]
fn r131_tasks_are_left_when_daemon_is_stopped_while_its_keeper_is_replaced() {
    let mut daemon = TestDaemon::durable("");
    let tasks = [None, Some(TerminalSize { rows: 24, cols: 80 })].map(|pty| {
        let shell = Some("exec sleep 1000".into());
        let task = daemon.submit_with(&SubmitParams { shell, pty, ..daemon.params() }).id;
        (task, daemon.wait_running(task).pid)
    });
    // A folder in the place of the next keeper's socket.
    let instances = fs::read_dir(daemon.state_dir().join("instances")).unwrap();
    let folders = instances.map(|entry| entry.unwrap().path()).filter(|path| path.join("keeper").exists());
    let in_the_way: Vec<_> = folders.map(|folder| folder.join("keeper.new")).collect();
    assert_eq!(in_the_way.len(), 1, "{in_the_way:?}");
    for path in &in_the_way {
        fs::create_dir(path).unwrap();
    }
    let keeper = daemon.keeper();
    let process = daemon.process();
    process.signal(Signal::STOP).unwrap();
    keeper.kill();
    process.signal(Signal::TERM).unwrap();
    process.signal(Signal::CONT).unwrap();
    let lock = daemon.socket_path().beside("lock");
    wait::poll_until("it is ending", || (Note::read(&lock).phase == Phase::Ending).then_some(()));

    for path in &in_the_way {
        fs::remove_dir(path).unwrap();
    }
    assert!(daemon.ended().success());
    daemon.launch();

    for (task, pid) in tasks {
        let now = daemon.task(task);
        assert_eq!((now.status, now.pid), (Status::Running, pid), "{now:?}");
    }
    daemon.cancel(&tasks.map(|(task, _)| task));
}

/// Returns the number of sockets for notifications.
fn sockets(daemon: &TestDaemon) -> usize {
    let folder = daemon.socket().parent().expect("a socket is in a folder");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains(".notify-")).count()
}

/// Kills the daemon within this time since `begun`, returns false if that took longer, and starts the next one after the
/// time has passed.
fn away_for(daemon: &mut TestDaemon, begun: Instant, time: Duration, meanwhile: impl FnOnce()) -> bool {
    daemon.kill9();
    let is_in_time = begun.elapsed() < time;
    if is_in_time {
        meanwhile();
        wait::poll_until("the time to pass", || (begun.elapsed() > time).then_some(()));
    }
    daemon.launch();
    is_in_time
}

#[test]
fn r126_run_that_ended_in_time_without_a_daemon_has_not_timed_out() {
    let mut daemon = TestDaemon::durable("");
    in_time(|limit| {
        let begun = Instant::now();
        let tasks = [None, Some(TerminalSize { rows: 24, cols: 80 })].map(|pty| {
            let _ = fs::remove_file(daemon.home().join("go"));
            let shell = Some("until [ -e go ]; do sleep 0.02; done; echo said".into());
            let time_limit_ms = u64::try_from(limit.as_millis()).ok();
            let params = SubmitParams { shell, pty, time_limit_ms, ..daemon.params() };
            daemon.submit_with(&params).id
        });
        let processes =
            tasks.map(|task| daemon.wait_running_in_time(task).and_then(|task| Process::open(task.pid?)));
        let [Some(process), Some(job)] = processes else {
            daemon.block(&tasks);
            return false;
        };
        let processes = [process, job];
        let go = daemon.home().join("go");

        let is_in_time = away_for(&mut daemon, begun, limit, || {
            fs::write(go, "").unwrap();
            processes.iter().for_each(Process::gone);
        });

        let ended = daemon.block(&tasks);
        if is_in_time {
            let is_success = |task: &Task| task.exit == Some(Exit::Code(0)) && task.failure.is_none();
            assert!(ended.iter().all(is_success), "{ended:?}");
        }
        is_in_time
    });
}

/// Submits services, each with its condition of readiness and its command line, and waits until all run. Returns `None`
/// if one was not ready in time before that.
fn begun_in_time<const N: usize>(
    daemon: &TestDaemon,
    services: [(&str, String); N],
    folder: &Path,
    time: Duration,
) -> Option<[TaskId; N]> {
    let tasks = services.map(|(ready, line)| {
        let params = SubmitParams {
            shell: Some(line.into()),
            cwd: Some(folder.as_os_str().into()),
            ready: Some(ready.parse().unwrap()),
            ready_timeout_ms: u64::try_from(time.as_millis()).ok(),
            ..daemon.params()
        };
        daemon.submit_with(&params).id
    });
    let all_run = tasks.iter().all(|task| daemon.wait_running_in_time(*task).is_some());
    if !all_run {
        daemon.cancel(&tasks);
    }
    all_run.then_some(tasks)
}

#[test]
fn r126_service_that_became_ready_without_a_daemon_continues() {
    let config = "durable = true\nmax_concurrent_tasks = 5";
    let mut daemon = TestDaemon::builder().config(config).start();
    let port = ports::unused();
    let serve = format!("exec python3 -m http.server --bind 127.0.0.1 {port} >/dev/null 2>&1");
    let http = format!("http://127.0.0.1:{port}/");
    let cases = [
        ("line:^up$", "echo up"),
        ("file:there", ": > there"),
        ("notify", "systemd-notify --ready"),
        (&*format!("tcp:{port}"), ": "),
        (&*http, &*serve),
    ];
    in_time(|time| {
        let begun = Instant::now();
        let folder = tempfile::tempdir_in(daemon.home()).unwrap();
        let services = cases.map(|(ready, then)| {
            let line = format!("until [ -e go ]; do sleep 0.02; done; {then}; echo >>ready; exec sleep 1000");
            (ready, line)
        });
        let Some(tasks) = begun_in_time(&daemon, services, folder.path(), time) else { return false };

        let is_in_time = away_for(&mut daemon, begun, time, || {
            fs::write(folder.path().join("go"), "").unwrap();
            wait::poll_until("it is served", || TcpStream::connect(("127.0.0.1", port)).ok());
            wait::for_lines(&folder.path().join("ready"), 4, "");
        });

        if is_in_time {
            for (task, (ready, _)) in tasks.iter().zip(cases) {
                wait::poll_until(ready, || {
                    let task = daemon.task(*task);
                    assert!(task.status.is_active(), "{ready}: {task:?}");
                    task.ready_at
                });
            }
        }
        daemon.cancel(&tasks);
        is_in_time
    });
}

#[test]
fn r126_service_not_ready_in_time_without_a_daemon_is_ended() {
    let mut daemon = TestDaemon::durable("");
    in_time(|time| {
        let begun = Instant::now();
        let port = ports::unused();
        let conditions = ["line:up", "file:never", "notify", &*format!("tcp:{port}")];
        let services = conditions.map(|ready| (ready, "exec sleep 1000".to_owned()));
        let Some(tasks) = begun_in_time(&daemon, services, daemon.home(), time) else { return false };
        let is_in_time = away_for(&mut daemon, begun, time, || {});
        let error = format!("not ready after {}s", time.as_secs());
        for task in daemon.block(&tasks) {
            assert_eq!((task.status, task.error.as_deref()), (Status::Failed, Some(&*error)));
        }
        is_in_time
    });
}

#[test]
fn r131_stop_with_cancel_fails_if_daemon_is_killed_meanwhile() {
    let mut daemon = TestDaemon::durable("[grace]\ncancel = \"1h\"");
    let id = daemon.submit_shell("trap 'echo asked' TERM; echo begun; while :; do sleep 0.1; done");
    daemon.wait_output(id, "begun");
    let mut stop = daemon.bgctl(&["daemon", "stop", "--cancel"]);
    let stop = thread::spawn(move || Outcome::of(&mut stop));
    daemon.wait_output(id, "asked");

    daemon.kill9();

    for refused in [stop.join().unwrap(), daemon.run(&["daemon", "stop", "--cancel"])] {
        let refused = refused.expect_code(69);
        assert!(refused.stderr.contains("may have left tasks running"), "{}", refused.stderr);
    }
    daemon.launch();
    daemon.run(&["daemon", "stop", "--cancel", "--grace", "0"]).success();
    assert!(daemon.ended().success());
}

#[test]
fn tasks_of_a_removed_journal_are_not_reported_as_kept() {
    let mut daemon = TestDaemon::durable("");
    daemon.run(&["submit", "--hold", "--", "true"]).success();
    fs::write(daemon.config_path(), "").unwrap();
    assert!(daemon.stop().success());
    daemon.launch();
    let says = || {
        let status = daemon.status();
        status.notes.into_iter().chain(status.warnings).filter(|text| text.contains("was durable")).collect()
    };
    let notes: Vec<String> = says();
    assert!(notes.len() == 2 && notes[0].ends_with("; to drop it, remove that folder"), "{notes:?}");
    fs::remove_dir_all(daemon.state_dir().join("journal")).unwrap();
    assert_eq!(says(), <[String; 0]>::default());
}

/// The open file could be written until then: no call has hit the trouble yet.
#[test]
fn r131_stop_and_restart_say_that_tasks_are_lost_with_a_removed_journal() {
    let mut daemon = TestDaemon::durable("");
    for verb in ["stop", "restart"] {
        let ended = daemon.submit(&["true"]);
        daemon.block(&[ended]);
        let running = daemon.submit_shell("exec sleep 1000");
        let process = Process::open(daemon.wait_running(running).pid.unwrap()).unwrap();
        // The daemon answers once everything before it is in the journal.
        daemon.run(&["submit", "--hold", "--", "true"]).success();
        let keeper = daemon.keeper();
        fs::remove_dir_all(daemon.state_dir()).unwrap();
        let warnings = daemon.status().warnings.join("; ");
        assert!(warnings.contains("all tasks are lost with the daemon"), "{warnings}");

        let said = daemon.run(&["daemon", verb]).success();

        let said = said.stdout_text() + &said.stderr;
        let mut expected = vec![
            "1 task keeps running, and the next daemon ends it",
            "3 tasks are lost",
            "journal.db was removed",
        ];
        if verb == "restart" {
            expected.push("loses 2 active tasks and 1 finished task with its output");
        }
        assert!(expected.iter().all(|part| said.contains(part)), "{said}");
        assert!(daemon.ended().success());
        if verb == "stop" {
            daemon.launch();
        }
        process.gone();
        keeper.gone();
        assert_eq!(daemon.status().summary.total(), 0);
    }
    daemon.run(&["daemon", "stop"]).success();
}

#[test]
fn r129_reload_and_restart_say_how_many_tasks_a_lower_limit_clears() {
    let daemon = TestDaemon::home_only();
    daemon.write_config("durable = true");
    let ids: Vec<TaskId> = (0..5).map(|_| daemon.submitted(&["--", "true"])).collect();
    daemon.block(&ids);
    // A quarter, rounded up, is left for unfinished tasks.
    daemon.write_config("durable = true\n[limits]\ntasks = 4");
    let stdout = daemon.run(&["daemon", "reload"]).success().stdout_text();
    assert!(stdout.contains("changed: limits.tasks\nclears 2 finished tasks with their output"), "{stdout}");
    let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap();
    assert!(log.contains("are cleared with their output tasks=2"), "{log}");
    assert_eq!(daemon.status().summary.total(), 3);
    daemon.write_config("durable = true\n[limits]\ntasks = 2");
    let stderr = daemon.run(&["daemon", "restart"]).success().stderr;
    assert!(stderr.contains("keeps 1 finished task with its output"), "{stderr}");
    assert!(stderr.contains("clears 2 finished tasks with their output"), "{stderr}");
    assert_eq!(daemon.status().summary.total(), 1);
    daemon.run(&["daemon", "stop"]).success();
}

/// Waits until this process sleeps, and returns how often it has gone to sleep.
fn sleeps(process: &Process) -> u64 {
    wait::poll_until("its sleep", || {
        let before = process.switches();
        (proc::state(process.pid()) == Some('S') && process.switches() == before).then_some(before)
    })
}

#[test]
fn r126_task_that_ends_while_no_daemon_runs_ends_at_that_time() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 4");
    for pty in [None, Some(TerminalSize { rows: 24, cols: 80 })] {
        let shell = Some("read x <gate; exit 5".into());
        let gate = Gate::new(&daemon, "gate");
        let task = daemon.submit_with(&SubmitParams { shell, pty, ..daemon.params() }).id;
        let process = Process::open(daemon.wait_running(task).pid.unwrap()).expect("it waits");
        let keeper = daemon.keeper();
        assert!(daemon.stop().success());
        let before = sleeps(&keeper);
        gate.open();
        process.gone();
        // It has noticed the end.
        wait::poll_until("the keeper", || (sleeps(&keeper) > before).then_some(()));
        let after = Timestamp::now();
        daemon.launch();
        let task = daemon.ends_as(task, Status::Failed);
        let ended = task.completed_at.unwrap();
        assert_eq!(task.exit, Some(Exit::Code(5)));
        assert!(ended <= after && ended >= task.started_at.unwrap(), "{ended:?}, {after:?}: {task:?}");
        fs::remove_file(daemon.home().join("gate")).unwrap();
    }
}
