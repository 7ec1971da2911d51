//! A disk that hangs, as when a file server is gone (R05): tasks that do not need it start, end and are read.

use std::fs;
use std::path::Path;

use bgd_tests::hung_disk::HungDisk;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{SubmitParams, TaskSubmit};
use bgd_tests::shared::task::Status;
use bgd_tests::user::must_be_root;
use bgd_tests::{TestDaemon, wait};

/// Waits until so many of the daemon's threads whose names begin like this are stuck.
#[track_caller]
fn stuck(daemon: &TestDaemon, name: &str, count: usize) {
    let threads = format!("/proc/{}/task", daemon.pid());
    let is_stuck = |thread: &Path| {
        let is_named = fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.starts_with(name));
        is_named && fs::read_to_string(thread.join("stat")).is_ok_and(|stat| stat.contains(") D "))
    };
    wait::poll_until("stuck threads", || {
        let all = fs::read_dir(&threads).expect("threads").flatten();
        (all.filter(|thread| is_stuck(&thread.path())).count() == count).then_some(())
    });
}

/// Starts a task that is cancelled and answers while others are stuck.
#[track_caller]
fn is_served(daemon: &TestDaemon) {
    let task = daemon.submit_shell("echo said; exec sleep 1000");
    let output = daemon.wait_running(task).output.path;
    wait::for_line(output.as_ref(), "said");
    let read = daemon.run(&["--json", "output", &task.to_string()]).success();
    assert!(read.stdout_text().contains("said"), "{read:?}");
    assert_eq!(daemon.cancel(&[task])[0].status, Status::Cancelled);
    daemon.status();
}

#[test]
fn r05_files_on_a_disk_that_hangs_hold_up_no_other_task_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let path = format!("file:{}", disk.folder().join("file").display());
    let waits =
        |_| daemon.run(&["submit", "--ready", &path, "--", "sleep", "1000"]).success().word::<TaskId>();
    let waiting: Vec<TaskId> = (0..2).map(waits).collect();
    stuck(&daemon, "worker-", 2);
    is_served(&daemon);
    // They themselves can be ended, too.
    daemon.cancel(&waiting);
    drop(disk);
    assert!(waiting.iter().all(|id| daemon.task(*id).status == Status::Cancelled));
}

#[test]
fn r05_folders_on_a_disk_that_hangs_hold_up_no_other_start_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let mut client = daemon.client();
    let mut begin = || {
        let there = SubmitParams { cwd: Some(disk.folder().as_os_str().into()), ..daemon.params() };
        let params = SubmitParams { argv: Some(vec!["true".into()]), ..there };
        client.call::<TaskSubmit>(&params).expect("task.submit").task.id
    };
    let waiting: Vec<TaskId> = (0..2).map(|_| begin()).collect();
    stuck(&daemon, "spawner-", 2);
    is_served(&daemon);
    drop(disk);
    for task in daemon.block(&waiting) {
        assert_eq!(task.status, Status::Failed);
    }
}
