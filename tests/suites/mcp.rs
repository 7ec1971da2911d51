//! `bgctl mcp`: what every tool answers and refuses (R80), line by line.

use std::fs;

use bgd_shared::request::{ListParams, TaskList};
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;
use bgd_tests::mcp::{INLINE_REVISION, Mcp, REVISION, ToolResult};
use bgd_tests::{FakeDaemon, TestDaemon, wait};
use serde_json::{Value, json};

/// Returns a shell command that waits at a FIFO, and a function that lets it continue.
fn gate(daemon: &TestDaemon, name: &str) -> (String, impl Fn() + use<>) {
    let path = daemon.home().join(name);
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let line = format!("echo begun; read word < {}; echo $word", path.display());
    (line, move || wait::for_reader(&path, "done\n"))
}

#[test]
fn r80_tools_are_listed_with_schemas_and_hints() {
    let daemon = FakeDaemon::start(&[], "");
    let mut mcp = Mcp::silent_with_fakes(&daemon);
    let said = mcp.initialize(REVISION, "test", &json!({}));
    assert_eq!(said["protocolVersion"], REVISION);
    assert_eq!(said["serverInfo"]["name"], "bgd");
    assert!(said["capabilities"]["experimental"]["claude/channel"].is_object(), "{said}");
    assert!(said["instructions"].as_str().unwrap().contains("Do not poll"), "{said}");
    let tools = mcp.result("tools/list", &json!({}))["tools"].take();
    let names: Vec<&str> =
        tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "background_task",
            "background_command",
            "background_output",
            "background_block",
            "background_cancel",
            "background_list",
            "background_clear",
        ]
    );
    for tool in tools.as_array().unwrap() {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        assert!(
            !tool["outputSchema"].to_string().contains("output_file") || tool["name"] == "background_output"
        );
        assert!(tool["annotations"]["readOnlyHint"].is_boolean(), "{tool}");
    }
    let about = tools[0]["description"].as_str().unwrap();
    assert!(about.contains("Available agents: ") && about.contains("fake"), "{about}");
    assert!(mcp.close().success());
}

/// Starts the server as agents do; the other tests request structured content, too.
fn as_agents_do(daemon: &TestDaemon) -> Mcp {
    let mut mcp = Mcp::spawn(daemon.bgctl(&["mcp"]));
    mcp.initialize(REVISION, "test", &json!({}));
    mcp
}

