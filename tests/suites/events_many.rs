//! R26, R55: twenty thousand completions, fifty subscribers. Some never read, some disconnect and return; all others
//! receive everything once, in order, and the daemon's memory stays bounded.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use bgd_tests::wait::PATIENCE;
use bgd_tests::{Raw, TestDaemon, shared::request::SubmitParams};
use serde_json::{Value, json};

const TASKS: u64 = 20_000;

/// Each task is submitted, starts and ends.
const EVENTS: u64 = 3 * TASKS;

/// Subscribers that read all the time, never, or with interruptions.
const READERS: usize = 35;
const STALLED: usize = 5;
const RETURNING: usize = 10;

/// The number of tasks in flight at once.
const BATCH: u64 = 200;

/// How far the slowest reader may lag behind the newest event: well within the history, so that only subscribers that
/// do not read miss events.
const LEAD: u64 = 6_000;

/// The size of the history: about 18,000 events, a third of all.
const HISTORY_BYTES: u64 = 13 << 20;

/// The daemon's base memory, and the backlogs of fifty subscribers.
const BASE_BYTES: u64 = 32 << 20;

/// The maximum resident memory of the daemon: its base, the history, and the tasks themselves.
const MEMORY_BYTES: u64 = BASE_BYTES + 2 * HISTORY_BYTES + TASKS * 1500;

/// The progress of every reader. A failed reader counts as finished, so that nobody waits for it.
struct Progress {
    seen: Vec<AtomicU64>,
    moved: Condvar,
    lock: Mutex<()>,
}

impl Progress {
    fn saw(&self, reader: usize, seq: u64) {
        self.seen[reader].store(seq, Ordering::Relaxed);
        if seq.is_multiple_of(1000) {
            let _guard = self.lock.lock().unwrap();
            self.moved.notify_all();
        }
    }

    /// Waits until every reader has seen this event.
    fn wait_for(&self, seq: u64) {
        let guard = self.lock.lock().unwrap();
        let is_missing = |(): &mut ()| self.seen.iter().any(|seen| seen.load(Ordering::Relaxed) < seq);
        let (_guard, waited) = self.moved.wait_timeout_while(guard, PATIENCE, is_missing).unwrap();
        assert!(!waited.timed_out(), "not every reader has seen event {seq}");
    }
}

fn subscribe(socket: &Path, since: u64) -> Raw {
    let mut raw = Raw::connect(socket);
    let answer = raw.call(1, "events.subscribe", &json!({ "since": since }));
    assert!(answer["result"]["subscription"].is_u64(), "{answer}");
    raw
}

/// A line of a subscription: the number of its event, or a whole gap. Events are not parsed, as there are three
/// million.
enum Line {
    Event(u64),
    Gap(Value),
}

