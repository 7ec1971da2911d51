//! Tests of the model server alone, with a client that is not an agent.

use serde_json::{Value, json};

use super::*;
use crate::http::{Answer, Events, Http};

fn chat(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": text}]})
}

fn ask(server: &ModelServer, text: &str) -> Answer {
    Http::new(&server.url()).send("POST", "/v1/chat/completions", Some(&chat(text)))
}

fn content_of(answer: &Answer) -> String {
    answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// Requests a stream and returns its events.
fn stream(server: &ModelServer, path: &str, mut body: Value) -> Events {
    body["stream"] = true.into();
    let http = Http::new(&server.url()).header("session-id", "a session");
    http.events(path, Some(&body))
}

#[test]
fn model_server_follows_its_instructions() {
    let server = ModelServer::start();
    assert_eq!(content_of(&ask(&server, "hello")), "answer to: hello");
    assert_eq!(content_of(&ask(&server, "please\nSAY two words")), "two words");
    let error = ask(&server, "ERROR 401");
    assert_eq!(error.status, 401);
    assert_eq!(error.json()["error"]["message"], "the model answers with 401");
    assert_eq!(ask(&server, "CUT short").json()["choices"][0]["finish_reason"], "length");
    assert_eq!(Http::new(&server.url()).send("GET", "/v1/models", None).status, 404);
    assert_eq!(server.requests().len(), 4);
    assert!(server.requests().iter().all(|request| request.progress == Progress::Answered));
    assert_eq!(server.wait_for_turn("two").user_texts(), ["please\nSAY two words"]);
}

#[test]
fn held_request_waits_only_for_its_gate() {
    let server = ModelServer::start();
    thread::scope(|scope| {
        let held = scope.spawn(|| content_of(&ask(&server, "HOLD a\nSAY late")));
        server.wait_for_turn("HOLD a");
        assert_eq!(content_of(&ask(&server, "SAY early")), "early");
        assert_eq!(server.turns()[0].progress, Progress::Working);
        server.release("a");
        assert_eq!(held.join().unwrap(), "late");
    });
    // An early release is not lost.
    server.release("b");
    assert_eq!(content_of(&ask(&server, "HOLD b")), "answer to: HOLD b");
}

#[test]
fn chunks_are_sent_one_per_release() {
    let server = ModelServer::start();
    let mut events = stream(&server, "/v1/chat/completions", chat("SLOW a 2"));
    let text = |event: &Value| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    assert_eq!(text(&events.next_event().unwrap()).as_deref(), Some(""));
    server.release("a");
    assert_eq!(text(&events.next_event().unwrap()).as_deref(), Some("chunk 1 "));
    assert_eq!(server.turns()[0].progress, Progress::Working);
    server.release("a");
    assert_eq!(text(&events.next_event().unwrap()).as_deref(), Some("chunk 2 "));
    assert_eq!(events.next_event().unwrap()["choices"][0]["finish_reason"], "stop");
    assert!(events.next_event().is_none());
}

#[test]
fn disconnected_client_is_noticed() {
    let server = ModelServer::start();
    drop(stream(&server, "/v1/chat/completions", chat("SLOW a 1")));
    server.wait_for_leaving("SLOW a");
    let http = Http::new(&server.url());
    let connection = http.start("POST", "/v1/chat/completions", Some(&chat("HOLD a"))).unwrap();
    server.wait_for_turn("HOLD a");
    drop(connection);
    server.wait_for_leaving("HOLD a");
}

#[test]
fn tool_is_called_once_and_its_result_repeated() {
    let server = ModelServer::start();
    let mut body = json!({"model": "m", "instructions": "s", "tools": [{"name": "run"}], "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<surroundings/>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "TOOL run {\"a\": 1}"}]},
    ]});
    let mut events = stream(&server, "/v1/responses", body.clone());
    let call = events.until("response.output_item.done").pop().unwrap()["item"].take();
    assert_eq!((&call["name"], &call["arguments"]), (&json!("run"), &json!("{\"a\": 1}")));
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "done"});
    let input = body["input"].as_array_mut().unwrap();
    input.extend([call, result]);
    let mut events = stream(&server, "/v1/responses", body);
    let delta = events.until("response.output_text.delta").pop().unwrap();
    assert_eq!(delta["delta"], "the tool said: done");
    events.until("response.completed");
    assert_eq!(server.history("a session"), ["TOOL run {\"a\": 1}"]);
    assert_eq!(server.turns()[0].tools, ["run"]);
}

#[test]
fn tools_are_called_in_sequence_with_the_id_from_the_first() {
    let server = ModelServer::start();
    let id = "3f2a9c1e-0000-4000-8000-000000000001";
    let orders = "TOOL space/start {}\nHOLD gate\nTOOL look {\"id\": \"$ID\"}";
    let space =
        json!({"type": "namespace", "name": "space", "tools": [{"type": "function", "name": "start"}]});
    let mut body = json!({"model": "m", "tools": [space, {"name": "look"}], "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": orders}]},
    ]});
    let answered = |body: &mut Value, call: Value, output: &str| {
        let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": output});
        body["input"].as_array_mut().unwrap().extend([call, result]);
    };
    let ask = |body: &Value| stream(&server, "/v1/responses", body.clone());
    let first = ask(&body).until("response.output_item.done").pop().unwrap()["item"].take();
    assert_eq!((&first["namespace"], &first["name"]), (&json!("space"), &json!("start")));
    answered(&mut body, first, &format!("{{\"task_id\":\"{id}\"}}"));
    server.release("gate");
    let second = ask(&body).until("response.output_item.done").pop().unwrap()["item"].take();
    assert_eq!((&second["namespace"], &second["name"]), (&Value::Null, &json!("look")));
    assert_eq!(second["arguments"], format!("{{\"id\": \"{id}\"}}"));
    answered(&mut body, second, "seen");
    let said = ask(&body).until("response.output_text.delta").pop().unwrap();
    assert_eq!(said["delta"], "the tool said: seen");
    assert_eq!(server.turns()[0].tools, ["space/start", "look"]);
}

#[test]
fn internal_agent_requests_are_no_turns() {
    let server = ModelServer::start();
    for (instructions, purpose) in [
        ("You are a title generator.", Purpose::Title),
        ("You are tasked with summarizing.", Purpose::Summary),
    ] {
        let mut body = chat("ERROR 500");
        body["messages"][0]["content"] = instructions.into();
        let answer = Http::new(&server.url()).send("POST", "/v1/chat/completions", Some(&body));
        assert_eq!(answer.status, 200);
        assert_eq!(server.requests().last().unwrap().purpose, purpose);
    }
    assert!(server.turns().is_empty());
}

#[test]
fn dropping_the_server_closes_every_connection() {
    let server = ModelServer::start();
    let mut events = stream(&server, "/v1/chat/completions", chat("SLOW a 1"));
    events.next_event().unwrap();
    let url = server.url();
    drop(server);
    assert!(Http::new(&url).open("GET", "/", None).is_err());
}
