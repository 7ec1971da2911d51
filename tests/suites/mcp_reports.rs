//! `bgctl mcp`: ends are announced unasked (R81), once, and again until the answer has been written.

use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Instant;

use bgd_shared::id::TaskId;
use bgd_shared::request::{InboxAck, InboxAckParams};
use bgd_tests::mcp::{INLINE_REVISION, Mcp, REVISION, TASKS, ToolResult};
use bgd_tests::wait::PATIENCE;
use bgd_tests::{TestDaemon, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Waits until a task has ended and its inbox has the notice.
fn ended(daemon: &TestDaemon, id: TaskId) {
    daemon.block(&[id]);
}

/// Returns how many notices are unacknowledged, including those that a server has reserved.
fn left(daemon: &TestDaemon, session: &str) -> u64 {
    let nothing = InboxAckParams { session: session.to_owned(), ..InboxAckParams::default() };
    daemon.client().call::<InboxAck>(&nothing).expect("inbox.ack").left
}

/// Makes calls until every notice is acknowledged.
fn until_acknowledged(daemon: &TestDaemon, mcp: &mut Mcp, session: &str) {
    let end = Instant::now() + PATIENCE;
    while left(daemon, session) > 0 {
        assert!(Instant::now() < end, "it is never acknowledged");
        mcp.done("background_list", &json!({}));
    }
}

#[test]
fn r81_completions_are_reported_once_at_head_of_next_reply() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    // A task that ends while another one is being started would be reported with that, so this one waits at a gate.
    let fifo = daemon.home().join("gate");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let greets = json!({"command": "read word < gate; echo $word", "description": "greet"});
    let id = mcp.done("background_command", &greets).id();
    let other = mcp.command("exit 4");
    wait::for_reader(&fifo, "hello\n");
    ended(&daemon, id);
    ended(&daemon, other);
    assert_eq!(daemon.inbox("s").len(), 2);
    let answer = mcp.done("background_list", &json!({}));
    let mut ids = answer.reported_ids();
    ids.sort_unstable();
    let mut wanted = [id.to_string(), other.to_string()];
    wanted.sort_unstable();
    assert_eq!(ids, wanted);
    let head = answer.head();
    assert!(head.contains(&format!("[BACKGROUND TASK COMPLETED] {} in ", id.short())), "{head}");
    assert!(head.contains(": \"greet\"\n") && head.contains(": \"exit 4\"\n"), "{head}");
    assert!(head.contains(&format!("task_id: {id}; exit code 0\nhello")), "{head}");
    assert!(
        head.contains(&format!("[BACKGROUND TASK FAILED] {} exited with code 4", other.short())),
        "{head}"
    );
    let again = mcp.done("background_list", &json!({}));
    assert_eq!((again.head(), again.reported_ids().len()), ("", 0));
    until_acknowledged(&daemon, &mut mcp, "s");
}

#[test]
fn error_and_clear_replies_report_completions_too() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("echo first");
    ended(&daemon, id);
    let said = mcp.error("background_output", &json!({}));
    assert!(said.starts_with("[BACKGROUND TASK COMPLETED]") && said.contains("\nfirst\n\n---\n\n"), "{said}");
    let id = mcp.command("echo second");
    ended(&daemon, id);
    let cleared = mcp.done("background_clear", &json!({}));
    assert_eq!(cleared.content["cleared"], 2);
    assert!(cleared.head().contains("\nsecond"), "{}", cleared.text);
}

#[test]
fn task_shown_in_a_reply_is_not_reported_again() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    // A task that ends while another one is being started would be reported with that, so the test submits
    // these itself.
    let [blocked, looked_at, other] =
        ["one", "two", "three"].map(|word| daemon.submit_in("s", &format!("echo {word}")));
    for id in [blocked, looked_at, other] {
        ended(&daemon, id);
    }
    let answer = mcp.done("background_block", &json!({"task_ids": [blocked.to_string()]}));
    assert_eq!(answer.content["tasks"][0]["result"], "one");
    assert!(!answer.reported_ids().contains(&blocked.to_string()), "{}", answer.text);
    assert_eq!(answer.reported_ids().len(), 2);
    let answer = mcp.done("background_output", &json!({"task_id": looked_at.to_string()}));
    assert!(answer.reported_ids().is_empty(), "{}", answer.text);
    until_acknowledged(&daemon, &mut mcp, "s");
}