#[test]
fn replies_are_plain_text_without_structured_flag() {
    let daemon = TestDaemon::start();
    let mut mcp = as_agents_do(&daemon);
    let mut call = |name: &str, arguments: Value| {
        let result = mcp.result("tools/call", &json!({"name": name, "arguments": arguments}));
        assert!(result.get("structuredContent").is_none(), "{result}");
        assert!(result["isError"] != true, "{result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    };
    for number in 0..11 {
        call("background_command", json!({"command": format!("echo {number}"), "description": "x"}));
    }
    let listed = daemon.client().call::<TaskList>(&ListParams::default()).unwrap();
    let ids: Vec<String> = listed.tasks.iter().map(|task| task.id.to_string()).collect();
    call("background_block", json!({"task_ids": ids}));
    let listed = call("background_list", json!({}));
    assert!(ids.iter().all(|id| listed.contains(id)), "{listed}");
    assert!(listed.len() < 11 * 80 + 100 && !listed.contains('/'), "{} bytes:\n{listed}", listed.len());
    assert!(call("background_output", json!({"task_id": ids[0]})).contains("completed"));
    call("background_clear", json!({}));
}

#[test]
fn tools_list_stays_below_6000_bytes() {
    let daemon = FakeDaemon::start(&[], "");
    let mut mcp = as_agents_do(&daemon);
    let listed = mcp.result("tools/list", &json!({}));
    assert!(listed["tools"][0]["description"].as_str().unwrap().contains("fake"), "{listed}");
    assert!(listed["tools"].as_array().unwrap().iter().all(|tool| tool.get("outputSchema").is_none()));
    let bytes = listed.to_string().len();
    assert!(bytes <= 6000, "{bytes} bytes");
}

#[test]
fn r05_cancel_accepts_task_ids_and_task_id() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let ids: Vec<String> = (0..4).map(|_| mcp.command("sleep 1000").to_string()).collect();
    let cancelled = mcp.done("background_cancel", &json!({"task_ids": [ids[0], ids[0], ids[1]]}));
    assert!(
        cancelled.text.starts_with("2 tasks have ended, including all their processes."),
        "{}",
        cancelled.text
    );
    let both = mcp.done("background_cancel", &json!({"task_ids": ids[..2], "task_id": ids[2]}));
    assert!(
        both.text.starts_with("1 task has ended, including all its processes. 2 had already ended."),
        "{}",
        both.text
    );
    let statuses = both.content["tasks"].as_array().unwrap().iter().map(|task| task["status"].clone());
    assert_eq!(statuses.collect::<Vec<_>>(), ["cancelled", "cancelled", "cancelled"]);
    let again = mcp.done("background_cancel", &json!({"task_ids": ids[..3]}));
    assert!(again.text.starts_with("All 3 have already ended"), "{}", again.text);
    for (arguments, why) in [
        (json!({}), "or \"all\": true (every active task"),
        (json!({"task_ids": []}), "\"task_ids\" is empty"),
        (json!({"task_ids": [ids[3]], "all": true}), "not both"),
        (json!({"task_id": ids[3], "all": true}), "not both"),
    ] {
        let said = mcp.error("background_cancel", &arguments);
        assert!(said.contains(why), "{said}");
    }
    assert!(daemon.task(ids[3].parse().unwrap()).status.is_active(), "it was named by none of these");
    mcp.done("background_cancel", &json!({"task_ids": ids[3]}));
}

#[test]
fn r20_r21_output_never_waits_and_r22_block_does() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let (line, go) = gate(&daemon, "gate");
    let started = mcp.done("background_command", &json!({"command": line, "description": "a gate"}));
    let id = started.id();
    assert!(
        started.text.contains(&id.to_string()) && started.text.contains("background_block"),
        "{}",
        started.text
    );
    daemon.wait_running(id);
    let looked = mcp.done("background_output", &json!({"task_id": id.to_string()}));
    assert_eq!(looked.content["task"]["status"], "running");
    assert_eq!(looked.content["task"]["description"], "a gate");
    assert_eq!(daemon.task(id).retrieved_at, None);
    let waited = mcp.done("background_block", &json!({"task_ids": [id.to_string()], "timeout": 1}));
    assert_eq!(waited.content["timed_out"], true);
    assert_eq!(waited.content["cut"], false);
    assert_eq!(waited.content["active"], json!([id.to_string()]));
    go();
    let waited = mcp.done("background_block", &json!({"task_ids": [id.to_string()[..8]]}));
    assert_eq!(waited.content["finished"], json!([id.to_string()]));
    assert_eq!(waited.content["tasks"][0]["status"], "completed");
    assert_eq!(waited.content["tasks"][0]["result"], "begun\ndone");
    assert!(waited.reported_ids().is_empty(), "it is reported, and not told: {}", waited.text);
    let again = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    assert!(
        again.reported_ids().is_empty() && again.content["tasks"][0]["result"].is_null(),
        "{}",
        again.text
    );
    let looked = mcp.done("background_output", &json!({"task_id": id.to_string()}));
    assert_eq!(
        (&looked.content["output"], &looked.content["truncated"]),
        (&json!("begun\ndone"), &json!(false))
    );
    assert!(daemon.task(id).retrieved_at.is_some());
}

#[test]
fn command_runs_in_given_folder_with_session_in_its_environment() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "work"]);
    fs::create_dir(daemon.home().join("sub")).unwrap();
    let line = "pwd; echo $BGD_SESSION $BGD_MCP_DEPTH";
    let id = mcp.done("background_command", &json!({"command": line, "cwd": "sub"})).id();
    let waited = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    let folder = daemon.home().join("sub").canonicalize().unwrap();
    assert_eq!(waited.content["tasks"][0]["result"], format!("{}\nwork 1", folder.display()));
    let failed = mcp.command("echo no >&2; exit 3");
    let waited = mcp.done("background_block", &json!({"task_ids": [failed.to_string()]}));
    assert_eq!(waited.content["tasks"][0]["exit_code"], 3);
    assert!(waited.text.contains("failed, exit code 3"), "{}", waited.text);
}

