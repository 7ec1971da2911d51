//! Answers in Chat Completions: the JSON of a whole answer, and the events of a streamed one.

use serde_json::{Value, json};

/// Formats the start of a streamed answer.
pub(super) fn begin(model: &str) -> String {
    chunk(model, &json!({"role": "assistant", "content": ""}), None)
}

pub(super) fn delta(model: &str, text: &str) -> String {
    chunk(model, &json!({"content": text}), None)
}

pub(super) fn end(model: &str, cut: bool) -> String {
    finish(model, if cut { "length" } else { "stop" })
}

/// Formats a streamed answer that calls a tool and has no text.
pub(super) fn call(model: &str, id: &str, name: &str, arguments: &str) -> String {
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"index": 0, "id": id, "type": "function", "function": function});
    begin(model) + &chunk(model, &json!({"tool_calls": [call]}), None) + &finish(model, "tool_calls")
}

/// Formats an answer that is not streamed.
pub(super) fn whole(model: &str, text: &str, cut: bool) -> Value {
    let message = json!({"role": "assistant", "content": text});
    let reason = if cut { "length" } else { "stop" };
    let choice = json!({"index": 0, "message": message, "finish_reason": reason});
    json!({
        "id": "chat", "object": "chat.completion", "created": 1, "model": model,
        "choices": [choice], "usage": usage(),
    })
}

fn finish(model: &str, reason: &str) -> String {
    chunk(model, &json!({}), Some(reason)) + "data: [DONE]\n\n"
}

fn chunk(model: &str, delta: &Value, reason: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
    let mut chunk = json!({
        "id": "chat", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice],
    });
    if reason.is_some() {
        chunk["usage"] = usage();
    }
    format!("data: {chunk}\n\n")
}

fn usage() -> Value {
    json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})
}
