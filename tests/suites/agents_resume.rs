//! Follow-up prompts: R30 to R38, in a process that still has the conversation and in one that reloads it.

use std::fs;
use std::time::Duration;

use bgd_tests::prompts::fake;
use bgd_tests::shared::error::{ErrorKind, RpcError};
use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::{TaskId, TaskRef};
use bgd_tests::shared::request::{CancelParams, Method as _, SubmitParams, TaskCancel, TaskSubmit};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::{FakeDaemon, Process, Raw, wait};
use serde_json::json;

/// The agent's process ends with its last turn.
const COLD: &str = "keep_warm = \"0s\"";

#[track_caller]
fn completed_and_gone(daemon: &FakeDaemon, prompt: &str) -> Task {
    let task = daemon.completed(prompt);
    daemon.wait_agents_gone();
    task
}

#[track_caller]
fn refused(daemon: &FakeDaemon, id: TaskId, kind: ErrorKind) -> RpcError {
    let error = daemon.try_resume(id, "say never").unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    error
}

fn forget(daemon: &FakeDaemon, task: &Task) {
    fs::remove_file(daemon.fake_home().session(task.agent_session.as_deref().unwrap())).unwrap();
}

/// Asserts that a refused resume has changed nothing.
#[track_caller]
fn as_before(daemon: &FakeDaemon, before: &Task, result: &str) {
    let now = daemon.task(before.id);
    assert_eq!((now.status, now.run, now.resume_count), (before.status, before.run, before.resume_count));
    assert_eq!((&now.prompt, now.error.as_deref()), (&before.prompt, None));
    assert_eq!(now.completed_at, before.completed_at);
    assert_eq!(now.output, before.output);
    assert_eq!(daemon.result(before.id), result);
    assert_eq!(daemon.status().active, 0);
}

#[test]
fn r30_resumed_agent_has_whole_conversation() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    for (prompt, answer) in [("count", "2"), ("history", "say one\ncount"), ("count", "4")] {
        daemon.resume(id, prompt);
        let task = daemon.ends_as(id, Status::Completed);
        assert_eq!(task.prompt.as_deref(), Some(prompt));
        assert_eq!(daemon.result(id), answer);
    }
    let (home, task) = (daemon.fake_home(), daemon.task(id));
    assert_eq!((task.run, task.resume_count), (4, 3));
    let prompts = home.received("session/prompt");
    assert!(prompts.iter().all(|prompt| prompt["params"]["sessionId"] == prompts[0]["params"]["sessionId"]));
    assert_eq!((prompts.len(), home.received("session/new").len(), home.started().len()), (4, 1, 1));
    assert_eq!(daemon.output(id), b"one\n\n2\n\nsay one\ncount\n\n4\n", "every answer, apart from the next");
}

#[test]
fn r30_new_process_continues_conversation_without_replaying_output() {
    for (flags, method) in [
        (&["--no-load"][..], "session/resume"),
        (&["--no-resume"], "session/load"),
        (&["--no-resume", "--null-load"], "session/load"),
        // As gemini-cli does; more than a pipe holds.
        (&["--no-resume", "--late-replay", "500"], "session/load"),
        (&[], "session/resume"),
    ] {
        let daemon = FakeDaemon::start(flags, COLD);
        let task = completed_and_gone(&daemon, "say one");
        daemon.resume(task.id, "count; say \\n; history");
        let resumed = daemon.ends_as(task.id, Status::Completed);
        assert_eq!(resumed.agent_session, task.agent_session);
        assert_eq!(daemon.result(task.id), "2\nsay one", "{flags:?}");
        assert_eq!(daemon.output(task.id), b"one\n\n2\nsay one\n", "what was played back is not shown again");
        let home = daemon.fake_home();
        assert_eq!((home.started().len(), home.received(method).len()), (2, 1), "{flags:?}");
    }
}

