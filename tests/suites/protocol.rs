//! The wire as a client in another language sees it: lines of JSON over the raw socket, no client code.

use std::borrow::Borrow;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use bgd_shared::limits::INBOX_WAITS;
use bgd_shared::request::METHODS;
use bgd_tests::templates::remembering_agent;
use bgd_tests::upgrades::is_too_busy;
use bgd_tests::{TestDaemon, wait};
use serde_json::{Value, json};

struct Wire {
    stream: UnixStream,
    lines: std::io::Lines<BufReader<UnixStream>>,
    calls: u64,
}

impl Wire {
    fn new(daemon: &TestDaemon) -> Self {
        let stream = UnixStream::connect(daemon.socket()).expect("a connection");
        stream.set_read_timeout(Some(wait::PATIENCE)).expect("a socket option");
        let lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
        Self { stream, lines, calls: 0 }
    }

    fn send(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).expect("a socket that takes it");
    }

    fn line(&mut self) -> Value {
        let line = self.lines.next().expect("a line").expect("a line");
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["jsonrpc"], "2.0", "{line}");
        value
    }

    fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.calls += 1;
        let id = self.calls;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        id
    }

    fn answer(&mut self, id: u64) -> Value {
        let answer = self.line();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    fn call(&mut self, method: &str, params: impl Borrow<Value>) -> Value {
        let params = params.borrow();
        let id = self.request(method, params);
        let mut answer = self.answer(id);
        assert_eq!(answer.get("error"), None, "{method} {params}: {answer}");
        answer["result"].take()
    }

    fn refused(&mut self, method: &str, params: impl Borrow<Value>) -> Value {
        let params = params.borrow();
        let id = self.request(method, params);
        let mut answer = self.answer(id);
        assert_eq!(answer.get("result"), None, "{method} {params}: {answer}");
        answer["error"].take()
    }

    /// Upgrades to the same program; tries again while the daemon is too busy.
    fn upgrade(&mut self) -> Value {
        wait::poll_until("an upgrade", || {
            let id = self.request("daemon.upgrade", &json!({}));
            let mut answer = self.answer(id);
            if is_too_busy(&answer["error"].to_string()) {
                return None;
            }
            assert_eq!(answer.get("error"), None, "{answer}");
            Some(answer["result"].take())
        })
    }

    fn submit(&mut self, line: &str) -> String {
        let params = json!({"shell": line, "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}});
        self.call("task.submit", params)["task"]["id"].as_str().expect("an id").to_owned()
    }
}

#[test]
fn each_basic_method_replies() {
    let mut daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let hello = wire.call("hello", json!({"client": "a test", "protocol": 1}));
    assert_eq!((&hello["protocol"], &hello["pid"]), (&json!(1), &json!(daemon.pid())));
    assert_eq!(hello["limits"]["frame_bytes"], 1_048_576);
    let home = daemon.home().to_str().unwrap();
    let params = json!({"argv": ["cat"], "cwd": home, "env": {"PATH": "/usr/bin:/bin"}, "stdin": "pipe",
        "session": "s", "key": "k", "tags": ["t"], "description": "d", "umask": 63, "time_limit_ms": 600_000});
    let task = wire.call("task.submit", params)["task"].take();
    assert_eq!(
        (&task["kind"], &task["origin"], &task["exit"]),
        (&json!("process"), &json!("submit"), &Value::Null)
    );
    let id = &task["id"];
    wire.call("events.subscribe", json!({"ids": [id], "since": 0}));
    let mut kinds = Vec::new();
    while kinds.last() != Some(&json!("started")) {
        let event = wire.line();
        assert_eq!((&event["method"], event.get("id")), (&json!("event"), None));
        assert!(event["params"]["subscription"].is_u64() && event["params"]["task"]["id"] == *id);
        kinds.push(event["params"]["kind"].clone());
    }
    assert_eq!(kinds, ["submitted", "started"]);
    let mut wire = Wire::new(&daemon);
    assert_eq!(wire.call("task.get", json!({"id": id}))["task"]["status"], "running");
    assert_eq!(wire.call("task.list", json!({"session": "s"}))["tasks"][0]["id"], *id);
    assert_eq!(wire.call("task.write", json!({"id": id, "data": "text"}))["written"], 4);
    assert_eq!(wire.call("task.signal", json!({"id": id, "signal": "CONT"}))["task"]["id"], *id);
    assert_eq!(wire.call("task.usage", json!({"ids": [id]}))["usages"][0]["processes"], 1);
    assert_eq!(wire.call("task.block", json!({"ids": [id], "timeout_ms": 0}))["timed_out"], true);
    assert_eq!(wire.call("task.write", json!({"id": id, "eof": true}))["written"], 0);
    let blocked = wire.call("task.block", json!({"ids": [id], "timeout_ms": null}));
    assert_eq!((&blocked["finished"], &blocked["active"]), (&json!([id]), &json!([])));
    let output = wire.call("task.output", json!({"id": id, "offset": -3}));
    assert_eq!(
        (&output["data"], &output["encoding"], &output["eof"]),
        (&json!("ext"), &json!("utf-8"), &json!(true))
    );
    let result = wire.call("task.result", json!({"id": id}));
    assert_eq!((&result["result"], &result["task"]["exit"]), (&json!("text"), &json!({"code": 0})));
    assert_eq!(wire.call("task.cancel", json!({"ids": [id]}))["tasks"][0]["status"], "completed");
    let inbox = wire.call("inbox.read", json!({"session": "s"}));
    assert_eq!((&inbox["more"], &inbox["lost"]), (&json!(false), &json!(0)));
    let item = &inbox["items"][0];
    assert_eq!(
        (&item["kind"], &item["task"]["id"], &item["result"]["text"]),
        (&json!("completed"), id, &json!("text"))
    );
    let inboxes = wire.call("inbox.list", json!({}));
    let summary = json!([{"session": "s", "oldest": item["number"], "items": 1}]);
    assert_eq!((&inboxes["inboxes"], &inboxes["more"]), (&summary, &json!(false)));
    let done = json!({"session": "s", "upto": item["number"]});
    assert_eq!(wire.call("inbox.ack", done), json!({"acknowledged": 1, "left": 0}));
    assert_eq!(wire.call("task.clear", json!({}))["cleared"], 1);
    assert_eq!(wire.call("session.end", json!({"session": "s"})), json!({"cancelled": 0, "cleared": 0}));
    assert_eq!(wire.call("executor.list", json!({}))["executors"][0]["name"], "local");
    let status = wire.call("daemon.status", json!({}));
    assert_eq!((&status["active"], &status["instance"]), (&json!(0), &hello["instance"]));
    assert_eq!(wire.call("daemon.reload", json!({})), json!({"changed": [], "needs_restart": []}));
    let upgraded = wire.upgrade();
    assert_eq!((&upgraded["from"], &upgraded["active"]), (&upgraded["to"], &json!(0)), "{upgraded}");
    assert_eq!(wire.call("daemon.shutdown", json!({"grace_ms": 1000})), json!({"cancelled": 0}));
    assert!(wire.lines.next().is_none(), "the end of the daemon is the end of the connection");
    assert!(daemon.ended().success());
    // The methods of terminals, handoffs and ordered work have separate tests.
    assert_eq!(METHODS.len(), 42, "a new method is to be called here or elsewhere");
}

#[test]
fn each_ordering_method_replies() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let group = wire.call("group.set", json!({"name": "g", "slots": 2}))["group"].take();
    let empty = json!({"name": "g", "slots": 2, "used": 0, "paused": false, "pending": 0, "running": 0,
        "finished": 0});
    assert_eq!(group, empty);
    assert_eq!(wire.call("group.pause", json!({"name": "g"}))["group"]["paused"], true);
    let params = json!({"argv": ["cat"], "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}, "stdin": "pipe",
        "group": "g", "hold": true});
    let task = wire.call("task.submit", params)["task"].take();
    let (id, ids) = (&task["id"], json!({"ids": [&task["id"]]}));
    assert_eq!((&task["group"], &task["waiting"]), (&json!("g"), &json!({"reason": "held"})));
    assert_eq!(wire.call("task.release", &ids)["tasks"][0]["waiting"], json!({"reason": "paused"}));
    assert_eq!(wire.call("task.hold", &ids)["tasks"][0]["waiting"], json!({"reason": "held"}));
    let edited = wire.call("task.edit", json!({"id": id, "priority": 7, "slots": 2}))["task"].take();
    assert_eq!((&edited["priority"], &edited["slots"]), (&json!(7), &json!(2)));
    wire.call("task.release", &ids);
    assert_eq!(wire.call("group.continue", json!({"name": "g"}))["group"]["paused"], false);
    assert_eq!(wire.call("task.write", json!({"id": id, "data": "x"}))["written"], 1);
    assert_eq!(wire.call("task.pause", &ids)["tasks"][0]["paused"], true);
    assert_eq!(wire.call("task.continue", &ids)["tasks"][0].get("paused"), None);
    let groups = wire.call("group.list", json!({}));
    let shown: Vec<_> =
        (0..2).map(|at| [&groups["groups"][at]["name"], &groups["groups"][at]["used"]]).collect();
    assert_eq!(shown, [[&json!("default"), &json!(0)], [&json!("g"), &json!(2)]]);
    assert_eq!(wire.refused("group.remove", json!({"name": "g"}))["data"]["kind"], "group_in_use");
    wire.call("task.cancel", json!({"ids": [id]}));
    assert_eq!(
        wire.refused("task.rerun", json!({"matching": {"batch": "1234"}}))["data"]["kind"],
        "task_not_found"
    );
    let template = json!({"cwd": "/", "env": {"PATH": "/usr/bin:/bin"}});
    let params = json!({"task": template, "argvs": [["true"]], "jobs": 1, "max_fails": 1});
    let many = wire.call("task.submit_many", params);
    wire.call("task.block", json!({"ids": many["ids"], "timeout_ms": null}));
    let rerun = wire.call("task.rerun", json!({"matching": {"batch": many["batch"]}}))["tasks"][0].take();
    assert_eq!(rerun["rerun_of"], many["ids"][0]);
    wire.call("task.block", json!({"ids": [rerun["id"]], "timeout_ms": null}));
    wire.call("task.clear", json!({}));
    assert_eq!(wire.call("group.remove", json!({"name": "g"}))["group"], empty);
}

#[test]
fn each_agent_method_replies() {
    let line = "echo '{\"session_id\":\"s1\",\"result\":\"said\"}'";
    let daemon = TestDaemon::builder().config(remembering_agent("x", line)).start();
    let mut wire = Wire::new(&daemon);
    let agents =
        wire.call("agent.list", json!({"env": {"PATH": "/usr/bin:/bin"}, "names": ["x"], "check": true}));
    assert_eq!(
        (&agents["agents"][0]["name"], &agents["agents"][0]["protocol"], &agents["agents"][0]["available"]),
        (&json!("x"), &json!("template"), &json!(true))
    );
    assert_eq!(agents["agents"][0]["check"]["continuation"], "resume");
    let params = json!({"prompt": "p", "agent": "x", "description": "d", "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}});
    let task = wire.call("task.submit", params)["task"].take();
    assert_eq!((&task["kind"], &task["prompt"], &task["run"]), (&json!("agent"), &json!("p"), &json!(1)));
    let id = &task["id"];
    wire.call("task.block", json!({"ids": [id], "timeout_ms": null}));
    let task = wire.call("task.resume", json!({"id": id, "prompt": "q"}))["task"].take();
    assert_eq!((&task["resume_count"], &task["prompt"], &task["run"]), (&json!(1), &json!("q"), &json!(2)));
    let task = &wire.call("task.block", json!({"ids": [id], "timeout_ms": null}))["tasks"][0];
    assert_eq!((&task["status"], &task["agent_session"]), (&json!("completed"), &json!("s1")));
    assert_eq!(wire.call("task.result", json!({"id": id}))["result"], "said");
    let again =
        wire.call("task.submit", json!({"resume": id, "prompt": "r", "agent": "nobody"}))["task"].take();
    assert_eq!((&again["id"], &again["resume_count"]), (id, &json!(2)));
    wire.call("task.block", json!({"ids": [id], "timeout_ms": null}));
    // Template agents never ask.
    let error = wire.refused("agent.answer", json!({"id": id, "request": 1, "option": "x"}));
    assert_eq!((&error["data"]["kind"], &error["code"]), (&json!("already_finished"), &json!(-32012)));
}

#[test]
fn errors_have_kind_and_code_and_connection_stays_open() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let id = wire.submit("true");
    wire.call("task.block", json!({"ids": [id], "timeout_ms": null}));
    let cases = [
        ("task.gett", json!({"id": id}), "method_not_found", -32601, "task.get"),
        ("nonsense", json!({}), "method_not_found", -32601, "nonsense"),
        ("task.get", json!({}), "invalid_params", -32602, "id"),
        ("task.get", json!({"id": 5}), "invalid_params", -32602, "id"),
        ("task.get", json!({"id": "abc"}), "invalid_params", -32602, "too short"),
        ("task.get", json!({"id": "not hex at all"}), "invalid_params", -32602, "not hex"),
        ("task.get", json!([id]), "invalid_params", -32602, "array"),
        ("task.output", json!({"id": id, "block": true}), "invalid_params", -32602, "block"),
        ("task.list", json!({"limit": 1001}), "invalid_params", -32602, "limit"),
        ("task.list", json!({"status": ["done"]}), "invalid_params", -32602, "done"),
        ("task.block", json!({"ids": [id], "mode": "some"}), "invalid_params", -32602, "some"),
        ("task.cancel", json!({}), "invalid_params", -32602, "ids"),
        ("task.cancel", json!({"ids": [id], "all": true}), "invalid_params", -32602, "all"),
        (
            "task.write",
            json!({"id": id, "data": "?", "encoding": "base64"}),
            "invalid_params",
            -32602,
            "base64",
        ),
        ("task.submit", json!({"shell": "true"}), "invalid_params", -32602, "cwd"),
        ("hello", json!({"protocol": 2}), "unsupported", -32018, "protocol 2"),
        ("task.attach", json!({"id": id}), "not_running", -32019, "is not running: it completed"),
        ("task.attach", json!({"id": id, "rows": 5}), "invalid_params", -32602, "cols"),
        ("task.resize", json!({"id": id, "rows": 0, "cols": 5}), "invalid_params", -32602, "rows"),
        ("task.detach", json!({"id": id, "background": true}), "already_finished", -32012, "already ended"),
        ("task.handoff", json!({"pid": 0, "description": "x"}), "invalid_params", -32602, "pid"),
        ("task.handoff", json!({"pid": 2, "description": "x"}), "invalid_params", -32602, "pidfd"),
        ("task.resume", json!({"id": id, "prompt": "x"}), "not_resumable", -32004, "command"),
        ("task.resume", json!({"id": id}), "prompt_required", -32007, "prompt"),
        ("agent.list", json!({"names": ["nobody"]}), "unknown_agent", -32008, "codex"),
        (
            "agent.answer",
            json!({"id": id, "request": 1, "option": "x"}),
            "already_finished",
            -32012,
            "question 1",
        ),
        ("task.get", json!({"id": "00000000-0000-4000-8000-000000000000"}), "task_not_found", -32001, "0000"),
    ];
    for (method, params, kind, code, part) in cases {
        let error = wire.refused(method, &params);
        assert_eq!(
            (&error["data"]["kind"], &error["code"]),
            (&json!(kind), &json!(code)),
            "{method} {params}"
        );
        assert!(error.to_string().contains(part), "{method} {params}: {error}");
    }
    for (line, kind) in [
        ("{", "parse_error"),
        ("[]", "invalid_request"),
        (r#"{"id":1,"method":"hello"}"#, "invalid_request"),
        (r#"{"jsonrpc":"2.0","id":1}"#, "invalid_request"),
    ] {
        wire.send(line);
        let answer = wire.line();
        assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&Value::Null, &json!(kind)), "{line}");
    }
    assert_eq!(wire.call("hello", json!({}))["protocol"], 1);
}

#[test]
fn errors_repeat_only_the_beginning_of_long_params() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let long = "x".repeat(100_000);
    let task = |params: Value| {
        let mut task = json!({"argv": ["true"], "cwd": "/", "env": {}});
        task.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        task
    };
    let variable = format!("{long}=");
    let limit = json!({"soft": 1, "hard": 1});
    for (method, params) in [
        ("inbox.read", json!({"session": "s", "instance": long})),
        ("task.submit", task(json!({"cwd": long}))),
        ("task.submit", task(json!({"env": {&variable: ""}}))),
        ("task.submit", task(json!({"chosen": {"env": [variable]}}))),
        ("task.submit", task(json!({"rlimits": {&long: limit}}))),
    ] {
        let id = wire.request(method, &params);
        let error = wire.answer(id)["error"].to_string();
        assert!(error.contains("xxx…") && error.len() < 1000, "{method}: {error:.2000}");
    }
    wire.send(&json!({"jsonrpc": long, "id": 1, "method": "hello"}).to_string());
    let error = wire.line()["error"].to_string();
    assert!(error.contains("xxx…") && error.len() < 1000, "{error:.2000}");
}

#[test]
fn invalid_session_and_channel_params_are_refused() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let cases = [
        ("hello", json!({"owns": true}), "`session`"),
        ("hello", json!({"session": "", "owns": true}), "`session` is empty; omit it instead\""),
        ("inbox.read", json!({"session": ""}), "`session` is empty\""),
        ("inbox.ack", json!({"session": "", "upto": 1}), "`session` is empty\""),
        ("inbox.read", json!({"session": "s", "limit": 0}), "1 to 1000"),
        ("inbox.read", json!({"session": "s", "limit": 1001}), "1 to 1000"),
        ("inbox.read", json!({}), "session"),
        ("inbox.ack", json!({"session": "s"}), "upto"),
        ("session.end", json!({"session": ""}), "`session` is empty\""),
        ("task.list", json!({"tags": ["a", ""]}), "`tags[1]` is empty\""),
        ("events.subscribe", json!({"instance": "x", "since": 0}), "this daemon is"),
        ("task.submit", json!({"shell": "true", "cwd": "/", "env": {}, "channel": "x"}), "desktop"),
        (
            "task.submit",
            json!({"shell": "true", "cwd": "/", "env": {}, "channel": "inbox"}),
            "parent session",
        ),
    ];
    for (method, params, part) in cases {
        let error = wire.refused(method, &params);
        assert_eq!(error["data"]["kind"], "invalid_params", "{method} {params}");
        assert!(error.to_string().contains(part), "{method} {params}: {error}");
    }
}