#[test]
fn long_output_is_truncated_to_its_tail_and_names_the_file() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("seq 100000");
    let waited = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    let result = waited.content["tasks"][0]["result"].as_str().unwrap();
    assert!(result.contains("\n100000\n(588895 bytes in total: background_output"), "{result}");
    let looked = mcp.done("background_output", &json!({"task_id": id.to_string()}));
    assert_eq!(looked.content["truncated"], true);
    let output = looked.content["output"].as_str().unwrap();
    assert!(output.starts_with("… ") && output.ends_with("\n100000") && output.len() < 40_000);
    let file = looked.content["output_file"].as_str().unwrap();
    assert!(looked.text.contains(&format!("the file {file} has everything")), "{}", looked.text);
    assert_eq!(fs::metadata(file).unwrap().len(), 588_895);
}

#[test]
fn dropped_output_is_reported_with_its_size() {
    let daemon = TestDaemon::builder().config("[limits]\noutput_bytes = 1048576").start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let id = mcp.command("seq 1000000").to_string();
    mcp.done("background_block", &json!({"task_ids": [id]}));
    let looked = mcp.done("background_output", &json!({"task_id": id}));
    let dropped = looked.content["task"]["dropped_bytes"].as_u64().unwrap();
    assert!(
        dropped > 4_000_000 && looked.text.contains(&format!("{dropped} bytes were dropped")),
        "{looked:?}"
    );
}

#[test]
fn r05_cancel_of_many_tasks_shows_one_hundred_and_counts_the_rest() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    for _ in 0..120 {
        daemon.submit_in("s", "sleep 1000");
    }
    let cancelled = mcp.done("background_cancel", &json!({"all": true}));
    assert_eq!(cancelled.content["tasks"].as_array().unwrap().len(), 100);
    assert_eq!(cancelled.content["not_shown"], 20);
    assert!(cancelled.content["message"].as_str().unwrap().starts_with("120 tasks"), "{}", cancelled.text);
    assert!(cancelled.reported_ids().is_empty(), "{}", cancelled.text);
}

#[test]
fn r05_r10_cancel_and_clear_affect_only_own_session() {
    let daemon = TestDaemon::start();
    let foreign = daemon.submit_in("other", "sleep 1000");
    let foreign_done = daemon.submit_in("other", "true");
    daemon.block(&[foreign_done]);
    let mut mcp = Mcp::start(&daemon, &["--all-sessions"]);
    let ids: Vec<_> = (0..3).map(|_| mcp.command("sleep 1000")).collect();
    let listed = mcp.done("background_list", &json!({}));
    assert_eq!(listed.content["tasks"].as_array().unwrap().len(), 3);
    let listed = mcp.done("background_list", &json!({"all": true}));
    assert_eq!(listed.content["tasks"].as_array().unwrap().len(), 5);
    assert!(listed.text.contains("[of another session]"), "{}", listed.text);
    // It can be inspected by its full id.
    let looked = mcp.done("background_output", &json!({"task_id": foreign_done.to_string()}));
    assert_eq!(looked.content["task"]["foreign"], true);
    let short = json!({"task_id": foreign_done.to_string()[..8]});
    let said = mcp.error("background_output", &short);
    assert!(said.contains("give its full id"), "{said}");
    let said = mcp.error("background_block", &json!({"task_ids": [foreign.to_string()[..8]]}));
    assert!(said.contains("give its full id"), "{said}");
    for (tool, arguments) in [
        ("background_cancel", json!({"task_id": foreign.to_string()})),
        ("background_clear", json!({"task_ids": [foreign_done.to_string()]})),
        ("background_task", json!({"resume": foreign_done.to_string(), "prompt": "x"})),
    ] {
        let said = mcp.error(tool, &arguments);
        assert!(said.contains("belongs to another session"), "{said}");
    }
    let cancelled = mcp.done("background_cancel", &json!({"task_id": ids[0].to_string()}));
    assert_eq!(cancelled.content["tasks"][0]["status"], "cancelled");
    assert!(cancelled.reported_ids().is_empty(), "{}", cancelled.text);
    let again = mcp.done("background_cancel", &json!({"task_id": ids[0].to_string()}));
    assert!(again.text.contains("already cancelled"), "{}", again.text);
    let again = mcp.done("background_cancel", &json!({"task_ids": [ids[0].to_string()]}));
    assert!(again.text.contains("already cancelled"), "{}", again.text);
    let said = mcp.error("background_clear", &json!({"task_ids": [ids[1].to_string()]}));
    assert!(said.contains("background_cancel ends it"), "{said}");
    let cancelled = mcp.done("background_cancel", &json!({"all": true}));
    assert_eq!(cancelled.content["tasks"].as_array().unwrap().len(), 2);
    let cleared = mcp.done("background_clear", &json!({"task_ids": [ids[0].to_string()]}));
    assert_eq!(cleared.content["cleared"], 1);
    let cleared = mcp.done("background_clear", &json!({}));
    assert_eq!(cleared.content["cleared"], 2);
    let last = mcp.command("sleep 1000");
    daemon.wait_running(last);
    assert_eq!(mcp.done("background_clear", &json!({"all": true})).content["cleared"], 1);
    assert_eq!(mcp.done("background_list", &json!({})).text, "No tasks of this session.");
    assert_eq!(daemon.task(foreign).status, Status::Running);
    assert_eq!(daemon.task(foreign_done).status, Status::Completed);
}

