//! The fake agent alone, over pipes: its properties that the suites of the daemon's agents rely on. No test here may
//! start a daemon.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use bgd_tests::{Process, helper_path, processes_of, wait};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A client of the fake agent that sends requests and reads line by line.
struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    unread: Vec<u8>,
    requests: u64,
}

impl Client {
    fn start(home: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(helper_path("fake_acp"));
        command.args(flags).env("FAKE_ACP_HOME", home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A file rather than a pipe, so that a grandchild can hold it without anybody waiting for EOF.
        command.stderr(File::create(home.join("stderr")).unwrap());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, stdin, stdout, unread: Vec::new(), requests: 0 }
    }

    /// Returns an initialized client.
    fn ready(home: &Path, flags: &[&str]) -> Self {
        let mut client = Self::start(home, flags);
        client.initialize();
        client
    }

    fn initialize(&mut self) -> Value {
        let id = self.request("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} }));
        self.result(id)
    }

    fn new_session(&mut self) -> String {
        let id = self.request("session/new", &json!({ "cwd": "/", "mcpServers": [] }));
        self.result(id)["sessionId"].as_str().unwrap().to_owned()
    }

    fn prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request("session/prompt", &json!({ "sessionId": session, "prompt": prompt }))
    }

    fn cancel(&mut self, session: &str) {
        let params = json!({ "sessionId": session });
        self.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params }));
    }

    /// Runs a whole turn; returns its text and its answer.
    fn turn(&mut self, session: &str, text: &str) -> (String, Value) {
        let id = self.prompt(session, text);
        self.until_answer(id)
    }

    fn until_answer(&mut self, id: u64) -> (String, Value) {
        let mut said = String::new();
        loop {
            let message = self.message();
            if message["id"] == id && message.get("method").is_none() {
                return (said, message);
            }
            said += &chunk(&message);
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.requests += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.requests, "method": method, "params": params }));
        self.requests
    }

    fn result(&mut self, id: u64) -> Value {
        let answer = self.message();
        assert_eq!(answer["id"], id, "{answer}");
        answer.get("result").unwrap_or_else(|| panic!("{answer}")).clone()
    }

    fn error(&mut self, method: &str, params: &Value) -> (i64, String) {
        let id = self.request(method, params);
        let answer = self.message();
        assert_eq!(answer["id"], id, "{answer}");
        let error = &answer["error"];
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
    }

    fn outcome(&mut self, question: &Value, outcome: &Value) {
        let result = json!({ "outcome": outcome });
        self.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result }));
    }

    fn send(&mut self, message: &Value) {
        self.stdin.as_mut().unwrap().write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    fn message(&mut self) -> Value {
        let line = self.line().expect("there is another line");
        serde_json::from_slice(&line).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&line)))
    }

    /// Returns the next line; `None` at EOF.
    fn line(&mut self) -> Option<Vec<u8>> {
        let mut piece = vec![0; 64 * 1024];
        let mut looked_at = 0;
        loop {
            if let Some(end) = self.unread[looked_at..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.unread.drain(..=looked_at + end).collect();
                line.pop();
                return Some(line);
            }
            looked_at = self.unread.len();
            assert!(wait::readable(self.stdout.as_fd(), wait::PATIENCE), "the agent says nothing");
            match self.stdout.read(&mut piece).unwrap() {
                0 => return None,
                count => self.unread.extend_from_slice(&piece[..count]),
            }
        }
    }

    fn process(&self) -> Process {
        Process::open(self.child.id().cast_signed()).unwrap()
    }

    fn end(mut self) -> ExitStatus {
        self.stdin = None;
        self.process().gone();
        self.child.wait().unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the text of a message that is a chunk of an answer.
fn chunk(message: &Value) -> String {
    let update = &message["params"]["update"];
    let is_chunk = message["method"] == "session/update" && update["sessionUpdate"] == "agent_message_chunk";
    let text = is_chunk.then(|| update["content"]["text"].as_str().unwrap());
    text.unwrap_or_default().to_owned()
}

fn stop_reason(answer: &Value) -> &str {
    answer["result"]["stopReason"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// The folder of a test. Dropping it kills whatever still runs in it.
struct Home(TempDir);

impl Home {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        processes_of(self.path()).iter().for_each(Process::kill);
    }
}

fn home() -> Home {
    Home(tempfile::tempdir().unwrap())
}

fn journal(home: &Path) -> Vec<Value> {
    let text = fs::read_to_string(home.join("journal")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn violations(home: &Path) -> Vec<String> {
    let all = journal(home);
    all.iter().filter_map(|line| line["violation"].as_str()).map(str::to_owned).collect()
}

#[test]
fn agent_reports_capabilities_and_answers_prompts() {
    let home = home();
    let mut client = Client::start(home.path(), &[]);
    let answer = client.initialize();
    assert_eq!(answer["protocolVersion"], 1);
    let capabilities = &answer["agentCapabilities"];
    assert_eq!(capabilities["loadSession"], true);
    assert_eq!(capabilities["sessionCapabilities"], json!({ "list": {}, "resume": {}, "close": {} }));
    assert_eq!(answer["agentInfo"]["name"], "fake_acp");
    let session = client.new_session();
    let (said, answer) = client.turn(&session, "hello there");
    assert_eq!((said.as_str(), stop_reason(&answer)), ("you said: hello there", "end_turn"));
    let (said, answer) = client.turn(&session, "say a\\n; stream 3 b; history; count; stop refusal; say no");
    assert_eq!((said.as_str(), stop_reason(&answer)), ("a\nbbbhello there2", "refusal"));
    let (_, answer) = client.turn(&session, "error -32603 out of order");
    assert_eq!(answer["error"], json!({ "code": -32603, "message": "out of order" }));
    assert!(client.end().success());
    let journal = journal(home.path());
    assert_eq!(journal[0]["started"], true);
    let methods: Vec<&str> = journal.iter().filter_map(|line| line["received"]["method"].as_str()).collect();
    let prompt = "session/prompt";
    assert_eq!(methods, ["initialize", "session/new", prompt, prompt, prompt]);
    assert_eq!(journal.last().unwrap()["eof"], true);
    assert_eq!(violations(home.path()), [""; 0]);
}

#[test]
fn session_updates_follow_the_protocol() {
    let home = home();
    let mut client = Client::ready(home.path(), &[]);
    let session = client.new_session();
    client.prompt(&session, "think hm; tool Build it; plan; unknown-update");
    let updates: Vec<Value> = (0..6).map(|_| client.message()["params"]["update"].clone()).collect();
    let tags: Vec<&str> = updates.iter().map(|update| update["sessionUpdate"].as_str().unwrap()).collect();
    let expected = [
        "agent_thought_chunk",
        "tool_call",
        "tool_call_update",
        "plan",
        "fake_unheard_of",
        "tool_call_update",
    ];
    assert_eq!(tags, expected);
    assert_eq!(updates[0]["content"], json!({ "type": "text", "text": "hm" }));
    assert_eq!((&updates[1]["title"], &updates[1]["status"]), (&json!("Build it"), &json!("in_progress")));
    assert_eq!(updates[1]["toolCallId"], updates[2]["toolCallId"]);
    assert_eq!(updates[2]["status"], "completed");
    assert_eq!(updates[3]["entries"][0]["priority"], "high");
    assert_eq!(stop_reason(&client.message()), "end_turn");
}

#[test]
fn turn_follows_or_ignores_cancel() {
    let home = home();
    let mut client = Client::ready(home.path(), &[]);
    let session = client.new_session();
    for (prompt, reason) in [
        ("say a; hang; say no", "cancelled"),
        ("say a; await /nonexistent/file", "cancelled"),
        ("cancel-as-end-turn; say a; hang", "end_turn"),
    ] {
        let id = client.prompt(&session, prompt);
        assert_eq!(chunk(&client.message()), "a");
        client.cancel(&session);
        let (said, answer) = client.until_answer(id);
        assert_eq!((said.as_str(), stop_reason(&answer)), ("", reason), "{prompt}");
    }
    let go_on = home.path().join("go-on");
    let id = client.prompt(&session, &format!("ignore-cancel; say a; await {}; say b", go_on.display()));
    assert_eq!(chunk(&client.message()), "a");
    client.cancel(&session);
    // The answer proves that the earlier cancel has been received, too.
    client.new_session();
    fs::write(go_on, "").unwrap();
    let (said, answer) = client.until_answer(id);
    assert_eq!((said.as_str(), stop_reason(&answer)), ("b", "end_turn"));
    // A cancel without a turn does not affect the next one.
    client.cancel(&session);
    assert_eq!(client.turn(&session, "say c").0, "c");
}

#[test]
fn another_process_loads_or_resumes_a_session() {
    let home = home();
    let mut client = Client::ready(home.path(), &[]);
    let session = client.new_session();
    client.turn(&session, "say one");
    assert!(client.end().success());
    let place = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });

    let mut client = Client::ready(home.path(), &[]);
    // It is on disk, but not loaded.
    let prompt = json!({ "sessionId": session, "prompt": [] });
    assert_eq!(client.error("session/prompt", &prompt), (-32602, "session not found".to_owned()));
    client.request("session/load", &place);
    for (kind, text) in [("user_message_chunk", "say one"), ("agent_message_chunk", "one")] {
        let update = client.message()["params"]["update"].clone();
        assert_eq!((&update["sessionUpdate"], &update["content"]["text"]), (&json!(kind), &json!(text)));
    }
    assert_eq!(client.message()["result"], json!({}));
    assert_eq!(client.turn(&session, "count").0, "2");
    drop(client);

    let flags = ["--no-load", "--unknown-session", "-32002:no rollout", "--page", "1"];
    let mut client = Client::ready(home.path(), &flags);
    assert_eq!(client.error("session/load", &place).0, -32601);
    let id = client.request("session/resume", &place);
    assert_eq!(client.result(id), json!({}));
    assert_eq!(client.turn(&session, "history").0, "say one\ncount");
    let other = client.new_session();
    let id = client.request("session/list", &json!({}));
    let first = client.result(id);
    assert_eq!(first["sessions"], json!([{ "sessionId": session, "cwd": "/", "title": "say one" }]));
    let id = client.request("session/list", &json!({ "cursor": first["nextCursor"] }));
    assert_eq!(client.result(id), json!({ "sessions": [{ "sessionId": other, "cwd": "/" }] }));
    fs::remove_file(home.path().join("sessions").join(&session)).unwrap();
    let unknown = (-32002, "no rollout".to_owned());
    assert_eq!(client.error("session/resume", &place), unknown);
    assert_eq!(client.error("session/prompt", &prompt), unknown);
    let id = client.request("session/close", &json!({ "sessionId": other }));
    assert_eq!(client.result(id), json!({}));
    assert_eq!(client.error("session/prompt", &json!({ "sessionId": other, "prompt": [] })), unknown);
    assert_eq!(violations(home.path()), [""; 0]);
}

#[test]
fn agent_asks_permission_and_reads_the_outcome() {
    let home = home();
    let mut client = Client::ready(home.path(), &[]);
    let session = client.new_session();
    let selected = |id: &str| json!({ "outcome": "selected", "optionId": id });
    for (outcome, said) in
        [(selected("allow-once"), "allowed: allow-once"), (selected("reject-always"), "denied")]
    {
        let id = client.prompt(&session, "ask Do it?");
        let question = client.message();
        assert_eq!(question["method"], "session/request_permission");
        assert_eq!(question["params"]["sessionId"], json!(session));
        assert_eq!(question["params"]["toolCall"]["title"], "Do it?");
        let kinds: Vec<&Value> =
            question["params"]["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
        assert_eq!(kinds, ["allow_once", "allow_always", "reject_once", "reject_always"]);
        client.outcome(&question, &outcome);
        let (text, answer) = client.until_answer(id);
        assert_eq!((text.as_str(), stop_reason(&answer)), (said, "end_turn"));
    }
    let id = client.prompt(&session, "ask-many 3");
    let questions: Vec<Value> = (0..3).map(|_| client.message()).collect();
    for (question, option) in questions.iter().zip(["allow-once", "reject-once", "allow-always"]).rev() {
        client.outcome(question, &selected(option));
    }
    assert_eq!(client.until_answer(id).0, "allowed: allow-once\ndenied\nallowed: allow-always");
    let id = client.prompt(&session, "ask-forever");
    for _ in 0..3 {
        let question = client.message();
        client.outcome(&question, &selected("allow-once"));
    }
    let question = client.message();
    client.outcome(&question, &json!({ "outcome": "cancelled" }));
    assert_eq!(stop_reason(&client.until_answer(id).1), "cancelled");
    let id = client.prompt(&session, "client-request fs/read_text_file");
    let question = client.message();
    let error = json!({ "code": -32601, "message": "method not found" });
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "error": error }));
    assert_eq!(client.until_answer(id).0, "-32601");
    assert_eq!(violations(home.path()), [""; 0]);
}

