//! A line-by-line client of `bgctl mcp` that trusts nothing.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use bgd_shared::id::TaskId;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::TestDaemon;
use crate::process::Process;
use crate::prompts::FakeDaemon;
use crate::wait::PATIENCE;

/// The latest revision of the protocol that has `initialize`.
pub const REVISION: &str = "2025-11-25";

/// The revision without `initialize`: each request names its client.
pub const INLINE_REVISION: &str = "2026-07-28";

/// The extension that turns a wait into a task of the protocol.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

#[derive(Debug)]
pub struct Mcp {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// Messages that arrived before they were requested.
    early: VecDeque<Value>,
    last: i64,
    /// Metadata about the client in each request, in the revision that requires it.
    meta: Option<Value>,
}

/// The result of a tool call.
#[derive(Clone, Debug)]
pub struct ToolResult {
    pub text: String,
    /// Structured content; null in an error.
    pub content: Value,
    pub is_error: bool,
}

impl ToolResult {
    /// Parses the result of `tools/call`.
    #[track_caller]
    pub fn of(result: &Value) -> Self {
        let text = result["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("no text: {result}")).to_owned();
        let is_error = result["isError"].as_bool().unwrap_or_default();
        let content = result["structuredContent"].clone();
        assert_eq!(content.is_object(), !is_error, "{result}");
        Self { text, content, is_error }
    }

    /// Returns the id of the task that the result is about.
    #[track_caller]
    pub fn id(&self) -> TaskId {
        let id = self.content["task"]["task_id"].as_str();
        id.and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("no task: {self:?}"))
    }

    /// Returns the ids of the tasks that the head of the result reports.
    pub fn reported_ids(&self) -> Vec<String> {
        let reports = self.content["told"].as_array().into_iter().flatten();
        reports.map(|news| news["task_id"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Returns the text above the separator line; empty without one.
    pub fn head(&self) -> &str {
        self.text.split_once("\n\n---\n\n").map_or("", |(head, _)| head)
    }
}

impl Mcp {
    /// Starts a server with these options, without sending anything.
    #[track_caller]
    pub fn silent(daemon: &TestDaemon, args: &[&str]) -> Self {
        // Tests read the structured content.
        Self::spawn(daemon.bgctl(&[&["mcp", "--structured"], args].concat()))
    }

    /// Starts a server whose agents are fakes, without sending anything.
    #[track_caller]
    pub fn silent_with_fakes(daemon: &FakeDaemon) -> Self {
        let home = daemon.fake_home().0;
        fs::create_dir_all(&home).expect("the fake's home can be created");
        let mut command = daemon.bgctl(&["mcp", "--structured"]);
        command.env("FAKE_ACP_HOME", home);
        Self::spawn(command)
    }

    /// Starts a server whose agents are fakes, and introduces a client.
    #[track_caller]
    pub fn with_fakes(daemon: &FakeDaemon) -> Self {
        let mut mcp = Self::silent_with_fakes(daemon);
        mcp.initialize(REVISION, "test", &json!({}));
        mcp
    }

    /// Starts this command.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("bgctl can be run");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (sender, lines) = channel();
        // This thread ends with the server's output.
        thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                let value = serde_json::from_str(&line).unwrap_or_else(|_| json!({"garbage": line}));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, lines, early: VecDeque::new(), last: 0, meta: None }
    }

    /// Starts a server and introduces a client.
    #[track_caller]
    pub fn start(daemon: &TestDaemon, args: &[&str]) -> Self {
        let mut mcp = Self::silent(daemon, args);
        mcp.initialize(REVISION, "test", &json!({}));
        mcp
    }

    /// Starts a server, and uses the revision without `initialize`.
    #[track_caller]
    pub fn inline(daemon: &TestDaemon, args: &[&str], capabilities: &Value) -> Self {
        let mut mcp = Self::silent(daemon, args);
        mcp.meta = Some(json!({
            "io.modelcontextprotocol/protocolVersion": INLINE_REVISION,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }));
        mcp
    }

    /// Introduces a client and returns the server's answer.
    #[track_caller]
    pub fn initialize(&mut self, revision: &str, name: &str, capabilities: &Value) -> Value {
        let params = json!({
            "protocolVersion": revision,
            "capabilities": capabilities,
            "clientInfo": {"name": name, "version": "1"},
        });
        let result = self.result("initialize", &params);
        self.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        result
    }

    /// Sends a line unchanged.
    #[track_caller]
    pub fn write(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        // In one write, so that several messages of a caller are read together.
        input.write_all(format!("{line}\n").as_bytes()).expect("it reads its input");
    }

    /// Sends a message.
    #[track_caller]
    pub fn say(&mut self, message: &Value) {
        self.write(&message.to_string());
    }

    /// Sends a request and returns its id.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: &Value) -> i64 {
        self.last += 1;
        let mut params = params.clone();
        for (key, value) in self.meta.iter().filter_map(Value::as_object).flatten() {
            params["_meta"][key] = value.clone();
        }
        let id = self.last;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        let value = self.lines.recv_timeout(PATIENCE).expect("the server says nothing");
        assert_eq!(value["jsonrpc"], "2.0", "{value}");
        value
    }

