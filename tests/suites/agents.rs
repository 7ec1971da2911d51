//! The life of agent tasks: R01 to R08, R10, R11 and R20 to R25 for prompts, on a real daemon and a fake
//! agent program.

use std::collections::HashSet;
use std::io::Read as _;
use std::process::Stdio;

use bgd_tests::prompts::fake;
use bgd_tests::shared::client::{Client, ClientError};
use bgd_tests::shared::error::{ErrorKind, RpcError};
use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    BlockMode, BlockParams, CancelParams, ClearParams, DaemonShutdown, Hello, HelloParams, IdParams,
    ListParams, OutputParams, SessionEnd, SessionEndParams, ShutdownParams, SignalParams, SubmitParams,
    TaskBlock, TaskCancel, TaskClear, TaskList, TaskOutput, TaskResultOf, TaskSignal,
};
use bgd_tests::shared::task::{Kind, Status, Task};
use bgd_tests::{FakeDaemon, processes_of};

/// Asks for the result, which the daemon must refuse to give.
#[track_caller]
fn no_result(daemon: &FakeDaemon, id: TaskId) -> RpcError {
    match daemon.client().call::<TaskResultOf>(&IdParams { id: id.into() }) {
        Err(ClientError::Rpc(error)) => error,
        other => panic!("there is a result: {other:?}"),
    }
}

fn look(daemon: &FakeDaemon, id: TaskId) -> (Task, String) {
    let params = OutputParams { id: id.into(), offset: None, limit: None, stream: None };
    let part = daemon.client().call::<TaskOutput>(&params).expect("task.output");
    (part.task, part.data)
}

/// Starts a block and waits until the daemon has begun it, that is, has answered a later request of the connection.
fn begin_block(daemon: &FakeDaemon, ids: &[TaskId]) -> (Client, u64) {
    let mut client = daemon.client();
    let ids = ids.iter().copied().map(Into::into).collect();
    let params = BlockParams { ids, timeout_ms: None, mode: BlockMode::All, ..BlockParams::default() };
    let call = client.send::<TaskBlock>(&params, &[]).expect("a request");
    client.call::<Hello>(&HelloParams::default()).expect("hello");
    (client, call)
}

#[test]
fn r01_submitted_prompt_becomes_active_agent_task() {
    let daemon = fake();
    let params = SubmitParams {
        session: Some("discord:4711".into()),
        channel: Some("inbox".into()),
        tags: vec!["one".into()],
        description: Some("a question".into()),
        ..daemon.prompt_params("say hello")
    };
    let task = daemon.submit_with(&params);
    assert_eq!((task.kind, task.run, task.resume_count), (Kind::Agent, 1, 0));
    assert_eq!((task.agent.as_deref(), task.prompt.as_deref()), (Some("fake"), Some("say hello")));
    assert!(task.status.is_active() && task.argv.is_none() && task.shell.is_none());
    let task = daemon.ends_as(task.id, Status::Completed);
    assert_eq!((task.description.as_str(), task.channel.as_deref()), ("a question", Some("inbox")));
    assert_eq!((task.session.as_deref(), &*task.tags), (Some("discord:4711"), &["one".to_owned()][..]));
    let session = daemon.fake_home().received("session/prompt")[0]["params"]["sessionId"].clone();
    assert_eq!(task.agent_session.as_deref(), session.as_str());
    assert_eq!(daemon.result(task.id), "hello");
}

#[test]
fn r01_same_key_returns_same_task_and_sends_one_prompt() {
    let daemon = fake();
    let params = SubmitParams { key: Some("once".into()), ..daemon.prompt_params("say hello") };
    let (one, other) = (daemon.submit_with(&params).id, daemon.submit_with(&params).id);
    assert_eq!(one, other);
    daemon.ends_as(one, Status::Completed);
    assert_eq!(daemon.fake_home().received("session/prompt").len(), 1);
}