#[test]
fn r30_resume_restarts_killed_agent() {
    let daemon = fake();
    let task = daemon.completed("say one");
    Process::open(task.pid.unwrap()).unwrap().kill();
    wait::for_line(&daemon.state_dir().join("bgd.log"), "an agent's process is gone");
    daemon.resume(task.id, "count");
    let resumed = daemon.ends_as(task.id, Status::Completed);
    assert_ne!(resumed.pid, task.pid);
    assert_eq!(daemon.result(task.id), "2");
}

#[test]
fn r30_resume_restarts_agent_killed_just_before() {
    let daemon = fake();
    let task = daemon.completed("say one");
    for count in 2..6 {
        // The daemon may not have noticed yet.
        Process::open(daemon.task(task.id).pid.unwrap()).unwrap().kill();
        daemon.resume(task.id, "count");
        daemon.ends_as(task.id, Status::Completed);
        assert_eq!(daemon.result(task.id), count.to_string(), "and gets the prompt once");
    }
}

#[test]
fn r30_many_conversations_continue_concurrently() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 10", &[], "max_sessions = 4");
    let tasks: Vec<TaskId> = (0..10).map(|n| daemon.prompt(&format!("say {n}"))).collect();
    daemon.block(&tasks);
    for round in 2..4 {
        for id in &tasks {
            daemon.resume(*id, "count; tool look; history");
        }
        for (n, task) in daemon.block(&tasks).iter().enumerate() {
            assert_eq!((task.status, task.run), (Status::Completed, round));
            let history = daemon.result(task.id);
            assert_eq!(history.lines().next(), Some(&*format!("say {n}")));
            assert_eq!(history.lines().count(), (round - 1) as usize);
        }
    }
}

#[test]
fn r31_resume_returns_before_agent_answers() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    let mut watch = daemon.watch();
    let task = daemon.resume(id, "await go; say two");
    assert_eq!((task.status, task.run, task.resume_count), (Status::Resumed, 2, 1));
    assert_eq!((task.completed_at, task.prompt.as_deref()), (None, Some("await go; say two")));
    daemon.fake_home().wait_received("session/prompt", 2);
    let event = watch.until_kind(id, EventKind::Resumed);
    assert_eq!((event.task.status, event.task.run), (Status::Resumed, 2));
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
}

#[test]
fn r32_answer_completes_resumed_task_and_emits_event() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    let mut watch = daemon.watch();
    let answer = "all of it, ".repeat(1000) + "and the end";
    daemon.resume(id, &format!("say {answer}"));
    let event = watch.until_kind(id, EventKind::Completed);
    assert_eq!((event.task.status, event.task.run, event.task.resume_count), (Status::Completed, 2, 1));
    assert_eq!(daemon.result(id), answer, "whoever heard of it can have all of it");
    let kinds: Vec<_> = {
        let mut raw = Raw::connect(daemon.socket());
        raw.request(1, "events.subscribe", &json!({"ids": [id], "since": 0}));
        std::iter::from_fn(|| raw.receive())
            .filter_map(|line| line["params"]["kind"].as_str().map(str::to_owned))
            .filter(|kind| kind != "output" && kind != "progress")
            .take(5)
            .collect()
    };
    assert_eq!(kinds, ["submitted", "started", "completed", "resumed", "completed"]);
}

#[test]
fn r33_only_completed_agent_tasks_can_be_resumed() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 1", &[], "");
    let (failed, _) = daemon.failed("error -32603 no");
    let cancelled = daemon.prompt("hang");
    daemon.wait_running(cancelled);
    daemon.cancel(&[cancelled]);
    let running = daemon.prompt("await go");
    daemon.wait_running(running);
    let pending = daemon.prompt("say never");
    for (id, status) in
        [(failed.id, "failed"), (cancelled, "cancelled"), (running, "running"), (pending, "pending")]
    {
        let error = refused(&daemon, id, ErrorKind::NotResumable);
        assert!(error.message.contains("only completed tasks can be resumed"), "{error}");
        assert!(error.message.contains(status), "{error}");
    }
    daemon.touch("go");
    daemon.block(&[running, pending]);
    let command = daemon.submit(&["true"]);
    daemon.block(&[command]);
    assert!(refused(&daemon, command, ErrorKind::NotResumable).message.contains("only agent tasks"));
    refused(&daemon, TaskId::random(), ErrorKind::TaskNotFound);
    daemon.run(&["resume", &command.to_string(), "say never"]).expect_code(65);
    daemon.run(&["resume", &TaskId::random().to_string(), "say never"]).expect_code(66);
}

