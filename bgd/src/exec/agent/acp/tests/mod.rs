//! Tests the protocol against an agent that each test plays itself, over real pipes. Every test spells out its agent's
//! replies. Tests wait for messages, and for nothing else.

mod hardship;
mod sessions;
mod turns;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::super::connection::{UPDATES, Update};
use super::lines::Lines;
use super::*;

/// The agent's side of the pipes.
struct Agent {
    input: Lines<pipe::Receiver>,
    output: pipe::Sender,
}

/// A request that the agent received.
struct Heard {
    id: Value,
    params: Value,
}

impl Agent {
    async fn next(&mut self) -> Value {
        let line = self.input.next().await.expect("the client has ended");
        serde_json::from_slice(&line).expect("the client wrote no JSON")
    }

    /// Reads the next message, which must be this request or notification.
    async fn expect(&mut self, method: &str) -> Heard {
        let mut message = self.next().await;
        assert_eq!(message["method"], method, "{message}");
        Heard { id: message["id"].take(), params: message["params"].take() }
    }

    async fn raw(&mut self, bytes: &[u8]) {
        self.output.write_all(bytes).await.expect("the client does not read");
    }

    async fn send(&mut self, mut message: Value) {
        message["jsonrpc"] = json!("2.0");
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    async fn answer(&mut self, asked: &Heard, result: Value) {
        self.send(json!({"id": asked.id, "result": result})).await;
    }

    async fn refuse(&mut self, asked: &Heard, error: Value) {
        self.send(json!({"id": asked.id, "error": error})).await;
    }

    async fn update(&mut self, session: &str, update: Value) {
        let params = json!({"sessionId": session, "update": update});
        self.send(json!({"method": "session/update", "params": params})).await;
    }

    async fn text(&mut self, session: &str, text: &str) {
        let content = json!({"type": "text", "text": text});
        self.update(session, json!({"sessionUpdate": "agent_message_chunk", "content": content})).await;
    }

    /// Asks for permission, with one option of each of these kinds, which also serve as ids.
    async fn ask(&mut self, id: Value, session: &str, kinds: &[&str]) {
        let options: Vec<Value> =
            kinds.iter().map(|kind| json!({"optionId": kind, "name": kind, "kind": kind})).collect();
        let call = json!({"toolCallId": "1", "title": "rm -r /", "kind": "execute"});
        let params = json!({"sessionId": session, "toolCall": call, "options": options});
        self.send(json!({"id": id, "method": "session/request_permission", "params": params})).await;
    }

    /// Expects the request for the agent's sessions, and lists these.
    async fn list(&mut self, sessions: &[&str]) {
        let asked = self.expect("session/list").await;
        let sessions: Vec<Value> = sessions.iter().map(|id| json!({"sessionId": id, "cwd": "/"})).collect();
        self.answer(&asked, json!({"sessions": sessions})).await;
    }

    /// Expects a prompt, and answers it with this stop reason.
    async fn turn(&mut self, stop_reason: &str) {
        let asked = self.expect("session/prompt").await;
        self.answer(&asked, json!({"stopReason": stop_reason})).await;
    }
}

fn pipes() -> (Agent, pipe::Sender, pipe::Receiver) {
    let (stdin, input) = pipe::pipe().expect("a pipe");
    let (output, stdout) = pipe::pipe().expect("a pipe");
    (Agent { input: Lines::new(input), output }, stdin, stdout)
}

/// Connects to an agent with these capabilities.
async fn connected(capabilities: Value) -> (Acp, Agent) {
    let (mut agent, stdin, stdout) = pipes();
    let greeting = async {
        let asked = agent.expect("initialize").await;
        assert_eq!(asked.params["protocolVersion"], 1);
        assert_eq!(asked.params["clientCapabilities"]["terminal"], json!(false));
        assert_eq!(asked.params["clientCapabilities"]["fs"]["readTextFile"], json!(false));
        assert_eq!(asked.params["clientCapabilities"]["fs"]["writeTextFile"], json!(false));
        let answer = json!({
            "protocolVersion": 1,
            "agentCapabilities": capabilities,
            "agentInfo": {"name": "Played", "version": "7"},
            "authMethods": [{"id": "x", "name": "Log in by x", "description": "run `x login`"}],
        });
        agent.answer(&asked, answer).await;
    };
    let (acp, ()) = tokio::join!(Acp::connect(stdin, stdout), greeting);
    (acp.expect("a connection"), agent)
}

/// The capabilities of the agents known to work.
fn able() -> Value {
    json!({"loadSession": true, "sessionCapabilities": {"list": {}, "resume": {}, "close": {}}})
}

fn wanted(session: Option<&str>) -> Wanted {
    Wanted {
        task: bgd_shared::id::TaskId::random(),
        run: 1,
        session: session.map(Arc::from),
        cwd: bgd_shared::text::OsText::from("/work"),
        title: None,
        settings: crate::agents::Settings::default(),
    }
}

/// Sends a prompt, and returns the end of its turn, with the reason of a rejection.
async fn judged(acp: &Acp, key: &Arc<str>) -> TurnEnd {
    match acp.prompt(key, "go").await {
        TurnEnd::Rejected(why) => acp.judge(key, why).await,
        end => end,
    }
}

/// Connects, and opens a new session `s1`.
async fn with_session() -> (Acp, Agent, Arc<str>, mpsc::Receiver<Update>) {
    let (acp, mut agent) = connected(able()).await;
    let (updates, received) = mpsc::channel(UPDATES);
    let beginning = async {
        let asked = agent.expect("session/new").await;
        assert_eq!(asked.params, json!({"cwd": "/work", "mcpServers": []}));
        agent.answer(&asked, json!({"sessionId": "s1"})).await;
    };
    let wanted = wanted(None);
    let (opened, ()) = tokio::join!(acp.open(&wanted, updates), beginning);
    let opened = opened.expect("a session");
    assert_eq!(opened, Opened { key: "s1".into(), session: Some("s1".into()), warning: None });
    (acp, agent, opened.key, received)
}

/// Drains the channel, as text for comparison.
fn drained(received: &mut mpsc::Receiver<Update>) -> Vec<String> {
    std::iter::from_fn(|| received.try_recv().ok()).map(|update| shown(&update)).collect()
}

fn shown(update: &Update) -> String {
    match update {
        Update::Text(text) => text.clone(),
        Update::Tool(name) => format!("tool {name}"),
        Update::Message => "message".to_owned(),
        Update::Worked => "worked".to_owned(),
        Update::Model(of_model) => format!("{of_model:?}"),
        Update::Retries(why) => format!("retries {why}"),
        Update::Consumed(_) => "consumed".to_owned(),
        Update::Plan(steps) => format!("plan of {}", steps.len()),
        Update::Activity => "moved".to_owned(),
        Update::Ask(ask) => format!("ask {}", ask.question),
        Update::Part | Update::Session(_) | Update::Answer(_) => {
            panic!("{update:?} is not for this back end")
        }
    }
}