#[test]
fn r02_queued_prompts_run_in_submission_order() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 1", &[], "");
    let mut watch = daemon.watch();
    let first = daemon.prompt("await go");
    daemon.wait_running(first);
    let tasks: Vec<TaskId> = (0..6).map(|n| daemon.prompt(&format!("say {n}"))).collect();
    for id in &tasks {
        let task = daemon.task(*id);
        assert_eq!((task.status, task.pid, task.started_at), (Status::Pending, None, None));
    }
    daemon.touch("go");
    for id in std::iter::once(&first).chain(&tasks) {
        assert_eq!(watch.until(|event| event.kind == EventKind::Started).task.id, *id);
    }
    daemon.block(&tasks);
}

#[test]
fn r03_running_prompts_never_exceed_limit_and_none_is_rejected() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 5", &[], "max_sessions = 3");
    let mut watch = daemon.watch();
    let tasks: Vec<TaskId> = (0..50).map(|n| daemon.prompt(&format!("await go; say {n}"))).collect();
    let mut working = HashSet::new();
    let (mut ended, mut is_open) = (0, false);
    while ended < 50 {
        let event = watch.next_event();
        match event.kind {
            EventKind::Started => assert!(working.insert(event.task.id)),
            kind if kind.is_terminal() => {
                assert!(working.remove(&event.task.id));
                assert_eq!(kind, EventKind::Completed, "{:?}", event.task.error);
                ended += 1;
            }
            _ => {}
        }
        assert!(working.len() <= 5, "{} work at once", working.len());
        if working.len() == 5 && !is_open {
            is_open = true;
            let summary = daemon.status().summary;
            assert_eq!((summary.running, summary.pending), (5, 45));
            daemon.touch("go");
        }
    }
    for (n, id) in tasks.iter().enumerate() {
        assert_eq!(daemon.result(*id), n.to_string());
    }
}

#[test]
fn r04_answer_completes_task_and_agent_error_fails_it() {
    let daemon = fake();
    let good = daemon.completed("say fine");
    assert_eq!((good.error, good.exit), (None, None), "an agent's process does not end with its turn");
    assert!(good.started_at.unwrap() <= good.completed_at.unwrap());
    let (bad, error) = daemon.failed("say half; error -32603 the model is on fire");
    assert!(error.contains("the model is on fire"), "{error}");
    assert!(bad.completed_at.is_some());
    assert_eq!(daemon.output(bad.id), b"half\n", "what was said is kept");
    for reason in ["refusal", "max_tokens", "max_turn_requests", "never_heard_of"] {
        let (task, error) = daemon.failed(&format!("say half; stop {reason}"));
        assert!(error.contains(reason), "{error}");
        assert_eq!(daemon.output(task.id), b"half\n");
    }
    let (_, error) = daemon.failed("stop cancelled");
    assert!(error.contains("nobody cancelled it"), "{error}");
}

#[test]
fn r04_turn_with_model_failure_fails_even_if_agent_reports_success() {
    let daemon = fake();
    for (prompt, why) in [
        // kimi-code: nothing at all. Thoughts and plans are not an answer.
        ("mute", "without an answer"),
        ("mute; think hard; plan", "without an answer"),
        // codex-acp 2.6.
        ("mute; model-status systemError", "systemError"),
        ("say half; model-status active; model-status systemError", "systemError"),
        // claude-agent-acp, and copilot.
        ("say API Error: 400 bad", "API Error: 400 bad"),
        ("say Error: 400 no such model", "Error: 400 no such model"),
    ] {
        let task = daemon.ends_as(daemon.prompt(prompt), Status::Failed);
        assert!(task.error.as_deref().unwrap_or_default().contains(why), "{prompt}: {:?}", task.error);
    }
    for prompt in ["mute; tool bash", "ask May I?", "say x; model-status systemError; model-status active"] {
        daemon.completed(prompt);
    }
}