#[test]
fn r24_wait_says_where_output_is_that_another_reader_has_acknowledged() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let shows =
        |id: TaskId| format!("Its output is not in this answer: background_output {{\"task_id\": \"{id}\"}}");
    // Only one of two waits for the same task can report its end.
    let fifo = daemon.home().join("gate");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let id = mcp.command("read word < gate; echo $word");
    let block = json!({"name": "background_block", "arguments": {"task_ids": [id.to_string()]}});
    let requests = [(); 2].map(|()| mcp.ask("tools/call", &block));
    wait::for_reader(&fifo, "hello\n");
    let answers = requests.map(|request| ToolResult::of(&mcp.answer(request)["result"]));
    let (with, without): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.content["tasks"][0]["result"] == "hello");
    let [with, without] = [&with[..], &without[..]].map(|list| &list.first().expect("one of each").text);
    assert!(without.contains(&shows(id)) && !with.contains(&shows(id)), "{with}\n{without}");
    // A person, or another program, reads the inbox first.
    let id = daemon.submit_in("s", "echo there; exit 3");
    ended(&daemon, id);
    daemon.run(&["inbox", "--session", "s", "--ack"]).success();
    let answer = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    assert!(answer.text.contains("exit code 3") && answer.text.contains(&shows(id)), "{}", answer.text);
    let output = mcp.done("background_output", &json!({"task_id": id.to_string()}));
    assert_eq!(output.content["output"], "there");
}

#[test]
fn unwritten_report_is_delivered_by_the_next_server() {
    let daemon = TestDaemon::start();
    let args = ["mcp", "--keep", "--session", "s"];
    let mut deaf = daemon.bgctl(&args);
    deaf.stdin(Stdio::piped()).stdout(Stdio::piped());
    let id = daemon.submit_in("s", "seq 20000");
    ended(&daemon, id);
    let mut child = deaf.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut say = |message: Value| {
        std::io::Write::write_all(&mut input, format!("{message}\n").as_bytes()).unwrap();
    };
    let client = json!({"name": "deaf", "version": "1"});
    let params = json!({"protocolVersion": REVISION, "capabilities": {}, "clientInfo": client});
    say(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
    let looks = json!({"name": "background_output", "arguments": {"task_id": id.to_string()}});
    let mut look =
        |number: u32| say(json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": looks}));
    look(1);
    // Otherwise this first answer, which is written, may report the task that ends late.
    wait::poll_until("the first answer is written", || (left(&daemon, "s") == 0).then_some(()));
    // Nobody reads, and a pipe holds 64 KiB: none of these answers is ever written in full.
    (2..8).for_each(&mut look);
    let late = daemon.submit_in("s", "echo late");
    ended(&daemon, late);
    let looks = json!({"name": "background_output", "arguments": {"task_id": late.to_string()}});
    say(json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": looks}));
    // The server has moved on to another request, whose answer is queued behind that one.
    let marks =
        json!({"name": "background_command", "arguments": {"command": "true", "description": "mark"}});
    let mut watch = daemon.watch();
    say(json!({"jsonrpc": "2.0", "id": 10, "method": "tools/call", "params": marks}));
    watch.until(|event| event.task.description == "mark" && !event.task.status.is_active());
    assert_eq!(left(&daemon, "s"), 2, "neither is written");
    child.kill().unwrap();
    child.wait().unwrap();
    let is_free = || daemon.inbox("s").iter().any(|item| item.notice.task.id == late);
    wait::poll_until("its reservation ends", || is_free().then_some(()));
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let answer = mcp.done("background_list", &json!({}));
    assert!(answer.reported_ids().contains(&late.to_string()), "{}", answer.text);
}

#[test]
fn cancelled_request_ends_only_the_wait() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("sleep 1000");
    let params = json!({
        "name": "background_block",
        "arguments": {"task_ids": [id.to_string()]},
        "_meta": {"progressToken": "p"},
    });
    let request = mcp.ask("tools/call", &params);
    mcp.notification("notifications/progress");
    let cancelled = json!({"requestId": request, "reason": "enough"});
    mcp.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}));
    let looked = mcp.done("background_output", &json!({"task_id": id.to_string()}));
    assert_eq!(looked.content["task"]["status"], "running");
    assert!(mcp.unrequested().iter().all(|message| message["id"] != request), "it is not answered");
}

