//! `bgctl mcp`: how it ends and its parent session with it (R54), the daemon's end, and agents within agents.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_tests::mcp::{Mcp, REVISION, ToolResult};
use bgd_tests::{Terminal, TestDaemon};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Waits until a task is cleared.
fn cleared(daemon: &TestDaemon, id: TaskId, end: impl FnOnce()) {
    let mut watch = daemon.watch();
    end();
    watch.until(|event| event.task.id == id && event.kind == bgd_shared::event::EventKind::Cleared);
}

#[test]
fn r54_server_exit_ends_its_session() {
    let daemon = TestDaemon::start();
    for how in ["close", "term", "kill"] {
        let mut mcp = Mcp::start(&daemon, &[]);
        let id = mcp.command("sleep 1000");
        let process = {
            let pid = daemon.wait_running(id).pid.unwrap();
            bgd_tests::Process::open(pid).unwrap()
        };
        let session = daemon.task(id).session.unwrap();
        assert!(session.starts_with("mcp:") && session.len() == 12, "{session}");
        cleared(&daemon, id, || match how {
            "close" => assert!(mcp.close().success()),
            "term" => assert!(mcp.signal(Signal::TERM).success()),
            _ => assert!(!mcp.signal(Signal::KILL).success()),
        });
        process.gone();
    }
}

#[test]
fn wait_in_progress_does_not_delay_server_exit() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("sleep 1000");
    let arguments = json!({"task_ids": [id.to_string()]});
    let params = json!({"name": "background_block", "arguments": arguments, "_meta": {"progressToken": 1}});
    mcp.ask("tools/call", &params);
    mcp.notification("notifications/progress");
    cleared(&daemon, id, || assert!(mcp.close().success()));
}

#[test]
fn keep_flag_leaves_tasks_running_for_next_server_of_the_session() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--keep", "--session", "work"]);
    let id = mcp.command("sleep 1000");
    daemon.wait_running(id);
    assert!(mcp.close().success());
    assert_eq!(daemon.task(id).status, Status::Running);
    let mut mcp = Mcp::start(&daemon, &["--session", "work"]);
    let listed = mcp.done("background_list", &json!({}));
    assert_eq!(listed.content["tasks"][0]["task_id"], id.to_string());
    cleared(&daemon, id, || assert!(mcp.close().success()));
}

#[test]
fn session_is_taken_from_the_environment() {
    let daemon = TestDaemon::start();
    let mut command = daemon.bgctl(&["mcp", "--structured", "--keep"]);
    command.env("BGD_SESSION", "mine");
    let mut mcp = Mcp::spawn(command);
    let said = mcp.initialize(REVISION, "test", &json!({}));
    assert!(said["instructions"].as_str().unwrap().contains("The tasks keep running"), "{said}");
    let id = mcp.command("true");
    assert_eq!(daemon.task(id).session.as_deref(), Some("mine"));
}

#[test]
fn daemon_is_started_by_first_call_and_again_after_it_stopped() {
    let home = TestDaemon::home_only();
    let mut mcp = Mcp::start(&home, &["--session", "s"]);
    assert!(!home.socket().exists(), "nobody has called");
    let id = mcp.command("sleep 1000");
    home.wait_running(id);
    let first = home.process();
    home.run(&["daemon", "stop"]).success();
    first.gone();
    let said = mcp.error("background_output", &json!({"task_id": id.to_string()}));
    assert!(said.starts_with("The bgd daemon ended and was restarted."), "{said}");
    assert!(said.contains("there is no task"), "{said}");
    let again = mcp.command("sleep 1000");
    home.wait_running(again);
    // The server owns its session again.
    cleared(&home, again, || assert!(mcp.close().success()));
}

#[test]
fn wait_returns_an_explained_error_when_daemon_is_killed() {
    let mut daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("sleep 1000");
    daemon.wait_running(id);
    let arguments = json!({"task_ids": [id.to_string()]});
    let params = json!({"name": "background_block", "arguments": arguments, "_meta": {"progressToken": 1}});
    let request = mcp.ask("tools/call", &params);
    mcp.notification("notifications/progress");
    daemon.kill9();
    let answer = mcp.answer(request);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("The bgd daemon ended and was restarted."), "{text}");
    assert!(text.contains("there is no task"), "{text}");
    assert_eq!(answer["result"]["isError"], true);
    assert_eq!(mcp.done("background_list", &json!({})).text, "No tasks of this session.");
    drop(mcp);
    daemon.run(&["daemon", "stop"]).success();
}

