//! `bgctl mcp` under faults: too much at once, a daemon that dies, connections that break, unreadable lines, a session
//! whose environment is gone.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{Hello, HelloParams, SubmitParams};
use bgd_shared::task::Status;
use bgd_tests::mcp::{Mcp, REVISION, ToolResult};
use bgd_tests::wait::PATIENCE;
use bgd_tests::{FakeDaemon, Relay, TestDaemon, bgctl_path, bgd_path, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A server's connections: the one that owns the session, and the one that listens.
const OWN: u64 = 2;

/// The number of waits of one server that have their own connection.
const WAITS: u64 = 48;

const ENDED: &str = "The bgd daemon ended and was restarted.";

/// Waits until the daemon has this many connections besides the one that asks.
#[track_caller]
fn until_connections(daemon: &TestDaemon, wanted: u64) {
    daemon.until_connections(wanted + 1);
}

fn block(mcp: &mut Mcp, id: &str) -> i64 {
    mcp.ask("tools/call", &json!({"name": "background_block", "arguments": {"task_ids": [id]}}))
}

fn cancel(mcp: &mut Mcp, request: i64) {
    let params = json!({"requestId": request});
    mcp.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
}

/// Returns a command that waits at a FIFO, and a function that lets it continue.
fn gate(daemon: &TestDaemon, mcp: &mut Mcp) -> (String, impl Fn() + use<>) {
    let path = daemon.home().join("gate");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let id = mcp.command(&format!("read word < {}; echo $word", path.display())).to_string();
    (id, move || wait::for_reader(&path, "done\n"))
}

#[test]
fn cancelled_waits_close_their_connections() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("sleep 1000").to_string();
    until_connections(&daemon, OWN);
    let requests: Vec<i64> = (0..300).map(|_| block(&mut mcp, &id)).collect();
    until_connections(&daemon, OWN + WAITS);
    for request in requests {
        cancel(&mut mcp, request);
    }
    until_connections(&daemon, OWN);
    let listed = mcp.done("background_list", &json!({}));
    assert_eq!(listed.content["tasks"][0]["task_id"], id);
    let cancelled = mcp.done("background_cancel", &json!({"task_id": id}));
    assert_eq!(cancelled.content["tasks"][0]["status"], "cancelled");
}

#[test]
fn many_concurrent_waits_are_all_answered() {
    let daemon = TestDaemon::builder().config("[limits]\nrequests = 16\n").start();
    let mut mcp = Mcp::start(&daemon, &["--max-block", "10m"]);
    let (id, go) = gate(&daemon, &mut mcp);
    let requests: Vec<i64> = (0..1500).map(|_| block(&mut mcp, &id)).collect();
    until_connections(&daemon, OWN + WAITS);
    // It does not wait for its turn.
    let other = mcp.command("sleep 1000").to_string();
    mcp.done("background_cancel", &json!({"task_id": other}));
    go();
    for request in requests {
        let answer = ToolResult::of(&mcp.answer(request)["result"]);
        assert_eq!((answer.is_error, &answer.content["finished"]), (false, &json!([id])), "{}", answer.text);
    }
}

#[test]
fn queued_wait_times_out_before_its_turn() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("sleep 1000").to_string();
    let requests: Vec<i64> = (0..WAITS).map(|_| block(&mut mcp, &id)).collect();
    until_connections(&daemon, OWN + WAITS);
    let over = mcp.done("background_block", &json!({"task_ids": [id], "timeout": 1}));
    assert_eq!(over.content["timed_out"], true, "{}", over.text);
    for request in requests {
        cancel(&mut mcp, request);
    }
}