#[test]
fn r34_second_resume_is_refused_while_first_is_running() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    daemon.resume(id, "await go; say two");
    let error = refused(&daemon, id, ErrorKind::BeingResumed);
    assert!(error.message.contains("is currently being resumed"), "{error}");
    daemon.run(&["resume", &id.to_string(), "say never"]).expect_code(65);
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.fake_home().received("session/prompt").len(), 2);
}

/// A completed task whose agent is gone, and a connection on which a resume waits for the agent to start again.
#[track_caller]
fn slow_resume(daemon: &FakeDaemon) -> (Task, Raw) {
    daemon.touch("begin");
    let task = completed_and_gone(daemon, "say one");
    fs::remove_file(daemon.home().join("begin")).unwrap();
    let mut raw = Raw::connect(daemon.socket());
    raw.request(1, "task.resume", &json!({"id": task.id, "prompt": "await go; say two"}));
    daemon.fake_home().wait_started(2);
    (task, raw)
}

#[test]
fn r34_second_resume_is_refused_while_first_is_being_accepted() {
    let daemon = FakeDaemon::start(&["--initialize-after", "begin"], COLD);
    let (task, mut raw) = slow_resume(&daemon);
    let error = refused(&daemon, task.id, ErrorKind::BeingResumed);
    assert!(error.message.contains("is currently being resumed"), "{error}");
    daemon.touch("begin");
    assert_eq!(raw.receive().unwrap()["result"]["task"]["status"], "resumed");
    daemon.touch("go");
    daemon.ends_as(task.id, Status::Completed);
    assert_eq!(daemon.result(task.id), "two");
}

#[test]
fn r05_cancelling_unaccepted_resume_leaves_task_unchanged() {
    let daemon = FakeDaemon::start(&["--initialize-after", "begin"], COLD);
    let (task, mut raw) = slow_resume(&daemon);
    let params = CancelParams { ids: vec![task.id.into()], ..CancelParams::default() };
    let cancelled = daemon.client().call::<TaskCancel>(&params).unwrap().tasks.remove(0);
    assert_eq!(cancelled.status, Status::Completed);
    let answer = raw.receive().unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "not_resumable", "{answer}");
    daemon.touch("begin");
    as_before(&daemon, &task, "one");
    daemon.resume(task.id, "count");
    daemon.ends_as(task.id, Status::Completed);
    assert_eq!(daemon.result(task.id), "2", "the agent never heard of it");
}

#[test]
fn r05_cancelling_resumed_task_ends_turn() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    daemon.resume(id, "hang");
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.run), (Status::Cancelled, 2));
    refused(&daemon, id, ErrorKind::NotResumable);
}

#[test]
fn r35_resume_of_expired_session_keeps_task_and_result() {
    let codes = ["-32602:session not found", "-32002:x", "-32603:no rollout found for thread x"];
    for code in codes {
        for keep_warm in ["", COLD] {
            let daemon = FakeDaemon::start(&["--unknown-session", code], keep_warm);
            let task = daemon.completed("say one");
            if keep_warm == COLD {
                daemon.wait_agents_gone();
            }
            forget(&daemon, &task);
            for _ in 0..2 {
                let error = refused(&daemon, task.id, ErrorKind::SessionExpired);
                assert!(error.data.hint.unwrap().contains("submit a new task"), "{}", error.message);
                as_before(&daemon, &task, "one");
            }
            daemon.run(&["resume", &task.id.to_string(), "say never"]).expect_code(65);
        }
    }
}

