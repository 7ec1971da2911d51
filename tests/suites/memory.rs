//! How much memory the daemon uses with many tasks and with large ones, and how much of it remains afterwards.

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::LABEL_BYTES;
use bgd_shared::request::{
    BlockMode, BlockParams, ClearParams, DaemonStatusOf, NoParams, SubmitParams, TaskBlock, TaskClear,
    TaskSubmit,
};
use bgd_shared::text::Env;
use bgd_tests::{TestDaemon, wait};

const MIB: u64 = 1 << 20;

/// Ordinary tasks, each with a different command: more than enough to fill their history.
const TASKS: u64 = 4000;

/// Submits this many tasks that end at once, a few hundred at a time, and waits for their ends.
fn run_many(daemon: &TestDaemon, count: u64) {
    let mut client = daemon.client();
    let mut left = count;
    while left > 0 {
        let now = left.min(400);
        let ids: Vec<TaskRef> = (0..now)
            .map(|number| {
                let argv = vec!["/bin/true".into(), format!("{}", left - number).into()];
                let params = SubmitParams { argv: Some(argv), ..daemon.params() };
                client.call::<TaskSubmit>(&params).unwrap().task.id.into()
            })
            .collect();
        let params =
            BlockParams { ids, timeout_ms: Some(60_000), mode: BlockMode::All, ..BlockParams::default() };
        assert!(!client.call::<TaskBlock>(&params).unwrap().timed_out);
        left -= now;
    }
}

fn clear(daemon: &TestDaemon) -> u64 {
    daemon.client().call::<TaskClear>(&ClearParams::default()).unwrap().cleared
}

/// Returns the memory that the daemon has allocated, in bytes. How much of its program the kernel keeps mapped, which
/// `memory_bytes` of its status includes, depends on the other activity of the machine.
fn own_memory(daemon: &TestDaemon) -> u64 {
    daemon.process().status_value("RssAnon").unwrap() * 1024
}

/// Waits until the daemon uses no more than this. Each query is a round trip through the daemon, so this does not spin.
#[track_caller]
fn comes_down_to(daemon: &TestDaemon, bytes: u64) {
    let mut client = daemon.client();
    let end = std::time::Instant::now() + wait::PATIENCE;
    loop {
        client.call::<DaemonStatusOf>(&NoParams {}).unwrap();
        let now = own_memory(daemon);
        if now <= bytes {
            return;
        }
        assert!(std::time::Instant::now() < end, "{now} bytes are kept, which is more than {bytes}");
    }
}

#[test]
fn memory_of_cleared_tasks_is_returned() {
    let daemon = TestDaemon::builder().config("[limits]\nevent_history_bytes = 2097152").start();
    run_many(&daemon, 50);
    let idle = own_memory(&daemon);
    run_many(&daemon, TASKS);
    let full = daemon.status();
    let history = full.limits.event_history_bytes;
    assert_eq!(clear(&daemon), TASKS + 50);
    comes_down_to(&daemon, idle + history + 2 * MIB);
    assert_eq!(daemon.status().held_bytes, 0);
}

#[test]
fn finished_task_costs_about_a_kilobyte_beyond_the_history() {
    let daemon = TestDaemon::builder().config("[limits]\nevent_history_bytes = 4096").start();
    run_many(&daemon, 50);
    let idle = own_memory(&daemon);
    run_many(&daemon, TASKS);
    // The memory needed for the burst itself is soon returned.
    comes_down_to(&daemon, idle + TASKS * 1024);
    let held = daemon.status().held_bytes;
    assert!((TASKS * 700..=TASKS * 1300).contains(&held), "{held} bytes are counted");
}