#[test]
fn sessions_run_concurrently_and_second_prompt_is_an_error() {
    let home = home();
    let mut client = Client::ready(home.path(), &[]);
    let sessions: Vec<String> = (0..20).map(|_| client.new_session()).collect();
    let (waiting, others) = sessions.split_first().unwrap();
    let hangs = client.prompt(waiting, "hang");
    for session in others {
        assert_eq!(client.turn(session, "say here").0, "here");
    }
    let second = json!({ "sessionId": waiting, "prompt": [] });
    assert_eq!(client.error("session/prompt", &second), (-32602, "second prompt".to_owned()));
    client.cancel(waiting);
    assert_eq!(stop_reason(&client.until_answer(hangs).1), "cancelled");
    assert_eq!(violations(home.path()), ["second prompt"]);
}

#[test]
fn agent_can_send_duplicate_late_stray_and_garbage_messages() {
    let home = home();
    let mut client = Client::ready(home.path(), &[]);
    let session = client.new_session();
    let id = client.prompt(&session, "answer-other; answer-twice; late again; say now");
    let nobodys = client.message();
    assert!(nobodys["id"] != id && nobodys.get("result").is_some(), "{nobodys}");
    let (said, first) = client.until_answer(id);
    assert_eq!(said, "now");
    assert_eq!(client.message(), first);
    assert_eq!(chunk(&client.message()), "again");
    let id = client.prompt(&session, "garbage no {json}; bytes; line 1000000; junk-line 100000");
    assert_eq!(client.line().unwrap(), b"no {json}");
    assert!(String::from_utf8(client.line().unwrap()).is_err());
    assert_eq!(chunk(&client.message()), "x".repeat(1_000_000));
    assert_eq!(client.line().unwrap(), vec![b'j'; 100_000]);
    assert_eq!(stop_reason(&client.until_answer(id).1), "end_turn");
}

