//! Tasks that start again: retries (R108) and keep-alive (R109), on real processes and a fake agent.

use std::fs;
use std::os::unix::fs::symlink;

use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::notice::NoticeKind;
use bgd_tests::shared::order::{Restart, Retry, WaitingFor};
use bgd_tests::shared::request::{
    ClearParams, EditParams, InboxRead, InboxReadParams, Stdin, SubmitParams, TaskClear, TaskEdit, TaskSubmit,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::{FakeDaemon, TestDaemon, wait};
use serde_json::Value;

fn retry(times: u32) -> Retry {
    Retry { times, delay_ms: Some(0), max_delay_ms: None, codes: Vec::new(), signal: false }
}

/// One more try after a delay up to a year. It is random: a short one is improbable.
fn late_retry() -> Retry {
    Retry { delay_ms: Some(365 * 24 * 3_600_000), ..retry(1) }
}

fn tried(daemon: &TestDaemon, line: &str, retry: Retry) -> TaskId {
    daemon.submit_with(&SubmitParams { shell: Some(line.into()), retry: Some(retry), ..daemon.params() }).id
}

#[test]
fn r108_failed_task_is_retried_and_its_output_is_appended() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let line = "echo attempt $BGD_ATTEMPT; [ $BGD_ATTEMPT = 3 ] || exit $((BGD_ATTEMPT + 1))";
    let params = SubmitParams {
        shell: Some(line.into()),
        retry: Some(retry(5)),
        session: Some("s".into()),
        ..daemon.params()
    };
    let id = daemon.submit_with(&params).id;
    let task = daemon.block(&[id])[0].clone();
    assert_eq!((task.status, task.exit, task.attempt), (Status::Completed, Some(Exit::Code(0)), Some(3)));
    assert_eq!(String::from_utf8(daemon.output(id)).unwrap(), "attempt 1\nattempt 2\nattempt 3\n");
    let attempts: Vec<_> = task
        .attempts
        .iter()
        .map(|one| (one.attempt, one.exit.clone(), one.offset, one.error.clone()))
        .collect();
    let failed = |code: i32| (Some(Exit::Code(code)), Some(format!("exited with code {code}")));
    let ((one, first), (two, second)) = (failed(2), failed(3));
    assert_eq!(attempts, [(1, one, 0, first), (2, two, 10, second)]);
    let mut kinds = Vec::new();
    watch.until(|event| {
        kinds.push(event.kind);
        event.kind.is_terminal()
    });
    kinds.retain(|kind| *kind != EventKind::Output);
    let [submitted, started, retrying, ended] =
        [EventKind::Submitted, EventKind::Started, EventKind::Retrying, EventKind::Completed];
    assert_eq!(kinds, [submitted, started, retrying, started, retrying, started, ended]);
    let read = InboxReadParams { session: "s".into(), ..InboxReadParams::default() };
    let items = daemon.client().call::<InboxRead>(&read).expect("inbox.read").items;
    assert_eq!(
        items.iter().map(|item| item.notice.kind).collect::<Vec<_>>(),
        [NoticeKind::Completed],
        "one notice"
    );
}

#[test]
fn r108_split_streams_have_separate_attempt_offsets() {
    let daemon = TestDaemon::start();
    let params = SubmitParams {
        shell: Some("echo out; echo er >&2; exit 1".into()),
        retry: Some(retry(2)),
        split: true,
        ..daemon.params()
    };
    let task = daemon.block(&[daemon.submit_with(&params).id])[0].clone();
    let offsets: Vec<_> = task.attempts.iter().map(|one| (one.offset, one.stderr_offset)).collect();
    assert_eq!(offsets, [(0, Some(0)), (4, Some(3))]);
}

#[test]
fn r108_last_attempt_decides_and_slot_is_free_between_attempts() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let id = tried(&daemon, "exit 7", late_retry());
    let mut watch = daemon.watch();
    if daemon.task(id).status != Status::Pending || daemon.task(id).attempts.is_empty() {
        watch.until(|event| event.kind == EventKind::Retrying);
    }
    let task = daemon.task(id);
    let waiting = task.waiting.expect("it waits");
    assert_eq!((task.status, waiting.reason), (Status::Pending, WaitingFor::Retry));
    let other = daemon.submit_shell("true");
    assert_eq!(daemon.block(&[other])[0].status, Status::Completed, "nobody has the slot");
    let now = EditParams {
        id: id.into(),
        description: None,
        group: None,
        priority: None,
        slots: None,
        after: None,
        delay_ms: Some(0),
        start_at: None,
    };
    daemon.client().call::<TaskEdit>(&now).expect("task.edit");
    let task = daemon.block(&[id])[0].clone();
    assert_eq!((task.status, task.exit, task.attempt), (Status::Failed, Some(Exit::Code(7)), Some(2)));
    assert_eq!(task.attempts.len(), 1, "the last one is the task itself");
}

