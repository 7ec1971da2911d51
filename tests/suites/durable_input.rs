//! The standard input of tasks of a durable daemon (R126, R127): the keeper has a copy of the daemon's end, and of what
//! was sent with a task that has yet to start, without any visible effect.

use std::fs;
use std::io::{ErrorKind, PipeReader, Write as _, pipe};
use std::os::fd::AsFd as _;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    DaemonUpgrade, Encoding, Stdin, SubmitParams, TaskSubmit, TaskWrite, UpgradeParams, WriteParams,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::{Raw, TestDaemon, wait};
use serde_json::json;

use super::durable_kills::kill_keeper;

/// Submits a shell command whose standard input is a pipe, and waits until it runs.
#[track_caller]
fn piped(daemon: &TestDaemon, line: &str, ready: Option<&str>) -> TaskId {
    let ready = ready.map(|sign| sign.parse().expect("a sign"));
    let params =
        SubmitParams { shell: Some(line.into()), stdin: Some(Stdin::Pipe), ready, ..daemon.params() };
    daemon.submit_with(&params).id
}

/// Waits until nothing of a task is left. Its processes must have read the end of their input.
#[track_caller]
fn has_read_the_end(daemon: &TestDaemon, task: TaskId) {
    assert_eq!(daemon.block(&[task])[0].exit, Some(Exit::Code(3)));
    wait::poll_until("nothing lingers", || (!daemon.task(task).lingering).then_some(()));
    assert_eq!(daemon.output(task), b"end\n");
}

/// Submits a command that reads this pipe, whose descriptor is sent with it.
#[track_caller]
fn reads(daemon: &TestDaemon, reader: PipeReader, line: &str, hold: bool) -> TaskId {
    let (shell, stdin) = (Some(line.into()), Some(Stdin::Fd));
    let params = SubmitParams { shell, stdin, hold, ..daemon.params() };
    let sent = daemon.client().call_with_fds::<TaskSubmit>(&params, &[reader.as_fd()]);
    // Only the daemon still has it.
    drop(reader);
    sent.expect("it is accepted").task.id
}

/// Reads its input in the background, and exits with 3 before the reader ends.
const READS_ON: &str = "exec 3<&0; (cat <&3; echo end) & exec 3<&-";

#[test]
fn r126_process_outliving_its_command_reads_end_of_input() {
    let mut daemon = TestDaemon::durable("");
    let at_once = piped(&daemon, &format!("{READS_ON}; exit 3"), None);
    has_read_the_end(&daemon, at_once);

    let waits = |go: &str| format!("{READS_ON}; until [ -e \"$HOME/{go}\" ]; do sleep 0.02; done; exit 3");
    for (go, kills_daemon) in [("one", false), ("two", true)] {
        let task = piped(&daemon, &waits(go), None);
        daemon.wait_running(task);
        kill_keeper(&daemon);
        if kills_daemon {
            daemon.kill9();
        }
        fs::write(daemon.home().join(go), "").unwrap();
        if kills_daemon {
            daemon.launch();
        }
        has_read_the_end(&daemon, task);
    }
}

/// A keeper has the limit of the daemon that started it.
#[test]
fn r126_keeper_lacking_descriptors_is_replaced_and_ended() {
    const LOW: u64 = 64;
    let config = "durable = true\nmax_concurrent_tasks = 100";
    let prelude = "ulimit -n \"$(cat \"$HOME/limit\")\"";
    let mut daemon = TestDaemon::builder().config(config).prelude(prelude).home_only();
    let limit = daemon.home().join("limit");
    fs::write(&limit, LOW.to_string()).unwrap();
    daemon.launch();
    let reader = piped(&daemon, "cat; echo end; exit 3", None);
    daemon.wait_running(reader);
    let first = daemon.keeper();
    daemon.kill9();
    fs::write(&limit, (16 * LOW).to_string()).unwrap();
    daemon.launch();
    let many: Vec<TaskId> = (0..LOW).map(|_| daemon.submit(&["sleep", "1000"])).collect();
    for task in &many {
        daemon.wait_running(*task);
    }
    daemon.wait_for_new_keeper(&first);
    first.gone();

    let end = WriteParams { id: reader.into(), data: String::new(), encoding: Encoding::Utf8, eof: true };
    daemon.client().call::<TaskWrite>(&end).expect("its input is a pipe");

    has_read_the_end(&daemon, reader);
    daemon.kill9();
    daemon.launch();
    assert!(many.iter().all(|task| daemon.task(*task).status == Status::Running));
    daemon.cancel(&many);
}

#[test]
fn r126_service_becomes_ready_after_closed_input_and_replaced_keeper() {
    let mut daemon = TestDaemon::durable("");
    let line = "until [ -e \"$HOME/go\" ]; do sleep 0.02; done; systemd-notify --ready; exec sleep 1000";
    let task = piped(&daemon, line, Some("notify"));
    daemon.wait_running(task);
    let end = WriteParams { id: task.into(), data: String::new(), encoding: Encoding::Utf8, eof: true };
    daemon.client().call::<TaskWrite>(&end).expect("its input is a pipe");
    // Its successor holds everything but the input.
    kill_keeper(&daemon);
    // There is nothing left to close.
    daemon.client().call::<TaskWrite>(&end).expect_err("it is closed");
    daemon.kill9();
    daemon.launch();
    assert_eq!(daemon.task(task).ready_at, None);

    fs::write(daemon.home().join("go"), "").unwrap();

    wait::poll_until("it is ready", || daemon.task(task).ready_at);
    daemon.cancel(&[task]);
}

