//! R05, R10: requests that end or remove more tasks than the daemon deals with in one step. Their answers come after all
//! of it.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_shared::request::{
    CancelParams, ClearParams, SubmitManyParams, SubmitParams, TaskCancel, TaskClear, TaskSubmitMany,
};
use bgd_shared::task::Status;
use bgd_tests::TestDaemon;

/// More than one step ends or removes.
const TASKS: usize = 1000;

fn submit(daemon: &TestDaemon, hold: bool) -> Vec<TaskId> {
    let task = Some(Box::new(SubmitParams { hold, ..daemon.params() }));
    let argvs = vec![vec!["true".into()]; TASKS];
    let many = SubmitManyParams { task, argvs, ..SubmitManyParams::default() };
    daemon.client().call::<TaskSubmitMany>(&many).expect("a batch").ids
}

#[test]
fn r05_cancel_of_many_tasks_answers_once_all_have_ended() {
    let daemon = TestDaemon::start();
    let ids = submit(&daemon, true);
    let params = CancelParams { all: true, ..CancelParams::default() };
    let tasks = daemon.client().call::<TaskCancel>(&params).expect("all are cancelled").tasks;
    assert_eq!(tasks.iter().map(|task| task.id).collect::<Vec<_>>(), ids, "in the order of submission");
    assert!(tasks.iter().all(|task| task.status == Status::Cancelled && task.started_at.is_none()));
    assert_eq!(daemon.status().summary.cancelled, TASKS as u64);
}

#[test]
fn r10_clear_of_many_tasks_answers_once_their_outputs_are_gone() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 100\n").start();
    let ids = submit(&daemon, false);
    let outputs: Vec<String> = daemon.block(&ids).into_iter().map(|task| task.output.path).collect();
    assert!(outputs.iter().all(|path| fs::exists(path).expect("a folder that can be read")));
    let cleared =
        daemon.client().call::<TaskClear>(&ClearParams::default()).expect("all are cleared").cleared;
    assert_eq!(cleared, TASKS as u64);
    let left = outputs.iter().filter(|path| fs::exists(path).expect("a folder that can be read"));
    assert_eq!(left.count(), 0);
    assert_eq!(daemon.status().summary.total(), 0);
}
