//! Answers in Responses: the JSON of a whole answer, and the events of a streamed one.

use serde_json::{Value, json};

/// Formats the start of a streamed text.
pub(super) fn begin() -> String {
    let item = json!({"type": "message", "id": "message", "role": "assistant", "content": []});
    created() + &event("response.output_item.added", json!({"output_index": 0, "item": item}))
}

pub(super) fn delta(text: &str) -> String {
    let delta = json!({"item_id": "message", "output_index": 0, "content_index": 0, "delta": text});
    event("response.output_text.delta", delta)
}

/// Formats the end of a streamed text, which repeats the text as a whole.
pub(super) fn end(text: &str, cut: bool) -> String {
    let item = message(text);
    let response = response(&item, cut);
    let kind = if cut { "response.incomplete" } else { "response.completed" };
    event("response.output_item.done", json!({"output_index": 0, "item": item}))
        + &event(kind, json!({"response": response}))
}

/// Formats a streamed answer that calls a tool and has no text. A tool in a namespace is `namespace/name`.
pub(super) fn call(id: &str, name: &str, arguments: &str) -> String {
    let (namespace, name) = name.split_once('/').map_or((None, name), |(space, name)| (Some(space), name));
    let mut item =
        json!({"type": "function_call", "id": id, "call_id": id, "name": name, "arguments": arguments});
    if let Some(namespace) = namespace {
        item["namespace"] = namespace.into();
    }
    let response = response(&item, false);
    created()
        + &event("response.output_item.done", json!({"output_index": 0, "item": item}))
        + &event("response.completed", json!({"response": response}))
}

/// Formats an answer that is not streamed.
pub(super) fn whole(text: &str, cut: bool) -> Value {
    response(&message(text), cut)
}

fn created() -> String {
    let response = json!({"id": "response", "object": "response", "status": "in_progress", "output": []});
    event("response.created", json!({"response": response}))
}

fn message(text: &str) -> Value {
    let content = json!({"type": "output_text", "text": text, "annotations": []});
    json!({"type": "message", "id": "message", "role": "assistant", "content": [content]})
}

fn response(item: &Value, cut: bool) -> Value {
    let usage = json!({
        "input_tokens": 7, "input_tokens_details": null,
        "output_tokens": 3, "output_tokens_details": null, "total_tokens": 10,
    });
    let mut response = json!({
        "id": "response", "object": "response", "status": "completed", "output": [item], "usage": usage,
    });
    if cut {
        response["status"] = "incomplete".into();
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    response
}

fn event(kind: &str, mut data: Value) -> String {
    data["type"] = kind.into();
    format!("event: {kind}\ndata: {data}\n\n")
}
