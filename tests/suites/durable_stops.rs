//! A durable daemon that is stopped, which is no worse for its tasks than a kill (R126, R131): whatever they are
//! checked for, whatever their names, and whatever becomes of the keeper meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{DaemonUpgrade, SubmitParams, TerminalSize, UpgradeParams};
use bgd_tests::shared::task::Status;
use bgd_tests::{TestDaemon, wait};

fn durable() -> TestDaemon {
    TestDaemon::builder().config("durable = true").start()
}

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
    let mut daemon = durable();
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
    tasks.iter().for_each(|task| _ = wait::poll_until("it is ready", || daemon.task(*task).ready_at));
    daemon.cancel(&tasks);
}