#[test]
fn doubtful_success_is_marked_suspect_in_list_status_block_and_inbox() {
    let daemon = fake();
    for (prompt, why) in [
        ("say Error: the model is not there", "looks like an error: Error: the model is not there"),
        // An agent that has used a tool may quote an error.
        ("tool bash; say API Error: 400 bad", "looks like an error: API Error: 400 bad"),
        ("mute; tool bash", "without an answer after its last tool call"),
    ] {
        let params = SubmitParams { session: Some("s".into()), ..daemon.prompt_params(prompt) };
        let id = daemon.submit_with(&params).id;
        let task = daemon.ends_as(id, Status::Completed);
        let suspect = task.suspect.unwrap_or_else(|| panic!("{prompt}"));
        assert!(suspect.contains(why), "{suspect}");
        let id = id.to_string();
        let listed = daemon.run(&["list", "--session", "s"]).success().stdout_text();
        assert!(listed.lines().next().unwrap().contains("completed (suspect)"), "{listed}");
        let page = daemon.run(&["status", &id]).success().stdout_text();
        assert!(page.contains(&format!("suspect:     {suspect}")), "{page}");
        let stderr = daemon.run(&["block", &id]).success().stderr;
        assert!(stderr.contains(&format!("suspect: {suspect}")), "{stderr}");
        let stdout = daemon.run(&["inbox", "--session", "s", "--ack"]).success().stdout_text();
        assert!(stdout.contains("(suspect)") && stdout.contains(why), "{stdout}");
    }
    assert_eq!(daemon.completed("say There is no error here").suspect, None);
    let id = daemon.completed("say Error: x").id;
    daemon.resume(id, "say fine");
    assert_eq!(daemon.ends_as(id, Status::Completed).suspect, None, "it was of the run before");
}

#[test]
fn agent_stderr_appears_in_status_and_timeout_error() {
    let daemon = FakeDaemon::start(&[], "stalled_after = \"200ms\"");
    let mut watch = daemon.watch();
    let params = SubmitParams {
        time_limit_ms: Some(10_000),
        ..daemon.prompt_params("stderr 2026-01-01 DEBUG http; stderr 429 Too Many Requests, try 2; hang")
    };
    let id = daemon.submit_with(&params).id;
    let words = "429 Too Many Requests, try 2";
    let spoke = watch.until(|event| event.task.progress.last_words.as_deref() == Some(words));
    let page = daemon.run(&["status", &id.to_string()]).success().stdout_text();
    assert!(page.contains(&format!("last output: {words}")), "{page}");
    // One that was slow to speak counted as stalled first.
    if !spoke.task.progress.stalled {
        watch.until(|event| event.task.progress.stalled);
    }
    let task = daemon.ends_as(id, Status::Failed);
    assert_eq!(
        task.error.as_deref(),
        Some("timed out after 10s; the agent's last output: 429 Too Many Requests, try 2")
    );
    assert_eq!(daemon.completed("say x").progress.last_words, None, "they were of another turn");
}

#[test]
fn r04_exceeded_time_limit_fails_turn() {
    let daemon = fake();
    let params = SubmitParams { time_limit_ms: Some(3000), ..daemon.prompt_params("say half; hang") };
    let id = daemon.submit_with(&params).id;
    let task = daemon.ends_as(id, Status::Failed);
    assert_eq!(task.error.as_deref(), Some("timed out after 3s"));
    assert_eq!(daemon.output(id), b"half\n");
    assert_eq!(daemon.fake_home().received("session/cancel").len(), 1);
    daemon.wait_agents_gone();
}

#[test]
fn r05_cancel_ends_turn_of_running_task() {
    let daemon = fake();
    let id = daemon.prompt("say half; hang");
    let process = daemon.agent_process(id);
    daemon.wait_output(id, "half");
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.exit), (Status::Cancelled, None));
    let cancels = daemon.fake_home().received("session/cancel");
    assert_eq!(cancels.len(), 1);
    assert_eq!(cancels[0]["params"]["sessionId"].as_str(), task.agent_session.as_deref());
    // The cancelled turn may have left something behind in its process, so the process ends too.
    assert!(!process.is_alive());
    assert_eq!(daemon.output(id), b"half\n");
    assert_eq!(no_result(&daemon, id).kind(), ErrorKind::NotComplete);
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled, "again does nothing");
}

#[test]
fn r05_cancelling_one_turn_leaves_others_in_its_process_running() {
    let daemon = fake();
    let (gone, stays) = (daemon.prompt("hang"), daemon.prompt("await go; say here"));
    let process = daemon.agent_process(gone);
    assert_eq!(daemon.wait_running(stays).pid, Some(process.pid()));
    assert_eq!(daemon.cancel(&[gone])[0].status, Status::Cancelled);
    assert!(process.is_alive());
    let later = daemon.prompt("await go; say later");
    assert_ne!(daemon.wait_running(later).pid, Some(process.pid()), "this process gets no new turns");
    daemon.touch("go");
    daemon.ends_as(stays, Status::Completed);
    daemon.ends_as(later, Status::Completed);
    assert_eq!((daemon.result(stays), daemon.result(later)), ("here".into(), "later".into()));
    process.gone();
}