/// The user who stopped the daemon does not want another one.
#[test]
fn wait_that_ends_with_a_stopped_daemon_starts_no_other() {
    let home = TestDaemon::home_only();
    let mut mcp = Mcp::start(&home, &[]);
    let id = mcp.command("echo out; exec sleep 1000");
    home.wait_running(id);
    let arguments = json!({"task_ids": [id.to_string()]});
    let params = json!({"name": "background_block", "arguments": arguments, "_meta": {"progressToken": 1}});
    let request = mcp.ask("tools/call", &params);
    mcp.notification("notifications/progress");
    let daemon = home.process();
    home.run(&["daemon", "stop"]).success();
    daemon.gone();
    let answer = mcp.answer(request);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    // The answer comes before or after the end of the daemon itself.
    let says = |sentence| text.contains(sentence);
    assert!(says("The bgd daemon has ended.") || says("the daemon was shut down"), "{text}");
    assert!(!says("background_output {"), "there is no output left: {text}");
    home.run(&["--no-start", "daemon", "status"]).expect_code(69);
    assert!(mcp.close().success());
}

/// Such a daemon sends no event about the tasks that it leaves: it closes the connection of a wait for a line.
#[test]
fn wait_that_ends_with_a_stopped_durable_daemon_starts_no_other() {
    for line in [None, Some("never")] {
        let mut daemon = TestDaemon::durable("");
        let mut mcp = Mcp::start(&daemon, &[]);
        let id = mcp.command("exec sleep 1000");
        daemon.wait_running(id);
        let mut arguments = json!({"task_ids": [id.to_string()]});
        if let Some(line) = line {
            arguments["line"] = json!(line);
        }
        let params =
            json!({"name": "background_block", "arguments": arguments, "_meta": {"progressToken": 1}});
        let request = mcp.ask("tools/call", &params);
        mcp.notification("notifications/progress");
        daemon.run(&["daemon", "stop"]).success();
        assert!(daemon.ended().success());
        let answer = mcp.answer(request);
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("The bgd daemon has ended."), "{line:?}: {text}");
        daemon.run(&["--no-start", "daemon", "status"]).expect_code(69);
        assert!(mcp.close().success());
        daemon.launch();
        daemon.cancel(&[id]);
    }
}

#[test]
fn no_start_flag_makes_tools_report_missing_daemon() {
    let home = TestDaemon::home_only();
    let mut mcp = Mcp::start(&home, &["--no-start"]);
    let tools = mcp.result("tools/list", &json!({}));
    let about = tools["tools"][0]["description"].as_str().unwrap();
    assert!(about.contains("looked up on the first call"), "{about}");
    for (tool, arguments) in
        [("background_command", json!({"command": "true"})), ("background_list", json!({}))]
    {
        let said = mcp.error(tool, &arguments);
        assert!(said.contains("bgctl daemon status"), "{said}");
    }
    assert!(mcp.close().success());
}

#[test]
fn nested_agent_gets_no_start_tools_unless_depth_allows() {
    let daemon = TestDaemon::start();
    let within = |args: &[&str], depth: &str| {
        let mut command = daemon.bgctl(&[&["mcp", "--structured"], args].concat());
        command.env("BGD_MCP_DEPTH", depth).env("BGD_SESSION", "the parent's");
        let mut mcp = Mcp::spawn(command);
        let said = mcp.initialize(REVISION, "test", &json!({}));
        (mcp, said["instructions"].as_str().unwrap().to_owned())
    };
    for (args, depth, why, way) in [
        (&[][..], "1", "in a background task of another agent", "`bgctl mcp --depth 2`"),
        (&["--depth", "2"], "2", "in a background task of another agent", "`bgctl mcp --depth 3`"),
        (&["--depth", "0"], "0", "the user has disabled them", "`bgctl mcp --depth 1`"),
        (&[], "no number", "is \"no number\", not a number", "`export BGD_MCP_DEPTH=0`"),
    ] {
        let (mut mcp, said) = within(args, depth);
        assert!(said.contains(why) && said.contains(way), "{said}");
        let tools = mcp.result("tools/list", &json!({}));
        let names: Vec<_> =
            tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
        assert_eq!(names.len(), 5, "{names:?}");
        assert!(!names.contains(&json!("background_task")) && !names.contains(&json!("background_command")));
        let said = mcp.error("background_command", &json!({"command": "true"}));
        assert!(said.contains("do the work yourself") && said.contains(why) && said.contains(way), "{said}");
    }
    let (mut mcp, said) = within(&["--depth", "2"], "1");
    assert!(
        !said.contains("not available") && said.contains("The tasks and their output are deleted when"),
        "{said}"
    );
    let id = mcp.command("echo $BGD_MCP_DEPTH");
    let task = daemon.block(&[id]).remove(0);
    assert!(task.session.unwrap().starts_with("mcp:"), "the session of its parent is not its own");
    assert_eq!(daemon.output(id), b"2\n");
}