#[test]
fn r108_only_named_exit_codes_and_signals_are_retried() {
    let daemon = TestDaemon::start();
    let line = "echo x >> tries; exit 3";
    let named = |codes: &[i32], signal| Retry { codes: codes.into(), signal, ..retry(2) };
    let task = daemon.block(&[tried(&daemon, line, named(&[1, 4], true))])[0].clone();
    assert_eq!((task.status, task.attempt), (Status::Failed, Some(1)));
    let task = daemon.block(&[tried(&daemon, line, named(&[3], false))])[0].clone();
    assert_eq!((task.status, task.attempt), (Status::Failed, Some(3)));
    assert_eq!(fs::read_to_string(daemon.home().join("tries")).unwrap().lines().count(), 4);
    let task = daemon.block(&[tried(&daemon, "kill -9 $$", named(&[], true))])[0].clone();
    assert_eq!((task.exit, task.attempt), (Some(Exit::Signal(9)), Some(3)));
    let task = daemon.block(&[tried(&daemon, "kill -9 $$", named(&[9], false))])[0].clone();
    assert_eq!(task.attempt, Some(1), "a signal is no code");
}

#[test]
fn r108_cancel_time_limit_and_spawn_error_are_not_retried() {
    let daemon = TestDaemon::start();
    let sleeps = tried(&daemon, "exec sleep 1000", retry(5));
    daemon.wait_running(sleeps);
    assert_eq!(daemon.cancel(&[sleeps])[0].attempt, Some(1));
    let params = SubmitParams {
        shell: Some("exec sleep 1000".into()),
        retry: Some(retry(5)),
        time_limit_ms: Some(100),
        ..daemon.params()
    };
    let limited = daemon.block(&[daemon.submit_with(&params).id])[0].clone();
    assert!(limited.timed_out && limited.attempt == Some(1), "{limited:?}");
    let params =
        SubmitParams { argv: Some(vec!["/no/such".into()]), retry: Some(retry(5)), ..daemon.params() };
    let never = daemon.block(&[daemon.submit_with(&params).id])[0].clone();
    assert_eq!((never.failure.unwrap().kind, never.attempt), (FailureKind::Spawn, Some(1)));
    // A task cancelled while it waits for its next attempt keeps the exit of the last one.
    let waits = tried(&daemon, "exit 4", late_retry());
    wait::poll_until("an attempt has ended", || (!daemon.task(waits).attempts.is_empty()).then_some(()));
    let cancelled = daemon.cancel(&[waits])[0].clone();
    assert_eq!((cancelled.status, cancelled.exit), (Status::Cancelled, Some(Exit::Code(4))));
    assert!(cancelled.started_at.is_some() && cancelled.waiting.is_none());
}

#[test]
fn r108_leftover_processes_end_before_the_next_attempt_starts() {
    let daemon = TestDaemon::start();
    // The child of each attempt holds the lock that the next one needs.
    let line = "exec 9> lock; flock -n 9 || { echo taken; exit 9; }; sleep 1000 & [ $BGD_ATTEMPT = 3 ] && kill $! && exit 0; exit 1";
    let task = daemon.block(&[tried(&daemon, line, retry(2))])[0].clone();
    assert_eq!(String::from_utf8(daemon.output(task.id)).unwrap(), "");
    assert_eq!((task.status, task.attempt), (Status::Completed, Some(3)), "{task:?}");
}