#[test]
fn r06_server_shows_only_its_own_session_without_all_sessions_flag() {
    let daemon = TestDaemon::start();
    let foreign = daemon.submit_in("other", "echo secret");
    daemon.block(&[foreign]);
    let mut mcp = Mcp::start(&daemon, &[]);
    let own = mcp.command("true");
    for (tool, arguments) in [
        ("background_list", json!({"all": true})),
        ("background_output", json!({"task_id": foreign.to_string()})),
        ("background_output", json!({"task_id": foreign.to_string()[..8]})),
        ("background_block", json!({"task_ids": [foreign.to_string()]})),
        ("background_block", json!({"task_ids": [own.to_string(), foreign.to_string()]})),
        ("background_cancel", json!({"task_id": foreign.to_string()})),
    ] {
        let said = mcp.error(tool, &arguments);
        assert!(said.contains("session") && !said.contains("secret"), "{tool}: {said}");
    }
    let said = mcp.error("background_output", &json!({"task_id": foreign.to_string()}));
    assert!(said.contains("`--all-sessions`"), "{said}");
    let listed = mcp.done("background_list", &json!({"all": false}));
    assert_eq!(listed.content["tasks"].as_array().unwrap().len(), 1);
}

#[test]
fn r06_list_shows_newest_fifty_tasks_and_filters_by_status() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let ids: Vec<_> = (0..55).map(|_| mcp.command("true")).collect();
    daemon.block(&ids);
    let listed = mcp.done("background_list", &json!({}));
    assert_eq!(listed.content["tasks"].as_array().unwrap().len(), 50);
    assert_eq!(listed.content["more"], true);
    assert!(listed.text.ends_with("Only the newest 50 are shown."), "{}", listed.text);
    let listed = mcp.done("background_list", &json!({"status": "running"}));
    assert_eq!(listed.content["tasks"], json!([]));
    assert_eq!(listed.content["summary"]["completed"], 55);
}

#[test]
fn r06_list_filters_by_text_and_end_time() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let found = mcp.command("echo needle > /dev/null");
    let others: Vec<_> = (0..60).map(|_| mcp.command("true")).collect();
    daemon.block(&[found]);
    daemon.block(&others);
    let ids = |listed: &ToolResult| -> Vec<String> {
        let tasks = listed.content["tasks"].as_array().unwrap();
        tasks.iter().map(|task| task["task_id"].as_str().unwrap().to_owned()).collect()
    };
    let listed = mcp.done("background_list", &json!({"text": "NEEDLE", "since": "1h"}));
    assert_eq!((ids(&listed), &listed.content["more"]), (vec![found.to_string()], &json!(false)));
    let last = others.iter().filter_map(|id| daemon.task(*id).completed_at).max().unwrap();
    let ended = last.plus_ms(1).to_string();
    wait::poll_until("a later time", || (Timestamp::now().to_string() > ended).then_some(()));
    let listed = mcp.done("background_list", &json!({"since": ended}));
    assert!(
        ids(&listed).is_empty() && listed.text.ends_with("61 completed. None of them match."),
        "{listed:?}"
    );
    for (arguments, words) in [
        (json!({"since": "soon"}), "\"since\": \"soon\" is not a time; use 2h (ago)"),
        (json!({"since": "2999-01-01"}), "is in the future"),
        (json!({"text": "x".repeat(5000)}), "text"),
        (json!({"text": 7}), "must be a string"),
    ] {
        let said = mcp.error("background_list", &arguments);
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
}