#[test]
fn request_ids_are_returned_unchanged() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    for id in [json!("text"), json!(0), json!(-5), json!(1.5), json!("7")] {
        wire.send(&json!({"jsonrpc": "2.0", "id": id, "method": "hello"}).to_string());
        let answer = wire.line();
        assert_eq!((&answer["id"], &answer["result"]["protocol"]), (&id, &json!(1)));
    }
    wire.send("\r");
    wire.send("");
    wire.send("{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"hello\",\"params\":null}\r");
    assert_eq!(wire.line()["id"], 8, "blank lines and carriage returns are overlooked");
}

#[test]
fn notification_gets_no_reply_and_takes_effect() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let params = json!({"shell": "true", "cwd": "/", "env": {}, "session": "of the notification"});
    wire.send(&json!({"jsonrpc": "2.0", "method": "task.submit", "params": params}).to_string());
    wire.send(&json!({"jsonrpc": "2.0", "method": "no.such.method"}).to_string());
    wire.send(&json!({"jsonrpc": "2.0", "method": "task.get", "params": {"bad": 1}}).to_string());
    let list = wire.call("task.list", json!({}));
    assert_eq!(list["tasks"][0]["session"], "of the notification");
    let id = list["tasks"][0]["id"].clone();
    wire.call("task.block", json!({"ids": [id]}));
}