#[test]
fn r05_task_can_be_cancelled_while_its_agent_is_starting() {
    let daemon = FakeDaemon::start(&["--initialize-after", "begin"], "keep_warm = \"0s\"");
    let id = daemon.prompt("say never");
    let process = daemon.fake_home().wait_started(1);
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.pid, task.started_at), (Status::Cancelled, None, None));
    // An agent that is no longer needed ends, whether it starts up or not.
    daemon.touch("begin");
    process.gone();
    assert!(daemon.fake_home().received("session/prompt").is_empty());
}

#[test]
fn r05_cancelled_pending_prompt_is_never_sent_to_agent() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 1", &[], "");
    let first = daemon.prompt("await go");
    daemon.wait_running(first);
    let never = daemon.prompt("touch given");
    assert_eq!(daemon.cancel(&[never])[0].status, Status::Cancelled);
    daemon.touch("go");
    daemon.ends_as(first, Status::Completed);
    daemon.completed("say later");
    assert_eq!(daemon.fake_home().received("session/prompt").len(), 2);
    assert!(!daemon.home().join("given").exists());
}

#[test]
fn r06_agent_tasks_are_listed_and_refuse_signals() {
    let daemon = fake();
    let id = daemon.prompt("hang");
    daemon.wait_running(id);
    let listed = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    assert_eq!((listed[0].id, listed[0].kind, listed[0].status), (id, Kind::Agent, Status::Running));
    let params = SignalParams { id: id.into(), signal: "TERM".into(), tree: false };
    let refused = daemon.client().call::<TaskSignal>(&params).unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::Unsupported));
    let all = CancelParams { all: true, ..CancelParams::default() };
    assert_eq!(daemon.client().call::<TaskCancel>(&all).unwrap().tasks[0].status, Status::Cancelled);
}

#[test]
fn r07_result_is_available_only_for_completed_tasks() {
    let daemon = fake();
    let id = daemon.prompt("say half; await go; say  done");
    daemon.wait_running(id);
    let error = no_result(&daemon, id);
    assert_eq!(error.kind(), ErrorKind::NotComplete);
    assert!(error.message.contains("running"), "{error}");
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "half done");
    let (bad, _) = daemon.failed("error -32603 no");
    assert!(no_result(&daemon, bad.id).message.contains("failed"));
}

#[test]
fn r08_active_tasks_are_counted_by_status() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 2", &[], "");
    let done = daemon.completed("say one").id;
    daemon.failed("error -32603 no");
    let working = [daemon.prompt("await go"), daemon.prompt("await go")];
    for id in working {
        daemon.wait_running(id);
    }
    let pending = daemon.prompt("await go");
    // A resume needs no slot, because its caller does not wait either.
    daemon.resume(done, "await go");
    let status = daemon.status();
    let summary = status.summary;
    assert_eq!((summary.pending, summary.running, summary.resumed), (1, 2, 1));
    assert_eq!((status.active, summary.completed, summary.failed), (4, 0, 1));
    daemon.touch("go");
    daemon.block(&[working[0], working[1], pending, done]);
    assert_eq!((daemon.status().active, daemon.status().summary.completed), (0, 4));
}

#[test]
fn r10_clearing_finished_task_removes_output_and_closes_agent_session() {
    let daemon = fake();
    let task = daemon.completed("say one");
    let output = task.output.path.clone();
    let clear = ClearParams { ids: Some(vec![task.id.into()]), ..ClearParams::default() };
    assert_eq!(daemon.client().call::<TaskClear>(&clear).unwrap().cleared, 1);
    let closed = daemon.fake_home().wait_received("session/close", 1);
    assert_eq!(closed[0]["params"]["sessionId"].as_str(), task.agent_session.as_deref());
    bgd_tests::wait::for_no_file(output.as_ref());
    assert_eq!(daemon.try_resume(task.id, "count").unwrap_err().kind(), ErrorKind::TaskNotFound);
}