#[test]
fn wait_progress_grows_with_every_completion() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let fifo = daemon.home().join("gate");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let first = mcp.command("true");
    ended(&daemon, first);
    let second = mcp.command("read word < gate");
    let arguments = json!({"task_ids": [first.to_string(), second.to_string()]});
    let params = json!({"name": "background_block", "arguments": arguments, "_meta": {"progressToken": 7}});
    let request = mcp.ask("tools/call", &params);
    let begin = mcp.notification("notifications/progress");
    assert_eq!((&begin["progressToken"], &begin["message"]), (&json!(7), &json!("1 of 2 tasks has ended")));
    wait::for_reader(&fifo, "go\n");
    let end = mcp.until(|message| message["params"]["message"] == "2 of 2 tasks have ended");
    assert!(end["params"]["progress"].as_f64().unwrap() > begin["progress"].as_f64().unwrap());
    let answer = ToolResult::of(&mcp.answer(request)["result"]);
    assert_eq!(answer.content["timed_out"], false);
}

#[test]
fn long_wait_is_cut_short_with_advice() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--max-block", "10ms"]);
    let id = mcp.command("sleep 1000");
    let answer = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    assert_eq!((&answer.content["timed_out"], &answer.content["cut"]), (&json!(true), &json!(true)));
    assert!(answer.text.contains("The wait was limited"), "{}", answer.text);
    assert!(
        answer.text.contains(&format!("call background_block {{\"task_ids\": [\"{id}\"]}} again")),
        "{}",
        answer.text
    );
}

#[test]
fn log_messages_start_once_a_level_is_set() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let quiet = mcp.command("true");
    ended(&daemon, quiet);
    mcp.result("logging/setLevel", &json!({"level": "warning"}));
    let fine = mcp.command("true");
    ended(&daemon, fine);
    let bad = mcp.command("exit 1");
    let message = mcp.notification("notifications/message");
    assert_eq!(
        (&message["level"], &message["data"]["task_id"]),
        (&json!("warning"), &json!(bad.to_string()))
    );
    assert!(message["data"]["text"].as_str().unwrap().contains("[BACKGROUND TASK FAILED]"), "{message}");
    let answer = mcp.done("background_list", &json!({}));
    assert!(answer.reported_ids().contains(&bad.to_string()), "a log is no answer: {}", answer.text);
    assert!(mcp.unrequested().iter().all(|message| message["method"] != "notifications/claude/channel"));
}

/// The revision without a handshake has no log level for the whole conversation.
#[test]
fn request_may_enable_log_messages_until_its_reply() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::inline(&daemon, &[], &json!({}));
    let fifos = ["first", "second"].map(|name| daemon.home().join(name));
    let ids = fifos.each_ref().map(|fifo| {
        nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        mcp.command(&format!("read word < {}", fifo.display())).to_string()
    });
    let arguments = json!({"task_ids": ids});
    let level = json!({"io.modelcontextprotocol/logLevel": "info", "progressToken": 1});
    let params = json!({"name": "background_block", "arguments": arguments, "_meta": level});
    let request = mcp.ask("tools/call", &params);
    mcp.notification("notifications/progress");
    wait::for_reader(&fifos[0], "go\n");
    let message = mcp.notification("notifications/message");
    assert_eq!(message["data"]["task_id"], ids[0].as_str(), "{message}");
    wait::for_reader(&fifos[1], "go\n");
    mcp.answer(request);
    let silent = mcp.command("true");
    ended(&daemon, silent);
    let answer = mcp.done("background_list", &json!({}));
    assert_eq!(answer.reported_ids(), [silent.to_string()]);
    let is_of = |message: &Value| message["params"]["data"]["task_id"] == silent.to_string();
    assert!(!mcp.unrequested().iter().any(is_of), "{:?}", mcp.unrequested());
}