#[test]
fn r10_clear_reports_that_older_tasks_remain() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &["--session", "s"]);
    let ids: Vec<_> = (0..1002).map(|_| daemon.submit_in("s", "true")).collect();
    daemon.block(&ids);
    // The inbox has room for fewer.
    let mut cleared = 0;
    for round in 0..1000 {
        let answer = mcp.call("background_clear", &json!({}));
        if answer.is_error {
            assert!(answer.text.contains("Nothing was deleted"), "{}", answer.text);
            continue;
        }
        cleared += answer.content["cleared"].as_u64().unwrap();
        if !answer.text.contains("There are older ones") {
            break;
        }
        assert!(round < 999, "it comes to an end");
    }
    assert_eq!(cleared, 1002);
    assert_eq!(mcp.done("background_list", &json!({})).text, "No tasks of this session.");
}

#[test]
fn r30_to_r38_agent_is_started_and_resumed() {
    let daemon = FakeDaemon::start(&[], "");
    let mut mcp = Mcp::silent_with_fakes(&daemon);
    mcp.initialize(REVISION, "test", &json!({}));
    let task = json!({"agent": "fake", "description": "count", "prompt": "say one"});
    let started = mcp.done("background_task", &task);
    let id = started.id().to_string();
    assert_eq!(started.content["task"]["kind"], "agent");
    let waited = mcp.done("background_block", &json!({"task_ids": [id]}));
    assert_eq!(waited.content["tasks"][0]["result"], "one", "{}", waited.text);
    assert!(waited.text.contains(&format!("background_task {{\"resume\": \"{id}\"")), "{}", waited.text);
    // Arguments that do not apply to this mode are ignored, and the answer says so.
    let resumed = mcp.done(
        "background_task",
        &json!({"resume": id, "prompt": "history", "agent": "nobody", "description": "other"}),
    );
    assert_eq!(
        (&resumed.content["task"]["task_id"], &resumed.content["task"]["resumed"]),
        (&json!(id), &json!(1))
    );
    assert!(resumed.reported_ids().is_empty(), "{}", resumed.text);
    assert!(resumed.text.contains("\"agent\" and \"description\" were ignored"), "{}", resumed.text);
    let waited = mcp.done("background_block", &json!({"task_ids": [id]}));
    assert_eq!(waited.content["tasks"][0]["status"], "completed", "{}", waited.text);
    assert!(waited.text.contains(&format!("{id} (resumed)  completed")), "{}", waited.text);
    assert_eq!(waited.content["tasks"][0]["result"], "say one", "the answer of the resume");
    let listed = mcp.done("background_list", &json!({}));
    assert!(listed.text.contains(&format!("{id} (resumed)  completed")), "{}", listed.text);
    let command = mcp.command("true").to_string();
    let said = mcp.error("background_task", &json!({"resume": command, "prompt": "x"}));
    assert!(said.contains("start a new command with background_command"), "{said}");
}