#[test]
fn r35_session_missing_from_agent_list_counts_as_expired() {
    for flags in [&[][..], &["--page", "2"], &["--no-resume"]] {
        let flags = [&["--unknown-session", "-32603:Internal error"], flags].concat();
        let daemon = FakeDaemon::start(&flags, COLD);
        let task = completed_and_gone(&daemon, "say one");
        for _ in 0..3 {
            daemon.completed("say another");
        }
        forget(&daemon, &task);
        refused(&daemon, task.id, ErrorKind::SessionExpired);
        as_before(&daemon, &task, "one");
    }
}

#[test]
fn r35_session_expires_even_if_agent_lists_its_sessions_slowly() {
    let flags = ["--unknown-session", "-32603:Internal error", "--list-after", "go"];
    let daemon = FakeDaemon::start(&flags, "");
    let task = daemon.completed("say one");
    forget(&daemon, &task);
    let runs = daemon.submit(&["sleep", "1000"]);
    let mut raw = Raw::connect(daemon.socket());
    raw.request(1, "task.resume", &json!({"id": task.id, "prompt": "say never"}));
    daemon.fake_home().wait_received("session/list", 1);
    // Longer than a follow-up prompt waits for a sign of life.
    daemon.block_for(runs, Duration::from_millis(300));
    daemon.touch("go");
    daemon.cancel(&[runs]);
    let refused = raw.receive().unwrap();
    assert_eq!(refused["error"]["data"]["kind"], "session_expired", "{refused}");
    as_before(&daemon, &task, "one");
}

#[test]
fn r35_agent_without_session_reload_refuses_resume_after_exit() {
    let daemon = FakeDaemon::start(&["--no-load", "--no-resume"], COLD);
    let task = completed_and_gone(&daemon, "say one");
    let error = refused(&daemon, task.id, ErrorKind::SessionExpired);
    assert!(error.message.contains("can't resume an earlier conversation"), "{error}");
    as_before(&daemon, &task, "one");
}

#[test]
fn r35_resume_with_agent_that_fails_to_start_leaves_task_unchanged() {
    let flags = ["--initialize-after", "begin"];
    let daemon = FakeDaemon::start(&flags, COLD);
    daemon.touch("begin");
    let task = completed_and_gone(&daemon, "say one");
    fs::remove_file(daemon.home().join("begin")).unwrap();
    // The starts that must succeed may take longer.
    daemon.configure(&flags, &format!("{COLD}\nstart_timeout = \"2s\""));
    daemon.run(&["daemon", "reload"]).success();
    let error = refused(&daemon, task.id, ErrorKind::AgentUnavailable);
    assert!(error.message.contains("within 2s"), "{error}");
    as_before(&daemon, &task, "one");
    daemon.configure(&flags, COLD);
    daemon.run(&["daemon", "reload"]).success();
    daemon.touch("begin");
    daemon.resume(task.id, "count");
    daemon.ends_as(task.id, Status::Completed);
}

#[test]
fn r36_resume_that_fails_later_reports_agent_error() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    daemon.resume(id, "say half; stderr the disk is full; await go; die 7");
    daemon.touch("go");
    let task = daemon.ends_as(id, Status::Failed);
    let error = task.error.unwrap();
    assert!(error.contains("exited with code 7") && error.contains("the disk is full"), "{error}");
    assert_eq!((task.run, task.resume_count), (2, 1));
    assert_eq!(daemon.output(id), b"one\n\nhalf\n");
    refused(&daemon, id, ErrorKind::NotResumable);
    let id = daemon.completed("say one").id;
    daemon.resume(id, "await later; error -32603 no more credit");
    daemon.touch("later");
    assert!(daemon.ends_as(id, Status::Failed).error.unwrap().contains("no more credit"));
}