#[test]
fn claude_code_gets_channel_events() {
    let daemon = TestDaemon::start();
    for (name, capabilities) in
        [("claude-code", json!({})), ("other", json!({"experimental": {"claude/channel": {}}}))]
    {
        let mut mcp = Mcp::silent(&daemon, &[]);
        mcp.initialize(REVISION, name, &capabilities);
        let id = mcp.command("echo hello");
        let event = mcp.notification("notifications/claude/channel");
        assert_eq!(event["meta"], json!({"task_id": id.to_string(), "event": "completed"}));
        assert!(event["content"].as_str().unwrap().ends_with("\nhello"), "{event}");
        // A call's answer reports the task it waits for, without an event.
        let fifo = daemon.home().join(name);
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let id = mcp.command(&format!("read word < {}", fifo.display())).to_string();
        let arguments = json!({"task_ids": [id]});
        let params =
            json!({"name": "background_block", "arguments": arguments, "_meta": {"progressToken": 1}});
        let request = mcp.ask("tools/call", &params);
        mcp.notification("notifications/progress");
        wait::for_reader(&fifo, "go\n");
        mcp.answer(request);
        // An event about it would come before this one about another task.
        let other = mcp.command("true").to_string();
        mcp.until(|message| message["params"]["meta"]["task_id"] == other.as_str());
        let is_of = |message: &Value| message["params"]["meta"]["task_id"] == id.as_str();
        assert!(!mcp.unrequested().iter().any(is_of), "{:?}", mcp.unrequested());
        // A task that a call waited for in vain is reported by an event.
        let id = mcp.command(&format!("read word < {}", fifo.display())).to_string();
        let over = mcp.done("background_block", &json!({"task_ids": [id], "timeout": 1}));
        assert_eq!(over.content["timed_out"], true);
        wait::for_reader(&fifo, "go\n");
        mcp.until(|message| message["params"]["meta"]["task_id"] == id.as_str());
    }
}

#[test]
fn wait_becomes_a_protocol_task_for_capable_clients() {
    let daemon = TestDaemon::start();
    let capabilities = json!({"extensions": {TASKS: {}}});
    let mut handshake = Mcp::silent(&daemon, &["--max-block", "1ms"]);
    let said = handshake.initialize(REVISION, "test", &capabilities);
    assert!(said["capabilities"]["extensions"][TASKS].is_object(), "{said}");
    let inline = Mcp::inline(&daemon, &["--max-block", "1ms"], &capabilities);
    for (mut mcp, revision) in [(handshake, REVISION), (inline, INLINE_REVISION)] {
        let fifo = daemon.home().join(revision);
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let id = mcp.command(&format!("read word < {}; echo $word", fifo.display())).to_string();
        let block = json!({"name": "background_block", "arguments": {"task_ids": [id], "timeout": 600_000}});
        let task = mcp.result("tools/call", &block);
        assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")), "{task}");
        let wanted = json!({"taskId": task["taskId"]});
        assert_eq!(mcp.result("tasks/get", &wanted)["status"], "working");
        let given_up = mcp.result("tools/call", &block);
        mcp.result("tasks/cancel", &json!({"taskId": given_up["taskId"]}));
        let state = mcp.result("tasks/get", &json!({"taskId": given_up["taskId"]}));
        assert_eq!(state["status"], "cancelled", "{state}");
        wait::for_reader(&fifo, "go\n");
        let end = Instant::now() + PATIENCE;
        let over = loop {
            let state = mcp.result("tasks/get", &wanted);
            if state["status"] != "working" {
                break state;
            }
            assert!(Instant::now() < end, "{state}");
        };
        assert_eq!(over["status"], "completed", "{over}");
        let answer = ToolResult::of(&over["result"]);
        assert_eq!(answer.content["tasks"][0]["result"], "go", "{}", answer.text);
        assert!(answer.reported_ids().is_empty(), "{}", answer.text);
        assert_eq!(mcp.result("tasks/get", &wanted)["result"], over["result"], "as often as it is asked for");
        // A task that has already ended needs no wait.
        let answer = mcp.done("background_block", &json!({"task_ids": [id]}));
        assert_eq!(answer.content["timed_out"], false);
        assert!(mcp.refused("tasks/get", &json!({"taskId": "none"}))["message"].is_string());
        wait::for_file(&fifo);
        assert!(mcp.signal(Signal::TERM).success());
    }
}

#[test]
fn many_reports_are_split_over_several_replies() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let ids: Vec<TaskId> = (0..8).map(|_| daemon.submit_in("s", "seq 5000")).collect();
    for id in &ids {
        ended(&daemon, *id);
    }
    let mut reported: Vec<String> = Vec::new();
    let mut answers = 0;
    while reported.len() < ids.len() {
        let answer = mcp.done("background_list", &json!({}));
        assert!(!answer.reported_ids().is_empty(), "{}", answer.text);
        assert!(answer.text.len() < 64 * 1024);
        reported.extend(answer.reported_ids());
        answers += 1;
    }
    assert!(answers > 1);
    reported.sort_unstable();
    reported.dedup();
    assert_eq!(reported.len(), ids.len(), "each is told once");
    until_acknowledged(&daemon, &mut mcp, "s");
}