#[test]
fn agent_exits_as_scripted() {
    let home = home();
    let start = |prompt: &str| {
        let mut client = Client::ready(home.path(), &[]);
        let session = client.new_session();
        client.prompt(&session, prompt);
        client
    };
    let mut client = start("stderr oh no; say a; die 9");
    assert_eq!(chunk(&client.message()), "a");
    assert_eq!(client.line(), None);
    assert_eq!(client.child.wait().unwrap().code(), Some(9));
    assert_eq!(fs::read(home.path().join("stderr")).unwrap(), b"oh no\n");
    let mut client = start("abort");
    assert_eq!(client.line(), None);
    assert!(!client.child.wait().unwrap().success());
    let mut client = start("close-stdout; hang");
    assert_eq!(client.line(), None);
    assert!(client.process().is_alive());
    assert!(client.end().success());
    let client = start("no-answer");
    assert!(client.end().success());
    let flags = ["--greeting", "Welcome!", "--stderr", "bad key", "--exit-at-start", "3"];
    let mut client = Client::start(home.path(), &flags);
    assert_eq!(client.line().unwrap(), b"Welcome!");
    assert_eq!(client.line(), None);
    assert_eq!(client.child.wait().unwrap().code(), Some(3));
    assert_eq!(fs::read(home.path().join("stderr")).unwrap(), b"bad key\n");
}

