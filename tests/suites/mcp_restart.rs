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
    let told = ToolResult::of(&mcp.answer(request)["result"]);
    assert!(!told.is_error, "{}", told.text);
    assert!(mcp.close().success());
    stop(&daemon);
    told
}

#[test]
fn r131_wait_for_line_continues_after_restart() {
    assert_eq!(waits(&[], &json!({"line": "^done$"})).content["line"], "done");
}

#[test]
fn r131_wait_of_no_start_server_continues_after_restart() {
    for more in [json!({}), json!({"line": "^done$"})] {
        let told = waits(&["--no-start"], &more);
        assert!(told.text.contains("done"), "{}", told.text);
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
