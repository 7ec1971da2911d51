//! Tasks on another machine (R145) and how their user and their agent are notified of them: notices, inbox, channels,
//! and the tools of `bgctl mcp`.

use std::fs;

use bgd_tests::far::Far;
use bgd_tests::mcp::{Mcp, REVISION};
use bgd_tests::shared::notice::{Notice, NoticeKind};
use bgd_tests::shared::task::Status;
use bgd_tests::{TestDaemon, wait};
use serde_json::{Value, json};

/// Two machines; this one's daemon sends notices to a hook.
fn with_hook() -> Far {
    Far::with_here(
        "default_deliver_to = [\"ops\"]\n[channels.ops]\ntype = \"exec\"\n\
         command = [\"/bin/sh\", \"-c\", 'cat >>\"$HOME/told\"']\n",
    )
}

/// Returns the notices that the hook received, once there are at least `count`.
fn notices(far: &mut Far, count: usize) -> Vec<Notice> {
    let path = far.home().join("told");
    wait::for_change(&path, || {
        let text = fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))?;
        let notices = text.lines().map(|line| serde_json::from_str(line).unwrap());
        Some(notices.collect::<Vec<Notice>>()).filter(|all| all.len() >= count)
    })
}

#[test]
fn r145_remote_completions_are_notified_locally_once() {
    let mut far = with_hook();
    let ends = |all: &[Notice]| {
        let ends = all.iter().filter(|notice| notice.kind.is_end());
        ends.map(|notice| (notice.task.id, notice.kind)).collect::<Vec<_>>()
    };
    let both = |far: &mut Far, channel: &str| {
        let options = |name: &'static str| ["--session", "s", "--channel", channel, "-d", name];
        let fails = far.submit_on(&options("the build"), "echo output of it; exit 3");
        far.ended(fails);
        let works = far.submit_on(&options("the tests"), "echo fine");
        far.ended(works);
        [(fails, NoticeKind::Failed), (works, NoticeKind::Completed)]
    };
    let expected = both(&mut far, "ops");
    let heard =
        wait::poll_until("both ends", || Some(notices(&mut far, 1)).filter(|all| ends(all).len() == 2));
    assert_eq!(ends(&heard), expected);
    let of_build = heard.iter().find(|notice| notice.kind == NoticeKind::Failed).unwrap();
    assert_eq!(of_build.task.on.as_deref(), Some("far"));
    assert_eq!(of_build.result.as_ref().unwrap().text, "output of it\n");
    assert!(of_build.title.contains("exited with code 3"), "{}", of_build.title);
    // An inbox has all notices of its session, whatever their channel.
    let expected = [expected, both(&mut far, "inbox")].concat();
    let inbox: Vec<Notice> = far.here().inbox("s").into_iter().map(|item| item.notice).collect();
    assert_eq!(ends(&inbox), expected);
    let shown = far.run_here(&["inbox", "--session", "s", "--ack"]).success().stdout_text();
    assert!(shown.contains("the build") && shown.contains("output of it"), "{shown}");
    // The remote daemon notifies nobody, and keeps no notices.
    wait::poll_until("no notices there", || {
        far.run(&["inbox", "--all-sessions"]).success().stdout.is_empty().then_some(())
    });
}