#[test]
fn wait_ends_when_agent_asks_its_user() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let mut mcp = Mcp::silent_with_fakes(&daemon);
    mcp.initialize(REVISION, "test", &json!({}));
    for progress in ["_meta", "none"] {
        let gate = daemon.home().join("go");
        let prompt = format!(
            "await {}; ask-call {{\"title\":\"List files\",\"rawInput\":{{\"command\":\"rm -rf x\"}}}}",
            gate.display()
        );
        let task = json!({"agent": "fake", "description": "clean", "prompt": prompt});
        let id = mcp.done("background_task", &task).id();
        let other = mcp.command("sleep 1000");
        let arguments = json!({"task_ids": [id.to_string(), other.to_string()]});
        let block =
            json!({"name": "background_block", "arguments": arguments, progress: {"progressToken": 7}});
        let request = mcp.ask("tools/call", &block);
        if progress == "_meta" {
            mcp.notification("notifications/progress");
        }
        fs::write(&gate, "").unwrap();
        // The longest wait is 50 s, and would report a timeout.
        let waited = ToolResult::of(&mcp.answer(request)["result"]);
        assert_eq!(waited.content["timed_out"], false, "{}", waited.text);
        assert_eq!(waited.content["finished"], json!([]));
        assert_eq!(waited.content["tasks"][0]["asks"], "command: rm -rf x\ntitle: List files");
        assert!(waited.text.contains("A task asks the user a question"), "{}", waited.text);
        let again = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
        assert!(again.text.contains("It asks the user a question"), "{}", again.text);
        daemon.run(&["answer", &id.to_string(), "deny"]).success();
        let ended = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
        assert_eq!(ended.content["tasks"][0]["result"], "denied", "{}", ended.text);
        fs::remove_file(&gate).unwrap();
    }
}

#[test]
fn r37_missing_parameters_are_named_one_by_one() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let said = mcp.error("background_task", &json!({}));
    for name in ["description", "prompt", "agent"] {
        assert!(said.contains(&format!("\n- \"{name}\": ")), "{said}");
    }
    let said = mcp.error("background_task", &json!({"prompt": "x", "agent": "fake"}));
    assert!(said.contains("\"description\"") && !said.contains("\"agent\""), "{said}");
    let said = mcp.error("background_task", &json!({"resume": "3f2a91bc"}));
    assert!(said.contains("\"prompt\"") && !said.contains("\"agent\""), "{said}");
}

#[test]
fn r37_prompt_without_agent_goes_to_default_agent() {
    let daemon = FakeDaemon::with("default_agent = \"fake\"", &[], "");
    let mut mcp = Mcp::silent_with_fakes(&daemon);
    mcp.initialize(REVISION, "test", &json!({}));
    let id = mcp.done("background_task", &json!({"description": "count", "prompt": "say one"})).id();
    let waited = mcp.done("background_block", &json!({"task_ids": [id.to_string()]}));
    assert_eq!(waited.content["tasks"][0]["result"], "one", "{}", waited.text);
}

#[test]
fn bad_input_is_a_tool_error_with_a_hint() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    for (tool, arguments, words) in [
        ("background_output", json!({}), "\"task_id\""),
        ("background_output", json!({"task_id": "3f2a91bc", "block": true}), "has no parameter \"block\""),
        ("background_output", json!({"task_id": "bg_1"}), "background_list shows the ids"),
        ("background_output", json!({"task_id": 7}), "must be a string; it is 7"),
        ("background_output", json!({"task_id": "3f2a91bc"}), "What to do: background_list"),
        ("background_block", json!({}), "\"task_ids\""),
        ("background_block", json!({"task_ids": []}), "a parameter is empty:\n- \"task_ids\""),
        ("background_block", json!({"task_ids": 7}), "must be a list"),
        ("background_block", json!({"task_ids": ["3f2a"], "timeout": "1s"}), "whole number of milliseconds"),
        ("background_block", json!({"task_ids": vec!["3f2a"; 101]}), "has 101 ids, but at most 100"),
        ("background_cancel", json!({}), "give \"task_ids\" or \"task_id\""),
        ("background_cancel", json!({"task_id": "3f2a", "all": true}), "not both"),
        ("background_list", json!({"status": "done"}), "one of pending, running"),
        ("background_list", json!({"all": "yes"}), "must be true or false"),
        ("background_clear", json!({"task_ids": []}), "is empty"),
        ("background_command", json!({"command": "  "}), "a parameter is empty:\n- \"command\""),
        ("background_command", json!({"command": "true", "cwd": "/no/such"}), "there is no folder /no/such"),
        ("background_command", json!({"command": "x".repeat(1 << 20)}), "too long"),
        (
            "background_task",
            json!({"prompt": "x", "description": "y", "agent": "nobody"}),
            "unknown agent \"nobody\"",
        ),
        ("background_nothing", json!({}), "The tools are: background_task, "),
    ] {
        let said = mcp.error(tool, &arguments);
        assert!(said.contains(words), "{tool}: {words} is not in\n{said}");
    }
    for params in [json!({}), json!({"name": 7}), json!({"name": "background_list", "arguments": [1]})] {
        let result = mcp.result("tools/call", &params);
        assert_eq!(result["isError"], true, "{result}");
    }
    let long = "x".repeat(1 << 20);
    for (tool, arguments) in [
        (&*long, json!({})),
        ("background_list", json!({&*long: 1})),
        ("background_list", json!({"status": long})),
        ("background_output", json!({"task_id": long})),
        ("background_command", json!({"command": "true", "cwd": long})),
        ("background_task", json!({"prompt": "x", "description": "y", "agent": long})),
        ("background_list", json!(long)),
    ] {
        let said = mcp.error(tool, &arguments);
        assert!(said.len() < 10_000, "{:.80}: {} bytes", tool, said.len());
    }
    assert_eq!(mcp.done("background_list", &json!({})).text, "No tasks of this session.");
}