#[test]
fn r126_input_stays_open_after_kill_if_its_end_was_refused() {
    const WRITES: u64 = 64;
    let mut daemon = TestDaemon::durable("");
    let task = piped(&daemon, "until [ -e \"$HOME/go\" ]; do sleep 0.02; done; cat; exit 3", None);
    daemon.wait_running(task);
    let mut raw = Raw::connect(daemon.socket());
    let write = |data: &str, eof: bool| json!({"id": task, "data": data, "eof": eof});
    // The first one fills the pipe, so all of them are pending.
    let full = "x".repeat(100_000);
    (0..WRITES).for_each(|n| raw.request(n, "task.write", &write(if n == 0 { &full } else { "x" }, false)));
    let refused = raw.call(WRITES, "task.write", &write("", true));
    assert_eq!(refused["error"]["data"]["kind"], "too_many_requests", "{refused}");

    daemon.kill9();
    daemon.launch();

    let end = WriteParams { id: task.into(), data: "end\n".into(), encoding: Encoding::Utf8, eof: true };
    let client = &mut daemon.client();
    let number = client.send::<TaskWrite>(&end, &[]).expect("it is sent");
    fs::write(daemon.home().join("go"), "").unwrap();
    client.answer::<TaskWrite>(number).expect("its input is open");
    assert_eq!(daemon.block(&[task])[0].exit, Some(Exit::Code(3)));
    assert!(daemon.output(task).ends_with(b"xend\n"));
}

#[test]
fn r127_pending_task_keeps_stdin_sent_with_it_however_daemon_ends() {
    let mut daemon = TestDaemon::durable("");
    let (reader, mut writer) = pipe().unwrap();
    let task = reads(&daemon, reader, "cat", true);
    let ends: [fn(&mut TestDaemon); 5] = [
        TestDaemon::kill9,
        |daemon| assert!(daemon.stop().success()),
        |daemon| {
            kill_keeper(daemon);
            daemon.kill9();
        },
        |daemon| {
            daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
            kill_keeper(daemon);
            daemon.kill9();
        },
        TestDaemon::kill9,
    ];
    for (number, end) in ends.iter().enumerate() {
        end(&mut daemon);
        // Nobody but the keeper can still read it.
        writeln!(writer, "{number}").expect("its reader is kept");
        daemon.launch();
        assert_eq!(daemon.task(task).status, Status::Pending);
    }
    drop(writer);

    daemon.run(&["release", &task.to_string()]).success();

    assert_eq!(daemon.block(&[task])[0].exit, Some(Exit::Code(0)));
    assert_eq!(daemon.output(task), b"0\n1\n2\n3\n4\n");
}

/// The keeper has the limit of the daemon, and would leave if it had no descriptor for all of them. Running tasks would
/// then have none.
#[test]
fn r127_pending_tasks_take_at_most_a_quarter_of_the_descriptors_of_the_keeper() {
    const LIMIT: usize = 256;
    // The keeper needs two for each of them.
    const KEPT: usize = LIMIT / 4 / 2;
    let prelude = format!("ulimit -n {LIMIT}");
    let mut daemon = TestDaemon::builder().config("durable = true").prelude(prelude).start();
    let running = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(running);
    let keeper = daemon.keeper();
    let all: Vec<TaskId> = (0..LIMIT / 2).map(|_| reads(&daemon, pipe().unwrap().0, "cat", true)).collect();
    let (cancelled, others) = all.split_at(2);
    // Others take their place.
    daemon.cancel(cancelled);
    daemon.block(cancelled);

    daemon.kill9();
    daemon.launch();

    assert_eq!(daemon.keeper().pid(), keeper.pid(), "it was never replaced");
    assert_eq!(daemon.task(running).status, Status::Running);
    let is_pending = |task: &&TaskId| daemon.task(**task).status == Status::Pending;
    let (kept, lost): (Vec<&TaskId>, Vec<&TaskId>) = others.iter().partition(is_pending);
    assert_eq!(kept.len(), KEPT);
    assert!(lost.iter().all(|task| daemon.task(**task).status == Status::Failed));
    daemon.run(&["release", &kept[0].to_string()]).success();
    assert_eq!(daemon.block(&[*kept[0]])[0].exit, Some(Exit::Code(0)));
    // The keeper would outlive the daemon with them.
    let rest: Vec<TaskId> = kept[1..].iter().map(|task| **task).chain([running]).collect();
    daemon.cancel(&rest);
    daemon.block(&rest);
}

/// A producer would otherwise never end.
#[test]
fn r127_writer_notices_end_of_task_that_stdin_was_sent_with() {
    let daemon = TestDaemon::durable("");
    for hold in [false, true] {
        let (reader, mut writer) = pipe().unwrap();
        let task = reads(&daemon, reader, "exec true", hold);
        if hold {
            daemon.cancel(&[task]);
        }
        daemon.block(&[task]);
        let fails = || writer.write_all(b"x").err().map(|error| error.kind());
        assert_eq!(wait::poll_until("nobody can read it", fails), ErrorKind::BrokenPipe);
    }
}

#[test]
fn r127_pending_task_fails_if_keeper_of_its_stdin_is_killed_with_daemon() {
    let mut daemon = TestDaemon::durable("");
    let (reader, _writer) = pipe().unwrap();
    let task = reads(&daemon, reader, "cat; echo ran > ran", true);
    let other = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    let keeper = daemon.keeper();
    daemon.kill9();
    keeper.kill();
    keeper.gone();

    daemon.launch();

    let failed = &daemon.block(&[task])[0];
    assert_eq!((failed.status, daemon.task(other).status), (Status::Failed, Status::Pending));
    let why = failed.error.as_deref().unwrap_or_default();
    assert!(why.contains("the descriptors sent with it were lost with the previous daemon"), "{why}");
    assert!(!daemon.home().join("ran").exists(), "it has not run without them");
}