#[test]
fn r145_agent_starts_lists_awaits_and_cancels_remote_tasks() {
    let mut far = Far::with_here("");
    let mut mcp = Mcp::spawn(far.here().bgctl(&["mcp", "--structured"]));
    mcp.initialize(REVISION, "claude-code", &json!({}));
    let tools = mcp.result("tools/list", &json!({}));
    let of = |name: &str| {
        tools["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap().clone()
    };
    assert_eq!(of("background_command")["inputSchema"]["properties"]["on"]["enum"], json!(["far"]));
    assert!(of("background_task")["inputSchema"]["properties"]["on"].is_null());
    let start = |mcp: &mut Mcp, line: &str| {
        mcp.done("background_command", &json!({"command": line, "on": "far", "cwd": "/tmp"}))
    };
    // It is a task of this daemon, with the folder and home of the other machine; it knows its nesting depth.
    let first = start(&mut mcp, "echo \"on $HOME, depth $BGD_MCP_DEPTH\"; pwd; exit 3");
    assert_eq!(first.content["task"]["on"], "far");
    let id = first.id().to_string();
    let over = mcp.done("background_block", &json!({"task_ids": [id]}));
    let home = far.daemon.home().display().to_string();
    let result = over.content["tasks"][0]["result"].as_str().unwrap();
    assert_eq!(result, format!("on {home}, depth 1\n/tmp"));
    assert_eq!(
        (&over.content["tasks"][0]["exit_code"], &over.content["finished"]),
        (&json!(3), &json!([id]))
    );
    // Without a folder, it runs in the remote home.
    let plain = mcp.done("background_command", &json!({"command": "pwd", "on": "far"})).id().to_string();
    mcp.done("background_block", &json!({"task_ids": [plain]}));
    let line = start(&mut mcp, "echo one; echo two; exec sleep 1000").id();
    let found = mcp.done("background_block", &json!({"task_ids": [line.to_string()], "line": "tw"}));
    assert_eq!(found.content["line"], "two", "{}", found.text);
    let output = mcp.done("background_output", &json!({"task_id": line.to_string()}));
    assert_eq!(output.content["output"], "one\ntwo");
    let listed = mcp.done("background_list", &json!({"status": "running"}));
    assert!(listed.text.contains("[on far]"), "{}", listed.text);
    assert_eq!(listed.content["tasks"][0]["on"], "far");
    let cancelled = mcp.done("background_cancel", &json!({"task_id": line.to_string()}));
    assert_eq!(cancelled.content["tasks"][0]["status"], "cancelled");
    // The end of another task wakes the agent.
    let wakes = start(&mut mcp, "true").id();
    far.here().ends_as(wakes, Status::Completed);
    loop {
        let woken = mcp.notification("notifications/claude/channel");
        if woken["meta"]["task_id"] == wakes.to_string() {
            break;
        }
    }
    mcp.done("background_clear", &json!({}));
    assert_eq!(mcp.done("background_list", &json!({})).content["tasks"], json!([]));
    wait::poll_until("nothing is left there", || far.tasks_there().is_empty().then_some(()));
}

#[test]
fn r145_agent_sees_executor_errors_and_unreachable_machine() {
    let mut far = Far::with_here("");
    let mut mcp = Mcp::spawn(far.here().bgctl(&["mcp", "--structured"]));
    mcp.initialize(REVISION, "test", &json!({}));
    let unknown = mcp.error("background_command", &json!({"command": "true", "on": "moon"}));
    assert!(unknown.contains("unknown executor \"moon\"") && unknown.contains("far"), "{unknown}");
    let relative = mcp.error("background_command", &json!({"command": "true", "on": "far", "cwd": "~/src"}));
    assert!(relative.contains("\"cwd\" must be an absolute path"), "{relative}");
    let id = mcp.done("background_command", &json!({"command": "sleep 1000", "on": "far"})).id();
    far.until(id, "it runs", |task| task.status == Status::Running);
    far.wrap("exit 255");
    far.cut_here();
    far.until(id, "it is not known", |task| {
        task.elsewhere.as_ref().is_some_and(|one| one.unknown_since.is_some())
    });
    let listed = mcp.done("background_list", &json!({}));
    assert!(listed.text.contains("far has not been reachable since"), "{}", listed.text);
    assert!(listed.content["tasks"][0]["unknown_since"].is_string(), "{}", listed.content);
    far.wrap("");
    mcp.done("background_cancel", &json!({"all": true}));
    // Where no executor is configured, none can be named.
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let tools = mcp.result("tools/list", &json!({}));
    let command = tools["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "background_command");
    assert_eq!(command.unwrap()["inputSchema"]["properties"]["on"], Value::Null);
    let none = mcp.error("background_command", &json!({"command": "true", "on": "far"}));
    assert!(none.contains("none is configured"), "{none}");
}