#[test]
fn r117_queued_wait_for_line_is_answered_before_its_turn() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--max-block", "10m"]);
    let id = mcp.command("sleep 1000").to_string();
    let requests: Vec<i64> = (0..WAITS).map(|_| block(&mut mcp, &id)).collect();
    until_connections(&daemon, OWN + WAITS);
    let (prints, go) = gate(&daemon, &mut mcp);
    let arguments = json!({"task_ids": [prints], "line": "don", "timeout": 600_000});
    let queued = mcp.ask("tools/call", &json!({"name": "background_block", "arguments": arguments}));
    go();
    let found = ToolResult::of(&mcp.answer(queued)["result"]);
    assert_eq!(found.content["line"], "done", "{}", found.text);
    let over = json!({"task_ids": [prints], "line": "no such", "timeout": 600_000});
    let over = mcp.done("background_block", &over);
    assert!(over.text.contains("It has ended without a matching line."), "{}", over.text);
    for request in requests {
        cancel(&mut mcp, request);
    }
}

#[test]
fn r24_wait_reports_task_that_is_cleared_after_its_end() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    for token in [json!({}), json!({"progressToken": 7})] {
        let first = mcp.command("exit 3");
        daemon.block(&[first]);
        let (second, go) = gate(&daemon, &mut mcp);
        let arguments = json!({"task_ids": [first.to_string(), second]});
        let params = json!({"name": "background_block", "arguments": arguments, "_meta": token});
        let request = mcp.ask("tools/call", &params);
        until_connections(&daemon, OWN + 1);
        daemon.run(&["clear", &first.to_string()]).success();
        go();
        let answer = ToolResult::of(&mcp.answer(request)["result"]);
        assert!(!answer.is_error && answer.text.starts_with("All 2 have ended."), "{}", answer.text);
        assert_eq!(answer.content["tasks"][0]["exit_code"], 3, "{}", answer.text);
        assert_eq!(answer.content["finished"], json!([first.to_string(), second]), "{}", answer.text);
        fs::remove_file(daemon.home().join("gate")).unwrap();
    }
}

#[test]
fn cancel_call_above_the_limit_is_refused() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"\n").start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let id = mcp.command(stubborn);
    daemon.wait_output(id, "ready\n");
    let arguments = json!({"task_id": id.to_string()});
    let params = json!({"name": "background_cancel", "arguments": arguments});
    let under_way: Vec<i64> = (0..16).map(|_| mcp.ask("tools/call", &params)).collect();
    until_connections(&daemon, OWN + 16);
    let said = mcp.error("background_cancel", &arguments);
    assert!(said.contains("16 calls that cancel tasks are still waiting"), "{said}");
    for request in &under_way {
        cancel(&mut mcp, *request);
    }
    // The daemon carries on with the cancels it has received.
    assert_eq!(daemon.task(id).status, Status::Running);
    until_connections(&daemon, OWN + 16);
    assert!(!mcp.signal(Signal::KILL).success());
    for process in daemon.task_processes() {
        process.kill();
    }
}

#[test]
fn refused_listener_connects_later() {
    let daemon = TestDaemon::builder().config("[limits]\nconnections = 2\n").start();
    let mut other = daemon.client();
    // A connection that never sends anything would be dropped to make room.
    other.call::<Hello>(&HelloParams::default()).unwrap();
    let mut mcp = Mcp::silent(&daemon, &[]);
    mcp.initialize(REVISION, "claude-code", &json!({}));
    let id = mcp.command("echo hello");
    drop(other);
    let event = mcp.notification("notifications/claude/channel");
    assert_eq!(event["meta"]["task_id"], id.to_string());
}

#[test]
fn call_right_after_daemon_is_killed_is_answered() {
    let home = TestDaemon::home_only();
    let mut mcp = Mcp::start(&home, &[]);
    mcp.done("background_list", &json!({}));
    for _ in 0..30 {
        // Without waiting for it to end.
        home.process().signal(Signal::KILL).unwrap();
        let listed = mcp.done("background_list", &json!({}));
        assert!(listed.text.starts_with(ENDED), "{}", listed.text);
        assert_eq!(mcp.done("background_list", &json!({})).text, "No tasks of this session.");
    }
    assert!(mcp.close().success());
}

