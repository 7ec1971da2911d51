//! Agents over the Agent Client Protocol: sessions that outlive a process, cancels, errors, permissions.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use bgd_tests::agents::Permission;
use bgd_tests::model::Purpose;
use bgd_tests::wait;
use serde_json::{Value, json};

use super::Home;

/// An agent that speaks JSON-RPC over its pipes, one message per line.
struct Agent<'home> {
    home: &'home Home,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<Value>,
    last_id: u64,
    /// Messages other than the answer since the last request.
    seen: Vec<Value>,
    /// The option to choose when the agent asks for a permission.
    choice: Option<&'static str>,
}

impl<'home> Agent<'home> {
    fn start(home: &'home Home) -> Self {
        let mut child = home.spawn();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // The thread ends with the agent's output.
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take().unwrap();
        Self { home, child, stdin, lines, last_id: 0, seen: Vec::new(), choice: None }
    }

    fn ready(home: &'home Home) -> Self {
        let mut agent = Self::start(home);
        let files = json!({"readTextFile": false, "writeTextFile": false});
        let capabilities = json!({"fs": files, "terminal": false});
        let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        let result = agent.call("initialize", &params);
        assert_eq!(result["protocolVersion"], 1);
        assert_eq!(result["agentCapabilities"]["loadSession"], true);
        for capability in ["resume", "list", "close"] {
            assert!(result["agentCapabilities"]["sessionCapabilities"][capability].is_object(), "{result}");
        }
        agent
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin, "{message}").expect("the agent reads");
    }

    fn receive(&self) -> Value {
        let received = self.lines.recv_timeout(wait::PATIENCE);
        received.unwrap_or_else(|error| panic!("{error}; {:#?}\n{}", self.seen, self.home.log()))
    }

    fn request(&mut self, method: &str, params: &Value) {
        self.last_id += 1;
        self.seen.clear();
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
    }

    /// Waits for the answer to the last request, and answers the agent's questions meanwhile.
    fn answer(&mut self) -> Result<Value, Value> {
        loop {
            let mut message = self.receive();
            if message["method"].is_null() && message["id"] == self.last_id {
                return match message["error"].take() {
                    Value::Null => Ok(message["result"].take()),
                    error => Err(error),
                };
            }
            if message["method"] == "session/request_permission" {
                self.choose(&message);
            } else if !message["id"].is_null() {
                let error = json!({"code": -32601, "message": "no such method"});
                self.send(&json!({"jsonrpc": "2.0", "id": message["id"], "error": error}));
            }
            self.seen.push(message);
        }
    }

    fn choose(&mut self, asked: &Value) {
        let Some(choice) = self.choice else { return };
        let options = asked["params"]["options"].as_array().unwrap();
        let option = options.iter().find(|option| option["kind"] == choice).unwrap();
        let outcome = json!({"outcome": "selected", "optionId": option["optionId"]});
        self.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}}));
    }

    fn try_call(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        self.request(method, params);
        self.answer()
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn new_session(&mut self) -> String {
        let result = self.call("session/new", &json!({"cwd": self.home.path(), "mcpServers": []}));
        result["sessionId"].as_str().unwrap().to_owned()
    }

    fn known(&self, session: &str) -> Value {
        json!({"sessionId": session, "cwd": self.home.path(), "mcpServers": []})
    }

    /// Runs a turn and returns its stop reason and its text.
    fn prompt(&mut self, session: &str, text: &str) -> (String, String) {
        let result = self.call("session/prompt", &prompt(session, text));
        (result["stopReason"].as_str().unwrap().to_owned(), self.text("agent_message_chunk"))
    }

    /// Returns the text of all updates of a kind since the last request.
    fn text(&self, kind: &str) -> String {
        let updates = self.seen.iter().map(|message| &message["params"]["update"]);
        let updates = updates.filter(|update| update["sessionUpdate"] == kind);
        updates.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    fn cancel(&mut self, session: &str) {
        let params = json!({"sessionId": session});
        self.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": params}));
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

fn prompt(session: &str, text: &str) -> Value {
    json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]})
}

fn end_turn(text: &str) -> (String, String) {
    ("end_turn".to_owned(), text.to_owned())
}

/// A session continues in other processes, and the model receives all of it.
fn survives_its_process(home: &Home) {
    let mut agent = Agent::ready(home);
    let session = agent.new_session();
    assert_eq!(agent.prompt(&session, "one"), end_turn("answer to: one"));
    assert_eq!(agent.prompt(&session, "SAY second"), end_turn("second"));
    assert_eq!(home.model.history(&session), ["one", "SAY second"]);
    drop(agent);

    let mut agent = Agent::ready(home);
    agent.call("session/load", &agent.known(&session));
    assert_eq!(agent.text("user_message_chunk"), "oneSAY second");
    assert_eq!(agent.text("agent_message_chunk"), "answer to: onesecond");
    assert_eq!(agent.prompt(&session, "three"), end_turn("answer to: three"));
    drop(agent);

    let mut agent = Agent::ready(home);
    agent.call("session/resume", &agent.known(&session));
    assert_eq!(agent.text("user_message_chunk") + &agent.text("agent_message_chunk"), "");
    assert_eq!(agent.prompt(&session, "four"), end_turn("answer to: four"));
    assert_eq!(home.model.history(&session), ["one", "SAY second", "three", "four"]);
    let listed = agent.call("session/list", &json!({}));
    assert_eq!(listed["sessions"][0]["sessionId"], session.as_str());
}

