//! This version reads what each release has left (R123): the state of an upgrade in place, and the journal.

use std::fs;
use std::path::{Path, PathBuf};

use bgd::carry::image::Image;
use bgd::carry::program::Found;
use bgd::core::{Core, sharing};
use bgd::dispatcher::state::State;
use bgd_tests::hooks::HookServer;
use bgd_tests::releases::{DELAYED, FOUND, JOURNAL, RESTLESS, STATE, folder, tried};
use bgd_tests::shared::request::ListParams;
use bgd_tests::shared::request::{ListResult, TaskList};
use bgd_tests::shared::task::Status;
use bgd_tests::{TestDaemon, bgd_path, executable, wait};
use serde_json::{Value, json};

fn releases() -> Vec<PathBuf> {
    let all: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(all.iter().any(|path| path.ends_with("0.1.0")), "{all:?}");
    all
}

/// Returns the resource limits in this text, as states of the first format have them.
fn first_limits(text: &str) -> Value {
    let number = |word: &str| if word == "-" { Value::Null } else { word.parse::<u64>().unwrap().into() };
    let limit = |text: &str| {
        let [name, soft, hard] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text:?}") };
        (name.to_owned(), json!({"soft": number(soft), "hard": number(hard)}))
    };
    Value::Object(text.split(',').map(limit).collect())
}

