//! How tasks are named: by unique prefixes of their ids (never by a guess), and by idempotency keys.

use std::collections::HashMap;
use std::fs;

use bgd_shared::client::ClientError;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::request::{ClearParams, IdParams, SubmitParams, TaskClear, TaskGet, TaskSubmit};
use bgd_tests::TestDaemon;

#[track_caller]
fn refused(daemon: &TestDaemon, params: &IdParams) -> RpcError {
    match daemon.client().call::<TaskGet>(params) {
        Err(ClientError::Rpc(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}

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
    let error = refused(&daemon, &reference(&prefix));
    twins.sort_unstable();
    assert_eq!((error.kind(), &error.data.candidates), (ErrorKind::AmbiguousId, &twins));
    let (unique, id) = by_prefix.iter().find(|(known, _)| **known != prefix).unwrap();
    for text in [unique.clone(), unique.to_uppercase(), id.to_string()] {
        assert_eq!(client.call::<TaskGet>(&reference(&text)).unwrap().task.id, *id);
    }
    let absent = (0..=0xffff)
        .map(|n| format!("{n:04x}"))
        .find(|text| !by_prefix.contains_key(text) && !first.to_string().starts_with(text));
    let error = refused(&daemon, &reference(&absent.unwrap()));
    assert_eq!(error.kind(), ErrorKind::TaskNotFound);
    let told = daemon.run(&["status", &prefix]).expect_code(66);
    assert!(twins.iter().all(|twin| told.stderr.contains(&twin.to_string())), "{}", told.stderr);
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