#[test]
fn r10_ending_parent_session_cancels_and_clears_its_tasks() {
    let daemon = fake();
    let of = |prompt: &str| {
        let params = SubmitParams { session: Some("tmux:%3".into()), ..daemon.prompt_params(prompt) };
        daemon.submit_with(&params).id
    };
    let (done, works, other) = (of("say one"), of("hang"), daemon.completed("say mine").id);
    daemon.ends_as(done, Status::Completed);
    daemon.wait_running(works);
    let ended = SessionEndParams { session: "tmux:%3".into() };
    let result = daemon.client().call::<SessionEnd>(&ended).unwrap();
    assert_eq!((result.cancelled, result.cleared), (1, 2));
    let left = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    assert_eq!(left.iter().map(|task| task.id).collect::<Vec<_>>(), [other]);
}

#[test]
fn r11_shutdown_cancels_ten_agent_sessions_and_leaves_no_process() {
    let mut daemon = FakeDaemon::with("max_concurrent_tasks = 10", &[], "max_sessions = 3");
    let mut watch = daemon.watch();
    let tasks: Vec<TaskId> = (0..10).map(|_| daemon.prompt("hang")).collect();
    let pending = daemon.prompt("say never");
    let pids: HashSet<_> = tasks.iter().map(|id| daemon.wait_running(*id).pid).collect();
    assert_eq!(pids.len(), 4, "three sessions in a process");
    let result = daemon.client().call::<DaemonShutdown>(&ShutdownParams::default()).unwrap();
    assert_eq!(result.cancelled, 11);
    let mut missing: HashSet<_> = tasks.into_iter().chain([pending]).collect();
    while !missing.is_empty() {
        let event = watch.until(|event| event.kind.is_terminal());
        assert_eq!(event.task.status, Status::Cancelled);
        assert!(missing.remove(&event.task.id));
    }
    assert!(daemon.ended().success());
    let left = processes_of(daemon.home());
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(daemon.fake_home().received("session/cancel").len(), 10);
}

#[test]
fn r20_running_agent_reports_text_and_progress() {
    let daemon = fake();
    let mut watch = daemon.watch();
    let id = daemon.prompt("say one; tool read a; tool read b; tool read c; tool write d; say two; await go");
    daemon.wait_output(id, "two");
    let event = watch.until(|event| event.kind == EventKind::Progress && event.task.progress.tool_calls == 4);
    assert_eq!(event.task.progress.last_tools, ["read b", "read c", "write d"]);
    let (task, data) = look(&daemon, id);
    assert_eq!((task.status, data.as_str()), (Status::Running, "one\ntwo"));
    assert_eq!((task.progress.tool_calls, task.progress.last_line.as_deref()), (4, Some("two")));
    assert!(task.retrieved_at.is_none() && task.progress.updated_at.is_some());
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "two", "the result is what was said after the last tool");
    assert_eq!(daemon.output(id), b"one\ntwo\n");
}

#[test]
fn r20_messages_become_paragraphs_and_adapter_warning_is_not_the_answer() {
    let daemon = fake();
    let said = "message a; say I look; say ing.; message b; say history=1";
    let id = daemon.completed(said).id;
    assert_eq!(daemon.output(id), b"I looking.\n\nhistory=1\n");
    assert_eq!(daemon.result(id), "history=1");
    // A notice of the adapter, which codex-acp sends after the answer.
    let id = daemon.completed(&format!("{said}\nmessage c; say **Warning:** We're changing this")).id;
    assert_eq!(daemon.output(id), b"I looking.\n\nhistory=1\n\n**Warning:** We're changing this\n");
    assert_eq!(daemon.result(id), "history=1");
}

#[test]
fn r20_output_follow_streams_text_until_answer_is_complete() {
    let daemon = fake();
    let id = daemon.prompt("say one; await go; say  two");
    daemon.wait_output(id, "one");
    let mut command = daemon.bgctl(&["output", "--follow", &id.to_string()]);
    let mut follow = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pipe = follow.stdout.take().unwrap();
    let mut text = vec![0; 3];
    pipe.read_exact(&mut text).unwrap();
    assert_eq!(text, b"one");
    daemon.touch("go");
    pipe.read_to_end(&mut text).unwrap();
    assert_eq!(text, b"one two\n");
    assert!(follow.wait().unwrap().success());
}