#[test]
fn block_on_many_tasks_shows_part_of_each_result() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let ids: Vec<String> = (0..10).map(|_| daemon.submit_in("s", "seq 5000").to_string()).collect();
    let answer = mcp.done("background_block", &json!({"task_ids": ids}));
    let tasks = answer.content["tasks"].as_array().unwrap();
    for task in tasks {
        let result = task["result"].as_str().unwrap();
        assert!(result.contains("\n5000\n(23893 bytes in total: background_output"), "{result}");
    }
    assert_eq!(
        (tasks.len(), answer.reported_ids().len(), answer.content["notes"].clone()),
        (10, 0, json!([]))
    );
    assert!(answer.text.len() < 64 * 1024);
    until_acknowledged(&daemon, &mut mcp, "s");
}

#[test]
fn r10_clear_removes_no_unreported_result() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let ids: Vec<TaskId> = (0..10).map(|_| daemon.submit_in("s", "seq 5000")).collect();
    for id in &ids {
        ended(&daemon, *id);
    }
    let (mut refused, mut texts) = (0, String::new());
    loop {
        let answer = mcp.call("background_clear", &json!({}));
        texts += &answer.text;
        if !answer.is_error {
            assert_eq!(answer.content["cleared"], 10);
            break;
        }
        assert!(answer.text.contains("Nothing was deleted"), "{}", answer.text);
        assert_eq!(daemon.task(ids[0]).status, bgd_shared::task::Status::Completed);
        refused += 1;
        assert!(refused <= ids.len(), "each call tells something");
    }
    assert!(refused > 1);
    for id in ids {
        let result = format!("task_id: {id}; exit code 0\n… ");
        assert_eq!(texts.matches(&result).count(), 1, "{id}");
    }
    assert!(!texts.contains("is gone"));
}

#[test]
fn r10_clear_of_whole_session_loses_no_result_of_tasks_beyond_one_page() {
    const LONG: usize = 120 * 1024;
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 20").start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let gate = daemon.home().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Both ends, so that no reader sees an end.
    let gate = File::options().read(true).write(true).open(gate).unwrap();
    let early: Vec<_> =
        (0..5).map(|_| mcp.command("read x < gate; head -c 8192 /dev/zero | tr '\\0' x")).collect();
    // The newest fill a page of the list.
    let late: Vec<_> = (0..9).map(|_| mcp.command(&format!(": {}", "x".repeat(LONG)))).collect();
    daemon.block(&late);
    until_acknowledged(&daemon, &mut mcp, "s");
    (&gate).write_all(&[b'\n'; 5]).unwrap();
    daemon.block(&early);
    let said = mcp.error("background_clear", &json!({"all": true}));
    assert!(said.contains("Nothing was deleted: more tasks have ended than fit above"), "{said}");
    assert_eq!(daemon.status().summary.completed, 14);
    let mut notices = said.matches("[BACKGROUND TASK COMPLETED]").count();
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = mcp.call("background_clear", &json!({"all": true}));
        notices += answer.text.matches("[BACKGROUND TASK COMPLETED]").count();
        if !answer.is_error {
            break;
        }
        assert!(Instant::now() < end, "it is never cleared: {}", answer.text);
    }
    assert_eq!((notices, daemon.status().summary.completed), (5, 0));
}

/// The task ends while the call looks at the others that it names.
#[test]
fn r10_clear_of_named_task_that_ends_meanwhile_loses_no_result() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let gate = daemon.home().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for _ in 0..10 {
        let other = daemon.submit_in("s", "true");
        ended(&daemon, other);
        let id = daemon.submit_in("s", &format!("read word < {}; echo precious", gate.display()));
        daemon.wait_running(id);
        let ids: Vec<String> = std::iter::repeat_n(other, 99).chain([id]).map(|id| id.to_string()).collect();
        let clears = json!({"name": "background_clear", "arguments": {"task_ids": ids}});
        let request = mcp.ask("tools/call", &clears);
        wait::for_reader(&gate, "go\n");
        let mut answer = ToolResult::of(&mcp.answer(request)["result"]);
        let mut text = answer.text.clone();
        if answer.is_error {
            assert!(answer.text.contains("only finished tasks can be deleted"), "{}", answer.text);
            ended(&daemon, id);
            answer = mcp.done("background_clear", &json!({"task_ids": [other, id]}));
            text += &answer.text;
        }
        assert_eq!(answer.content["cleared"], 2, "{}", answer.text);
        assert!(text.contains("\nprecious") && !text.contains("is gone"), "{text}");
    }
}

