//! `bgctl mcp` across a restart of a durable daemon (R131): waits and notifications continue.

use bgd_tests::TestDaemon;
use bgd_tests::mcp::{Mcp, REVISION, ToolResult};
use serde_json::json;

use super::channel_tty::Gate;
use super::durable_waiters::stop;

fn restart(daemon: &mut TestDaemon) {
    daemon.run(&["daemon", "restart"]).success();
    assert!(daemon.ended().success());
}

/// Makes a server with these options wait with these arguments, and returns its reply about the line that comes after
/// the restart.
fn waits(options: &[&str], more: &serde_json::Value) -> ToolResult {
    let mut daemon = TestDaemon::durable("");
    let gate = Gate::new(&daemon, "gate");
    let mut mcp = Mcp::start(&daemon, &[&["--keep"], options].concat());
    let id = mcp.command(&format!("read x <{}; echo done", daemon.home().join("gate").display()));
    let mut arguments = json!({"task_ids": [id.to_string()]});
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let params = json!({"name": "background_block", "arguments": arguments, "_meta": {"progressToken": 1}});
    let request = mcp.ask("tools/call", &params);
    mcp.notification("notifications/progress");
    restart(&mut daemon);
    gate.open();
    let answer = ToolResult::of(&mcp.answer(request)["result"]);
    assert!(!answer.is_error, "{}", answer.text);
    assert!(mcp.close().success());
    stop(&daemon);
    answer
}

#[test]
fn r131_wait_for_line_continues_after_restart() {
    assert_eq!(waits(&[], &json!({"line": "^done$"})).content["line"], "done");
}

#[test]
fn r131_wait_of_no_start_server_continues_after_restart() {
    for more in [json!({}), json!({"line": "^done$"})] {
        let answer = waits(&["--no-start"], &more);
        assert!(answer.text.contains("done"), "{}", answer.text);
    }
}

#[test]
fn r131_restart_is_not_reported_as_daemon_end() {
    let mut daemon = TestDaemon::durable("");
    let gate = Gate::new(&daemon, "gate");
    let mut mcp = Mcp::silent(&daemon, &["--keep"]);
    mcp.initialize(REVISION, "claude-code", &json!({}));
    let id = mcp.command(&format!("read x <{}", daemon.home().join("gate").display())).to_string();
    restart(&mut daemon);
    gate.open();
    let event = mcp.notification("notifications/claude/channel");
    assert_eq!(event["meta"], json!({"task_id": id, "event": "completed"}));
    assert!(mcp.close().success());
    stop(&daemon);
}

#[test]
fn r131_clear_after_restart_finds_the_ended_tasks() {
    let mut daemon = TestDaemon::durable("");
    let mut mcp = Mcp::start(&daemon, &["--keep"]);
    let id = mcp.command("true").to_string();
    mcp.done("background_block", &json!({"task_ids": [id]}));
    restart(&mut daemon);
    let answer = mcp.done("background_clear", &json!({}));
    assert!(answer.text.contains("Deleted 1 task."), "{}", answer.text);
    assert!(mcp.close().success());
    stop(&daemon);
}