#[test]
fn r37_submit_with_resume_continues_existing_task() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    // The other fields are ignored.
    let params = SubmitParams {
        resume: Some(TaskRef::from(id)),
        prompt: Some("count".into()),
        agent: Some("nobody".into()),
        argv: Some(vec!["false".into()]),
        ..SubmitParams::default()
    };
    let task = daemon.submit_with(&params);
    assert_eq!((task.id, task.run, task.agent.as_deref()), (id, 2, Some("fake")));
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "2");
    let printed = daemon.run(&["submit", "--resume", &id.to_string(), "count"]).success().stdout_text();
    assert_eq!(printed, format!("{id}\n"));
    daemon.ends_as(id, Status::Completed);
    let printed = daemon.run(&["resume", &id.to_string()[..8], "history"]).success().stdout_text();
    assert_eq!(printed, format!("{id}\n"));
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "say one\ncount\ncount");
    assert_eq!(daemon.status().summary.total(), 1);
}

#[test]
fn r37_missing_submit_parameters_are_named() {
    let daemon = fake();
    let mut raw = Raw::connect(daemon.socket());
    let mut kind = |params: &serde_json::Value, word: &str| {
        let answer = raw.call(1, TaskSubmit::NAME, params);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(word), "{answer}");
        answer["error"]["data"]["kind"].as_str().unwrap_or_default().to_owned()
    };
    let all = json!({"prompt": "say x", "agent": "fake", "description": "d", "cwd": "/", "env": {}});
    let without = |name: &str| {
        let mut params = all.clone();
        params.as_object_mut().unwrap().remove(name);
        params
    };
    assert_eq!(kind(&without("agent"), "no agent given"), "invalid_params");
    assert_eq!(kind(&without("description"), "`description`"), "invalid_params");
    assert_eq!(kind(&without("prompt"), "`prompt`"), "prompt_required");
    assert_eq!(kind(&json!({"resume": TaskId::random()}), "`prompt`"), "prompt_required");
    assert_eq!(kind(&json!({"resume": TaskId::random(), "prompt": " \n"}), "`prompt`"), "prompt_required");
    daemon.run(&["submit", "--agent", "fake", "say x"]).expect_code(2);
    daemon.run(&["submit", "--agent", "fake", "-d", "d"]).expect_code(2);
    daemon.run(&["submit", "--agent", "fake", "-d", "d", " "]).expect_code(2);
    daemon.run(&["submit", "--prompt", "say x", "-d", "d"]).expect_code(2);
    assert!(daemon.fake_home().journal().is_empty());
}

#[test]
fn r38_list_marks_resumed_tasks() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    let plain = daemon.completed("say other").id;
    let line = |id: TaskId| {
        let list = daemon.run(&["list"]).success().stdout_text();
        list.lines().find(|line| line.contains(&id.short())).unwrap().to_owned()
    };
    assert!(!line(id).contains("(resumed)"));
    daemon.resume(id, "say two");
    assert!(line(id).contains(&format!("{} (resumed)", id.short())));
    daemon.ends_as(id, Status::Completed);
    assert!(line(id).contains(&format!("{} (resumed)", id.short())), "for ever");
    assert!(!line(plain).contains("(resumed)"));
}

#[test]
fn r35_follow_up_in_missing_folder_is_refused_until_it_is_back() {
    let daemon = fake();
    let folder = daemon.home().join("project");
    fs::create_dir(&folder).unwrap();
    let params = SubmitParams { cwd: Some(folder.as_os_str().into()), ..daemon.prompt_params("say one") };
    let before = daemon.ends_as(daemon.submit_with(&params).id, Status::Completed);
    fs::remove_dir(&folder).unwrap();
    let error = refused(&daemon, before.id, ErrorKind::NotResumable);
    let words = format!("cannot work in the folder {}: No such file or directory", folder.display());
    assert!(error.message.contains(&words), "{error}");
    fs::write(&folder, "").unwrap();
    let error = refused(&daemon, before.id, ErrorKind::NotResumable);
    assert!(error.message.contains("project: it is not a folder"), "{error}");
    as_before(&daemon, &before, "one");
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    daemon.resume(before.id, "count");
    daemon.ends_as(before.id, Status::Completed);
    assert_eq!(daemon.result(before.id), "2");
}
