//! Calls of clients: any method, with params that are mostly right.

use bgd_shared::id::TaskId;
use serde_json::{Value, json};

use super::chance::Chance;
use super::model::Model;

/// How long a response may take that only waits for a slow disk, in milliseconds.
pub const SOON: u64 = 30_000;

/// A call.
pub struct ClientCall {
    pub method: &'static str,
    pub params: Value,
    /// Within how many milliseconds the response must arrive.
    pub within: u64,
}

impl ClientCall {
    fn new(method: &'static str, params: Value, within: u64) -> Self {
        Self { method, params, within }
    }
}

/// Draws a call. A client that reads slowly makes no calls whose response time is checked precisely.
pub fn act(chance: &mut Chance, model: &Model, is_slow: bool) -> ClientCall {
    let task = some(chance, model);
    // Lists stay on one page.
    let has_room = model.tasks.len() < 800;
    match chance.below(100) {
        0..30 if has_room => submit(chance, model),
        30..33 if has_room => batch(chance),
        33..45 if !is_slow => block(chance, model),
        45..53 => {
            let grace = chance.below(8_000);
            ClientCall::new("task.cancel", json!({ "ids": [task], "grace_ms": grace }), grace + SOON)
        }
        53..58 => ClientCall::new(hold(chance), json!({ "ids": [task] }), SOON),
        58..61 => {
            let signal = chance.of(&["USR1", "TERM", "KILL", "HUP"]).copied();
            ClientCall::new("task.signal", json!({ "id": task, "signal": signal }), SOON)
        }
        61..64 => edit(chance, model),
        64..67 => group(chance),
        67..70 => inbox(chance),
        70..72 => ClientCall::new("task.clear", json!({ "ids": [task] }), SOON),
        72 => ClientCall::new("task.clear", json!({ "all": true }), SOON),
        73..75 => ClientCall::new(
            "task.rerun",
            json!({ "ids": [task], "with_dependents": chance.percent(50) }),
            SOON,
        ),
        75..83 => ClientCall::new(look(chance), json!({ "id": task }), SOON),
        83 => ClientCall::new("session.end", json!({ "session": session(chance) }), SOON),
        84..86 if is_slow => ClientCall::new("events.subscribe", json!({ "since": chance.below(50) }), SOON),
        86 => ClientCall::new("hello", json!({ "session": session(chance) }), SOON),
        87 => ClientCall::new("group.list", json!({}), SOON),
        _ if has_room => ClientCall::new("task.list", json!({ "limit": 1000 }), SOON),
        _ => ClientCall::new(
            "task.clear",
            json!({ "matching": { "status": ["completed", "failed", "cancelled"] } }),
            SOON,
        ),
    }
}

fn some(chance: &mut Chance, model: &Model) -> TaskId {
    let ids: Vec<TaskId> = model.tasks.keys().copied().collect();
    // Now and then, an id that never existed.
    if chance.percent(3) {
        TaskId::from_u128(1)
    } else {
        chance.of(&ids).copied().unwrap_or(TaskId::from_u128(2))
    }
}

fn session(chance: &mut Chance) -> String {
    format!("session-{}", chance.below(4))
}

fn hold(chance: &mut Chance) -> &'static str {
    chance.of(&["task.hold", "task.release", "task.pause", "task.continue", "task.continue"]).unwrap()
}

fn look(chance: &mut Chance) -> &'static str {
    chance.of(&["task.get", "task.output", "task.result"]).unwrap()
}

fn after(chance: &mut Chance, model: &Model) -> Value {
    let condition = chance.of(&["ok", "any", "fail", "start"]).copied();
    json!([{ "id": some(chance, model), "condition": condition }])
}

fn submit(chance: &mut Chance, model: &Model) -> ClientCall {
    let mut params = json!({ "argv": ["work"], "cwd": "/", "env": {} });
    if chance.percent(60) {
        params["session"] = session(chance).into();
    }
    if chance.percent(10) {
        params["key"] = format!("key-{}", chance.below(20)).into();
    }
    if chance.percent(25) {
        params["after"] = after(chance, model);
    }
    if chance.percent(15) {
        params["delay_ms"] = chance.span().into();
    }
    match chance.below(20) {
        0..3 => params["retry"] = json!({ "times": 1 + chance.below(3), "delay_ms": 1 + chance.span() }),
        3 => params["hold"] = true.into(),
        4 => params["group"] = "side".into(),
        5..8 => params["time_limit_ms"] = (1 + chance.span()).into(),
        8 => params["priority"] = chance.below(100).into(),
        _ => {}
    }
    ClientCall::new("task.submit", params, SOON)
}

fn batch(chance: &mut Chance) -> ClientCall {
    let argvs: Vec<Value> = (0..=chance.below(6)).map(|number| json!(["work", number.to_string()])).collect();
    let task = json!({ "cwd": "/", "env": {}, "session": session(chance) });
    let mut params = json!({ "task": task, "argvs": argvs });
    if chance.percent(50) {
        params["jobs"] = (1 + chance.below(2)).into();
    }
    if chance.percent(30) {
        params["max_fails"] = 1.into();
    }
    ClientCall::new("task.submit_many", params, SOON)
}

fn block(chance: &mut Chance, model: &Model) -> ClientCall {
    let mut ids: Vec<TaskId> = (0..=chance.below(3)).map(|_| some(chance, model)).collect();
    ids.sort();
    ids.dedup();
    let timeout = chance.below(60_000);
    let mode = if chance.percent(50) { "all" } else { "any" };
    // Precise to the millisecond, except for the one in which it is checked.
    ClientCall::new("task.block", json!({ "ids": ids, "mode": mode, "timeout_ms": timeout }), timeout + 2)
}

fn edit(chance: &mut Chance, model: &Model) -> ClientCall {
    let mut params = json!({ "id": some(chance, model) });
    match chance.below(4) {
        0 => params["after"] = after(chance, model),
        1 => params["delay_ms"] = chance.span().into(),
        2 => params["priority"] = chance.below(50).into(),
        _ => params["group"] = "side".into(),
    }
    ClientCall::new("task.edit", params, SOON)
}

fn group(chance: &mut Chance) -> ClientCall {
    match chance.below(5) {
        0 => ClientCall::new("group.pause", json!({ "name": "default" }), SOON),
        1 | 2 => ClientCall::new("group.continue", json!({ "name": "default" }), SOON),
        3 => ClientCall::new("group.remove", json!({ "name": "side" }), SOON),
        _ => ClientCall::new("group.set", json!({ "name": "side", "slots": 1 + chance.below(3) }), SOON),
    }
}

fn inbox(chance: &mut Chance) -> ClientCall {
    let session = session(chance);
    if chance.percent(40) {
        return ClientCall::new("inbox.ack", json!({ "session": session, "upto": chance.below(200) }), SOON);
    }
    let wait = chance.below(60_000);
    ClientCall::new(
        "inbox.read",
        json!({ "session": session, "after": chance.below(20), "wait_ms": wait }),
        wait + SOON,
    )
}