/// An agent that was told otherwise would start everything a second time.
#[test]
fn r126_agent_is_notified_that_tasks_of_durable_daemon_continue() {
    let home = TestDaemon::builder().config("durable = true").home_only();
    let mut mcp = Mcp::silent(&home, &[]);
    mcp.initialize(REVISION, "test", &json!({}));
    let id = mcp.call("background_command", &json!({"command": "exec sleep 1000"})).id();
    home.wait_running(id);
    home.process().kill();
    let listed = mcp.done("background_list", &json!({}));
    assert!(
        listed.text.starts_with("The bgd daemon ended, and the next one takes over its tasks"),
        "{}",
        listed.text
    );
    assert!(listed.text.contains(&format!("{id}  running")), "{}", listed.text);
    assert!(!mcp.done("background_list", &json!({})).text.contains("daemon ended"), "once");
    assert!(mcp.close().success());
    let daemon = home.process();
    home.run(&["daemon", "stop", "--cancel"]).success();
    daemon.gone();
}

#[test]
fn idle_client_is_notified_once_when_daemon_ends() {
    let mut daemon = TestDaemon::start();
    let mut channel = Mcp::silent(&daemon, &[]);
    channel.initialize(REVISION, "claude-code", &json!({}));
    let mut log = Mcp::start(&daemon, &[]);
    log.result("logging/setLevel", &json!({"level": "warning"}));
    for mcp in [&mut channel, &mut log] {
        mcp.done("background_list", &json!({}));
    }
    until_connections(&daemon, 2 * OWN);
    daemon.kill9();
    let event = channel.notification("notifications/claude/channel");
    assert_eq!(event["meta"], json!({"event": "daemon_ended"}));
    assert!(event["content"].as_str().unwrap().contains("are lost"), "{event}");
    let message = log.notification("notifications/message");
    assert_eq!((&message["level"], &message["data"]["event"]), (&json!("warning"), &json!("daemon_ended")));
    for mut mcp in [channel, log] {
        assert!(mcp.done("background_list", &json!({})).text.starts_with(ENDED));
        let reports_end = |message: &Value| message.to_string().contains("daemon_ended");
        assert!(!mcp.unrequested().iter().any(reports_end), "{:?}", mcp.unrequested());
    }
    daemon.run(&["daemon", "stop"]).success();
}

#[test]
fn tools_list_starts_no_daemon_and_announces_later_change() {
    let home = TestDaemon::home_only();
    let about = |mcp: &mut Mcp| {
        let tools = mcp.result("tools/list", &json!({}));
        tools["tools"][0]["description"].as_str().unwrap().to_owned()
    };
    let mut mcp = Mcp::silent(&home, &[]);
    let said = mcp.initialize(REVISION, "test", &json!({}));
    assert_eq!(said["capabilities"]["tools"]["listChanged"], true, "{said}");
    assert!(about(&mut mcp).contains("looked up on the first call"));
    assert!(!home.socket().exists());
    // This server announces only what its client asks for.
    let mut inline = Mcp::inline(&home, &[], &json!({}));
    assert!(about(&mut inline).contains("looked up on the first call"));
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let subscription = inline.ask("subscriptions/listen", &wanted);
    inline.notification("notifications/subscriptions/acknowledged");
    for mcp in [&mut mcp, &mut inline] {
        mcp.done("background_list", &json!({}));
        mcp.notification("notifications/tools/list_changed");
        let about = about(mcp);
        assert!(about.contains("vailable"), "{about}");
        assert!(!about.contains("looked up"), "{about}");
    }
    cancel(&mut inline, subscription);
    let again = |message: &Value| message["method"] == "notifications/tools/list_changed";
    assert!(!mcp.unrequested().iter().any(again) && !inline.unrequested().iter().any(again));
}