#[test]
fn requests_run_concurrently_and_block_delays_none() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let sleeper = wire.submit("sleep 1000");
    let block = wire.request("task.block", &json!({"ids": [sleeper], "timeout_ms": null}));
    let other = wire.submit("echo x");
    wire.call("task.block", json!({"ids": [other]}));
    assert_eq!(wire.call("task.output", json!({"id": other}))["data"], "x\n");
    wire.call("hello", json!({}));
    let late = wire.call("task.block", json!({"ids": [sleeper], "timeout_ms": 50}));
    assert_eq!(late["timed_out"], true);
    let cancel = wire.request("task.cancel", &json!({"ids": [sleeper]}));
    let mut ids = [wire.line()["id"].as_u64().unwrap(), wire.line()["id"].as_u64().unwrap()];
    ids.sort_unstable();
    assert_eq!(ids, [block, cancel]);
}

#[test]
fn half_closed_client_still_gets_its_replies() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let id = wire.submit("echo x");
    let block = wire.request("task.block", &json!({"ids": [id], "timeout_ms": null}));
    wire.request("daemon.status", &json!({}));
    wire.stream.shutdown(Shutdown::Write).unwrap();
    let mut answers: Vec<Value> = (0..2).map(|_| wire.line()).collect();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(answers[0]["id"], block);
    assert_eq!(answers[0]["result"]["finished"], json!([id]));
    assert!(wire.lines.next().is_none(), "then the daemon closes too");
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let line = |id| json!({"jsonrpc": "2.0", "id": id, "method": "hello"}).to_string() + "\n";
    let text: String = (0..200).map(line).collect();
    wire.stream.write_all(text.as_bytes()).unwrap();
    let mut seen: Vec<u64> = (0..200).map(|_| wire.line()["id"].as_u64().unwrap()).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..200));
}