#[test]
fn agent_and_its_children_can_survive_eof_and_sigterm() {
    let home = home();
    let flags = ["--ignore-eof", "--ignore-sigterm", "--child"];
    let mut client = Client::ready(home.path(), &flags);
    let process = client.process();
    let session = client.new_session();
    process.signal(Signal::TERM).unwrap();
    // A signal that kills would do so before the process reads another byte.
    client.turn(&session, "spawn");
    client.stdin = None;
    wait::for_line(&home.path().join("journal"), "eof");
    let pid_in = |path: PathBuf| fs::read_to_string(path).unwrap().trim().parse::<i32>().unwrap();
    let child = Process::open(pid_in(home.path().join(format!("child.{}", process.pid())))).unwrap();
    let spawned = Process::open(pid_in(home.path().join("spawned"))).unwrap();
    let session_of = |process: &Process| {
        // 0 if the leader is outside the tests' pid namespace.
        nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(process.pid()))).unwrap().as_raw()
    };
    assert_eq!(session_of(&child), child.pid());
    assert_eq!(session_of(&spawned), session_of(&process));
    assert!(process.is_alive());
    process.kill();
    assert!(child.is_alive() && spawned.is_alive());
    // Stdout ends with the agent: neither of them holds it.
    assert_eq!(client.line(), None);
}

