//! `opencode serve` over HTTP: sessions that outlive a process, failures, permissions.

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use bgd_tests::agents::Permission;
use bgd_tests::http::{Answer, Events, Http};
use bgd_tests::model::Purpose;
use serde_json::{Value, json};

use super::Home;

/// `opencode serve`, and a client that works in its home.
struct Server<'home> {
    home: &'home Home,
    child: Child,
    http: Http,
}

impl<'home> Server<'home> {
    fn start(home: &'home Home) -> Self {
        let mut child = home.spawn();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let url = lines.find_map(|line| line.split_once("listening on ").map(|(_, url)| url.to_owned()));
        // The name `opencode` and the password `secret`, in base64.
        let http = Http::new(&url.expect("it listens")).header("authorization", "Basic b3BlbmNvZGU6c2VjcmV0");
        Self { home, child, http }
    }

    fn path(&self, path: &str) -> String {
        format!("{path}?directory={}", self.home.path())
    }

    fn get(&self, path: &str) -> Value {
        self.http.send("GET", &self.path(path), None).json()
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.http.send("POST", &self.path(path), Some(body))
    }

    /// Returns a stream of events that has begun, so that nothing is missed.
    fn events(&self) -> Events {
        let mut events = self.http.events(&self.path("/event"), None);
        events.until("server.connected");
        events
    }

    fn new_session(&self) -> String {
        let session = self.post("/session", &json!({"title": "no need to ask the model for one"})).json();
        session["id"].as_str().unwrap().to_owned()
    }

    fn prompt(&self, session: &str, id: &str, text: &str) {
        let body = json!({"messageID": id, "parts": [{"type": "text", "text": text}]});
        let answer = self.post(&format!("/session/{session}/prompt_async"), &body);
        assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    }

    /// Returns the last message, and its text.
    fn last(&self, session: &str) -> (Value, String) {
        let messages = self.get(&format!("/session/{session}/message"));
        let last = messages.as_array().unwrap().last().unwrap();
        let parts = last["parts"].as_array().unwrap().iter();
        (last["info"].clone(), parts.filter_map(|part| part["text"].as_str()).collect())
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

fn server_home(permission: Permission) -> Home {
    let mut home = Home::opencode(&["serve", "--hostname", "127.0.0.1", "--port", "0"], permission);
    home.env.push(("OPENCODE_SERVER_PASSWORD".to_owned(), "secret".to_owned()));
    home
}

#[test]
fn opencode_serve_session_survives_process_restart() {
    let home = server_home(Permission::Allow);
    let server = Server::start(&home);
    let mut events = server.events();
    let session = server.new_session();
    server.prompt(&session, "msg_first", "one");
    let seen = events.until("session.idle");
    let delta = seen.iter().find(|event| event["type"] == "message.part.delta").expect("text is streamed");
    assert_eq!(delta["properties"]["delta"], "answer to: one");
    let (answer, text) = server.last(&session);
    assert_eq!((answer["parentID"].as_str(), text.as_str()), (Some("msg_first"), "answer to: one"));
    assert_eq!(answer["finish"], "stop");
    assert!(answer["time"]["completed"].is_u64());
    assert_eq!(server.get("/session/status"), json!({}));
    drop(server);

    let server = Server::start(&home);
    assert_eq!(server.last(&session).1, "answer to: one");
    let mut events = server.events();
    server.prompt(&session, "msg_second", "two");
    events.until("session.idle");
    assert_eq!(server.last(&session).0["parentID"], "msg_second");
    assert_eq!(home.model.history(&session), ["one", "two"]);
    assert!(home.model.requests().iter().all(|request| request.purpose == Purpose::Turn));
}

#[test]
fn opencode_serve_reports_failed_and_aborted_turns() {
    let home = server_home(Permission::Allow);
    let server = Server::start(&home);
    let mut events = server.events();
    let session = server.new_session();
    server.prompt(&session, "msg_1", "ERROR 400");
    let error = events.until("session.error").pop().unwrap()["properties"]["error"].take();
    assert_eq!((&error["name"], &error["data"]["statusCode"]), (&json!("APIError"), &json!(400)));
    // The first idle event comes before the message is complete, and the second one after it.
    events.until("session.idle");
    events.until("session.idle");
    assert_eq!(server.last(&session).0["error"], error);

    server.prompt(&session, "msg_2", "HOLD never");
    home.model.wait_for_turn("HOLD never");
    assert_eq!(server.get("/session/status")[&session]["type"], "busy");
    assert_eq!(server.post(&format!("/session/{session}/abort"), &json!({})).json(), true);
    home.model.wait_for_leaving("HOLD never");
    // The connection ends before the message has its error.
    let has_failed = |event: &Value| {
        let info = &event["properties"]["info"];
        info["parentID"] == "msg_2" && info["error"].is_object()
    };
    while !events.until("message.updated").last().is_some_and(has_failed) {}
    let (answer, _) = server.last(&session);
    assert_eq!(answer["error"]["name"], "MessageAbortedError");
    assert_eq!(answer["parentID"], "msg_2");
}

#[test]
fn opencode_serve_refuses_unknown_sessions_and_permissions() {
    let home = server_home(Permission::Allow);
    let server = Server::start(&home);
    let session = server.new_session();
    let status = |path: &str, id: &str| {
        server.post(path, &json!({"messageID": id, "parts": [{"type": "text", "text": "x"}]})).status
    };
    assert_eq!(status(&format!("/session/{session}/prompt_async"), "its own"), 400);
    assert_eq!(status("/session/ses_unknown/prompt_async", "msg_1"), 404);
    assert_eq!(server.http.send("GET", "/session/ses_unknown", None).status, 404);
    assert_eq!(status("/permission/per_unknown/reply", "msg_1"), 400);
    let reply = server.post("/permission/per_unknown/reply", &json!({"reply": "once"}));
    assert_eq!(reply.status, 404);
    assert!(home.model.requests().is_empty());
}

#[test]
fn opencode_serve_asks_before_it_runs_a_command() {
    let home = server_home(Permission::Ask);
    let server = Server::start(&home);
    let mut events = server.events();
    let session = server.new_session();
    server.prompt(&session, "msg_1", "TOOL bash {\"command\": \"echo $((6 * 7))\", \"description\": \"m\"}");
    let asked = events.until("permission.asked").pop().unwrap()["properties"].take();
    assert_eq!((&asked["sessionID"], &asked["permission"]), (&json!(session), &json!("bash")));
    assert_eq!(server.get("/permission")[0]["id"], asked["id"]);
    let path = format!("/permission/{}/reply", asked["id"].as_str().unwrap());
    assert_eq!(server.post(&path, &json!({"reply": "once"})).json(), true);
    events.until("session.idle");
    let (answer, text) = server.last(&session);
    assert_eq!((answer["parentID"].as_str(), text.trim()), (Some("msg_1"), "the tool said: 42"));
}
