//! R117: ordered work with the tools of `bgctl mcp`: conditions on other tasks, groups, readiness, and waits for a
//! line.

use std::fs;

use bgd_shared::event::EventKind;
use bgd_shared::order::CancelReason;
use bgd_shared::task::Status;
use bgd_tests::mcp::{Mcp, REVISION, TASKS, ToolResult};
use bgd_tests::templates::shell_agent;
use bgd_tests::{FakeDaemon, TestDaemon, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

/// A daemon with gates at which its tasks wait by reading a line. Each gate serves one task, once.
fn gated(names: &[&str], config: &str) -> TestDaemon {
    let daemon = TestDaemon::builder().config(config).start();
    for name in names {
        mkfifo(&daemon.home().join(name), Mode::S_IRWXU).unwrap();
    }
    daemon
}

fn open_gate(daemon: &TestDaemon, name: &str) {
    wait::for_reader(&daemon.home().join(name), "go on\n");
}

fn start(mcp: &mut Mcp, command: &str, more: &Value) -> ToolResult {
    let mut arguments = more.clone();
    arguments["command"] = json!(command);
    arguments["cwd"] = json!("~");
    mcp.done("background_command", &arguments)
}

fn id(answer: &ToolResult) -> String {
    answer.id().to_string()
}

/// Returns the state of a task, by `background_output`.
fn seen(mcp: &mut Mcp, id: &str) -> ToolResult {
    mcp.done("background_output", &json!({"task_id": id}))
}

#[test]
fn r117_command_starts_after_others_and_reports_what_it_waits_for() {
    let daemon = gated(&["gate"], "");
    let mut mcp = Mcp::start(&daemon, &[]);
    let build = id(&start(&mut mcp, "read x < gate; exit 3", &json!({})));
    let tests = start(&mut mcp, "echo never", &json!({"after": [build]}));
    let waits = format!("waits: for {}", &build[..8]);
    assert!(
        tests.text.contains("starts when its conditions are met") && tests.text.contains(&waits),
        "{}",
        tests.text
    );
    assert_eq!(tests.content["task"]["waits"], format!("for {}", &build[..8]));
    // Models write lists like this, too.
    let mends = id(&start(&mut mcp, "echo mended", &json!({"after": format!("{build}:fail")})));
    let reports =
        id(&start(&mut mcp, "echo over", &json!({"after": format!("[\"{mends}\", \"{build}:any\"]")})));
    let listed = mcp.done("background_list", &json!({}));
    assert_eq!(listed.text.matches(&waits).count(), 3 - 1, "{}", listed.text);
    let late = mcp.done("background_block", &json!({"task_ids": [mends], "timeout": 0}));
    assert!(late.text.starts_with("Timed out (0ms); it has not started."), "{}", late.text);
    open_gate(&daemon, "gate");
    let over = mcp.done("background_block", &json!({"task_ids": [tests.id().to_string(), mends, reports]}));
    let of = |place: usize| over.content["tasks"][place].clone();
    assert_eq!((&of(1)["result"], &of(2)["result"]), (&json!("mended"), &json!("over")), "{}", over.text);
    assert_eq!(of(0)["status"], "cancelled");
    assert!(of(0)["error"].as_str().unwrap().contains(&build), "{}", over.text);
    assert_eq!(daemon.task(tests.id()).cancel_reason, Some(CancelReason::Dependency));
    let at_once = start(&mut mcp, "echo never", &json!({"after": [build]}));
    assert!(at_once.text.contains("It was cancelled at once"), "{}", at_once.text);
    assert!(at_once.text.contains("Nothing more will come from this task."), "{}", at_once.text);
    assert!(
        mcp.done("background_list", &json!({}))
            .reported_ids()
            .iter()
            .all(|reported| *reported != id(&at_once)),
        "told once"
    );
}

#[test]
fn r117_agent_prompt_includes_output_of_the_task_it_starts_after() {
    let daemon = gated(&["gate"], &shell_agent("mender", "echo \"$1\"", ""));
    let mut mcp = Mcp::start(&daemon, &[]);
    let build = id(&start(&mut mcp, "read x < gate; echo no rule; exit 2", &json!({})));
    let task = json!({
        "agent": "mender", "description": "mend it", "prompt": "Mend this: {after.output}",
        "after": [format!("{build}:fail")],
    });
    let mends = mcp.done("background_task", &task);
    assert!(mends.text.contains(&format!("waits: for {}", &build[..8])), "{}", mends.text);
    open_gate(&daemon, "gate");
    let over = mcp.done("background_block", &json!({"task_ids": [id(&mends)]}));
    assert_eq!(over.content["tasks"][0]["result"], "Mend this: no rule", "{}", over.text);
    for wrong in [json!({"after": [build]}), json!({"group": "default"})] {
        let mut arguments = wrong.clone();
        arguments["resume"] = json!(id(&mends));
        arguments["prompt"] = json!("And now?");
        let said = mcp.error("background_task", &arguments);
        assert!(said.contains("can't be combined with \"resume\""), "{said}");
    }
    let said = mcp.error("background_task", &json!({"prompt": "x", "ready": "tcp:80"}));
    assert!(
        said.contains("has no parameter \"ready\"") && said.contains("An agent never becomes ready"),
        "{said}"
    );
}

#[test]
fn r117_prompt_cannot_quote_another_session_without_all_sessions_flag() {
    let daemon = gated(&[], &shell_agent("parrot", "echo \"$1\"", ""));
    let foreign = daemon.submit(&["echo", "secret"]);
    daemon.block(&[foreign]);
    let mut mcp = Mcp::start(&daemon, &[]);
    let task = json!({"agent": "parrot", "description": "look", "prompt": "{after.output}"});
    for after in [foreign.to_string(), format!("{}:any", foreign.short())] {
        let mut task = task.clone();
        task["after"] = json!([after]);
        let said = mcp.error("background_task", &task);
        assert!(said.contains("belongs to another session"), "{said}");
        let said = mcp.error("background_command", &json!({"command": "true", "after": [after]}));
        assert!(said.contains("belongs to another session"), "{said}");
    }
    let mut allowed = Mcp::start(&daemon, &["--all-sessions"]);
    let mut task = task;
    task["after"] = json!([foreign.to_string()]);
    let answer = allowed.done("background_task", &task);
    let over = allowed.done("background_block", &json!({"task_ids": [id(&answer)]}));
    assert_eq!(over.content["tasks"][0]["result"], "secret", "{}", over.text);
}

#[test]
fn r117_task_waits_for_a_slot_of_its_group() {
    let daemon = gated(&["gate"], "[groups.gpu]\nslots = 1\n");
    let mut mcp = Mcp::start(&daemon, &[]);
    let begun = start(&mut mcp, "read x < gate", &json!({"group": "gpu"}));
    assert!(begun.text.contains("and is being started."), "{}", begun.text);
    assert!(!begun.text.contains("waits:"), "{}", begun.text);
    let queued = start(&mut mcp, "echo $BGD_GROUP", &json!({"group": " gpu "}));
    assert!(queued.text.contains("and starts as soon as a slot is free."), "{}", queued.text);
    let (first, second) = (id(&begun), id(&queued));
    let other = id(&start(&mut mcp, "echo free", &json!({"group": ""})));
    mcp.done("background_block", &json!({"task_ids": [other]}));
    let answer = seen(&mut mcp, &second);
    assert!(
        answer.text.contains("pending") && answer.text.contains("waits: for a free slot of the group gpu"),
        "{}",
        answer.text
    );
    daemon.run(&["group", "pause", "gpu"]).success();
    open_gate(&daemon, "gate");
    mcp.done("background_block", &json!({"task_ids": [first]}));
    let answer = mcp.done("background_list", &json!({"status": "pending"}));
    assert!(
        answer.text.contains("waits: the group gpu is paused: `bgctl group continue gpu`"),
        "{}",
        answer.text
    );
    daemon.run(&["group", "continue", "gpu"]).success();
    let over = mcp.done("background_block", &json!({"task_ids": [second]}));
    assert_eq!(over.content["tasks"][0]["result"], "gpu", "{}", over.text);
    let said = mcp.error("background_command", &json!({"command": "true", "group": "cpu"}));
    for part in ["unknown group \"cpu\"", "default", "gpu", "bgctl group set cpu --slots"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn r117_wait_until_ready_ends_when_task_is_ready_or_ended() {
    let daemon = gated(&["gate", "other", "end"], "");
    let mut mcp = Mcp::start(&daemon, &[]);
    let line = "read x < gate; echo listening; read x < end";
    let server = start(&mut mcp, line, &json!({"ready": "line:^listening$"}));
    let (server, name) = (server.id(), id(&server));
    daemon.wait_running(server);
    let tests = id(&start(&mut mcp, "echo tested", &json!({"after": [format!("{name}:ready")]})));
    let until_ready =
        |ids: &[&String], timeout: u64| json!({"task_ids": ids, "until": "ready", "timeout": timeout});
    let late = mcp.done("background_block", &until_ready(&[&name], 0));
    assert!(late.text.starts_with("Timed out (0ms); it is not ready."), "{}", late.text);
    assert!(late.text.contains("running, not ready yet"), "{}", late.text);
    assert!(late.text.contains("\"until\": \"ready\""), "how to wait on: {}", late.text);
    let (timed_out, ready) = (&late.content["timed_out"], &late.content["tasks"][0]["ready"]);
    assert_eq!((timed_out, ready), (&json!(true), &json!(false)));
    // Two of them, in a wait that reports its progress.
    let other = id(&start(&mut mcp, "read x < other", &json!({"ready": "file:up"})));
    let params = json!({
        "name": "background_block", "arguments": until_ready(&[&name, &other], 600_000), "_meta": {"progressToken": 7},
    });
    let request = mcp.ask("tools/call", &params);
    open_gate(&daemon, "gate");
    while mcp.notification("notifications/progress")["message"] != "1 of 2 tasks is ready" {}
    fs::write(daemon.home().join("up"), "").unwrap();
    let both = ToolResult::of(&mcp.answer(request)["result"]);
    assert!(both.text.contains("All 2 are ready, or were."), "{}", both.text);
    assert_eq!((&both.content["timed_out"], &both.content["finished"]), (&json!(false), &json!([])));
    let one = mcp.done("background_block", &until_ready(&[&name], 600_000));
    assert!(one.text.contains("It is ready.") && one.text.contains("running, ready"), "{}", one.text);
    mcp.done("background_block", &json!({"task_ids": [tests], "until": "ended"}));
    assert_eq!(seen(&mut mcp, &tests).content["output"], "tested");
    // A task that ends first.
    let never = id(&start(&mut mcp, "exit 1", &json!({"ready": "file:never"})));
    let over = mcp.done("background_block", &until_ready(&[&never], 600_000));
    assert!(over.text.contains("It has ended without becoming ready."), "{}", over.text);
    let some = mcp.done("background_block", &until_ready(&[&never, &name], 600_000));
    assert!(some.text.contains("1 of 2 is ready, or was; the other ended"), "{}", some.text);
    // A task that cannot become ready.
    let command = mcp.command("exec sleep 1000").to_string();
    let said = mcp.error("background_block", &until_ready(&[&name, &command], 600_000));
    let expected = format!("Task {command} was started without \"ready\"");
    assert!(said.contains(&expected) && said.contains("with \"line\""), "{said}");
}

#[test]
fn r117_wait_for_line_returns_line_already_printed_or_still_to_come() {
    let daemon = gated(&["gate", "end"], "");
    let mut mcp = Mcp::start(&daemon, &[]);
    let task = start(
        &mut mcp,
        "echo starting; read x < gate; echo 'listening on port 80'; read x < end",
        &json!({}),
    );
    let (task, name) = (task.id(), id(&task));
    daemon.wait_running(task);
    wait::for_line(daemon.task(task).output.path.as_ref(), "starting");
    let line = |regex: &str, timeout: u64| json!({"task_ids": [name], "line": regex, "timeout": timeout});
    let at_once = mcp.done("background_block", &line("^start", 0));
    assert!(at_once.text.starts_with("It printed this line:\n\nstarting\n\n"), "{}", at_once.text);
    assert_eq!(
        (&at_once.content["line"], &at_once.content["timed_out"]),
        (&json!("starting"), &json!(false))
    );
    let late = mcp.done("background_block", &line("port \\d+", 0));
    let words = "Timed out (0ms); it has not printed a matching line.";
    assert!(late.text.starts_with(words) && late.text.contains(r#""line": "port \\d+""#), "{}", late.text);
    assert_eq!((&late.content["line"], &late.content["timed_out"]), (&Value::Null, &json!(true)));
    let before = daemon.status().subscriptions;
    let params = json!({"name": "background_block", "arguments": line("port \\d+$", 600_000), "_meta": {"progressToken": 7}});
    let request = mcp.ask("tools/call", &params);
    mcp.notification("notifications/progress");
    wait::poll_until("it listens", || (daemon.status().subscriptions > before).then_some(()));
    open_gate(&daemon, "gate");
    let answer = ToolResult::of(&mcp.answer(request)["result"]);
    assert_eq!(answer.content["line"], "listening on port 80", "{}", answer.text);
    assert!(answer.text.contains("running"), "{}", answer.text);
    let request =
        mcp.ask("tools/call", &json!({"name": "background_block", "arguments": line("no such", 600_000)}));
    open_gate(&daemon, "end");
    let over = ToolResult::of(&mcp.answer(request)["result"]);
    assert!(over.text.contains("It has ended without a matching line."), "{}", over.text);
    assert_eq!(
        (&over.content["timed_out"], &over.content["tasks"][0]["status"]),
        (&json!(false), &json!("completed"))
    );
    let still = mcp.done("background_block", &line("port", 600_000));
    assert_eq!(still.content["line"], "listening on port 80", "also of one that has ended");
}

#[test]
fn r117_wait_for_line_is_cut_short_and_can_be_cancelled() {
    let daemon = gated(&[], "");
    let mut mcp = Mcp::start(&daemon, &["--max-block", "1ms"]);
    let name = mcp.command("exec sleep 1000").to_string();
    let block = json!({"name": "background_block", "arguments": {"task_ids": [name], "line": "never"}});
    let cut = ToolResult::of(&mcp.result("tools/call", &block));
    assert_eq!(
        (&cut.content["cut"], &cut.content["timed_out"]),
        (&json!(true), &json!(true)),
        "{}",
        cut.text
    );
    // A wait that is a task of the protocol is not cut short; the daemon notices when it is abandoned.
    let mut tasks = Mcp::silent(&daemon, &["--max-block", "1ms"]);
    tasks.initialize(REVISION, "test", &json!({"extensions": {TASKS: {}}}));
    let name = tasks.command("exec sleep 1000").to_string();
    let before = daemon.status().subscriptions;
    let block = json!({"name": "background_block", "arguments": {"task_ids": [name], "line": "never"}});
    let wait = tasks.result("tools/call", &block);
    wait::poll_until("it listens", || (daemon.status().subscriptions > before).then_some(()));
    tasks.result("tasks/cancel", &json!({"taskId": wait["taskId"]}));
    wait::poll_until("it has given up", || (daemon.status().subscriptions == before).then_some(()));
}

#[test]
fn r117_wait_for_line_ends_when_agent_asks_or_daemon_is_killed() {
    let mut daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let mut mcp = Mcp::with_fakes(&daemon);
    let gate = daemon.home().join("go");
    let prompt = format!(
        "await {}; ask-call {{\"title\":\"List files\",\"rawInput\":{{\"command\":\"rm -rf x\"}}}}",
        gate.display()
    );
    let task = json!({"agent": "fake", "description": "clean", "prompt": prompt});
    let name = id(&mcp.done("background_task", &task));
    let block = json!({"name": "background_block", "arguments": {"task_ids": [name], "line": "never", "timeout": 600_000}});
    let request = mcp.ask("tools/call", &block);
    fs::write(&gate, "").unwrap();
    let answer = ToolResult::of(&mcp.answer(request)["result"]);
    assert!(answer.text.contains("It asks the user a question"), "{}", answer.text);
    assert_eq!(answer.content["timed_out"], false);
    let name = mcp.command("exec sleep 1000").to_string();
    let before = daemon.status().subscriptions;
    let block = json!({"name": "background_block", "arguments": {"task_ids": [name], "line": "never", "timeout": 600_000}});
    let request = mcp.ask("tools/call", &block);
    wait::poll_until("it listens", || (daemon.status().subscriptions > before).then_some(()));
    daemon.kill9();
    let said = ToolResult::of(&mcp.answer(request)["result"]);
    assert!(said.is_error && said.text.contains("The bgd daemon ended and was restarted"), "{}", said.text);
    assert!(said.text.contains("What to do: background_list"), "{}", said.text);
}

#[test]
fn r117_bad_input_is_named_and_starts_nothing() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let one = mcp.command("exec sleep 1000").to_string();
    let two = mcp.command("exec sleep 1000").to_string();
    let long = "x".repeat(1 << 20);
    for (more, words) in [
        (
            json!({"after": [format!("{one}:done")]}),
            "unknown condition \"done\": one of ok, any, fail, start, ready",
        ),
        (json!({"after": [format!("{one}:done")]}), "Use ID or ID:ok|any|fail|start|ready"),
        (json!({"after": ["@"]}), "\"@\" is not a task id"),
        (json!({"after": ["bg_1"]}), "\"bg_1\" is not a task id"),
        (json!({"after": ["00000000"]}), "What to do: background_list"),
        (json!({"after": 7}), "must be a list of task ids"),
        (json!({"after": [one, 7]}), "must be a list of task ids"),
        (json!({"after": vec![&one; 101]}), "has 101 ids, but at most 100"),
        (json!({"group": 7}), "\"group\" must be a string"),
        (json!({"group": &long[..100_000]}), "is not a valid group name"),
        (json!({"ready": "port 80"}), "\"ready\": \"port 80\" is not one of line:REGEX, tcp:[HOST:]PORT"),
        (json!({"ready": "tcp:99999"}), "\"99999\" is not a port: give a number from 1 to 65535"),
        (json!({"ready": "line:("}), "unclosed group"),
        (json!({"ready": "https://localhost/"}), "does not begin with http://"),
        (json!({"ready": long}), "at most 4096 are allowed"),
    ] {
        let mut arguments = more.clone();
        arguments["command"] = json!("true");
        let said = mcp.error("background_command", &arguments);
        assert!(said.contains(words), "{words}: {said}");
        assert!(said.len() < 10_000, "{} bytes", said.len());
    }
    for (more, words) in [
        (json!({"line": "a(b"}), "unclosed group"),
        (json!({"line": "a(b"}), "escape literal characters"),
        (json!({"line": "(?:a{1000}){1000}"}), "needs more than 1048576 bytes"),
        (json!({"line": long}), "at most 4096 are allowed"),
        (json!({"line": 7}), "must be a string"),
        (json!({"line": "x", "until": "ready"}), "can't be combined"),
        (json!({"line": "x", "task_ids": [one, two]}), "\"task_ids\" has 2: make one call"),
        (json!({"line": "x", "task_ids": ["00000000"]}), "What to do: background_list"),
        (json!({"until": "end"}), "\"until\" must be one of ended, ready; it is \"end\""),
    ] {
        let mut arguments = json!({"task_ids": [one]});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let said = mcp.error("background_block", &arguments);
        assert!(said.contains(words), "{words}: {said}");
        assert!(said.len() < 10_000, "{} bytes", said.len());
    }
    let listed = mcp.done("background_list", &json!({}));
    assert_eq!(listed.content["tasks"].as_array().unwrap().len(), 2, "{}", listed.text);
}

#[test]
fn r117_paused_task_is_shown_as_paused() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let task = mcp.command("exec sleep 1000");
    daemon.wait_running(task);
    let mut watch = daemon.watch();
    daemon.run(&["pause", &task.to_string()]).success();
    watch.until_kind(task, EventKind::Paused);
    let answer = seen(&mut mcp, &task.to_string());
    assert!(answer.text.contains("running, paused by the user"), "{}", answer.text);
    assert_eq!(answer.content["task"]["paused"], true);
    assert_eq!(daemon.task(task).status, Status::Running);
}