fn next(raw: &mut Raw, line: &mut Vec<u8>) -> Line {
    line.clear();
    raw.read_line(line).expect("the daemon goes on telling");
    // The number of the subscription, the number of the event, and then the event.
    let head = br#"{"jsonrpc":"2.0","method":"event","params":{"subscription":"#;
    let rest = line.strip_prefix(head).and_then(|rest| {
        let comma = rest.iter().position(|byte| *byte == b',')?;
        rest[comma..].strip_prefix(br#","seq":"#)
    });
    let Some(rest) = rest else {
        let value: Value = serde_json::from_slice(line).expect("JSON");
        assert_eq!(value["params"]["kind"], "gap", "{value}");
        return Line::Gap(value["params"].clone());
    };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    Line::Event(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// Marks a reader as finished, even if it panics.
struct Done<'a>(&'a Progress, usize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.seen[self.1].store(u64::MAX, Ordering::Relaxed);
        let _guard = self.0.lock.lock().unwrap();
        self.0.moved.notify_all();
    }
}

/// Reads everything; `leaves` decides after which events it disconnects and returns.
fn read_all(socket: &Path, progress: &Progress, reader: usize, leaves: impl Fn(u64) -> bool) -> u64 {
    let _done = Done(progress, reader);
    let (mut seen, mut returned) = (0, 0);
    let mut line = Vec::new();
    while seen < EVENTS {
        let mut raw = subscribe(socket, seen);
        loop {
            match next(&mut raw, &mut line) {
                Line::Event(seq) => {
                    assert_eq!(seq, seen + 1, "reader {reader}: each once, in order");
                    seen = seq;
                    progress.saw(reader, seq);
                }
                Line::Gap(gap) => panic!("reader {reader} lost something behind {seen}: {gap}"),
            }
            if seen == EVENTS {
                break;
            }
            if leaves(seen) {
                returned += 1;
                break;
            }
        }
    }
    returned
}

/// A subscriber that has never read now reads what is left for it: the first events, and the notification that the
/// others are gone. A new subscription gets the events that are still in the history.
fn read_late(mut raw: Raw, socket: &Path) {
    let mut line = Vec::new();
    let mut seen = 0;
    let gap = loop {
        match next(&mut raw, &mut line) {
            Line::Event(seq) => {
                assert_eq!(seq, seen + 1, "what came before the gap is whole");
                seen = seq;
            }
            Line::Gap(gap) => break gap,
        }
    };
    assert_eq!((&gap["from"], &gap["ended"]), (&json!(seen + 1), &json!(true)), "{gap}");
    let mut raw = subscribe(socket, seen);
    let Line::Gap(gap) = next(&mut raw, &mut line) else { panic!("the history has moved on") };
    assert_eq!((&gap["from"], &gap["ended"]), (&json!(seen + 1), &json!(false)), "{gap}");
    let mut seen = gap["to"].as_u64().expect("a number");
    while seen < EVENTS {
        let Line::Event(seq) = next(&mut raw, &mut line) else { panic!("another gap") };
        assert_eq!(seq, seen + 1);
        seen = seq;
    }
}

/// Picks about one in 600 numbers, different ones for each reader, without a pattern.
fn is_chosen(seq: u64, reader: usize) -> bool {
    let mixed = (seq << 8 | reader as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32).is_multiple_of(600)
}

/// Submits batch after batch, each when the previous one has ended, and never far ahead of the slowest reader.
fn submit_all(socket: &Path, params: &SubmitParams, progress: &Progress) {
    let mut raw = Raw::connect(socket);
    let params = serde_json::to_value(params).expect("JSON");
    for batch in 0..TASKS / BATCH {
        progress.wait_for((batch * BATCH * 3).saturating_sub(LEAD));
        for call in 0..BATCH {
            raw.request(call, "task.submit", &params);
        }
        let ids: Vec<Value> =
            (0..BATCH).map(|_| raw.receive().expect("an answer")["result"]["task"]["id"].clone()).collect();
        let blocked = raw.call(BATCH, "task.block", &json!({ "ids": ids, "timeout_ms": null }));
        let tasks = blocked["result"]["tasks"].as_array().expect("tasks");
        assert!(tasks.iter().all(|task| task["status"] == "completed"), "{blocked}");
    }
}

#[test]
fn r26_every_active_reader_receives_twenty_thousand_completions() {
    let config = format!("[limits]\nevent_history_bytes = {HISTORY_BYTES}\n");
    let daemon = TestDaemon::builder().config(config).start();
    let socket: PathBuf = daemon.socket().into();
    let seen = (0..READERS + RETURNING).map(|_| AtomicU64::new(0)).collect();
    let progress = Arc::new(Progress { seen, moved: Condvar::new(), lock: Mutex::new(()) });
    let stalled: Vec<Raw> = (0..STALLED).map(|_| subscribe(&socket, 0)).collect();
    let params = SubmitParams { argv: Some(vec!["true".into()]), ..daemon.params() };
    let returned = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS + RETURNING)
            .map(|reader| {
                let (socket, progress) = (&socket, &progress);
                let comes_back = reader >= READERS;
                scope.spawn(move || {
                    read_all(socket, progress, reader, |seq| comes_back && is_chosen(seq, reader))
                })
            })
            .collect();
        submit_all(&socket, &params, &progress);
        readers.into_iter().map(|reader| reader.join().expect("a reader")).collect::<Vec<u64>>()
    });
    assert!(returned[..READERS].iter().all(|times| *times == 0));
    assert!(returned[READERS..].iter().all(|times| *times > 20), "they came back often: {returned:?}");
    let status = daemon.status();
    assert_eq!((status.seq, status.summary.completed), (EVENTS, TASKS));
    assert!(status.memory_bytes < MEMORY_BYTES, "{} bytes", status.memory_bytes);
    for raw in stalled {
        read_late(raw, &socket);
    }
}