#[test]
fn r108_invalid_retry_params_are_named() {
    let daemon = TestDaemon::start();
    let with =
        |retry: Retry| SubmitParams { shell: Some("true".into()), retry: Some(retry), ..daemon.params() };
    for (params, part) in [
        (with(retry(0)), "`retry.times` is 0; it must be 1 to 1000"),
        (with(retry(1001)), "`retry.times` is 1001; it must be 1 to 1000"),
        (
            with(Retry { codes: vec![0], ..retry(1) }),
            "`retry.codes` has 0; exit codes of failures are 1 to 255",
        ),
        (with(Retry { delay_ms: Some(5), max_delay_ms: Some(4), ..retry(1) }), "which is less than"),
        (
            SubmitParams { restart: Some(Restart::Always), ..with(retry(1)) },
            "`retry` and `restart` can't be combined",
        ),
        (SubmitParams { stdin: Some(Stdin::Fd), ..with(retry(1)) }, "descriptors can be used only once"),
        (
            SubmitParams { stdin: Some(Stdin::Sent), ..with(retry(1)) },
            "input and descriptors can be used only",
        ),
    ] {
        let error = daemon.refusal::<TaskSubmit>(&params);
        assert!(error.message.contains(part), "{error}");
    }
    // The default delay adapts to the maximum.
    daemon.submit_with(&with(Retry { delay_ms: None, max_delay_ms: Some(4), ..retry(1) }));
}

#[test]
fn r108_failed_agent_task_is_retried_with_the_same_prompt() {
    let daemon = FakeDaemon::start(&[], "");
    let params = SubmitParams { retry: Some(retry(2)), ..daemon.prompt_params("stop refusal") };
    let id = daemon.submit_with(&params).id;
    let task = daemon.block(&[id])[0].clone();
    assert_eq!((task.status, task.attempt, task.attempts.len()), (Status::Failed, Some(3), 2), "{task:?}");
    assert!(task.attempts.iter().all(|attempt| attempt.error.is_some()), "{:?}", task.attempts);
    let prompts = daemon.fake_home().received("session/prompt");
    let texts: Vec<&Value> = prompts.iter().map(|prompt| &prompt["params"]["prompt"][0]["text"]).collect();
    assert_eq!(texts, ["stop refusal"; 3]);
}

#[test]
fn r109_task_is_restarted_until_cancelled() {
    let daemon = TestDaemon::start();
    let params = SubmitParams {
        shell: Some("echo x; [ $BGD_ATTEMPT = 1 ] || exec sleep 1000".into()),
        restart: Some(Restart::Always),
        ..daemon.params()
    };
    let id = daemon.submit_with(&params).id;
    let task = wait::poll_until("the second attempt", || {
        Some(daemon.task(id)).filter(|task| task.attempt == Some(2) && task.pid.is_some())
    });
    assert_eq!(task.attempts[0].exit, Some(Exit::Code(0)), "also after a good end");
    let cancelled = daemon.cancel(&[id])[0].clone();
    assert_eq!((cancelled.status, cancelled.attempt), (Status::Cancelled, Some(2)), "a deliberate stop wins");
    let well =
        SubmitParams { shell: Some("true".into()), restart: Some(Restart::OnFailure), ..daemon.params() };
    let well = daemon.block(&[daemon.submit_with(&well).id])[0].clone();
    assert_eq!((well.status, well.attempt), (Status::Completed, Some(1)));
    let params = ClearParams { all: true, ..ClearParams::default() };
    assert_eq!(daemon.client().call::<TaskClear>(&params).expect("task.clear").cleared, 2);
}

#[test]
fn r109_server_is_restarted_while_its_program_is_replaced() {
    let daemon = TestDaemon::start();
    let program = daemon.home().join("server");
    symlink("/bin/sh", &program).unwrap();
    let line = "[ -e replaced ] && exec sleep 1000; rm server; exit 1";
    let params = SubmitParams {
        argv: Some([program.to_str().unwrap(), "-c", line].map(Into::into).into()),
        restart: Some(Restart::OnFailure),
        ..daemon.params()
    };
    let mut watch = daemon.watch();
    let id = daemon.submit_with(&params).id;
    let event = watch.until(|event| event.kind == EventKind::Retrying && event.task.attempts.len() == 2);
    let error = event.task.attempts[1].error.clone().expect("it could not be started");
    assert!(error.contains("no such program"), "{error}");
    fs::write(daemon.home().join("replaced"), "").unwrap();
    symlink("/bin/sh", &program).unwrap();
    wait::poll_until("it runs again", || {
        Some(daemon.task(id)).filter(|task| task.status == Status::Running && task.pid.is_some())
    });
    daemon.cancel(&[id]);
}