#[test]
fn r55_waiting_inbox_reads_are_bounded_and_delay_no_other_request() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let read = json!({"session": "a", "wait_ms": 60_000});
    let waiting: Vec<u64> = (0..INBOX_WAITS).map(|_| wire.request("inbox.read", &read)).collect();
    let error = wire.refused("inbox.read", read.clone());
    assert_eq!(error["data"]["kind"], "too_many_requests");
    assert_eq!(
        wire.call("inbox.read", json!({"session": "a"}))["items"],
        json!([]),
        "this one does not wait"
    );
    let mut other = Wire::new(&daemon);
    other.call("task.submit", json!({"argv": ["true"], "cwd": "/", "env": {}, "session": "a"}));
    let mut answered: Vec<u64> = (0..INBOX_WAITS).map(|_| wire.line()["id"].as_u64().unwrap()).collect();
    answered.sort_unstable();
    assert_eq!(answered, waiting);
}

#[test]
fn excess_unanswered_requests_are_refused_individually() {
    let daemon = TestDaemon::builder().config("[limits]\nrequests = 3\n").start();
    let mut wire = Wire::new(&daemon);
    let id = wire.submit("sleep 1000");
    for _ in 0..3 {
        wire.request("task.block", &json!({"ids": [id], "timeout_ms": null}));
    }
    let error = wire.refused("hello", json!({}));
    assert_eq!(error["data"]["kind"], "too_many_requests");
    assert!(error["data"]["hint"].as_str().unwrap().contains("limits.requests"));
    let mut other = Wire::new(&daemon);
    assert_eq!(other.call("hello", json!({}))["limits"]["requests"], 3, "others are not concerned");
    other.call("task.cancel", json!({"ids": [id]}));
    for _ in 0..3 {
        assert_eq!(wire.line()["result"]["timed_out"], false);
    }
    wire.call("hello", json!({}));
}