/// A server that reaches the daemon through this relay, and whose tasks outlive a connection.
fn behind(relay: &Relay, daemon: &FakeDaemon, client: &str) -> Mcp {
    fs::create_dir_all(daemon.fake_home().0).unwrap();
    let mut command = daemon.bgctl(&["mcp", "--structured", "--keep", "--session", "s"]);
    command.env("BGD_SOCKET", relay.socket()).env("FAKE_ACP_HOME", daemon.fake_home().0);
    let mut mcp = Mcp::spawn(command);
    mcp.initialize(REVISION, client, &json!({}));
    mcp
}

#[test]
fn resume_is_not_sent_twice_to_the_same_daemon() {
    let daemon = FakeDaemon::start(&[], "");
    let relay = Relay::start(daemon.home(), daemon.socket());
    let mut mcp = behind(&relay, &daemon, "test");
    let task = json!({"agent": "fake", "description": "count", "prompt": "say one"});
    let id = mcp.done("background_task", &task).id();
    mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    relay.cut_behind("say the last words");
    let said =
        mcp.error("background_task", &json!({"resume": id.to_string(), "prompt": "say the last words"}));
    assert!(said.contains("it may have received this") && said.contains("background_list"), "{said}");
    let waited = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    assert_eq!(waited.content["tasks"][0]["resumed"], 1, "{}", waited.text);
    // A connection that broke while it was idle is reopened without any error.
    relay.cut();
    let again = mcp.done("background_task", &json!({"resume": id.to_string(), "prompt": "say two"}));
    assert_eq!(again.content["task"]["resumed"], 2, "{}", again.text);
    mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
}

#[test]
fn open_questions_are_looked_up_by_one_call_whatever_their_number() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let relay = Relay::start(daemon.home(), daemon.socket());
    let mut watch = daemon.watch();
    let params = SubmitParams { session: Some("s".to_owned()), ..daemon.prompt_params("ask May I?") };
    let ids: [TaskId; 3] = std::array::from_fn(|_| daemon.submit_with(&params).id);
    for _ in ids {
        watch.until(|event| event.kind == EventKind::NeedsInput);
    }
    daemon.run(&["answer", &ids[0].to_string(), "allow"]).success();
    daemon.block(&ids[..1]);
    let mut mcp = behind(&relay, &daemon, "test");
    let answer = mcp.done("background_list", &json!({}));
    let reports = answer.content["told"].as_array().unwrap();
    let asked = reports.iter().filter(|news| news["event"] == "needs_input");
    let mut asked: Vec<TaskId> =
        asked.map(|news| news["task_id"].as_str().unwrap().parse().unwrap()).collect();
    // In the order of their questions.
    asked.sort_by_key(|id| ids.iter().position(|one| one == id));
    assert_eq!(asked, ids[1..]);
    let said = relay.said();
    assert_eq!(said.matches("\"task.get\"").count(), 0, "{said}");
    assert_eq!(said.matches("\"task.list\"").count(), 2, "one is that of the tool: {said}");
}

#[test]
fn listener_resumes_where_its_connection_broke() {
    let daemon = FakeDaemon::start(&[], "");
    let relay = Relay::start(daemon.home(), daemon.socket());
    let mut mcp = behind(&relay, &daemon, "claude-code");
    let first = mcp.command("true").to_string();
    assert_eq!(mcp.notification("notifications/claude/channel")["meta"]["task_id"], first.as_str());
    relay.cut();
    let second = daemon.submit_in("s", "true").to_string();
    let event = mcp.notification("notifications/claude/channel");
    assert_eq!(event["meta"]["task_id"], second.as_str(), "and not the first again");
    assert!(mcp.done("background_list", &json!({})).text.contains("the tasks kept running"));
}