/// A submit with this many bytes in the given part.
fn large(daemon: &TestDaemon, part: usize, bytes: usize, number: u64) -> SubmitParams {
    let text = format!("{number:08}{}", "x".repeat(bytes - 8));
    let mut params = SubmitParams { argv: Some(vec!["/bin/true".into()]), ..daemon.params() };
    match part {
        0 => params.argv = Some(vec!["/bin/true".into(), text.into()]),
        1 => params.shell = Some(format!(": {text}").into()),
        2 => {
            params.tags =
                text.as_bytes().chunks(4000).map(|tag| String::from_utf8_lossy(tag).into()).collect();
        }
        _ => {
            let own = params.env.take().unwrap_or_default();
            let added = ("LARGE".into(), text.into());
            params.env = Some(own.0.iter().cloned().chain([added]).collect::<Env>());
        }
    }
    if part == 1 {
        params.argv = None;
    }
    params
}

#[test]
fn submit_is_refused_when_tasks_reach_the_memory_limit() {
    const LIMIT: u64 = 16 * MIB;
    const BYTES: usize = 200_000;
    let config = "max_concurrent_tasks = 1\n[limits]\nmemory = \"16MiB\"";
    let daemon = TestDaemon::builder().config(config).start();
    // Later submits only queue.
    let first = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(first);
    let idle = daemon.status().memory_bytes;
    for part in 0..4 {
        let mut client = daemon.client();
        let mut number = 0;
        let refused = loop {
            match client.call::<TaskSubmit>(&large(&daemon, part, BYTES, number)) {
                Ok(_) => number += 1,
                Err(refused) => break refused,
            }
            assert!(number * (BYTES as u64) < 2 * LIMIT, "there is no limit");
        };
        assert!(number > 70, "part {part}: {number} tasks have filled it");
        assert_eq!(refused.kind(), Some(ErrorKind::RegistryFull), "{refused}");
        let word = refused.to_string();
        assert!(word.contains("limits.memory") && word.contains("16.0 MiB"), "{word}");
        let status = daemon.status();
        assert_eq!(status.limits.memory, LIMIT);
        assert!(
            status.held_bytes <= LIMIT && status.held_bytes > LIMIT - LIMIT / 20,
            "{}",
            status.held_bytes
        );
        // On top come two connections, their lines, and the tasks' events in the history.
        let history = status.limits.event_history_bytes;
        assert!(status.memory_bytes < idle + 2 * LIMIT + history, "{}", status.memory_bytes);
        // Clearing tasks makes room.
        let clear = ClearParams { all: true, ..ClearParams::default() };
        assert!(client.call::<TaskClear>(&clear).unwrap().cleared >= number);
        assert_eq!(daemon.status().held_bytes, 0);
        let next = daemon.submit(&["sleep", "1000"]);
        daemon.wait_running(next);
    }
    daemon.run(&["clear", "--all", "--all-sessions"]).success();
}

/// The hint that names the way to empty inboxes.
const READ: &str = "`bgctl inbox --all-sessions --ack` prints and removes the notifications";

#[track_caller]
fn hint_of(refused: ClientError) -> String {
    let ClientError::Rpc(refused) = refused else { panic!("{refused}") };
    refused.data.hint.expect("a hint")
}