#[test]
fn r20_long_answer_is_delivered_in_full() {
    let daemon = fake();
    let task = daemon.completed("think first; plan; stream 5000 0123456789; say !");
    let text = "0123456789".repeat(5000) + "!";
    assert_eq!(daemon.output(task.id), format!("{text}\n").as_bytes());
    assert_eq!(daemon.result(task.id), text);
}

#[test]
fn r20_silent_agent_is_marked_stalled_until_it_makes_progress() {
    let daemon = FakeDaemon::start(&[], "stalled_after = \"200ms\"");
    let mut watch = daemon.watch();
    let id = daemon.prompt("await go; think about it; await end");
    watch.until(|event| event.kind == EventKind::Progress && event.task.progress.stalled);
    assert!(daemon.run(&["list"]).success().stdout_text().contains("(stalled)"));
    daemon.touch("go");
    let event = watch.until(|event| event.kind == EventKind::Progress && !event.task.progress.stalled);
    assert_eq!(event.task.status, Status::Running);
    daemon.touch("end");
    assert!(!daemon.ends_as(id, Status::Completed).progress.stalled);
}

#[test]
fn r21_retrieval_time_is_recorded_once_per_run() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    assert_eq!(daemon.task(id).retrieved_at, None);
    let first = look(&daemon, id).0.retrieved_at;
    assert!(first.is_some());
    assert_eq!(look(&daemon, id).0.retrieved_at, first);
    let resumed = daemon.resume(id, "await go; say two");
    assert_eq!((resumed.retrieved_at, look(&daemon, id).0.retrieved_at), (None, None));
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    daemon.result(id);
    assert!(daemon.task(id).retrieved_at > first);
}

#[test]
fn r22_to_r24_block_waits_for_answers_and_reports_active_tasks() {
    let daemon = fake();
    let done = daemon.completed("say one").id;
    let works = daemon.prompt("await go; say two");
    let ids = vec![works.into(), done.into()];
    let params = BlockParams { ids, timeout_ms: Some(20), mode: BlockMode::All, ..BlockParams::default() };
    let result = daemon.client().call::<TaskBlock>(&params).unwrap();
    assert_eq!((result.timed_out, result.finished, result.active), (true, vec![done], vec![works]));
    let (mut client, call) = begin_block(&daemon, &[works, done]);
    daemon.touch("go");
    let result = client.answer::<TaskBlock>(call).unwrap();
    assert_eq!((result.timed_out, result.finished), (false, vec![works, done]));
    daemon.run(&["block", &works.to_string(), &done.to_string()]).success();
}

#[test]
fn r25_block_after_resume_waits_for_new_answer() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    daemon.resume(id, "await go; say two");
    let (mut client, call) = begin_block(&daemon, &[id]);
    daemon.touch("go");
    let task = client.answer::<TaskBlock>(call).unwrap().tasks.remove(0);
    assert_eq!((task.status, task.run, task.resume_count), (Status::Completed, 2, 1));
    assert_eq!(daemon.result(id), "two");
}

#[test]
fn r25_block_pipelined_after_resume_waits_for_new_answer() {
    let daemon = fake();
    let id = daemon.completed("say one").id;
    let mut raw = bgd_tests::Raw::connect(daemon.socket());
    raw.request(1, "task.resume", &serde_json::json!({"id": id, "prompt": "await go; say two"}));
    raw.request(2, "task.block", &serde_json::json!({"ids": [id], "timeout_ms": null}));
    let resumed = raw.receive().unwrap();
    assert_eq!((&resumed["id"], &resumed["result"]["task"]["status"]), (&1.into(), &"resumed".into()));
    daemon.touch("go");
    let blocked = raw.receive().unwrap();
    let task = &blocked["result"]["tasks"][0];
    assert_eq!((&blocked["id"], &task["status"], &task["run"]), (&2.into(), &"completed".into(), &2.into()));
    assert_eq!(daemon.result(id), "two");
}