/// Fails if anything in `before` is missing from `after`, which may contain more.
#[track_caller]
fn has_all(path: &str, before: &Value, after: &Value) {
    match (before, after) {
        (Value::Object(_), Value::String(after)) if path.ends_with(".spec.rlimits") => {
            assert_eq!(*before, first_limits(after), "{path}");
        }
        // The size of what tasks hold, which grows with the types.
        (Value::Number(before), Value::Number(after)) if path.ends_with(".registry.held.bytes") => {
            assert!(before.as_u64() > Some(0) && after.as_u64() >= before.as_u64(), "{path}: {after}");
        }
        (Value::Object(before), Value::Object(after)) => {
            for (name, value) in before {
                has_all(&format!("{path}.{name}"), value, after.get(name).unwrap_or(&Value::Null));
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (number, (before, after)) in before.iter().zip(after).enumerate() {
                has_all(&format!("{path}[{number}]"), before, after);
            }
        }
        _ => assert_eq!(before, after, "{path}"),
    }
}

/// Returns the number of elements of a list or an object in a state.
#[track_caller]
fn count(state: &Value, pointer: &str) -> usize {
    match state.pointer(pointer) {
        Some(Value::Array(list)) => list.len(),
        Some(Value::Object(object)) => object.len(),
        other => panic!("{pointer}: {other:?}"),
    }
}

#[test]
fn r123_state_of_every_release_can_be_read() {
    for release in releases() {
        let said =
            tried(&bgd_path(), &release.join(STATE)).unwrap_or_else(|why| panic!("{release:?}: {why}"));
        let found: Found = serde_json::from_slice(&said).unwrap();
        let own: Found = serde_json::from_slice(&fs::read(release.join(FOUND)).unwrap()).unwrap();
        assert_eq!(found, own, "{release:?}");
    }
}

/// Everything that a release has written means the same when this version writes it again.
#[test]
fn r123_state_of_every_release_is_rewritten_without_loss() {
    for release in releases() {
        let image = Image::read(&mut fs::File::open(release.join(STATE)).unwrap()).unwrap();
        let before: Value = image.decode().unwrap();
        let state: State = image.decode().unwrap();
        let after = serde_json::to_value(&state).unwrap();
        has_all("", &before, &after);
        let text = before["dispatcher"]["core"].to_string();
        let core: Core = sharing::read_once(|| serde_json::from_str(&text)).unwrap();
        let core = sharing::written_once(|| serde_json::to_value(&core)).unwrap();
        has_all(".core", &before["dispatcher"]["core"], &core);
        // Every owner has something.
        for (pointer, at_least) in [
            ("/connections/all", 4),
            ("/dispatcher/subscribers/all", 2),
            ("/dispatcher/inherited", 1),
            // Two waits, with outstanding answers.
            ("/dispatcher/core/waiters/by_id", 1),
            ("/dispatcher/core/inboxes/waits", 1),
            ("/dispatcher/pending", 2),
            ("/dispatcher/executors/local/Local/processes", 2),
            ("/dispatcher/executors/local/Local/helpers", 3),
            ("/dispatcher/executors/local/Local/drains", 2),
            ("/dispatcher/executors/local/Local/starts", 1),
            ("/dispatcher/executors/agent/Other/turns", 1),
            ("/dispatcher/notifier/undelivered", 3),
            ("/dispatcher/core/registry/tasks", 18),
            ("/dispatcher/core/inboxes/items", 3),
        ] {
            assert!(count(&before, pointer) >= at_least, "{release:?}: {pointer}");
        }
        let of = |list: &str, is_so: fn(&Value) -> bool| match before.pointer(list) {
            Some(Value::Array(all)) => all.iter().filter(|one| is_so(one)).count(),
            Some(Value::Object(all)) => all.values().filter(|one| is_so(one)).count(),
            _ => 0,
        };
        let tasks = "/dispatcher/core/registry/tasks";
        // One runs on another machine, and the machine of one can't be reached.
        assert_eq!(of(tasks, |task| !task["elsewhere"].is_null()), 2, "{release:?}");
        assert_eq!(of(tasks, |task| !task["elsewhere"]["unknown"].is_null()), 1, "{release:?}");
        let drains = "/dispatcher/executors/local/Local/drains";
        assert_eq!(of(drains, |drain| !drain["flows"][0]["via"].is_null()), 1, "{release:?}: from a socket");
        let is_cut = |connection: &Value| connection["read"].as_str().is_some_and(|read| !read.is_empty());
        assert!(of("/connections/all", is_cut) >= 1, "{release:?}: the beginning of a request");
    }
}

/// Starts a durable daemon with the journal of a release.
fn with_journal(release: &Path, server: &HookServer) -> TestDaemon {
    let channel = |name: &str| {
        let url = server.url(&format!("/{name}"));
        format!("[channels.{name}]\ntype = \"webhook\"\nurl = \"{url}\"\nstarted = false\n")
    };
    let mut daemon = TestDaemon::home_only();
    // The other machines can no longer be reached.
    let ssh = daemon.home().join("ssh");
    executable::write(&ssh, "#!/bin/sh\nexit 255\n");
    let machine = |name: &str| {
        format!("[executors.{name}]\ntype = \"ssh\"\nhost = \"{name}\"\nssh = \"{}\"\n", ssh.display())
    };
    let [ops, web, far, away] = [channel("ops"), channel("web"), machine("far"), machine("away")];
    // A release is older than the default retention.
    daemon.write_config(&format!("durable = true\n[history]\ndays = 36500\n{ops}{web}{far}{away}"));
    let journal = daemon.state_dir().join("journal");
    fs::create_dir_all(&journal).unwrap();
    fs::copy(release.join(JOURNAL), journal.join(JOURNAL)).unwrap();
    daemon.launch();
    daemon
}

#[test]
fn r123_journal_of_every_release_can_be_read() {
    for release in releases() {
        let server = HookServer::start();
        let daemon = with_journal(&release, &server);
        assert!(daemon.status().warnings.iter().all(|warning| !warning.contains("journal")));
        let mut list: ListResult = daemon.client().call::<TaskList>(&ListParams::default()).unwrap();
        list.tasks.retain(|task| !task.tags.iter().any(|tag| tag == DELAYED || tag == RESTLESS));
        let of = |status: Status| list.tasks.iter().filter(|task| task.status == status).count();
        // Of the tasks that had not started, one has lost a descriptor with its boot.
        assert_eq!((of(Status::Completed), of(Status::Pending)), (4, 5), "{list:#?}");
        // Running tasks ended with their boot, except on another machine.
        assert_eq!((of(Status::Running), list.tasks.len()), (1, 16), "{list:#?}");
        let elsewhere = list.tasks.iter().filter_map(|task| task.elsewhere.as_ref());
        assert_eq!(elsewhere.filter(|place| place.id.is_some()).count(), 1, "its id there is known");
        let agents: Vec<_> = list.tasks.iter().filter(|task| task.agent_session.is_some()).collect();
        assert_eq!(agents.len(), 2, "their conversations are known");
        assert!(daemon.inbox("chat:1").len() >= 3);
        let groups = daemon.run(&["group", "list", "--json"]).success();
        assert!(groups.stdout_text().contains("\"slow\""), "{}", groups.stdout_text());
        // The notices that were not delivered, and those of the tasks that were running.
        let received = |requests: &[bgd_tests::hooks::Request], path: &str| {
            requests.iter().filter(|request| request.path == path).count()
        };
        server.wait_for(|requests| {
            (received(requests, "/ops") >= 2 && received(requests, "/web") == 1).then_some(())
        });
        wait::poll_until("all are delivered", || {
            daemon.status().channels.iter().all(|channel| channel.queued == 0).then_some(())
        });
        daemon.run(&["cancel", "--all"]).success();
    }
}
