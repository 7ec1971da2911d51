//! How tasks are named: by unique prefixes of their ids (never by a guess), and by idempotency keys.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::thread;

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{ClearParams, IdParams, SubmitParams, TaskClear, TaskGet, TaskSubmit};
use bgd_tests::TestDaemon;
use serde_json::{Value, json};

#[test]
fn unique_prefix_names_a_task_and_ambiguous_prefix_is_refused() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let first = daemon.submit(&["sleep", "1000"]);
    let mut by_prefix: HashMap<String, TaskId> = HashMap::new();
    let mut client = daemon.client();
    let params = SubmitParams { argv: Some(vec!["true".into()]), ..daemon.params() };
    // Nothing else runs while `first` has the slot. After a few hundred tasks, two share one of the 16^4
    // prefixes of four digits.
    let (prefix, mut twins) = loop {
        let id = client.call::<TaskSubmit>(&params).unwrap().task.id;
        let prefix = id.to_string()[..4].to_owned();
        if let Some(twin) = by_prefix.insert(prefix.clone(), id) {
            break (prefix, vec![twin, id]);
        }
    };
    let reference = |text: &str| IdParams { id: text.parse().unwrap() };
    let error = daemon.refusal::<TaskGet>(&reference(&prefix));
    twins.sort_unstable();
    assert_eq!((error.kind(), &error.data.candidates), (ErrorKind::AmbiguousId, &twins));
    let (unique, id) = by_prefix.iter().find(|(known, _)| **known != prefix).unwrap();
    for text in [unique.clone(), unique.to_uppercase(), id.to_string()] {
        assert_eq!(client.call::<TaskGet>(&reference(&text)).unwrap().task.id, *id);
    }
    let absent = (0..=0xffff)
        .map(|n| format!("{n:04x}"))
        .find(|text| !by_prefix.contains_key(text) && !first.to_string().starts_with(text));
    let error = daemon.refusal::<TaskGet>(&reference(&absent.unwrap()));
    assert_eq!(error.kind(), ErrorKind::TaskNotFound);
    let outcome = daemon.run(&["status", &prefix]).expect_code(66);
    assert!(twins.iter().all(|twin| outcome.stderr.contains(&twin.to_string())), "{}", outcome.stderr);
    assert!(daemon.run(&["status", &prefix[..3]]).expect_code(2).stdout.is_empty());
}

#[test]
fn same_key_in_same_parent_session_returns_same_task() {
    let daemon = TestDaemon::start();
    let submit = |session: Option<&str>, key: &str| {
        let params = SubmitParams {
            shell: Some("echo x >> ran".into()),
            session: session.map(Into::into),
            key: Some(key.into()),
            ..daemon.params()
        };
        daemon.submit_with(&params).id
    };
    let first = submit(None, "k");
    assert_eq!(submit(None, "k"), first);
    let others = [submit(Some("s"), "k"), submit(None, "l")];
    assert!(!others.contains(&first) && others[0] != others[1]);
    daemon.block(&[first, others[0], others[1]]);
    assert_eq!(submit(None, "k"), first, "also when it has ended");
    assert_eq!(fs::read_to_string(daemon.home().join("ran")).unwrap(), "x\n".repeat(3));
    daemon.client().call::<TaskClear>(&ClearParams::default()).unwrap();
    let again = submit(None, "k");
    assert_ne!(again, first, "a cleared task has given its key back");
    daemon.block(&[again]);
}

/// The only task of the daemon below, as `task.block` shows it.
const TASK: &str = r#"{"id":"724fede0-9209-4435-bc37-e308e63f1f21","kind":"process","origin":"submit","foreground":false,"status":"running","description":"true","argv":["true"],"cwd":"/","pid":21330,"run":1,"resume_count":0,"created_at":"2026-01-01T00:00:00.000Z","lingering":false,"progress":{"output_bytes":0,"tool_calls":0},"output":{"path":"/x","bytes":0,"dropped_bytes":0}}"#;

const HELLO: &str = r#"{"protocol":1,"version":"0","instance":"x","pid":1,"limits":{"frame_bytes":1048576,"connections":9,"requests":9,"write_queue_bytes":99999,"tasks":9,"output_bytes":9,"event_history_bytes":9,"max_concurrent_tasks":9}}"#;

#[test]
fn r142_command_that_waits_replaces_a_prefix_by_the_id_first() {
    for args in [["block", "724f"].as_slice(), &["events", "--task", "724f"]] {
        let home = TestDaemon::home_only();
        let listener = home.listener();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut named = Vec::new();
            for line in BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap) {
                let request: Value = serde_json::from_str(&line).unwrap();
                let method = request["method"].as_str().unwrap();
                if method != "hello" {
                    named.push(request["params"]["ids"].clone());
                }
                let result = match (method, named.len()) {
                    ("hello", _) => serde_json::from_str(HELLO).unwrap(),
                    ("task.block", 1) => {
                        let task: Value = serde_json::from_str(TASK).unwrap();
                        json!({"tasks": [task], "timed_out": true, "finished": [], "active": [task["id"]]})
                    }
                    _ => break,
                };
                writeln!(stream, "{}", json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
                    .unwrap();
            }
            named
        });
        home.run(&[&["--no-start"], args].concat()).expect_code(69);
        assert_eq!(
            server.join().unwrap(),
            [json!(["724f"]), json!(["724fede0-9209-4435-bc37-e308e63f1f21"])]
        );
        fs::remove_file(home.socket()).unwrap();
    }
}