#[test]
fn unreadable_line_is_answered_with_its_id() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let call = |id: &str, more: &str| {
        format!("{{\"jsonrpc\": \"2.0\", \"id\": {id}, \"method\": \"tools/list\", \"params\": {{{more}}}}}")
    };
    for (line, id, words) in [
        (call("101", "\"_meta\": 7"), json!(101), "not a message of the protocol"),
        (call("102", "").replace("\"2.0\"", "2"), json!(102), "not a message of the protocol"),
        (call("\"a\"", "\"x\": "), json!("a"), "not valid JSON"),
        (format!("[{}]", call("103", "")), json!(103), "a line of its own"),
        (call("1.5", ""), Value::Null, "a string or a whole number"),
        (
            call("104", &format!("\"x\": \"{}\"", "x".repeat(17 << 20))),
            json!(104),
            "longer than 16777216 bytes",
        ),
    ] {
        mcp.write(&line);
        let answer = mcp.until(|message| message["error"].is_object());
        assert_eq!(answer["id"], id, "{answer}");
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(said.contains(words), "{said}");
    }
    for (method, params) in [
        ("logging/setLevel", json!({"level": "loud"})),
        ("tasks/get", json!({"taskId": 7})),
        ("tasks/cancel", json!({})),
    ] {
        let error = mcp.refused(method, &params);
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().unwrap().contains(method), "{error}");
    }
    assert_eq!(mcp.done("background_list", &json!({})).text, "No tasks of this session.");
}

#[test]
fn server_exits_with_141_when_client_closes_its_output() {
    let daemon = TestDaemon::start();
    let (reader, output) = std::io::pipe().unwrap();
    let mut command = daemon.bgctl(&["mcp"]);
    command.stdin(Stdio::piped()).stdout(output.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    drop(reader);
    // Children that other tests are starting have copies of the reading end for a moment.
    assert!(wait::readable(output.as_fd(), PATIENCE), "the output has a reader");
    let client = json!({"name": "deaf", "version": "1"});
    let params = json!({"protocolVersion": REVISION, "capabilities": {}, "clientInfo": client});
    let line = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{line}").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
    drop(input);
}

#[test]
fn socket_is_found_in_environment_of_ancestor_process() {
    let daemon = TestDaemon::start();
    for (name, value) in
        [("BGD_SOCKET", daemon.socket().to_owned()), ("XDG_RUNTIME_DIR", daemon.home().join("run"))]
    {
        let line = "env -i HOME=\"$HOME\" PATH=\"$PATH\" \"$0\" mcp --structured --no-start; true";
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).arg(bgctl_path()).current_dir(daemon.home());
        shell.env_clear().env("HOME", daemon.home()).env(name, &value).env("BGD_DAEMON", bgd_path());
        shell.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let mut mcp = Mcp::spawn(shell);
        mcp.initialize(REVISION, "test", &json!({}));
        let id = mcp.command(&format!("echo ${name}"));
        let waited = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
        assert_eq!(waited.content["tasks"][0]["result"], value.to_str().unwrap());
        assert_eq!(daemon.task(id).status, Status::Completed);
        assert!(mcp.close().success());
    }
}

#[test]
fn command_too_long_for_a_process_is_refused() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let command = |bytes: usize| format!("true {}", "x".repeat(bytes - 5));
    let longest = 128 * 1024 - 1;
    let error = mcp.error("background_command", &json!({"command": command(longest + 1)}));
    assert!(
        error.contains("\"command\" is too long: it has 131072 bytes") && error.contains("at most 131071"),
        "{error}"
    );
    assert!(error.contains("write it to a file"), "{error}");
    let id = mcp.command(&command(longest));
    mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    assert_eq!(daemon.task(id).status, Status::Completed);
}

#[test]
fn r37_task_without_any_agent_is_refused_saying_that_there_is_none() {
    let daemon = TestDaemon::start();
    let mut command = daemon.bgctl(&["mcp"]);
    command.env("PATH", "/nowhere");
    let mut mcp = Mcp::spawn(command);
    mcp.initialize(REVISION, "test", &json!({}));
    let said = mcp.error("background_task", &json!({"description": "d", "prompt": "p"}));
    assert!(said.contains("\n- \"agent\": ") && said.contains("\nNo agent is available"), "{said}");
}