#[test]
fn reload_reports_changes_and_invalid_file_changes_nothing() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1\n").start();
    let mut wire = Wire::new(&daemon);
    let first = wire.submit("sleep 1000");
    let second = wire.submit("sleep 1000");
    assert_eq!(wire.call("task.get", json!({"id": second}))["task"]["status"], "pending");
    daemon.write_config("max_concurrent_tasks = 0\n");
    let error = wire.refused("daemon.reload", json!({}));
    assert_eq!(error["data"]["kind"], "config_invalid");
    assert!(error["message"].as_str().unwrap().contains("max_concurrent_tasks"), "{error}");
    daemon.write_config("max_concurrent_task = 2\n");
    let error = wire.refused("daemon.reload", json!({}));
    assert!(error["message"].as_str().unwrap().contains("did you mean `max_concurrent_tasks`"), "{error}");
    assert_eq!(wire.call("hello", json!({}))["limits"]["max_concurrent_tasks"], 1, "the old one is in force");
    daemon.write_config("max_concurrent_tasks = 2\ntree = \"session\"\n[limits]\ntasks = 50\n");
    let changes = wire.call("daemon.reload", json!({}));
    assert_eq!(changes["changed"], json!(["limits.tasks", "max_concurrent_tasks"]));
    assert_eq!(changes["needs_restart"], json!(["tree"]));
    let ids = [first, second].map(|id| id.parse::<bgd_shared::id::TaskId>().unwrap());
    daemon.wait_running(ids[1]);
    assert_eq!(wire.call("hello", json!({}))["limits"]["tasks"], 50);
    daemon.cancel(&ids);
}

#[test]
fn non_utf8_bytes_are_sent_as_base64() {
    let daemon = TestDaemon::start();
    let mut wire = Wire::new(&daemon);
    let params = json!({"argv": ["printf", {"base64": "/w=="}], "cwd": "/",
        "env": {"PATH": "/usr/bin:/bin", "X": {"base64": "/v8="}}});
    let task = wire.call("task.submit", params)["task"].take();
    assert_eq!(task["argv"], json!(["printf", {"base64": "/w=="}]));
    assert_eq!(task.get("env"), None);
    wire.call("task.block", json!({"ids": [task["id"]]}));
    let output = wire.call("task.output", json!({"id": task["id"]}));
    assert_eq!((&output["data"], &output["encoding"]), (&json!("/w=="), &json!("base64")));
}