#[test]
fn parameters_are_accepted_as_models_write_them() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::start(&daemon, &[]);
    let started = mcp.done("background_command", &json!(r#"{"command": "pwd", "cwd": "~"}"#));
    let waited =
        mcp.done("background_block", &json!({"task_ids": started.id().to_string(), "timeout": "60000"}));
    let home = daemon.home().to_str().unwrap();
    assert_eq!(waited.content["tasks"][0]["result"], home, "{}", waited.text);
    let listed = mcp.done("background_list", &json!(""));
    assert_eq!(listed.content["tasks"][0]["task_id"], started.id().to_string());
}

#[test]
fn invalid_messages_are_refused_and_do_no_harm() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::silent(&daemon, &[]);
    let null = |code: i64| move |message: &Value| message["id"].is_null() && message["error"]["code"] == code;
    // This holds before any client has introduced itself, too.
    for line in [
        "garbage",
        "",
        "[]",
        "{}",
        "7",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/none\"}",
        "\u{feff}",
    ] {
        mcp.write(line);
    }
    let unreadable = mcp.until(null(-32700));
    assert!(unreadable.as_object().unwrap().contains_key("id"), "{unreadable}");
    for _ in ["[]", "{}", "7"] {
        mcp.until(null(-32600));
    }
    let early = mcp.refused("tools/list", &json!({}))["message"].take();
    assert!(early.as_str().unwrap().starts_with("send \"initialize\" before"), "{early}");
    mcp.initialize(REVISION, "test", &json!({}));
    for line in ["garbage", "{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}", "{\"id\":[]}"] {
        mcp.write(line);
    }
    mcp.until(null(-32700));
    for method in ["no/such", "prompts/get"] {
        let unknown = mcp.refused(method, &json!({}));
        let message = json!(format!("this server has no method \"{method}\""));
        assert_eq!((&unknown["code"], &unknown["message"]), (&json!(-32601), &message));
    }
    mcp.result("ping", &json!({}));
    assert_eq!(mcp.done("background_list", &json!({})).text, "No tasks of this session.");
    assert!(mcp.close().success());
}

#[test]
fn older_revision_and_revision_without_initialize_are_supported() {
    let daemon = TestDaemon::start();
    let mut old = Mcp::silent(&daemon, &[]);
    assert_eq!(old.initialize("2024-11-05", "old", &json!({}))["protocolVersion"], "2024-11-05");
    assert!(old.done("background_list", &json!({})).text.starts_with("No tasks"));
    let mut new = Mcp::inline(&daemon, &[], &json!({}));
    let said = new.result("server/discover", &json!({}));
    assert!(said["supportedVersions"].as_array().unwrap().contains(&json!(INLINE_REVISION)), "{said}");
    assert_eq!(new.result("tools/list", &json!({}))["tools"].as_array().unwrap().len(), 7);
    let id = new.command("echo hello");
    let waited = new.done("background_block", &json!({"task_ids": [id.to_string()]}));
    assert_eq!(waited.content["tasks"][0]["result"], "hello");
}