/// A cancel ends a turn and the model's connection, whether the model is silent or streaming.
fn ends_a_turn_when_cancelled(home: &Home) {
    let mut agent = Agent::ready(home);
    let session = agent.new_session();
    agent.request("session/prompt", &prompt(&session, "HOLD never"));
    home.model.wait_for_turn("HOLD never");
    agent.cancel(&session);
    assert_eq!(agent.answer().unwrap()["stopReason"], "cancelled");
    home.model.wait_for_leaving("HOLD never");

    agent.request("session/prompt", &prompt(&session, "SLOW gate 2"));
    home.model.release("gate");
    while agent.text("agent_message_chunk").is_empty() {
        let message = agent.receive();
        agent.seen.push(message);
    }
    agent.cancel(&session);
    assert_eq!(agent.answer().unwrap()["stopReason"], "cancelled");
    assert_eq!(agent.text("agent_message_chunk"), "chunk 1 ");
    assert_eq!(agent.prompt(&session, "SAY next"), end_turn("next"));
}

/// Returns the error codes of load, resume and prompt for an unknown session.
fn codes_of_an_unknown_session(agent: &mut Agent<'_>) -> [i64; 3] {
    ["session/load", "session/resume", "session/prompt"].map(|method| {
        let mut params = agent.known("00000000-0000-4000-8000-000000000000");
        params["prompt"] = json!([{"type": "text", "text": "x"}]);
        agent.try_call(method, &params).unwrap_err()["code"].as_i64().unwrap()
    })
}

/// Returns the permission requested in a turn, and how the turn ends.
fn asked(agent: &mut Agent<'_>, session: &str, text: &str, choice: &'static str) -> (Value, String, String) {
    agent.choice = Some(choice);
    let (reason, text) = agent.prompt(session, text);
    let mut asked = agent.seen.iter().filter(|message| message["method"] == "session/request_permission");
    (asked.next().expect("it asks")["params"].clone(), reason, text)
}

#[test]
fn opencode_session_survives_process_restart() {
    let home = Home::opencode(&["acp"], Permission::Allow);
    survives_its_process(&home);
    home.model.wait_for(|requests| requests.iter().find(|it| it.purpose == Purpose::Title).cloned());
}

#[test]
fn codex_session_survives_process_restart() {
    survives_its_process(&Home::codex(Permission::Allow));
}

#[test]
fn opencode_ends_a_turn_when_cancelled() {
    ends_a_turn_when_cancelled(&Home::opencode(&["acp"], Permission::Allow));
}

#[test]
fn codex_ends_a_turn_when_cancelled() {
    ends_a_turn_when_cancelled(&Home::codex(Permission::Allow));
}

#[test]
fn opencode_reports_unknown_session_and_model_errors() {
    let home = Home::opencode(&["acp"], Permission::Allow);
    let mut agent = Agent::ready(&home);
    assert_eq!(codes_of_an_unknown_session(&mut agent), [-32603, -32603, -32602]);
    let session = agent.new_session();
    for status in ["400", "401"] {
        let text = format!("ERROR {status}");
        let error = agent.try_call("session/prompt", &prompt(&session, &text)).unwrap_err();
        assert_eq!(error["message"], format!("Internal error: the model answers with {status}"));
    }
    // It retries this one forever, and reports a cancel meanwhile as the end of the turn.
    agent.request("session/prompt", &prompt(&session, "ERROR 500"));
    home.model.wait_for_turn("ERROR 500");
    agent.cancel(&session);
    assert!(agent.answer().unwrap()["stopReason"].is_string());
}

#[test]
fn codex_reports_unknown_session_and_model_errors() {
    let home = Home::codex(Permission::Allow);
    let mut agent = Agent::ready(&home);
    assert_eq!(codes_of_an_unknown_session(&mut agent), [-32002; 3]);
    for status in ["400", "401", "500"] {
        // A new session each time: codex does not finish a failed turn at once, and treats a prompt that arrives in
        // between as part of that turn.
        let session = agent.new_session();
        let text = format!("ERROR {status}");
        let error = agent.try_call("session/prompt", &prompt(&session, &text)).unwrap_err();
        assert_eq!((&error["code"], &error["message"]), (&json!(-32603), &json!("Internal error")));
        assert!(error["data"]["message"].is_string());
    }
}

#[test]
fn opencode_asks_before_it_runs_a_command() {
    let home = Home::opencode(&["acp"], Permission::Ask);
    let mut agent = Agent::ready(&home);
    let session = agent.new_session();
    let order = "TOOL bash {\"command\": \"echo $((6 * 7))\", \"description\": \"multiply\"}";
    let (asked_for, reason, text) = asked(&mut agent, &session, order, "allow_once");
    assert_eq!(asked_for["toolCall"]["rawInput"]["command"], "echo $((6 * 7))");
    assert_eq!(asked_for["toolCall"]["kind"], "execute");
    assert_eq!((reason.as_str(), text.trim()), ("end_turn", "the tool said: 42"));
    let (_, reason, text) = asked(&mut agent, &session, order, "reject_once");
    assert_eq!((reason, text), end_turn(""));
}

#[test]
fn codex_asks_before_it_leaves_its_sandbox() {
    let home = Home::codex(Permission::Ask);
    let mut agent = Agent::ready(&home);
    let session = agent.new_session();
    let order = "TOOL exec_command {\"cmd\": \"echo $((6 * 7))\", \"sandbox_permissions\": \
                 \"require_escalated\", \"justification\": \"to multiply\"}";
    let (asked_for, reason, text) = asked(&mut agent, &session, order, "allow_once");
    assert_eq!(asked_for["toolCall"]["kind"], "execute");
    assert_eq!(reason, "end_turn");
    assert!(text.contains("42"), "{text}");
    let (_, reason, _) = asked(&mut agent, &session, order, "reject_once");
    assert_eq!(reason, "cancelled");
}
