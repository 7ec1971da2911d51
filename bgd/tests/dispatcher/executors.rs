//! Tests the executor interface: an executor unknown to the rest of the daemon runs tasks for real clients, in place of
//! the local one. Neither the dispatcher nor the core knows which one it is.

mod daemon;
pub mod scripted;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::mpsc;
use std::time::Duration;

use bgd::config::Config;
use bgd::core::durable::{Changes, Kept};
use bgd::core::{Command, Core, Effect, Fact, Input, Mono, Now, PlanRequest, ReplyTo, Request, Spec, Work};
use bgd::dispatcher::durable::LeftRuns;
use bgd::exec::executor::Close;
use bgd::exec::left::HeldRun;
use bgd::keeper::Key;
use bgd_shared::encoding::Encoding;
use bgd_shared::error::ErrorKind;
use bgd_shared::failure::FailureKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, CancelParams, ExitParams, HandoffParams, IdParams, ListParams, OriginKind,
    SelectParams, ShutdownParams, TaskBlock, TaskCancel, TaskExit, TaskGet, TaskHandoff, TaskList, TaskPause,
    TaskResult, TaskWrite, WriteParams,
};
use bgd_shared::task::{Exit, Status, Task};
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;

use self::daemon::{Before, Daemon};

#[test]
fn r01_submitted_tasks_end_as_scripted() {
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
fn r02_r03_concurrency_limit_is_kept() {
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
fn r05_cancel_terminates_and_then_kills() {
    let mut daemon = Daemon::start(4);
    let (willing, stubborn) = (daemon.submit(&["runs"]), daemon.submit(&["stubborn"]));
    let willing = daemon.cancel(willing);
    assert_eq!((willing.status, willing.exit), (Status::Cancelled, Some(Exit::Signal(15))));
    let stubborn = daemon.cancel(stubborn);
    assert_eq!((stubborn.status, stubborn.exit), (Status::Cancelled, Some(Exit::Signal(9))));
}

#[test]
fn time_limit_ends_the_task() {
    let mut daemon = Daemon::start(4);
    let task = daemon.submit_with(&["runs"], |params| params.time_limit_ms = Some(20));
    let [task] = daemon.ended([task]);
    assert!(task.timed_out && task.status == Status::Failed, "{task:?}");
    assert_eq!(task.exit, Some(Exit::Signal(15)));
}

#[test]
fn lost_or_foreign_facts_leave_no_waiter_or_slot_stuck() {
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

/// The answer would never come, and upgrades wait for it.
#[test]
fn r70_report_of_an_exit_is_answered_although_the_process_survives_sigkill() {
    let mut daemon = Daemon::start(1);
    let task = daemon.hand_over(&["forgets"]);
    let mut parent = daemon.client_too();
    parent.wait_at_most(Duration::from_mins(1));
    let report = ExitParams { id: task.into(), exit: Exit::Code(3) };
    let reported = parent.send::<TaskExit>(&report, &[]).unwrap();
    // The reply shows that the daemon has already received the report.
    parent.call::<TaskGet>(&IdParams { id: task.into() }).unwrap();
    assert_eq!(daemon.cancel(task).status, Status::Cancelled);
    let ended = parent.answer::<TaskExit>(reported).unwrap().task;
    assert_eq!((ended.status, ended.lingering), (Status::Cancelled, true), "{ended:?}");
    assert_eq!(ended.exit, Some(Exit::Unknown("nobody knows".into())));
}

#[test]
fn r06_requests_are_answered_during_a_flood_of_facts() {
    let mut daemon = Daemon::start(4);
    daemon.client.wait_at_most(Duration::from_mins(1));
    // Facts come until it is cancelled.
    let task = daemon.submit(&["floods"]);
    for _ in 0..20 {
        let before = daemon.listed_bytes();
        assert!((0..10_000).any(|_| daemon.listed_bytes() > before), "it has run dry");
    }
    assert_eq!(daemon.cancel(task).status, Status::Cancelled);
}

/// A script must know whether anything was done.
#[test]
fn r106_order_that_one_of_several_tasks_refuses_says_that_it_was_carried_out_for_the_others() {
    let mut daemon = Daemon::start(4);
    let [one, other] = [(); 2].map(|()| daemon.submit(&["runs"]));
    let [refuses, too] = [(); 2].map(|()| daemon.submit(&["refuses"]));
    let mut pause = |tasks: &[TaskId]| {
        let ids = tasks.iter().copied().map(Into::into).collect();
        daemon
            .client
            .call::<TaskPause>(&SelectParams { ids, matching: None })
            .map(|result| result.tasks.len())
    };
    let refusal = format!("task {refuses} can't be ordered now");
    let mut message = |tasks: &[TaskId]| pause(tasks).unwrap_err().to_string();
    assert_eq!(message(&[refuses]), refusal);
    assert_eq!(
        message(&[one, refuses, other]),
        format!("{refusal}; this concerns 1 of 3 tasks: the order was carried out for the others")
    );
    assert_eq!(message(&[refuses, too]), format!("{refusal}; this concerns all 2 tasks"));
    assert_eq!(pause(&[one, other]).unwrap(), 2);
}

#[test]
fn operation_unsupported_by_executor_is_refused() {
    let mut daemon = Daemon::start(4);
    let task = daemon.submit(&["runs"]);
    let params = WriteParams { id: task.into(), data: "x".into(), encoding: Encoding::default(), eof: false };
    let error = daemon.client.call::<TaskWrite>(&params).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::Unsupported), "{error}");
}

#[test]
fn r11_shutdown_ends_running_tasks() {
    let mut daemon = Daemon::start(4);
    let (willing, stubborn) = (daemon.submit(&["runs"]), daemon.submit(&["stubborn"]));
    let mut waiting = daemon.client_too();
    let ids = vec![willing.into(), stubborn.into()];
    let params = BlockParams { ids, timeout_ms: None, mode: BlockMode::All, ..BlockParams::default() };
    let waits = waiting.send::<TaskBlock>(&params, &[]).unwrap();
    // The reply shows that the daemon has already received the block.
    waiting.call::<TaskGet>(&IdParams { id: willing.into() }).unwrap();
    let cancelled = daemon.shut_down(&ShutdownParams { grace_ms: Some(10), cancel: true });
    assert_eq!(cancelled, 2);
    let ended = waiting.answer::<TaskBlock>(waits).unwrap().tasks;
    let ends: Vec<_> = ended.into_iter().map(|task| (task.status, task.exit)).collect();
    let cancelled = |signal| (Status::Cancelled, Some(Exit::Signal(signal)));
    assert_eq!(ends, [cancelled(15), cancelled(9)]);
}

#[test]
fn r11_last_commands_elsewhere_are_not_cut_off_with_everything_else() {
    let (sender, orders) = mpsc::channel();
    let mut daemon = Daemon::start_beside(sender);
    daemon.shut_down(&ShutdownParams { grace_ms: Some(0), cancel: true });
    let orders: Vec<_> = orders.try_iter().collect();
    assert!(orders.starts_with(&[Close::Asked, Close::ForcedHere]), "{orders:?}");
}

/// Returns the persisted state of a durable daemon that has submitted and started these tasks, and handled these facts.
fn written(tasks: [TaskId; 3], facts: [(TaskId, Fact); 3]) -> Kept {
    let now = Now { mono: Mono(0), wall: Timestamp::now() };
    let mut core = Core::new(Config::default().core_limits(), [].into());
    core.track();
    for id in tasks {
        let work = Work::Argv(["ends", "0"].map(Into::into).into());
        let command = Command {
            id,
            spec: Spec { work, ..Spec::of_daemon() },
            env: Env::default(),
            prompt: None,
            key: None,
            foreground: false,
            plan: PlanRequest::default(),
        };
        let request = Request::Submit(Box::new(command));
        let effects = core.handle(now, Input::Request { to: ReplyTo { client: 1, call: 1 }, request });
        assert!(
            effects.iter().any(|effect| matches!(effect, Effect::Start { task, run: 1, .. } if *task == id))
        );
    }
    for (task, fact) in facts {
        let _ = core.handle(now, Input::Fact { task, run: 1, fact });
    }
    let Changes { tasks, groups, counters, .. } = core.take_changes(now).unwrap();
    let tasks = tasks.into_iter().filter_map(|(ordinal, row)| Some((ordinal, row?))).collect();
    Kept { tasks, groups: groups.unwrap_or_default(), counters, ..Kept::default() }
}

/// Otherwise the keeper would keep their descriptors open until the next daemon starts.
#[test]
fn r126_unadoptable_kept_runs_are_released_and_not_started_twice() {
    let tasks = [1, 2, 3].map(TaskId::from_u128);
    let [running, unread, drained] = tasks;
    let started = Fact::Started { pid: Some(2) };
    let exited = Fact::Exited { exit: Exit::Code(0), others: false, at: None };
    // The process of the second task has begun, but that was not persisted.
    let kept = written(tasks, [(running, started.clone()), (drained, started), (drained, exited)]);
    let key = |task| Key { task, run: 1 };
    let left = LeftRuns {
        runs: [running, drained].map(|task| (key(task), HeldRun::bare(key(task), 2))).into(),
        unread: [key(unread)].into(),
        is_complete: true,
        sent_seq: Some(0),
        lost_because: None,
        ..LeftRuns::default()
    };
    let (over, hears) = mpsc::channel();
    let mut daemon = Daemon::start_after(4, Some(Before { kept, left, over }));
    let mut all = [(); 3].map(|()| hears.recv_timeout(Duration::from_mins(1)).expect("all are let go"));
    all.sort();
    assert_eq!(all, tasks.map(|task| (task, 1)));
    let ended = daemon.ended(tasks);
    assert_eq!(ended.map(|task| task.status), [Status::Failed, Status::Failed, Status::Completed]);
}

impl Daemon {
    fn get(&mut self, task: TaskId) -> Task {
        let TaskResult { task } = self.client.call::<TaskGet>(&IdParams { id: task.into() }).unwrap();
        task
    }

    /// Hands over what runs as this script.
    fn hand_over(&mut self, words: &[&str]) -> TaskId {
        // The executor inspects neither.
        let (pid, pidfd) = (2, File::open("/dev/null").unwrap());
        let params = HandoffParams {
            pid,
            description: "a script".into(),
            argv: Some(words.iter().map(|word| (*word).into()).collect()),
            started_at: None,
            session: None,
            channel: None,
            terminal: None,
            tags: Vec::new(),
            streams: Vec::new(),
            origin_kind: OriginKind::Tool,
        };
        self.client.call_with_fds::<TaskHandoff>(&params, &[pidfd.as_fd()]).unwrap().task.id
    }

    /// Returns the size of the first task's output by the facts about it; `task.get` would look at its file.
    fn listed_bytes(&mut self) -> u64 {
        self.client.call::<TaskList>(&ListParams::default()).unwrap().tasks[0].output.bytes
    }

    fn cancel(&mut self, task: TaskId) -> Task {
        let params = CancelParams { ids: vec![task.into()], grace_ms: Some(10), ..CancelParams::default() };
        self.client.call::<TaskCancel>(&params).unwrap().tasks.remove(0)
    }
}
