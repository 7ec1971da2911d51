//! Tests the executor interface: an executor unknown to the rest of the daemon runs tasks for real clients, in the place of
//! the local one. Nothing of the dispatcher or the core knows which one it is.

mod daemon;
mod scripted;

use bgd_shared::encoding::Encoding;
use bgd_shared::error::ErrorKind;
use bgd_shared::failure::FailureKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, CancelParams, IdParams, ShutdownParams, TaskBlock, TaskCancel, TaskGet,
    TaskResult, TaskWrite, WriteParams,
};
use bgd_shared::task::{Exit, Status, Task};

use self::daemon::Daemon;

#[test]
fn r01_what_is_submitted_runs_and_ends_as_the_script_says() {
    let mut daemon = Daemon::start(4);
    let (well, badly, never) =
        (daemon.submit(&["ends", "0"]), daemon.submit(&["ends", "3"]), daemon.submit(&["fails", "no room"]));
    let [well, badly, never] = daemon.ended([well, badly, never]);
    assert_eq!((well.status, well.exit), (Status::Completed, Some(Exit::Code(0))));
    assert_eq!((badly.status, badly.exit), (Status::Failed, Some(Exit::Code(3))));
    let failure = never.failure.unwrap();
    assert_eq!((never.status, failure.kind), (Status::Failed, FailureKind::Spawn));
    assert!(failure.message.contains("no room"), "{failure:?}");
    assert_eq!((never.started_at, never.pid, well.pid), (None, None, None));
}

#[test]
fn r02_r03_no_more_run_at_once_than_may() {
    let mut daemon = Daemon::start(2);
    let tasks = [(); 3].map(|()| daemon.submit(&["runs"]));
    assert_eq!(
        tasks.map(|task| daemon.get(task).status),
        [Status::Running, Status::Running, Status::Pending]
    );
    daemon.cancel(tasks[0]);
    assert_eq!(daemon.get(tasks[2]).status, Status::Running, "it has the slot");
    let last = daemon.submit(&["ends", "0"]);
    assert_eq!(daemon.get(last).status, Status::Pending, "both slots are taken again");
}

#[test]
fn r05_a_cancel_ends_it_and_then_makes_it_end() {
    let mut daemon = Daemon::start(4);
    let (willing, stubborn) = (daemon.submit(&["runs"]), daemon.submit(&["stubborn"]));
    let willing = daemon.cancel(willing);
    assert_eq!((willing.status, willing.exit), (Status::Cancelled, Some(Exit::Signal(15))));
    let stubborn = daemon.cancel(stubborn);
    assert_eq!((stubborn.status, stubborn.exit), (Status::Cancelled, Some(Exit::Signal(9))));
}

#[test]
fn a_time_limit_ends_it() {
    let mut daemon = Daemon::start(4);
    let task = daemon.submit_with(&["runs"], |params| params.time_limit_ms = Some(20));
    let [task] = daemon.ended([task]);
    assert!(task.timed_out && task.status == Status::Failed, "{task:?}");
    assert_eq!(task.exit, Some(Exit::Signal(15)));
}

#[test]
fn facts_that_are_lost_or_of_another_run_leave_nobody_waiting() {
    let mut daemon = Daemon::start(1);
    let (forgetful, next) = (daemon.submit(&["forgets"]), daemon.submit(&["ends", "0"]));
    let forgetful = daemon.cancel(forgetful);
    let unknown = Some(Exit::Unknown("nobody knows".into()));
    assert_eq!(
        (forgetful.status, forgetful.exit),
        (Status::Cancelled, unknown),
        "what ended was another run"
    );
    let [next] = daemon.ended([next]);
    assert_eq!(next.status, Status::Completed, "the slot was given back");
}

#[test]
fn what_only_other_executors_can_is_refused() {
    let mut daemon = Daemon::start(4);
    let task = daemon.submit(&["runs"]);
    let params = WriteParams { id: task.into(), data: "x".into(), encoding: Encoding::default(), eof: false };
    let error = daemon.client.call::<TaskWrite>(&params).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::Unsupported), "{error}");
}

#[test]
fn r11_the_end_of_the_daemon_ends_it() {
    let mut daemon = Daemon::start(4);
    let (willing, stubborn) = (daemon.submit(&["runs"]), daemon.submit(&["stubborn"]));
    let mut waiting = daemon.client_too();
    let ids = vec![willing.into(), stubborn.into()];
    let params = BlockParams { ids, timeout_ms: None, mode: BlockMode::All, ..BlockParams::default() };
    let waits = waiting.send::<TaskBlock>(&params, &[]).unwrap();
    // Its answer shows that the daemon has received the block before.
    waiting.call::<TaskGet>(&IdParams { id: willing.into() }).unwrap();
    let cancelled = daemon.shut_down(&ShutdownParams { grace_ms: Some(10), cancel: true });
    assert_eq!(cancelled, 2);
    let ended = waiting.answer::<TaskBlock>(waits).unwrap().tasks;
    let ends: Vec<_> = ended.into_iter().map(|task| (task.status, task.exit)).collect();
    let cancelled = |signal| (Status::Cancelled, Some(Exit::Signal(signal)));
    assert_eq!(ends, [cancelled(15), cancelled(9)]);
}

impl Daemon {
    fn get(&mut self, task: TaskId) -> Task {
        let TaskResult { task } = self.client.call::<TaskGet>(&IdParams { id: task.into() }).unwrap();
        task
    }

    fn cancel(&mut self, task: TaskId) -> Task {
        let params = CancelParams { ids: vec![task.into()], grace_ms: Some(10), ..CancelParams::default() };
        self.client.call::<TaskCancel>(&params).unwrap().tasks.remove(0)
    }
}
