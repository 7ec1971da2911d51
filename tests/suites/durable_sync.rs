//! A durable daemon's disk accesses, as strace sees them (R125): none without `durable`, and with `"sync"` a flush
//! before each answer, which serves all requests that arrive together.

use std::fs;

use bgd_tests::{Raw, TestDaemon, wait};
use serde_json::json;

/// Returns the given system calls that a daemon with this configuration makes from its start to its end, one per line.
fn calls(config: &str, traced: &str, act: impl FnOnce(&TestDaemon)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    let strace = format!(
        "exec strace -D -f -q -y -s 4096 -e trace={traced} -o {} \"$0\" \"$@\" 3>&1 >/dev/null",
        log.display()
    );
    let mut daemon = TestDaemon::builder().config(config).prelude(strace).start();
    let pid = daemon.pid().to_string();
    act(&daemon);
    assert!(daemon.stop().success());
    wait::poll_until("everything is in the log", || {
        let calls = fs::read_to_string(&log).unwrap();
        // Short pids are padded.
        let is_end = |line: &str| {
            line.split_once(' ').is_some_and(|(of, what)| of == pid && what.trim() == "+++ exited with 0 +++")
        };
        calls.lines().any(is_end).then_some(calls)
    })
}

/// Returns the system calls that write or create files while a daemon starts, runs a task, forgets it and ends.
fn file_calls(config: &str) -> String {
    calls(config, "openat,mkdir,mkdirat,fsync,fdatasync,pwrite64,ftruncate", |daemon| {
        let id = daemon.submit(&["true"]);
        daemon.block(&[id]);
        daemon.run(&["clear", &id.to_string()]).success();
    })
}

#[test]
fn r125_non_durable_daemon_makes_no_journal_system_calls() {
    let is_of_journal = |call: &&str| {
        let is_write = call.contains("pwrite64(") && !call.contains("phase");
        is_write || ["/journal", "fsync(", "fdatasync("].iter().any(|part| call.contains(part))
    };
    let plain = file_calls("");
    assert!(plain.contains("phase"), "what its locks say of it is seen: {plain}");
    assert_eq!(plain.lines().filter(is_of_journal).collect::<Vec<_>>(), [""; 0]);
    let durable = file_calls("durable = \"sync\"");
    for part in ["/journal", "pwrite64(", "sync("] {
        assert!(durable.lines().filter(is_of_journal).any(|call| call.contains(part)), "{part}: {durable}");
    }
}

/// Reports whether a line is about a completed flush of the journal.
fn is_flushed(line: &str) -> bool {
    line.contains("sync") && line.trim_end().ends_with("= 0")
}

#[test]
fn r125_sync_mode_replies_only_after_record_is_flushed() {
    const SUBMITS: u64 = 20;
    let log = calls("durable = \"sync\"", "fsync,fdatasync,pwrite64,write,writev,sendto,sendmsg", |daemon| {
        let mut raw = Raw::connect(daemon.socket());
        for id in 1000..1000 + SUBMITS {
            let params = json!({"shell": format!("echo {id}"), "env": {}, "cwd": "/", "hold": true});
            let answer = raw.call(id, "task.submit", &params);
            assert!(answer["result"]["task"]["id"].is_string(), "{answer}");
        }
    });
    let mut before = 0;
    let lines: Vec<&str> = log.lines().collect();
    for id in 1000..1000 + SUBMITS {
        let is_answer = |line: &&str| {
            let says = |text: String| line.contains(&text);
            line.contains("task") && (says(format!("\\\"id\\\":{id},")) || says(format!("\\\"id\\\":{id}}}")))
        };
        let sent = lines.iter().position(is_answer).unwrap_or_else(|| panic!("no answer {id}: {log}"));
        let part = &lines[before..sent];
        let written =
            part.iter().rposition(|line| line.contains("pwrite64(") && line.contains("journal.db-wal"));
        let flushed = part.iter().rposition(|line| is_flushed(line));
        assert!(written.is_some() && written < flushed, "{id}: {}", part.join("\n"));
        before = sent + 1;
    }
}

#[test]
fn r125_sync_mode_flushes_concurrent_submits_together() {
    const CLIENTS: u64 = 4;
    const EACH: u64 = 100;
    let log = calls("durable = \"sync\"", "fsync,fdatasync", |daemon| {
        let mut all: Vec<Raw> = (0..CLIENTS).map(|_| Raw::connect(daemon.socket())).collect();
        for id in 0..EACH {
            let params = json!({"shell": "true", "env": {}, "cwd": "/", "hold": true});
            for raw in &mut all {
                raw.request(id, "task.submit", &params);
            }
        }
        for raw in &mut all {
            for id in 0..EACH {
                let answer = raw.receive().expect("an answer");
                assert!(answer["id"] == id && answer["result"]["task"]["id"].is_string(), "{answer}");
            }
        }
    });
    let flushes = log.lines().filter(|line| is_flushed(line)).count() as u64;
    assert!(flushes > 0 && flushes < CLIENTS * EACH / 2, "{flushes} flushes");
    println!("{flushes} flushes for {} submits", CLIENTS * EACH);
}