    /// Returns the first message for which `wanted` holds, whether it has arrived already or is still to come.
    #[track_caller]
    pub fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(place) = self.early.iter().position(&wanted) {
            return self.early.remove(place).expect("it is there");
        }
        loop {
            let value = self.next();
            if wanted(&value) {
                return value;
            }
            self.early.push_back(value);
        }
    }

    /// Returns the messages that arrived and were not requested.
    pub fn unrequested(&self) -> Vec<Value> {
        self.early.iter().cloned().collect()
    }

    /// Returns the answer to a request, as it arrives.
    #[track_caller]
    pub fn answer(&mut self, id: i64) -> Value {
        self.until(|value| value["id"] == id)
    }

    /// Returns the params of the next notification of this method.
    #[track_caller]
    pub fn notification(&mut self, method: &str) -> Value {
        self.until(|value| value["method"] == method)["params"].take()
    }

    /// Makes a request and returns its result.
    #[track_caller]
    pub fn result(&mut self, method: &str, params: &Value) -> Value {
        let id = self.ask(method, params);
        let mut answer = self.answer(id);
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].take()
    }

    /// Makes a request that must be refused and returns the error.
    #[track_caller]
    pub fn refused(&mut self, method: &str, params: &Value) -> Value {
        let id = self.ask(method, params);
        let mut answer = self.answer(id);
        assert!(answer.get("error").is_some(), "{answer}");
        answer["error"].take()
    }

    /// Calls a tool.
    #[track_caller]
    pub fn call(&mut self, name: &str, arguments: &Value) -> ToolResult {
        ToolResult::of(&self.result("tools/call", &json!({"name": name, "arguments": arguments})))
    }

    /// Calls a tool, which must succeed.
    #[track_caller]
    pub fn done(&mut self, name: &str, arguments: &Value) -> ToolResult {
        let result = self.call(name, arguments);
        assert!(!result.is_error, "{}", result.text);
        result
    }

    /// Calls a tool, which must fail, and returns the error text.
    #[track_caller]
    pub fn error(&mut self, name: &str, arguments: &Value) -> String {
        let result = self.call(name, arguments);
        assert!(result.is_error, "{}", result.text);
        result.text
    }

    #[track_caller]
    pub fn command(&mut self, command: &str) -> TaskId {
        self.done("background_command", &json!({"command": command})).id()
    }

    #[track_caller]
    pub fn process(&self) -> Process {
        Process::open(self.child.id().cast_signed()).expect("it lives")
    }

    /// Closes the server's input; its remaining output can still be read.
    pub fn end_input(&mut self) {
        drop(self.input.take());
    }

    /// Closes the server's input and waits for its exit.
    #[track_caller]
    pub fn close(mut self) -> ExitStatus {
        drop(self.input.take());
        self.ended()
    }

    /// Sends the server a signal and waits for its exit.
    #[track_caller]
    pub fn signal(mut self, signal: Signal) -> ExitStatus {
        self.process().signal(signal).expect("it lives");
        self.ended()
    }

    #[track_caller]
    fn ended(&mut self) -> ExitStatus {
        self.process().gone();
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        drop(self.input.take());
        if thread::panicking() {
            // Do not assert while panicking.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