#[test]
fn clear_of_one_task_still_reports_completion_of_another() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"").start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let [gate, noted] = ["gate", "noted"].map(|name| daemon.home().join(name));
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // It ends once it has been asked to and the gate is open.
    let line = format!(
        "trap 'echo asked > {}; read word < {}; exit 0' TERM; echo up; while :; do sleep 0.01; done",
        noted.display(),
        gate.display()
    );
    let stubborn = mcp.command(&line);
    wait::for_line(daemon.wait_running(stubborn).output.path.as_ref(), "up");
    let params = json!({"name": "background_clear", "arguments": {"task_ids": [stubborn], "all": true}});
    let request = mcp.ask("tools/call", &params);
    wait::for_file(&noted);
    let other = daemon.submit_in("s", "echo precious");
    ended(&daemon, other);
    wait::for_reader(&gate, "go\n");
    let answer = ToolResult::of(&mcp.answer(request)["result"]);
    assert_eq!(answer.content["cleared"], 1);
    assert_eq!(answer.reported_ids(), [other.to_string()], "{}", answer.text);
    assert!(answer.head().ends_with("\nprecious"), "{}", answer.text);
}

#[test]
fn two_requests_with_the_same_id_lose_no_report() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let waits = mcp.command("sleep 1000");
    let block = json!({"name": "background_block", "arguments": {"task_ids": [waits]},
        "_meta": {"progressToken": 1}});
    mcp.say(&json!({"jsonrpc": "2.0", "id": 700, "method": "tools/call", "params": block}));
    mcp.notification("notifications/progress");
    let id = daemon.submit_in("s", "echo precious");
    ended(&daemon, id);
    let list = json!({"name": "background_list"});
    mcp.say(&json!({"jsonrpc": "2.0", "id": 700, "method": "tools/call", "params": list}));
    mcp.answer(700);
    let answer = mcp.done("background_list", &json!({}));
    assert_eq!(answer.reported_ids(), [id.to_string()], "{}", answer.text);
}

#[test]
fn notices_acknowledged_elsewhere_do_not_block_later_reports() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    for _ in 0..8 {
        ended(&daemon, daemon.submit_in("s", "seq 5000"));
    }
    assert!(mcp.done("background_list", &json!({})).content["told"].as_array().unwrap().len() < 8);
    daemon.run(&["inbox", "--session", "s", "--ack"]).success();
    let id = daemon.submit_in("s", "true");
    ended(&daemon, id);
    assert_eq!(mcp.done("background_list", &json!({})).reported_ids(), [id.to_string()]);
    until_acknowledged(&daemon, &mut mcp, "s");
}

#[test]
fn r10_cancelled_clear_request_removes_nothing() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let id = daemon.submit_in("s", "echo precious");
    ended(&daemon, id);
    let clear = json!({"name": "background_clear", "arguments": {}});
    let request = json!({"jsonrpc": "2.0", "id": 800, "method": "tools/call", "params": clear});
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 800}});
    mcp.write(&format!("{request}\n{cancelled}"));
    let answer = mcp.done("background_list", &json!({}));
    assert_eq!(answer.reported_ids(), [id.to_string()], "{}", answer.text);
    assert!(answer.head().ends_with("\nprecious"), "{}", answer.text);
    assert!(mcp.unrequested().iter().all(|message| message["id"] != 800));
    assert_eq!(daemon.task(id).id, id);
}

#[test]
fn lingering_task_is_shown_as_lingering_and_not_cleared() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("sleep 1000 & echo begun");
    ended(&daemon, id);
    let listed = mcp.done("background_list", &json!({}));
    assert_eq!(listed.content["tasks"][0]["lingering"], true, "{}", listed.text);
    assert!(listed.text.contains("its processes are still running"), "{}", listed.text);
    let cleared = mcp.done("background_clear", &json!({}));
    assert_eq!(cleared.content["cleared"], 0);
    assert!(cleared.text.contains("1 more has ended, but processes it started"), "{}", cleared.text);
    let said = mcp.error("background_clear", &json!({"task_ids": [id]}));
    assert!(said.contains("background_cancel ends them"), "{said}");
    mcp.done("background_cancel", &json!({"task_id": id}));
    assert_eq!(mcp.done("background_clear", &json!({})).content["cleared"], 1);
}