#[test]
fn server_started_on_a_terminal_explains_its_purpose() {
    let daemon = TestDaemon::start();
    let mut terminal = Terminal::bgctl(&daemon, &["mcp"]);
    terminal.wait_text("expects messages from an AI agent");
    terminal.type_keys("\u{4}");
    assert!(terminal.ended().success(), "{terminal:?}");
}

/// Node gives its children sockets where others give pipes.
#[test]
fn standard_streams_may_be_sockets() {
    let daemon = TestDaemon::start();
    let (here, there) = UnixStream::pair().unwrap();
    let mut command = daemon.bgctl(&["mcp"]);
    let output = OwnedFd::from(there.try_clone().unwrap());
    let mut child = command.stdin(OwnedFd::from(there)).stdout(output).stderr(Stdio::null()).spawn().unwrap();
    drop(command); // closes its copy of the other end
    let mut lines = BufReader::new(here.try_clone().unwrap()).lines();
    let client = json!({"name": "node", "version": "1"});
    let params = json!({"protocolVersion": REVISION, "capabilities": {}, "clientInfo": client});
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "background_list"}}),
    ] {
        (&here).write_all(format!("{message}\n").as_bytes()).unwrap();
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], message["id"], "{answer}");
    }
    here.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn r24_wait_stopped_by_end_of_input_is_not_a_timeout() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("sleep 1000").to_string();
    let block = json!({"name": "background_block", "arguments": {"task_ids": [id]}});
    let request = mcp.ask("tools/call", &block);
    mcp.end_input();
    let answer = ToolResult::of(&mcp.answer(request)["result"]);
    assert!(answer.text.contains("this server's input has ended; it is still running"), "{}", answer.text);
    assert!(
        !answer.text.contains("Timed out") && !answer.text.contains("call background_block"),
        "{}",
        answer.text
    );
    assert_eq!((&answer.content["timed_out"], &answer.content["cut"]), (&json!(false), &json!(false)));
    assert!(mcp.close().success());
}

#[test]
fn invalid_line_is_answered_before_server_exits() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::silent(&daemon, &[]);
    mcp.write("garbage");
    mcp.end_input();
    let error = mcp.until(|message| message["error"]["code"] == -32700);
    assert!(error["id"].is_null(), "{error}");
    assert!(mcp.close().success());
}

#[test]
fn r80_server_given_the_current_session_shows_its_tasks() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_in("mine", "exec sleep 1000");
    let mut command = daemon.bgctl(&["mcp", "--structured", "--keep", "--session", "."]);
    command.env("BGD_SESSION", "mine");
    let mut mcp = Mcp::spawn(command);
    mcp.initialize(bgd_tests::mcp::REVISION, "test", &serde_json::json!({}));
    let listed = mcp.done("background_list", &serde_json::json!({}));
    assert!(listed.text.contains(&id.to_string()), "{}", listed.text);
    assert!(mcp.close().success());
    daemon.cancel(&[id]);
}

#[test]
fn clear_of_whole_session_reports_no_cancelled_task_beyond_one_page() {
    const LONG: usize = 120 * 1024;
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 20").start();
    let mut mcp = Mcp::start(&daemon, &[]);
    // The newest fill a page of the list.
    for _ in 0..12 {
        mcp.command(&format!("exec sleep 1000 # {}", "x".repeat(LONG)));
    }
    let cleared = mcp.done("background_clear", &json!({"all": true}));
    assert_eq!(cleared.content["cleared"], 12);
    assert!(cleared.reported_ids().is_empty(), "{}", cleared.head());
}