/// Notices contain the texts of their tasks: a session that reads nothing can't make the daemon exceed its limit.
#[test]
fn descriptions_and_unread_notices_count_towards_memory_limit() {
    const LIMIT: u64 = MIB;
    let daemon = TestDaemon::builder().config("[limits]\nmemory = \"1MiB\"").start();
    let mut client = daemon.client();
    let mut fill = || {
        let mut ids: Vec<TaskId> = Vec::new();
        loop {
            let description = Some(format!("{:04096}", ids.len()));
            let session = Some("s".into());
            let argv = Some(vec!["/bin/true".into()]);
            let params = SubmitParams { argv, description, session, ..daemon.params() };
            match client.call::<TaskSubmit>(&params) {
                Ok(submitted) => ids.push(submitted.task.id),
                Err(refused) => break (ids, refused),
            }
            daemon.block(&ids[ids.len() - 1..]);
            assert!((ids.len() as u64) < LIMIT / LABEL_BYTES as u64, "there is no limit");
        }
    };
    let (first, refused) = fill();
    assert_eq!(refused.kind(), Some(ErrorKind::RegistryFull), "{refused}");
    let hint = hint_of(refused);
    assert!(hint.starts_with("`bgctl clear --all-sessions` removes"), "{hint}");
    assert!(hint.contains(READ), "either makes room: {hint}");
    assert_eq!(clear(&daemon), first.len() as u64);
    let unread = (first.len() * LABEL_BYTES) as u64;
    let held = daemon.status().held_bytes;
    assert!((unread..LIMIT).contains(&held), "{held} bytes are counted, {unread} are descriptions");
    // The notices leave less room.
    let (second, refused) = fill();
    assert_eq!(refused.kind(), Some(ErrorKind::RegistryFull), "{refused}");
    assert!(second.len() < first.len() * 3 / 4, "{} and {}", first.len(), second.len());
    let hint = hint_of(refused);
    assert!(hint.starts_with(READ), "they use most of it: {hint}");
    assert_eq!(clear(&daemon), second.len() as u64);
    daemon.run(&["inbox", "--all-sessions", "--ack"]).success();
    assert_eq!(daemon.status().held_bytes, 0);
    assert_eq!(fill().0.len(), first.len());
}

#[test]
fn environment_shared_by_many_tasks_counts_once() {
    let config = "max_concurrent_tasks = 1\n[limits]\nmemory = \"2MiB\"";
    let daemon = TestDaemon::builder().config(config).start();
    daemon.wait_running(daemon.submit(&["sleep", "1000"]));
    let params = large(&daemon, 3, 500_000, 0);
    for _ in 0..200 {
        daemon.submit_with(&params);
    }
    let held = daemon.status().held_bytes;
    assert!((500_000..=800_000).contains(&held), "{held}");
    let clear = ClearParams { all: true, ..ClearParams::default() };
    daemon.client().call::<TaskClear>(&clear).unwrap();
    assert_eq!(daemon.status().held_bytes, 0);
}

#[test]
fn memory_limit_can_be_raised_by_reload() {
    let config = |mib: u64| format!("max_concurrent_tasks = 1\n[limits]\nmemory = \"{mib}MiB\"");
    let daemon = TestDaemon::builder().config(config(1)).start();
    let params = large(&daemon, 1, 600_000, 0);
    let first = daemon.submit_with(&params).id;
    // It cannot be started, but is kept.
    daemon.block(&[first]);
    let refused = daemon.client().call::<TaskSubmit>(&params).unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::RegistryFull), "{refused}");
    let said = daemon.run(&["submit", "--shell", &format!(": {}", "x".repeat(100_000))]).success();
    assert_eq!(said.stderr, "", "a smaller one fits yet");
    daemon.write_config(&config(4));
    daemon.run(&["daemon", "reload"]).success();
    daemon.submit_with(&params);
    assert!(daemon.run(&["daemon", "status"]).success().stdout_text().contains("of 4.0 MiB"));
}

/// Finished tasks stay until they are cleared, and nothing is dropped unasked: so a submit refused because of them gets
/// advice.
#[test]
fn r10_refusal_due_to_finished_tasks_names_the_command_that_makes_room() {
    let daemon = TestDaemon::builder().config("[limits]\nmemory = \"1MiB\"").start();
    let line = format!(": {}", "x".repeat(100_000));
    let refused = loop {
        let outcome = daemon.run(&["submit", "--shell", &line]);
        if outcome.code != 0 {
            break outcome.stderr;
        }
        daemon.block(&[outcome.word()]);
        assert!(daemon.status().held_bytes <= 1 << 20, "there is no limit");
    };
    assert!(refused.contains("(limits.memory)"), "{refused}");
    let (_, hint) = refused.split_once("`bgctl ").expect("a command");
    let (verb, _) = hint.split_once('`').expect("its end");
    daemon.run(&verb.split(' ').collect::<Vec<_>>()).success();
    daemon.run(&["submit", "--shell", &line]).success();
}