#[test]
fn initialize_can_be_delayed_and_session_new_can_fail() {
    let home = home();
    let file = home.path().join("begin");
    let mut client = Client::start(home.path(), &["--initialize-after", file.to_str().unwrap()]);
    let id = client.request("initialize", &json!({ "protocolVersion": 1 }));
    wait::for_line(&home.path().join("journal"), "initialize");
    fs::write(file, "").unwrap();
    client.result(id);
    let none = ["--no-load", "--no-resume", "--no-list", "--no-close"];
    let others = ["--auth-required", "--protocol-version", "7", "--version-name", "other/0.1"];
    let mut client = Client::start(home.path(), &[&none[..], &others].concat());
    assert_eq!(client.error("session/list", &json!({})).0, -32600);
    let answer = client.initialize();
    assert_eq!(answer["protocolVersion"], 7);
    assert_eq!(answer["agentInfo"], json!({ "name": "other", "version": "0.1" }));
    assert_eq!(answer["agentCapabilities"].get("loadSession"), None);
    assert_eq!(answer["agentCapabilities"]["sessionCapabilities"], json!({}));
    let place = json!({ "cwd": "/", "mcpServers": [] });
    assert_eq!(client.error("session/new", &place).0, -32000);
    for method in ["session/load", "session/resume", "session/list", "session/close", "no/such"] {
        assert_eq!(client.error(method, &place).0, -32601, "{method}");
    }
    let mut client = Client::ready(home.path(), &[]);
    assert_eq!(client.error("session/new", &json!({ "cwd": "here", "mcpServers": [] })).0, -32602);
    assert_eq!(violations(home.path()), ["not initialized", "cwd is no absolute path"]);
}
